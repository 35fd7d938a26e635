"""The project stays within its budgets of lines, words and options; budgets.toml is the table."""

import ast
import json
import re
import tomllib
from pathlib import Path

import pytest

from tests.house.sources import CODE, ROOT, modules, ours, tree

BUDGETS = tomllib.loads((Path(__file__).parent / "budgets.toml").read_text())
SHIPPED = ("agent", "cli", "container", "integrations", "lambdas", "local", "stacks")
SLACK = 500


def count_lines() -> dict[str, int]:
    """Return the lines of Python by top-level folder."""
    return {folder: sum(len(path.read_text().splitlines()) for path in modules(folder)) for folder in CODE}


def count_words() -> dict[str, int]:
    pages = [ROOT / "README.md", *ours("*.md", "docs")]
    return {"README.md and docs": sum(len(page.read_text().split()) for page in pages)}


def count_options() -> dict[str, int]:
    """Return how many settings users meet, by kind."""
    settings = (ROOT / "policies" / "default.toml").read_text().splitlines()
    variables = {name for path in modules(*SHIPPED) for name in re.findall(r"\bRERAIL_[A-Z_]+", path.read_text())}
    calls = [node for path in modules("cli") for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
    return {
        "cdk.json": len(json.loads((ROOT / "cdk.json").read_text())["context"]),
        "policy fields": sum(re.match(r"\w+ *=", line) is not None for line in settings),
        "environment variables": len(variables),
        "options of the command line": sum(getattr(call.func, "attr", "") == "Option" for call in calls),
    }


@pytest.mark.parametrize(
    ("kind", "count", "slack"),
    [("python_lines", count_lines, SLACK), ("words", count_words, SLACK), ("options", count_options, 0)],
)
def test_the_budget_holds(kind, count, slack):
    """Remove as much as you add, or change the table in this commit; a saving is kept by lowering the number."""
    counted, budget = count(), BUDGETS[kind]
    assert counted.keys() == budget.keys()
    assert {name: n for name, n in counted.items() if n > budget[name]} == {}, f"over the budget of {budget}"
    assert {name: n for name, n in counted.items() if n < budget[name] - slack} == {}, f"lower the budget of {budget}"
