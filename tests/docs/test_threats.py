"""Each line of the threat model names the tests marked for it, and each such test has its line."""

import ast
import re
from collections import defaultdict
from dataclasses import dataclass

from tests.house.sources import ROOT, modules, tree

LINE = re.compile(r"^\| (T\d+) \|(.*)\|$", re.MULTILINE)
TEST = re.compile(r"`(test_\w+)`")


@dataclass(frozen=True)
class Line:
    """One line of the model: the attack, what stops it, what remains, and the names of its tests."""

    number: str
    tried: str
    stopped_by: str
    remains: str
    tests: tuple[str, ...]


def lines() -> list[Line]:
    """Return the lines of docs/threats.md."""
    page = (ROOT / "docs" / "threats.md").read_text(encoding="utf-8")
    rows = [(number, *(cell.strip() for cell in cells.split("|"))) for number, cells in LINE.findall(page)]
    return [
        Line(number, tried, stopped_by, remains, tuple(TEST.findall(shown)))
        for number, tried, stopped_by, remains, shown in rows
    ]


def marked() -> dict[str, set[str]]:
    """Return the names of the tests that are marked for each line."""
    names = defaultdict(set)
    for path in modules("tests"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef):
                for line in filter(None, map(_line_of, node.decorator_list)):
                    names[line].add(node.name)
    return names


def _line_of(decorator: ast.expr) -> str:
    if not isinstance(decorator, ast.Call) or ast.unparse(decorator.func) != "pytest.mark.threat":
        return ""
    return str(ast.literal_eval(decorator.args[0]))


def test_every_line_is_shown_by_the_tests_that_are_marked_for_it():
    """Neither a line without a test, nor a test that no line names."""
    named = {line.number: set(line.tests) for line in lines()}
    assert all(named.values())
    assert named == marked()


def test_the_lines_are_numbered_without_a_gap_and_say_what_they_must():
    """The attack and what stops it are given; what remains may be empty."""
    assert sorted(int(line.number[1:]) for line in lines()) == list(range(1, len(lines()) + 1))
    assert all(line.tried and line.stopped_by for line in lines())
