"""A regular expression that is compiled at its first use.

Compiling all patterns of the diagnosis costs a cold start as much as the rest of the core, and most invocations use
none of them.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any


class LazyPattern:
    """The part of `re.Pattern` that the core uses."""

    __slots__ = ("_compiled", "_flags", "text")

    def __init__(self, text: str, flags: int = 0) -> None:
        self.text, self._flags = text, flags
        self._compiled: re.Pattern[str] | None = None

    @property
    def compiled(self) -> re.Pattern[str]:
        """Return the compiled pattern."""
        if self._compiled is None:
            self._compiled = re.compile(self.text, self._flags)
        return self._compiled

    def search(self, text: str, start: int = 0) -> re.Match[str] | None:
        return self.compiled.search(text, start)

    def match(self, text: str, start: int = 0) -> re.Match[str] | None:
        return self.compiled.match(text, start)

    def fullmatch(self, text: str) -> re.Match[str] | None:
        return self.compiled.fullmatch(text)

    def finditer(self, text: str) -> Iterator[re.Match[str]]:
        return self.compiled.finditer(text)

    def findall(self, text: str) -> list[Any]:
        return self.compiled.findall(text)

    def split(self, text: str, maxsplit: int = 0) -> list[str]:
        return self.compiled.split(text, maxsplit)

    def sub(self, replacement: str | Callable[[re.Match[str]], str], text: str, count: int = 0) -> str:
        return self.compiled.sub(replacement, text, count)
