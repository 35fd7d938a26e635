"""A script's command line as hyperparameters, of which AWS's training toolkit makes a command line again."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence

from cli.submit.packing import Source
from cli.submit.problem import Problem

ENTRY = "rerail_entry.py"
# Runs in place of the script where hyperparameters cannot say what its command line says.
ENTRY_TEXT = '''"""Runs the script with the arguments that it was submitted with."""

import os
import sys

os.execv(sys.executable, [sys.executable, *{command!r}, *sys.argv[1:]])
'''
# The same for a shell script: the toolkit would split and quote its arguments by its own rules.
SHELL_ENTRY_TEXT = '''"""Runs the shell script with the arguments that it was submitted with."""

import os
import shutil
import sys

shell = shutil.which("bash") or "/bin/sh"
os.execv(shell, [shell, *{command!r}, *sys.argv[1:]])
'''
NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
RESERVED = "sagemaker_"
LONGEST = 2500


def parse_arguments(arguments: Sequence[str]) -> dict[str, str] | None:
    """Return `--key value` and `-k value` as pairs.

    Return None if the toolkit would not return the same words in the same order: it sorts its options and knows no
    `--key=value`, flags, positional words or options that repeat.
    """
    pairs: dict[str, str] = {}
    if len(arguments) % 2:
        return None
    for key, value in zip(arguments[::2], arguments[1::2], strict=True):
        name = key.lstrip("-")
        if not name or "=" in name or key != make_option(name) or name.startswith(RESERVED):
            return None
        if (value.startswith("-") and not NUMBER.fullmatch(value)) or len(value) > LONGEST - 2:
            return None
        if pairs and name <= next(reversed(pairs)):
            return None
        pairs[name] = value
    return pairs


def make_option(name: str) -> str:
    """Return the word that the toolkit makes of a hyperparameter's name."""
    return f"--{name}" if len(name) > 1 else f"-{name}"


def encode(value: str) -> str:
    """Return the value as the SDK writes it: numbers as numbers, all else as a JSON string, so `true` and `007` stay
    text."""
    try:
        number = json.loads(value)
    except ValueError:
        return json.dumps(value)
    same = isinstance(number, int | float) and not isinstance(number, bool) and str(number) == value
    return value if same else json.dumps(value)


def with_arguments(source: Source, arguments: Sequence[str], given: Mapping[str, str]) -> tuple[Source, dict[str, str]]:
    """Return the source and hyperparameters that give the script exactly these arguments, and those given by name."""
    for name in given:
        if name.startswith(RESERVED):
            raise Problem(f"hyperparameters {name}: such names belong to SageMaker's toolkit", "choose another name")
    pairs = parse_arguments(arguments)
    is_shell = source.entry.endswith(".sh")
    if pairs is not None:
        if twice := sorted(pairs.keys() & given.keys()):
            raise Problem(f"hyperparameters {twice[0]} is among the script's arguments too", "give it once")
        if not is_shell:
            return source, {name: encode(value) for name, value in {**pairs, **given}.items()}
    elif not is_shell and not source.entry.endswith(".py"):
        raise Problem(
            f"SageMaker's toolkit would change the arguments of {source.entry}, which is no Python or shell script",
            "give it `--key value` pairs in alphabetical order, or a script that starts it",
        )
    text = (SHELL_ENTRY_TEXT if is_shell else ENTRY_TEXT).format(command=[source.entry, *arguments])
    files = {**source.files, ENTRY: (text.encode(), False)}
    return Source(ENTRY, files), {name: encode(value) for name, value in given.items()}


def make_command_line(entry: str, arguments: Sequence[str], given: Mapping[str, str]) -> str:
    """Return the command line of the script, for a shell: its arguments, and those that are given by name."""
    pairs = parse_arguments(arguments)
    words, named = ([], {**pairs, **given}) if pairs is not None else ([*arguments], given)
    options = [word for name, value in sorted(named.items()) for word in (make_option(name), value)]
    return shlex.join([entry, *words, *options])
