"""The actions that a decision requests, as data; each of them is idempotent.

Each class states the order in which it is performed, its label in Rerail's metrics, and what holds it back.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from rerail.model.file_copies import FileCopy
from rerail.model.mailbox import Command
from rerail.model.runbooks import Runbook


class ActionTraits:
    """Properties that all actions of a class share."""

    __slots__ = ()

    # Actions are performed in this order. Commands to older agents and releases of bad machines come before the next
    # launch, notices last.
    RANK: ClassVar[int]
    # The value of the dimension in Rerail's metrics; a notice is counted by its severity.
    METRIC_LABEL: ClassVar[str]
    # Not performed while Rerail is paused.
    IS_BLOCKED_BY_PAUSE: ClassVar[bool] = False
    # No job is created before this is done: the job's machines or its checkpoint depend on it.
    PRECEDES_CREATE: ClassVar[bool] = False
    # Done once for each message, after all decisions on it: these must not wait for it.
    IS_BACKGROUND: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Machines:
    """Machines that replace those of the run's own request."""

    # In order of preference; empty: the request's own.
    instance_types: tuple[str, ...] = ()
    subnets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CreateJob(ActionTraits):
    """Launch an attempt's job from the run's stored request; repeating it is harmless because job names are unique."""

    RANK = 5
    METRIC_LABEL = "create"
    IS_BLOCKED_BY_PAUSE = True

    job_name: str
    attempt: int
    # The step to resume from; None: no limit.
    resume_step: int | None
    # The samples to skip, as `first-last,first-last`.
    skip_samples: str = ""
    # The factor on the learning rate.
    rate: float = 1.0
    # The parts in which the script computes each batch.
    microbatches: int = 1
    # Replaces the request's machines.
    machines: Machines | None = None
    # Seconds; replaces the request's MaxRuntimeInSeconds.
    max_runtime_s: int | None = None
    # The launch is a restart drill: checkpoints newer than the resume step are valid and stay in place.
    drill: bool = False
    # The cause for which the attempt before it ended; empty if unknown.
    previous_cause: str = ""
    # `attempt:UUID` of the GPUs that failed before, which the job must not start on.
    failed_gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StopJob(ActionTraits):
    """Stop a job; a job that is stopping or has ended counts as stopped."""

    RANK = 2
    METRIC_LABEL = "stop"
    IS_BLOCKED_BY_PAUSE = True

    job_name: str


@dataclass(frozen=True, slots=True)
class ReleaseWarmPool(ActionTraits):
    """Release a job's warm pool, so that a relaunch does not reuse the same faulty node."""

    RANK = 3
    METRIC_LABEL = "release"
    PRECEDES_CREATE = True

    job_name: str


@dataclass(frozen=True, slots=True)
class PostCommand(ActionTraits):
    """Replace the command in the run's mailbox; the agent carries out each command id once."""

    RANK = 1
    METRIC_LABEL = "command"

    command: Command


@dataclass(frozen=True, slots=True)
class QuarantineCheckpoints(ActionTraits):
    """Move checkpoints that the next job must not resume from out of its checkpoint folder.

    A script without an agent resumes from whatever it finds there.
    """

    RANK = 4
    METRIC_LABEL = "quarantine"
    PRECEDES_CREATE = True
    IS_BLOCKED_BY_PAUSE = True

    run: str
    # The number of the attempt that was rolled back.
    attempt: int
    uri: str
    # Checkpoints of later steps are moved; None: all of them.
    resume_step: int | None
    # Checkpoints saved at this time or later stay in place.
    saved_before: datetime
    # Refuse if the step of a checkpoint cannot be determined; False: an operator has looked at the folder.
    strict: bool = True
    # The job must not be created without it; False: the remaining files could at most make the script fail.
    is_vital: bool = True
    # What was saved before the run's first job began is not the run's own; None: not known, nothing is moved.
    saved_after: datetime | None = None
    # Files without a step that were saved at this time or later are replaced; None: such files are refused.
    replaced_since: datetime | None = None
    # The copies that replace them.
    restored: tuple[FileCopy, ...] = ()


@dataclass(frozen=True, slots=True)
class CopyCheckpoint(ActionTraits):
    """Copy a file that its script overwrites in place, then delete older copies."""

    RANK = 7
    METRIC_LABEL = "nothing"  # it answers no problem
    IS_BACKGROUND = True

    run: str
    # The checkpoint folder.
    uri: str
    copy: FileCopy
    # Deleted once the copy is made.
    expired: tuple[FileCopy, ...] = ()
    # Check that no other run uses the folder; that was done for the attempt's earlier copies.
    is_first: bool = True


Action = CreateJob | StopJob | ReleaseWarmPool | PostCommand | QuarantineCheckpoints | CopyCheckpoint


class Severity(StrEnum):
    """The urgency of a notice, which selects its recipients."""

    PAGE = "page"  # on-call, immediately
    INFORM = "inform"  # for reading later
    CLEAR = "clear"  # the recipients of a page, when it is resolved


class ClearedBy(StrEnum):
    """The event that closes a page."""

    RELEASED = "released"  # the run is no longer held
    ANSWERED = "answered"  # the proposal is no longer open
    LAUNCHED = "launched"  # the rate limit on relaunches has admitted the launch
    RECOVERED = "recovered"  # the problem is resolved, or its attempt has ended
    DEPLOYED = "deployed"  # the run's policy can be read again


@dataclass(frozen=True, slots=True)
class Notify(ActionTraits):
    """A notice for people."""

    RANK = 6

    severity: Severity
    title: str
    # What happened.
    body: str
    # The deduplication key.
    key: str
    runbook: Runbook = Runbook.INFORMED
    # What Rerail did about it.
    did: str = ""
    # What the reader must do, in the imperative.
    todo: str = ""
    # When the problem began.
    since: datetime | None = None
    # Until when the reader must act.
    by: datetime | None = None
    # For an all-clear: the key of the page that it closes.
    clears: str = ""
    # For a page: the event that closes it, and which proposal or kind of finding that event is about.
    until: ClearedBy = ClearedBy.RELEASED
    about: str = ""
    # When the decision that sends it was made; None: recorded by an older version.
    decided_at: datetime | None = None
