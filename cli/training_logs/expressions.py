"""Find what a metric's regular expression makes of numbers and names as training scripts print them."""

import re
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

# A loss that has become small, in Python's own words; in those of C and Megatron-LM; and one below zero.
SMALL, IN_CAPITALS, NEGATIVE = "9.1e-05", "9.1E-05", "-0.31"
_ENDS = ("", " ", ",", "|")
# The most characters of a repeated part: nested repetitions would multiply without a limit.
LONGEST = 1_000
_CHARACTERS = (_constants.LITERAL, _constants.RANGE)
# How long an expression of others may take for all that is tried: one of 30 characters can take days.
WITHIN_S = 5.0
REMEDY = "`rerail metrics --log FILE` proposes expressions for your log"


@dataclass(frozen=True, slots=True)
class Flaw:
    """A fault of an expression; `is_certain`: it misreads some numbers whatever program prints them."""

    text: str
    is_certain: bool


def compile_expression(text: str) -> re.Pattern[str]:
    """Return the compiled expression, which others may have written; raise re.error for any that cannot be compiled."""
    try:
        return re.compile(text)
    except (RecursionError, OverflowError) as error:
        raise re.error(f"too large or too deep: {error}") from error


def find_flaw(expression: str) -> Flaw | None:
    """Return what the expression of a loss or a gradient norm misreads; None if it reads what was tried, or is none."""
    if _make_example(expression, SMALL) is None:
        return None
    if read(expression, SMALL) is None:
        return Flaw(f"does not find {SMALL}: small values would be lost", is_certain=True)
    for number, is_certain in ((SMALL, True), (NEGATIVE, True), (IN_CAPITALS, False)):
        got = read(expression, number)
        if got is not None and got.rstrip(".,") != number:
            written = ", as Megatron-LM prints it," if number == IN_CAPITALS else ""
            return Flaw(f"reads {number}{written} as {got or 'nothing'!r}", is_certain)
    if other := _find_longer_name(expression):
        return Flaw(f"also reads {other!r}: begin it with (?:^|[^A-Za-z0-9_])", is_certain=False)
    return None


def find_flaw_in_time(expression: str) -> Flaw | None:
    """Return the flaw of an expression that others wrote; one that takes too long has that flaw."""
    try:
        with limit_time():
            return find_flaw(expression)
    except TimeoutError:
        return Flaw(f"takes more than {WITHIN_S:g} s for one line", is_certain=False)


@contextmanager
def limit_time() -> Iterator[None]:
    """Raise TimeoutError if matching expressions of others takes more than `WITHIN_S` seconds.

    Only a signal ends a match, and only in the main thread; on Windows, Ctrl-C does.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, WITHIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def read(expression: str, number: str) -> str | None:
    """Return what the expression captures where a log prints this number; None if it then finds nothing."""
    example = _make_example(expression, number)
    if example is None:
        return None
    for end in _ENDS:
        if (found := re.search(expression, f"{example}{end}")) and found[1] is not None:
            return str(found[1])
    return None


def _find_longer_name(expression: str) -> str:
    """Return a name that ends with the one that is meant and is read too, "" if there is none."""
    example = _make_example(expression, "2.5")
    # One that begins with other words, such as `iter 5: loss`, says where its line begins.
    if not example or not (name := re.match(r"\w*(?:loss|norm)\w*", example, re.IGNORECASE)):
        return ""
    longer = f"val_{example}"
    found = re.search(expression, f"{longer} ")
    return f"val_{name[0]}" if found and found[1] == "2.5" and found.start() else ""


def _make_example(expression: str, number: str) -> str | None:
    """Return a short text of which the first group of an expression would be this number; None if there is none."""
    try:
        compile_expression(expression)
        tree = _parser.parse(expression)
    except re.error:
        return None
    return "".join(_write(tree, number)) if tree.state.groups > 1 else None


def _write(items: Iterable[tuple[Any, Any]], number: str) -> Iterable[str]:
    """Yield the parts of a shortest text that a parsed expression matches."""
    for kind, value in items:
        if kind is _constants.LITERAL:
            yield chr(value)
        elif kind is _constants.SUBPATTERN:
            yield number if value[0] == 1 else "".join(_write(value[3], number))
        elif kind in (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT):
            least, _, repeated = value
            text = "".join(_write(repeated, number))
            # An optional part that holds the number is taken.
            yield (text * min(least, 99))[:LONGEST] if least or number not in text else text
        elif kind is _constants.BRANCH:
            yield "".join(_write(value[1][0], number))
        elif kind is _constants.ATOMIC_GROUP:
            yield "".join(_write(value, number))
        elif kind is _constants.IN:
            yield _choose(value)
        elif kind in (_constants.ANY, _constants.NOT_LITERAL):
            yield "x" if value != ord("x") else "y"


def _choose(members: Sequence[tuple[Any, Any]]) -> str:
    """Return a character of a set."""
    is_negated = members[0][0] is _constants.NEGATE
    own = [chr(value[0] if kind is _constants.RANGE else value) for kind, value in members if kind in _CHARACTERS]
    return next((character for character in (*own, *" 1x_|:~") if _matches(members, character) != is_negated), "~")


def _matches(members: Iterable[tuple[Any, Any]], character: str) -> bool:
    for kind, value in members:
        if kind is _constants.LITERAL and chr(value) == character:
            return True
        if kind is _constants.RANGE and value[0] <= ord(character) <= value[1]:
            return True
        if kind is _constants.CATEGORY and _is_of(str(value), character):
            return True
    return False


def _is_of(category: str, character: str) -> bool:
    name = category.rpartition("_")[2]
    found = {
        "DIGIT": character.isdigit(),
        "SPACE": character.isspace(),
        "WORD": character.isalnum() or character == "_",
    }
    return found.get(name, False) != ("NOT" in category)
