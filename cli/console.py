"""The console that every command prints with: whatever a job or an operator has written, it is only text there."""

import re
from collections.abc import Iterable
from typing import Any

import typer
from rich import console
from rich.errors import MarkupError
from rich.segment import Segment
from rich.text import Text

from cli.lean_values import IS_LOCAL
from cli.place import complete_text

# Escape and its like would paint the terminal, open links or answer for the operator; others turn a line around, or
# hide in it. Joiners of emoji, tabs and line ends may stay.
UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200c\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


def make_printable(text: str) -> str:
    """Return the text with a blank for each character that a terminal would execute."""
    return UNPRINTABLE.sub(" ", text)


def echo(text: str, *, err: bool = False) -> None:
    """Print text from others without the control characters that a terminal would execute."""
    typer.echo(make_printable(text), err=err)


class Console(console.Console):
    """Rich's console, which prints no control characters but those that Rich itself sends to the terminal.

    Nothing is highlighted: that takes time by the square of a word's length, and others choose the words.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        """Return the text with its commands as they must be typed here; markup of others opens no link, nor fails."""
        try:
            shown = super().render_str(complete_text(text) if IS_LOCAL.get() else text, **settings)
        except MarkupError:
            return Text(text)
        shown.spans = [span for span in shown.spans if "link" not in str(span.style)]
        return shown

    def render(
        self, renderable: console.RenderableType, options: console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=make_printable(segment.text))
