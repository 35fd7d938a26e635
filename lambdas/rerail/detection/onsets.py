"""Where does a trouble with the loss begin? What does not mend was a spike first: a rollback reaches behind that."""

from collections.abc import Sequence
from dataclasses import replace

from rerail.model.finding import Finding, Kind, Level
from rerail.model.thresholds import Thresholds

OF_THE_LOSS = frozenset({Kind.NON_FINITE, Kind.LOSS_SPIKE, Kind.DIVERGENCE, Kind.FROZEN_LOSS})
# So many times the detectors' patience back, an earlier trouble still belongs to this one.
PATIENCES, KEPT = 3, 20

Onsets = tuple[tuple[int, int], ...]


def with_onsets(
    onsets: Onsets, findings: Sequence[Finding], *, row: int, detection: Thresholds
) -> tuple[Onsets, tuple[Finding, ...]]:
    """The recent onsets, each with the row at which it was found, and this row's findings: grave ones begin with the
    earliest of them."""
    new = ((row, f.onset_step) for f in findings if f.kind in OF_THE_LOSS and f.onset_step is not None)
    recent = row - PATIENCES * max(detection.patience_rows, detection.patience_steps)
    onsets = (*(each for each in onsets if each[0] > recent), *new)[-KEPT:]
    earliest = min((onset for _, onset in onsets), default=None)
    grave = (f.kind in OF_THE_LOSS and f.level is Level.INTERVENE for f in findings)
    return onsets, tuple(
        replace(f, onset_step=earliest) if is_grave else f for f, is_grave in zip(findings, grave, strict=True)
    )
