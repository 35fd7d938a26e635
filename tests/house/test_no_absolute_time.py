"""No test expects work to be done within a number of seconds: another machine is slower, or busy."""

import ast
import re

import pytest

from tests.house.sources import modules, tree, violations

CLOCK = r"\b(?:time|monotonic|perf_counter|process_time|thread_time)(?:_ns)?\(\)"
MEASURED = re.compile(rf"(?!.* / [a-z]).*({CLOCK} - |\bcpu_seconds\()")  # of tests/timing.py; a ratio is none
NUMBER = re.compile(r"[\d.]+|[A-Z_]+|[\dA-Z_. ]+ \* [\dA-Z_. ]+")  # as it stands, or a constant
ADVICE = (
    "an assertion compares a measured time with a number of seconds. Compare two costs of the same test "
    "(tests/timing.py), count calls, set the clock, or wait for a condition; a deadline of minutes may end a hang"
)


def find_absolute_times(module: ast.Module) -> list[int]:
    """Return the lines of the assertions by which a measured time must stay below a number.

    A minimum is allowed, for a slow machine keeps it too; so is a bound that is itself a measured time.
    """
    assigned = [node for node in ast.walk(module) if isinstance(node, ast.Assign | ast.NamedExpr)]
    measured = {
        ast.unparse(target)
        for node in assigned
        if MEASURED.match(ast.unparse(node.value))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }
    asserted = [node for node in ast.walk(module) if isinstance(node, ast.Assert)]
    return [
        node.lineno
        for statement in asserted
        for node in ast.walk(statement.test)
        if isinstance(node, ast.Compare)
        for less, more in _ordered(node)
        if (less in measured or MEASURED.match(less)) and NUMBER.fullmatch(more)
    ]


def _ordered(compare: ast.Compare) -> list[tuple[str, str]]:
    """Return the pairs of a chain of comparisons, the lesser side first."""
    sides = [ast.unparse(side) for side in (compare.left, *compare.comparators)]
    pairs = zip(sides, compare.ops, sides[1:], strict=False)
    return [
        (left, right) if isinstance(op, ast.Lt | ast.LtE) else (right, left)
        for left, op, right in pairs
        if isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE)
    ]


def test_no_assertion_depends_on_the_speed_of_the_machine() -> None:
    assert not violations(modules("tests"), lambda path: find_absolute_times(tree(path))), ADVICE


@pytest.mark.parametrize(
    "text",
    [
        "began = time.monotonic()\nassert time.monotonic() - began < 5",
        "assert 2.5 > perf_counter() - began",
        "took = 1000 * (time.process_time() - began)\nassert took <= 200",
        "MOST_BYTES, MOST_S = 10, 15.0\nassert time.thread_time() - began < MOST_S",
        "assert time.time() - began < 3 * 60",
        "assert cpu_seconds(work) < 1",
        "assert 0 < cpu_seconds(work) < 1",
        "assert cpu_seconds(work) / 1000 < 1",
    ],
)
def test_an_absolute_time_is_found(text: str) -> None:
    assert find_absolute_times(ast.parse(text))


@pytest.mark.parametrize(
    "text",
    [
        "deadline = time.monotonic() + 60\nassert time.monotonic() < deadline",
        "assert time.monotonic() - began >= 1",
        "assert cpu_seconds(large) / cpu_seconds(small) < 40",
        "small = cpu_seconds(work)\nassert cpu_seconds(other) < 40 * small",
        "assert growth(small, large) < 40",
        "assert len(lines) < 5",
    ],
)
def test_a_ratio_a_minimum_and_a_deadline_are_allowed(text: str) -> None:
    assert not find_absolute_times(ast.parse(text))
