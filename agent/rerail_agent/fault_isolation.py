"""A fault in the agent costs the agent a part of itself, never the training: told once, and that part is off."""

import sys
import traceback
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def print_line(message: str) -> None:
    """A line for people, on stderr; the metric lines have stdout."""
    print(f"rerail: {message}", file=sys.stderr, flush=True)


class FaultIsolation:
    """The parts of the agent that may break without harm, and which of them have."""

    def __init__(self) -> None:
        self.broken: set[str] = set()

        self._told: set[tuple[str, type[Exception]]] = set()

    def run(self, part: str, work: Callable[[], T], otherwise: T) -> T:
        """What the work gives; `otherwise` when this part is broken or breaks now, and then it stays switched off."""
        if part in self.broken:
            return otherwise
        try:
            return work()
        except Exception as fault:
            self.broken.add(part)
            self._tell(part, fault, "is switched off")
            return otherwise

    def once(self, part: str, work: Callable[[], T], otherwise: T) -> T:
        """The same for what is done now and then: one call that fails is no reason not to try the next."""
        try:
            return work()
        except Exception as fault:
            self._tell(part, fault, "has failed")
            return otherwise

    def _tell(self, part: str, fault: Exception, outcome: str) -> None:
        """Once for each part and kind of fault."""
        kind = part, type(fault)
        if kind in self._told:
            return
        self._told.add(kind)
        try:
            text = "".join(traceback.format_exception(fault)).rstrip()
            print_line(f"fault in the agent: {part} {outcome}, training goes on\n{text}")
        except (OSError, ValueError):
            self.broken.add("stderr")  # it is closed, or nobody listens there any more
