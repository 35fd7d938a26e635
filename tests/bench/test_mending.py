"""How long spikes of real logs last: the table that the supervisor weighs with is the corpus' own."""

from bench.mending import read, table
from rerail.decisions.cost_benefit import NO_RECOVERY_RATES


def test_the_supervisor_weighs_with_what_the_logs_have_shown():
    """Derived again from the labels, the table is the one that is deployed."""
    assert table(read()) == NO_RECOVERY_RATES


def label(rows: int, recovered: str, *, kind: str = "loss_spike", score: str = "count") -> dict[str, str]:
    return {"kind": kind, "score": score, "onset_row": "100", "end_row": str(99 + rows), "recovered": recovered}


def test_what_has_mended_by_then_is_not_at_risk_any_more():
    """Three short ones, a long one, one that never mends; ignored labels and other kinds count for nothing."""
    labels = [label(2, "yes")] * 3 + [label(50, "yes"), label(9, "log ends")]
    labels += [label(50, "no", score="ignore"), label(50, "no", kind="plateau")]
    chances = dict(table(labels))
    assert (chances[0], chances[4], chances[64]) == (0.25, 0.5, 0.75)
