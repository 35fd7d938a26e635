"""The runbooks that notices and alarms link to: `docs/runbooks/<name>.md`, one for each task."""

from enum import StrEnum
from typing import Self

from rerail.model.former_names import RUNBOOKS


class Runbook(StrEnum):
    """The name of a runbook."""

    # Runs that wait for an operator.
    OUT_OF_MEMORY = "out-of-memory"
    SAME_ERROR = "same-error"
    DAMAGED_CHECKPOINT = "damaged-checkpoint"
    ATTEMPTS_SPENT = "attempts-spent"
    RESTART_STORM = "restart-storm"
    NO_PROGRESS = "no-progress"
    BUDGET_SPENT = "budget-spent"
    DIVERGED = "diverged"
    NO_CAPACITY = "no-capacity"
    REQUEST_REFUSED = "request-refused"
    JOB_GONE = "job-gone"
    MONEY_SPENT = "money-spent"
    TIME_SPENT = "time-spent"
    RELAUNCH_RATE_LIMIT = "relaunch-rate-limit"
    APPROVAL = "approval"
    NOT_QUARANTINED = "not-quarantined"
    NO_CHECKPOINTS = "checkpoints-unlisted"
    OBSERVING = "observing"
    # Runs that continue, but should be looked at.
    BLIND = "blind"
    CHECKPOINT_STALL = "checkpoint-stall"
    PLATEAU = "plateau"
    GRAD_NORM = "grad-norm"
    RESUME_MISMATCH = "resume-mismatch"
    # HyperPod clusters, which HyperPod itself repairs.
    HYPERPOD = "hyperpod"
    # The supervisor itself.
    DEAD_LETTERS = "dead-letters"
    FUNCTION_ERRORS = "function-errors"
    THROTTLES = "throttles"
    EVENTS_DROPPED = "events-dropped"
    STALE_SIGNALS = "stale-signals"
    NO_SWEEP = "no-sweep"
    UNDELIVERED = "undelivered"
    UNHEALTHY = "unhealthy"
    # Events that need no action.
    INFORMED = "informed"

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        """Return the runbook that had this name in an earlier version, None if there is none."""
        return cls(RUNBOOKS[value]) if isinstance(value, str) and value in RUNBOOKS else None
