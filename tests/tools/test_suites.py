"""The last lines of `make test` name the tests that failed, whichever suite they are in."""

import os
from pathlib import Path

import pytest

from tools.suites import SuiteRun


@pytest.mark.slow
def test_failures_are_shown_again_after_the_other_suites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "test_sums.py"
    path.write_text("def test_right(): assert 1 + 1 == 2\n\ndef test_wrong(): assert 1 + 1 == 3\n")
    run = SuiteRun("sums", (str(path), "--rootdir", str(tmp_path)), dict(os.environ))

    assert run.wait() == 1

    assert "    sums | " in capsys.readouterr().out
    failures = run.format_failures()
    assert "assert (1 + 1) == 3" in failures
    assert "test_sums.py::test_wrong" in failures.splitlines()[-2]
    assert "test_right" not in failures
