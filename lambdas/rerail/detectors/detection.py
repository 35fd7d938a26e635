"""Every threshold of the detectors, with its default and where it was learnt."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Detection:
    """What may differ from one watched run to the next."""

    # One NaN is a warning, a few in a row are no accident: a loss scaler skips single steps by design.
    non_finite_patience: int = 3
    # Rows with the very same loss.
    frozen_rows: int = 30
    plateau: bool = False
    stall_floor: timedelta = timedelta(minutes=5)
