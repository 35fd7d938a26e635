"""Time and the past are arguments: no clock, no environment, no files and no chance in the core."""

import ast

import pytest

from tests.house.sources import core, imports, shown, top, tree

CLOCKS = {"now", "utcnow", "today"}
FORBIDDEN_MODULES = {
    *("time", "os", "logging", "socket", "subprocess", "pathlib", "io", "shutil", "tempfile", "glob"),
    *("secrets", "uuid", "locale", "getpass", "platform"),
}
# `supervised()` runs in the launch script of a user, who has no other source of a signing key.
KEY_MAKER = ("lambdas/rerail/requests/supervised.py", "secrets")
FORBIDDEN_CALLS = {"open", "print", "input", "exec", "eval", "breakpoint"}


@pytest.mark.parametrize("path", core(), ids=shown)
def test_the_core_reads_no_clock(path):
    """`datetime.now()` and its like are asked in lambdas/wiring and nowhere else: a whole night replays in a test."""
    asked = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute) and node.attr in CLOCKS]
    assert not [node.lineno for node in asked]


@pytest.mark.parametrize("path", core(), ids=shown)
def test_the_core_touches_no_machine(path):
    """No environment, file, log, terminal or process of the core's own."""
    used = {top(name) for name in imports(path)} & FORBIDDEN_MODULES
    assert not {name for name in used if (shown(path), name) != KEY_MAKER}
    calls = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    assert not [(node.lineno, node.func.id) for node in calls if node.func.id in FORBIDDEN_CALLS]


@pytest.mark.parametrize("path", core(), ids=shown)
def test_chance_has_a_seed(path):
    """Of `random` the core uses only `random.Random(seed)`, so that a repeated decision is the same decision."""
    assert "random.Random" not in imports(path), "write random.Random(seed)"
    used = [
        node
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random"
    ]
    seeded = {
        id(node.func) for node in ast.walk(tree(path)) if isinstance(node, ast.Call) and (node.args or node.keywords)
    }
    assert not [node.lineno for node in used if node.attr != "Random" or id(node) not in seeded]
