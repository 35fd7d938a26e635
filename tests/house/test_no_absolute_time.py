"""No test expects work to be done within a number of seconds: another machine is slower, or busy."""

import ast

import pytest

from tests.house.sources import modules, tree, violations

CLOCKS = {"time", "monotonic", "perf_counter", "process_time", "thread_time"}
CLOCKS |= {f"{clock}_ns" for clock in CLOCKS}
MEASURES = {"cpu_seconds"}  # of tests/timing.py
ADVICE = (
    "an assertion compares a measured time with a number of seconds. Compare two costs of the same test "
    "(tests/timing.py), count calls, set the clock, or wait for a condition; a deadline of minutes may end a hang"
)


def find_absolute_times(module: ast.Module) -> list[int]:
    """Return the lines of the assertions by which a measured time must stay below a number.

    A minimum is allowed, for a slow machine keeps it too; so is a bound that is itself a measured time.
    """
    spans, constants = _spans(module), _constants(module)
    return [
        node.lineno
        for statement in ast.walk(module)
        if isinstance(statement, ast.Assert)
        for node in ast.walk(statement.test)
        if isinstance(node, ast.Compare)
        for less, more in _ordered(node)
        if _is_span(less, spans) and _is_number(more, constants)
    ]


def _ordered(compare: ast.Compare) -> list[tuple[ast.expr, ast.expr]]:
    """Return the pairs of a chain of comparisons, the lesser side first."""
    sides = [compare.left, *compare.comparators]
    pairs = zip(sides, compare.ops, sides[1:], strict=False)
    return [
        (left, right) if isinstance(op, ast.Lt | ast.LtE) else (right, left)
        for left, op, right in pairs
        if isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE)
    ]


def _spans(module: ast.Module) -> set[str]:
    """Return the names that hold a measured time, or that return one."""
    known, before = set(MEASURES), -1
    while len(known) != before:
        before = len(known)
        for node in ast.walk(module):
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if _is_span(node.value, known):
                    known |= {name for target in targets if (name := _name(target))}
            elif isinstance(node, ast.FunctionDef) and any(
                isinstance(node, ast.Return) and node.value is not None and _is_span(node.value, known)
                for node in ast.walk(node)
            ):
                known.add(node.name)
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("append", "add")
                and any(_is_span(argument, known) for argument in node.args)
                and (name := _name(node.func.value))
            ):
                known.add(name)
    return known


def _is_span(node: ast.AST, known: set[str]) -> bool:
    """Whether the value is a measured time; one divided by another is a ratio."""
    if isinstance(node, ast.BinOp):
        left, right = _is_span(node.left, known), _is_span(node.right, known)
        if isinstance(node.op, ast.Div):
            return left and not right
        clock = isinstance(node.op, ast.Sub) and (_reads_clock(node.left) or _reads_clock(node.right))
        return left or right or clock
    if isinstance(node, ast.Call):
        return _name(node.func) in known or any(_is_span(argument, known) for argument in node.args)
    if isinstance(node, ast.Name | ast.Attribute):
        return _name(node) in known
    return any(_is_span(child, known) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))


def _reads_clock(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and not node.args and _name(node.func) in CLOCKS


def _constants(module: ast.Module) -> set[str]:
    """Return the names that the module gives a number."""
    found: set[str] = set()
    for node in module.body:
        for target in node.targets if isinstance(node, ast.Assign) else []:
            parts = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                parts = list(zip(target.elts, node.value.elts, strict=False))
            found |= {name for target, value in parts if _is_number(value, found) and (name := _name(target))}
    return found


def _is_number(node: ast.AST, constants: set[str]) -> bool:
    """Whether the value is made of literal numbers alone."""
    if isinstance(node, ast.BinOp):
        return _is_number(node.left, constants) and _is_number(node.right, constants)
    if isinstance(node, ast.Name):
        return node.id in constants
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _name(node: ast.AST) -> str:
    """Return the last part of a name, `monotonic` of `time.monotonic`; nothing of any other expression."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def test_no_assertion_depends_on_the_speed_of_the_machine() -> None:
    assert not violations(modules("tests"), lambda path: find_absolute_times(tree(path))), ADVICE


@pytest.mark.parametrize(
    "text",
    [
        "began = time.monotonic()\nassert time.monotonic() - began < 5",
        "assert 2.5 > perf_counter() - began",
        "took = 1000 * (time.process_time() - began)\nassert took <= 200",
        "took.append(time.perf_counter() - began)\nassert min(took) < 0.2",
        "MOST_BYTES, MOST_S = 10, 15.0\nassert time.thread_time() - began < MOST_S",
        "def measure():\n    return time.time() - began\nassert measure() < 3 * 60",
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
