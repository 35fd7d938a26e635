"""The report of mutation testing counts what tests notice."""

import json
from pathlib import Path

import pytest

from tools import mutants

LISTING = """
    rerail.model.signatures.x_sign__mutmut_1: killed
    rerail.model.signatures.x_sign__mutmut_2: timeout
    rerail.model.rate_limit.x_admit__mutmut_1: survived
    rerail.model.rate_limit.x_admit__mutmut_2: not checked
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(mutants, "COPY", tmp_path / ".local" / "mutants")
    (tmp_path / ".local").mkdir()
    return tmp_path


def test_a_survivor_is_named_and_fails_the_command(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = mutants.read_results(LISTING)
    assert len(results) == 3, "what was not run does not count"
    assert mutants.report(results) == 1
    printed = capsys.readouterr().out
    assert "rerail.model.signatures: 2 of 2 changes noticed" in printed
    assert "mutmut show rerail.model.rate_limit.x_admit__mutmut_1" in printed
    assert json.loads((root / ".local" / "mutants.json").read_text()) == results


def test_few_survivors_are_accepted(root: Path) -> None:
    results = {f"rerail.x.y__mutmut_{number}": "killed" for number in range(20)}
    assert mutants.report(results) == 0
    assert mutants.report(results | {"rerail.x.y__mutmut_21": "survived"}) == 0
