"""Retired words stay out of names: the standard terms of AWS, SRE and PyTorch are used instead."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.house.sources import modules, tree, violations

# Each with the term that is used instead.
RETIRED = {
    "ailed": "failed",
    "aside": "quarantine",
    "beat": "heartbeat",
    "brake": "rate limit",
    "climbs": "rungs taken",
    "courier": "mailbox client",
    "crowd": "fleet",
    "hear": "receive",
    "heard": "received",
    "inquest": "exit report",
    "judge": "evaluate",
    "judges": "detectors",
    "legible": "validated",
    "life": "run of the command",
    "mend": "recover",
    "mended": "recovered",
    "pulse": "liveness",
    "says": "text",
    "seal": "sign",
    "sealed": "signed",
    "story": "report",
    "strike": "inject",
    "tell": "notify",
    "telegraph": "init channel",
    "testimony": "error file",
    "told": "notified",
    "twin": "copy",
    "voice": "notifier",
    "wakeup": "message",
    "watchable": "monitored",
    "weighing": "cost-benefit",
    "wish": "command kind",
}
# The folders that are free of them.
FOLDERS = (
    *("lambdas", "agent", "container", "cli", "stacks", "local", "tools", "bench/soaking"),
    *("tests/agent", "tests/aws", "tests/backtest", "tests/bad_input", "tests/cli", "tests/container", "tests/core"),
    *("tests/demo", "tests/deployed", "tests/docs", "tests/functions", "tests/house", "tests/iam", "tests/local"),
    *("tests/notices", "tests/report", "tests/simulate", "tests/stacks", "tests/threats"),
)
# Names that stored records, addresses of pages or other programs have.
KEPT = {"SEALED", "RECOVERY_HALF_LIFE_ROWS", "CONFIRMING_HALF_LIFE_ROWS", "half_life"}


def names(module: ast.Module) -> Iterator[str]:
    """Yield the names that a module defines: classes, functions, parameters, fields and variables."""
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def words(name: str) -> set[str]:
    """Return the words of a name in snake case or camel case."""
    return set(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_"))


def find_retired(path: Path) -> dict[str, str]:
    """Return the names that have a retired word, with what to use instead."""
    return {name: RETIRED[key] for name in names(tree(path)) if name not in KEPT for key in words(name) & set(RETIRED)}


def test_names_use_standard_terms() -> None:
    assert not violations(modules(*FOLDERS), find_retired)


def test_a_retired_word_is_found() -> None:
    module = ast.parse("class SealedReport:\n    def tell(self, heard): twin = 1")
    assert {word for name in names(module) for word in words(name)} & set(RETIRED) == {
        "sealed",
        "tell",
        "heard",
        "twin",
    }
