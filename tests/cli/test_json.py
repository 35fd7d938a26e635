"""`--json` everywhere, with the keys that the reference promises, and a reference that is as the commands are."""

import inspect

import pytest

from cli.keys import KEYS
from cli.reference import find_commands, make_page
from tests.house.sources import ROOT

NAMES = [" ".join(path) for path, _ in find_commands()]
# These write a file that is named, and take - for stdout: their facts are many, and their screen is what they are for.
FILES = {"demo", "simulate"}


@pytest.mark.parametrize("path, command", list(find_commands()), ids=NAMES)
def test_every_command_has_json(path, command):
    """A flag, but for the two that write a file."""
    (option,) = [param for param in command.params if "--json" in param.opts]
    assert bool(getattr(option, "is_flag", False)) is (" ".join(path) not in FILES)


@pytest.mark.parametrize("path, command", list(find_commands()), ids=NAMES)
def test_every_command_and_option_has_a_description(path, command):
    assert len(inspect.cleandoc(command.help or "").split()) > 3
    assert not [param.name for param in command.params if param.name != "help" and not param.help]


def test_the_keys_of_every_command_are_promised():
    assert set(KEYS) == set(NAMES)
    assert not [name for name, printed in KEYS.items() if not printed.keys]


def test_the_page_names_every_command_and_no_place_of_this_machine():
    text = make_page()
    assert [name for name in NAMES if f"## rerail {name}\n" not in text] == []
    assert str(ROOT) not in text
