"""Time and the past are arguments: the core reads no clock, environment or file, and draws no unseeded number."""

import ast
from pathlib import Path

from tests.house.sources import core, imports, shown, top, tree, violations

CLOCKS = {"now", "utcnow", "today"}
FORBIDDEN_MODULES = {
    *("time", "os", "logging", "socket", "subprocess", "pathlib", "io", "shutil", "tempfile", "glob"),
    *("secrets", "uuid", "locale", "getpass", "platform"),
}
# `supervised()` runs in the launch script of a user, who has no other source of a signing key.
KEY_MAKER = ("lambdas/rerail/requests/supervised.py", "secrets")
FORBIDDEN_CALLS = {"open", "print", "input", "exec", "eval", "breakpoint"}


def test_the_core_reads_no_clock() -> None:
    """`datetime.now()` is called in lambdas/wiring only, so that a test can replay hours."""

    def find_clocks(path: Path) -> list[int]:
        return [node.lineno for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute) and node.attr in CLOCKS]

    assert not violations(core(), find_clocks)


def test_the_core_uses_no_environment_file_log_or_process() -> None:
    def find_uses(path: Path) -> set[str]:
        calls = [node.func for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
        called = {function.id for function in calls if isinstance(function, ast.Name)} & FORBIDDEN_CALLS
        used = {top(name) for name in imports(path)} & FORBIDDEN_MODULES
        return called | {name for name in used if (shown(path), name) != KEY_MAKER}

    assert not violations(core(), find_uses)


def test_random_numbers_have_a_seed() -> None:
    """The core uses only `random.Random(seed)`, so that a repeated decision is the same decision."""
    assert not violations(core(), find_unseeded)


def find_unseeded(path: Path) -> list[int]:
    """Return the lines that use `random` in another way than `random.Random(seed)`."""
    nodes = list(ast.walk(tree(path)))
    seeded = {id(node.func) for node in nodes if isinstance(node, ast.Call) and (node.args or node.keywords)}
    attributes = [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)]
    unseeded = [
        node.lineno
        for node in attributes
        if node.value.id == "random" and (node.attr != "Random" or id(node) not in seeded)
    ]
    # `from random import Random` hides the use.
    return unseeded + ([1] if "random.Random" in imports(path) else [])
