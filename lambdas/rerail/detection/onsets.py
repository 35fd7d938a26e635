"""Find the step at which a problem with the loss began, so that a rollback goes back to before it."""

from collections.abc import Sequence
from dataclasses import replace

from rerail.model.finding import Finding, Kind, Level
from rerail.model.thresholds import Thresholds

OF_THE_LOSS = frozenset({Kind.NON_FINITE, Kind.LOSS_SPIKE, Kind.DIVERGENCE, Kind.FROZEN_LOSS})
# Problems found within this many times the detectors' patience belong together.
PATIENCE_FACTOR = 3
MAX_ONSETS = 20

Onsets = tuple[tuple[int, int], ...]


def with_onsets(
    onsets: Onsets, findings: Sequence[Finding], *, row: int, detection: Thresholds
) -> tuple[Onsets, tuple[Finding, ...]]:
    """Return the recent onsets, and this row's findings, where severe ones begin at the earliest onset.

    Each onset is a pair of the row at which it was found and the step. A divergence usually begins with a spike.
    """
    new = ((row, f.onset_step) for f in findings if f.kind in OF_THE_LOSS and f.onset_step is not None)
    recent = row - PATIENCE_FACTOR * max(detection.patience_rows, detection.patience_steps)
    onsets = (*((found_at, step) for found_at, step in onsets if found_at > recent), *new)[-MAX_ONSETS:]
    earliest = min((onset for _, onset in onsets), default=None)
    severe = (f.kind in OF_THE_LOSS and f.level is Level.INTERVENE for f in findings)
    return onsets, tuple(
        replace(f, onset_step=earliest) if is_severe else f for f, is_severe in zip(findings, severe, strict=True)
    )
