"""Estimate the time of a step: computing, the bubble of a pipeline, and what crosses each kind of link."""

from __future__ import annotations

from choices import Choices


def compute_bubble(choices: Choices) -> float:
    """Return the share of a step in which a rank waits for the others of its pipeline.

    With p ranks and m microbatches it is (p-1)/(m+p-1); v stages on each rank divide the time to fill by v. No formula
    is known for torch's zero-bubble schedules: they wait about 0.7 of that time (`python -m bench.bubbles`).
    """
    waits = (choices.pipeline_parallel - 1) / choices.pipeline_schedule.stages_per_rank
    if choices.pipeline_schedule.splits_backward:
        waits *= 0.7
    return waits / (choices.microbatches + waits)
