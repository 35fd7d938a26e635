"""Findings of the detectors: the kind of problem, its level, and the evidence."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

# In place of a level in the key of a notice: nothing was done about the finding, since Rerail could only observe.
UNDECIDED = "undecided"


class Level(StrEnum):
    """The level of a problem; the last two mean that it is over."""

    WARN = "warn"
    INTERVENE = "intervene"
    RECOVERED = "recovered"  # the loss has recovered
    ACCEPTED = "accepted"  # the loss has stayed at its new level for so long that this is its normal level now


class Kind(StrEnum):
    """The kind of problem, named after the detector."""

    NON_FINITE = "non_finite"
    LOSS_SPIKE = "loss_spike"
    DIVERGENCE = "divergence"
    FROZEN_LOSS = "frozen_loss"
    LOSS_DROP = "loss_drop"
    PLATEAU = "plateau"
    THROUGHPUT_DROP = "throughput_drop"
    THROUGHPUT_RISE = "throughput_rise"
    STRAGGLER = "straggler"
    STALL = "stall"
    STARTUP_STALL = "startup_stall"
    CHECKPOINT_STALL = "checkpoint_stall"
    GRAD_NORM = "grad_norm"
    BLIND = "blind"
    CAPACITY_WAIT = "capacity_wait"
    ALARM = "alarm"
    RESUME_MISMATCH = "resume_mismatch"


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that a detector found in a run."""

    kind: Kind
    level: Level
    # The step at which it was found.
    step: int | None
    # The step at which the problem began; None: unknown.
    onset_step: int | None
    # One sentence with the measured values.
    evidence: str
    at: datetime | None = None
    onset_at: datetime | None = None
    # For missing metrics or steps: the machines are known to be idle.
    idle: bool = False
    # From when on silence counts, if the clock that measured it is in doubt.
    doubt: datetime | None = None
