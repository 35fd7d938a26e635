"""Keep faults of the agent away from the training: a part that fails is reported once and switched off."""

import sys
import traceback
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def print_line(message: str) -> None:
    """Print a line for people on stderr; stdout has the metric lines."""
    print(f"rerail: {message}", file=sys.stderr, flush=True)


class FaultIsolation:
    """Run the parts of the agent that may fail, and remember which have failed."""

    def __init__(self) -> None:
        self.broken: set[str] = set()

        self._printed: set[tuple[str, type[Exception]]] = set()

    def run(self, part: str, work: Callable[[], T], otherwise: T) -> T:
        """Return the result of the work; if this part fails now or has failed, return `otherwise` from now on."""
        if part in self.broken:
            return otherwise
        try:
            return work()
        except Exception as fault:
            self.broken.add(part)
            self._print_once(part, fault, "is switched off")
            return otherwise

    def once(self, part: str, work: Callable[[], T], otherwise: T) -> T:
        """Return the result of occasional work, or `otherwise`; a failure does not prevent the next call."""
        try:
            return work()
        except Exception as fault:
            self._print_once(part, fault, "has failed")
            return otherwise

    def _print_once(self, part: str, fault: Exception, outcome: str) -> None:
        """Print each part's fault of each kind once."""
        kind = part, type(fault)
        if kind in self._printed:
            return
        self._printed.add(kind)
        try:
            text = "".join(traceback.format_exception(fault)).rstrip()
            print_line(f"fault in the agent: {part} {outcome}, training goes on\n{text}")
        except (OSError, ValueError):
            self.broken.add("stderr")  # it is closed, or its reader has gone
