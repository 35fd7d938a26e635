"""The command reference, made from the commands themselves: `python -m cli.reference` prints it.

`make docs` writes it into the page docs/cli.md of the site.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import typer

from cli.doctor import account
from cli.doctor.command import OF_A_JOB
from cli.keys import KEYS
from cli.main import app

FEW = 4
WORDS = {int: "NUMBER", float: "NUMBER", Path: "PATH"}


def find_commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command with the words that name it, in the order of the help."""
    command = command or typer.main.get_command(app)
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    for name, inner_command in inner.items():
        if not inner_command.hidden:
            yield from find_commands(inner_command, (*path, name))


def make_page() -> str:
    """Return a section of Markdown for each command."""
    return "\n".join("\n".join(_section(path, command)) for path, command in find_commands()).rstrip()


def _section(path: Sequence[str], command: Any) -> Iterator[str]:
    yield f"## rerail {' '.join(path)}"
    yield ""
    yield _plain(inspect.cleandoc(command.help or ""))
    yield ""
    given = [parameter for parameter in command.params if parameter.name != "help"]
    if rows := [_row(parameter) for parameter in given]:
        yield "| | |"
        yield "|---|---|"
        yield from rows
        yield ""
    if path == ("doctor",):
        yield from _questions()
    if printed := KEYS.get(" ".join(path)):
        yield f"`--json` prints {printed.shape}:"
        yield ""
        yield "| key | |"
        yield "|---|---|"
        for key, means in printed.keys.items():
            yield f"| `{key}` | {_cell(means)}{'; may be absent' if key in printed.sparse else ''} |"
        yield ""


def _questions() -> Iterator[str]:
    """What the doctor asks, in its order."""
    yield "| of the account | it is well when |"
    yield "|---|---|"
    yield from map(_question, account.QUESTIONS)
    yield ""
    yield "| of a job or a request | it is well when |"
    yield "|---|---|"
    yield from map(_question, OF_A_JOB)
    yield ""


def _question(question: Callable[[Any], Any]) -> str:
    return f"| {question.__name__.replace('_', ' ')} | {_cell(inspect.getdoc(question) or '')} |"


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = str(parameter.metavar or parameter.name.upper()).strip("[]")
        return f"| `{name if parameter.required else f'[{name}]'}` | {_cell(parameter.help or '')} |"
    choices, spelt = _choices(parameter), "` or `".join((*parameter.opts, *parameter.secondary_opts))
    value = "" if getattr(parameter, "is_flag", False) else f" {_value(parameter)}"
    needed = "required: " if parameter.required else ""
    choices_text = f" One of {', '.join(choices)}." if len(choices) > FEW else ""
    return f"| `{spelt}{value}` | {needed}{_cell(parameter.help or '')}{choices_text} |"


def _value(parameter: Any) -> str:
    """What stands behind an option: its choices, or what kind of thing it takes."""
    if parameter.metavar:
        return str(parameter.metavar)
    if choices := _choices(parameter):
        return " or ".join(choices) if len(choices) <= FEW else "NAME"
    return WORDS.get(_kind(parameter), "TEXT")


def _choices(parameter: Any) -> list[str]:
    kind = _kind(parameter)
    return [str(choice.value) for choice in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []


def _kind(parameter: Any) -> Any:
    """Of an option that may be given again, the kind of each."""
    kind = parameter.type_descriptor.annotation
    return next(iter(get_args(kind)), kind)


def _cell(text: str) -> str:
    return _plain(" ".join(text.split()))


def _plain(text: str) -> str:
    """Markdown of the page: what would be a table's border or a tag is not."""
    return re.sub(r"<(?=[a-zA-Z/])", "&lt;", text.replace("|", "\\|"))


if __name__ == "__main__":
    print(make_page())
