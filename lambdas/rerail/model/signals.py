"""The signals that decisions are made from, each with its time."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from rerail.model.actions import Action, CopyCheckpoint, CreateJob, Notify, QuarantineCheckpoints
from rerail.model.checkpoints import Checkpoint
from rerail.model.diagnosis import Diagnosis
from rerail.model.file_copies import FileCopy
from rerail.model.finding import Finding
from rerail.model.machines import Cluster
from rerail.model.mailbox import Report
from rerail.model.policy import Policy
from rerail.model.run import Job


@dataclass(frozen=True, slots=True)
class JobObserved:
    """The current description of a job, and its checkpoints."""

    at: datetime
    job: Job
    # Newest first; None if they were not listed.
    checkpoints: Sequence[Checkpoint] | None = None


@dataclass(frozen=True, slots=True)
class JobGone:
    """SageMaker has no training job of this name."""

    at: datetime
    job_name: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""

    at: datetime
    # Listed when the next job is due, since the checkpoint to resume from may have been deleted.
    checkpoints: Sequence[Checkpoint] | None = None


@dataclass(frozen=True, slots=True)
class PolicyRead:
    """The run's policy was read, and differs from the last known one or from what was read before."""

    at: datetime
    # As deployed, whatever the account's pause; None if it cannot be used.
    policy: Policy | None
    # Why it cannot be used.
    problem: str = ""


class OperatorVerb(StrEnum):
    """The operator commands for a run."""

    HOLD = "hold"
    RELEASE = "release"
    STOP = "stop"
    RESTART = "restart"
    APPROVE = "approve"
    DENY = "deny"
    ROLLBACK = "rollback"
    SAVE = "save"
    DRILL = "drill"
    CONTINUE = "continue"


@dataclass(frozen=True, slots=True)
class RequestChange:
    """The changes of an operator to the request of a run's jobs; without values, which may be secret."""

    # What changes, for people.
    what: str = ""
    # The machines of the changed request; None if they stay the same.
    cluster: Cluster | None = None
    # The run's new policy; None if it stays the same.
    policy: Policy | None = None
    # Why the change cannot be made; empty if it can.
    problem: str = ""


@dataclass(frozen=True, slots=True)
class OperatorCommand:
    """A command from an operator."""

    # When the command is processed.
    at: datetime
    id: str
    verb: OperatorVerb
    # The operator and the reason given; both are quoted in the timeline.
    who: str
    why: str
    # A release resumes from the newest one.
    checkpoints: Sequence[Checkpoint] | None = None
    # For an approval or a denial: the id of the proposal.
    proposal: str = ""
    # For a rollback or a drill: the step to go back to.
    step: int | None = None
    # When the operator issued the command.
    asked_at: datetime | None = None
    # For a continuation: what the next attempt has other than the one before.
    change: RequestChange | None = None
    # For a stop or a restart: do not wait for a checkpoint.
    at_once: bool = False
    # Why this deployment may neither stop nor create jobs; empty if it may.
    observe_only: str = ""
    # For a rollback of a live job: why its newer checkpoints could not be moved once it is stopped; empty if they can.
    unmovable: str = ""


@dataclass(frozen=True, slots=True)
class ActionsDone:
    """Actions that were carried out and events that were published; repeating them would change nothing."""

    at: datetime
    actions: tuple[Action | Notify, ...]
    # The ids of the state changes whose events were published.
    published: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FindingsObserved:
    """Detector findings about a running job."""

    at: datetime
    job_name: str
    findings: tuple[Finding, ...]
    # Listed if the findings may lead to an action.
    checkpoints: Sequence[Checkpoint] | None = None
    # The findings come from the agent, which observes the process itself: a stall needs no second source.
    witnessed: bool = False
    # The first step that the job reported, if its script resumed by itself.
    first_step: int | None = None


@dataclass(frozen=True, slots=True)
class AgentReported:
    """A report from an agent."""

    # When the report was received.
    at: datetime
    report: Report
    # None if they were not listed.
    checkpoints: Sequence[Checkpoint] | None = None
    # Of a crash, made before secrets were removed from the report; None: diagnose the report.
    diagnosis: Diagnosis | None = None


@dataclass(frozen=True, slots=True)
class ReportInvalid:
    """A report that cannot be read."""

    at: datetime
    # The kind of defect: each kind is reported to people once.
    defect: str
    # The explanation, with the name of the field.
    why: str


NAME_TAKEN = "another job has that name"


class Refusal(StrEnum):
    """The reason for which a job was not created."""

    CAPACITY = "capacity"  # SageMaker has no quota or capacity now
    INVALID = "invalid"  # SageMaker rejects the request itself
    RATE_LIMIT = "brake"  # the account's rate limit on relaunches


@dataclass(frozen=True, slots=True)
class CreateRefused:
    """A launch that SageMaker or the rate limit on relaunches refused."""

    at: datetime
    action: CreateJob
    refusal: Refusal
    message: str
    # Rate limit only: when to try again.
    until: datetime | None = None
    # Rate limit only: set if on-call has to be paged.
    paged_at: datetime | None = None
    # Rate limit only: the relaunched runs that failed with the same error, where it waits for one of them.
    shared_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Paused:
    """Rerail is paused while a stop is pending whose call was not made yet."""

    at: datetime


@dataclass(frozen=True, slots=True)
class StopThrottled:
    """SageMaker has not taken the call to stop the job; the call is repeated."""

    at: datetime


@dataclass(frozen=True, slots=True)
class QuarantineRefused:
    """Checkpoints that a rollback must not resume from could not be quarantined."""

    at: datetime
    action: QuarantineCheckpoints
    # Why.
    message: str
    # What to do about it.
    advice: str


@dataclass(frozen=True, slots=True)
class FileCopied:
    """A file that its script overwrites in place was copied, or could not be."""

    at: datetime
    action: CopyCheckpoint
    # None: the file has changed since it was listed, or must not be copied.
    copy: FileCopy | None = None
    # Why it must not be copied.
    problem: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointsRefused:
    """The run's checkpoints are more than Rerail reads."""

    at: datetime
    # What was exceeded.
    message: str
    # What to do about it.
    advice: str
    # A decision depends on them: the run cannot go on without.
    is_needed: bool = False
    # The job that would be relaunched, if it has ended.
    job: Job | None = None


@dataclass(frozen=True, slots=True)
class RecordOutdated:
    """A job launched by Rerail is newer than the run's record."""

    at: datetime
    # The number of that job's attempt.
    number: int
    # The jobs after the record's last attempt that SageMaker still lists, including the newest.
    jobs: tuple[Job, ...]


Signal = (
    JobObserved
    | JobGone
    | Tick
    | PolicyRead
    | OperatorCommand
    | FindingsObserved
    | AgentReported
    | ReportInvalid
    | ActionsDone
    | CreateRefused
    | QuarantineRefused
    | FileCopied
    | CheckpointsRefused
    | Paused
    | StopThrottled
    | RecordOutdated
)
