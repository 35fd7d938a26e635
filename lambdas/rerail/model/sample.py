"""Samples of a run's metrics: a logged row, or the aggregate of a minute."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

# A sample that aggregates this many rows stands for more of them: detectors need fewer samples, by this factor.
AGGREGATES = 4
AGGREGATED_FACTOR = 4
# Larger step values are treated as garbage.
STEP_LIMIT = 10**18


@dataclass(frozen=True, slots=True)
class Sample:
    """One row of a series; None means not logged, while nan and inf mean that the log printed these values."""

    step: int | None = None
    at: datetime | None = None
    loss: float | None = None
    grad_norm: float | None = None
    step_time_s: float | None = None
    lr: float | None = None
    tokens_per_s: float | None = None
    # The run itself reported a loss or gradient that is not finite.
    nonfinite: bool = False
    # The number of logged rows that the sample aggregates.
    count: int = 1
    # The maximum loss of the aggregated rows.
    loss_max: float | None = None
    # What shows that slow steps are a fault and were not planned: a slow rank, or an idle machine; "" if nothing does.
    suspect: str = ""
    # The script has announced a change of loss or speed: this row and earlier ones are not comparable.
    is_changed: bool = False
    # The steps of the job have fallen since the sample before; samples of such a job may have no step.
    begins_again: bool = False
    # Set if a non-finite loss is inferred from missing values: the last step at which the loss was certainly finite.
    complete_to: int | None = None

    @property
    def patience_factor(self) -> int:
        """Return by how much the detectors' patience in rows is shorter: aggregates have little noise."""
        return AGGREGATED_FACTOR if self.count >= AGGREGATES else 1


def parse_step(metrics: Mapping[str, float]) -> int | None:
    """Return the step among a job's metrics, or None if it is missing or too large to be a step."""
    step = metrics.get("step")
    return int(step) if step is not None and abs(step) < STEP_LIMIT else None
