"""What a detector says: a kind of trouble, how far it has come, and the numbers behind it."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Level(StrEnum):
    """How far a trouble has come; the last two are its ends."""

    WARN = "warn"
    INTERVENE = "intervene"
    MENDED = "mended"  # the loss has come back to where it was
    ACCEPTED = "accepted"  # it has stayed where it is for so long that this is its level now


class Kind(StrEnum):
    """Which question was answered with yes."""

    NON_FINITE = "non_finite"
    LOSS_SPIKE = "loss_spike"
    DIVERGENCE = "divergence"
    FROZEN_LOSS = "frozen_loss"
    PLATEAU = "plateau"
    THROUGHPUT_DROP = "throughput_drop"
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
    """One answer; `onset_step` is where the trouble began (None: unknown), `evidence` one sentence with the numbers;
    `idle`: of silence, that the machines are known to do nothing; `doubt`: since when it counts, where the clock that
    says so is in doubt."""

    kind: Kind
    level: Level
    step: int | None
    onset_step: int | None
    evidence: str
    at: datetime | None = None
    onset_at: datetime | None = None
    idle: bool = False
    doubt: datetime | None = None
