"""What a run reported at one moment: a logged row, or a minute's aggregate of many."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Sample:
    """One row of a series. None = not logged; nan and inf mean that the log really printed them.

    `sound_to`: the loss is not finite, which is only known from its silence, and was so up to this step for certain.
    """

    step: int | None = None
    at: datetime | None = None
    loss: float | None = None
    grad_norm: float | None = None
    step_time_s: float | None = None
    lr: float | None = None
    tokens_per_s: float | None = None
    nonfinite: bool = False
    count: int = 1
    loss_min: float | None = None
    loss_max: float | None = None
    sound_to: int | None = None
