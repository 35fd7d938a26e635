"""Text logs, read with a regular expression for each metric."""

import pytest

from cli.backtest import text
from cli.backtest.series import BadInput
from tests.backtest.command import run
from tests.detectors.runs import falling

PATTERNS = ["step=step ([0-9]+)", "loss=loss: ([0-9.,e+-]+|nan)"]


def test_every_line_with_a_metric_is_a_row(tmp_path):
    """Other lines are passed over; a progress bar's carriage returns end lines too."""
    file = tmp_path / "train.log"
    file.write_text("starting\nstep 5\nloss: 2.5\nstep 6 loss: nan\rstep 7 loss: 1,002.25\nloss: soon\n")
    series = text.read(file, text.parse_patterns(PATTERNS))
    assert [(sample.step, str(sample.loss)) for sample in series.samples] == [(5, "2.5"), (6, "nan"), (7, "1002.25")]
    assert series.rows == (2, 3, 4)


def test_the_command_evaluates_a_text_log(tmp_path):
    file = tmp_path / "train.log"
    losses = [loss * (3 if row >= 300 else 1) for row, loss in enumerate(falling(500))]
    file.write_text("\n".join(f"step {row} loss: {loss:.4f}" for row, loss in enumerate(losses)))
    result = run(str(file), *(part for pattern in PATTERNS for part in ("--metric", pattern)))
    assert result.exit_code == 0 and "divergence" in result.stdout and "intervene" in result.stdout


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["loss"], "is not NAME=REGEX"),
        (["speed=(.*)"], "is not NAME=REGEX"),
        (["loss=loss: ("], "missing )"),
        (["loss=loss"], "has 0 groups"),
        (["step=([0-9]+)"], "gives none of"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_explained(given, problem):
    with pytest.raises(BadInput) as raised:
        text.parse_patterns(given)
    assert problem in raised.value.problem and raised.value.remedy


def test_a_log_without_a_match_is_explained(tmp_path):
    file = tmp_path / "train.log"
    file.write_text("nothing here\n")
    with pytest.raises(BadInput, match="no line"):
        text.read(file, text.parse_patterns(PATTERNS))
