"""What the world told us, each with its time."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from rerail.model.actions import Action, CreateJob, Notify, QuarantineCheckpoints
from rerail.model.checkpoints import Checkpoint
from rerail.model.finding import Finding
from rerail.model.mailbox import Report
from rerail.model.run import Job


@dataclass(frozen=True, slots=True)
class JobObserved:
    """A job as it is now, with its checkpoints newest first, or None where nobody looked."""

    at: datetime
    job: Job
    checkpoints: Sequence[Checkpoint] | None = None


@dataclass(frozen=True, slots=True)
class JobGone:
    """SageMaker knows no job of this name."""

    at: datetime
    job_name: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; the checkpoints where the next job is due: what it was to resume from may be gone by now."""

    at: datetime
    checkpoints: Sequence[Checkpoint] | None = None


class OperatorVerb(StrEnum):
    """What an operator may ask of a run."""

    HOLD = "hold"
    RELEASE = "release"
    STOP = "stop"
    RESTART = "restart"
    APPROVE = "approve"
    DENY = "deny"
    ROLLBACK = "rollback"
    SAVE = "save"
    DRILL = "drill"


@dataclass(frozen=True, slots=True)
class OperatorCommand:
    """An operator's wish; `who` and `why` are quoted in the timeline, a release resumes from the newest checkpoint, a
    word on a proposal names its id in `proposal`, a rollback and a drill the step to go back to in `step`. `asked_at`
    is when the wish was spoken, `at` when it is granted."""

    at: datetime
    id: str
    verb: OperatorVerb
    who: str
    why: str
    checkpoints: Sequence[Checkpoint] | None = None
    proposal: str = ""
    step: int | None = None
    asked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ActionsDone:
    """Actions that were carried out; carrying them out again would change nothing."""

    at: datetime
    actions: tuple[Action | Notify, ...]


@dataclass(frozen=True, slots=True)
class FindingsObserved:
    """What the detectors say of a job that runs, and its checkpoints where that may matter.

    `witnessed`: whoever says so looks at the process itself, and silence needs no second witness."""

    at: datetime
    job_name: str
    findings: tuple[Finding, ...]
    checkpoints: Sequence[Checkpoint] | None = None
    witnessed: bool = False


@dataclass(frozen=True, slots=True)
class AgentReported:
    """What an agent has to say, at the time at which we heard it, and the checkpoints where somebody looked."""

    at: datetime
    report: Report
    checkpoints: Sequence[Checkpoint] | None = None


@dataclass(frozen=True, slots=True)
class ReportInvalid:
    """A report that cannot be read; `defect` is the kind of defect, `why` names the field."""

    at: datetime
    defect: str
    why: str


class Refusal(StrEnum):
    """Why a job was not created: SageMaker said so, or the brake on all relaunches of the account."""

    CAPACITY = "capacity"
    INVALID = "invalid"
    BRAKE = "brake"


@dataclass(frozen=True, slots=True)
class CreateRefused:
    """CreateTrainingJob answered no, or the brake did: then `until` says when to ask again, and `paged_at` is given
    where on-call is to hear of it."""

    at: datetime
    action: CreateJob
    refusal: Refusal
    message: str
    until: datetime | None = None
    paged_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Paused:
    """Rerail is paused, and a stop is owed that was not called for yet."""

    at: datetime


@dataclass(frozen=True, slots=True)
class QuarantineRefused:
    """What a rollback must not resume from cannot be set aside; the message says what is lacking, and the remedy."""

    at: datetime
    action: QuarantineCheckpoints
    message: str


@dataclass(frozen=True, slots=True)
class RecordOutdated:
    """A job of ours is attempt `number` of the run, and newer than its record; `jobs` are those since the record's last
    attempt of which SageMaker still knows, the newest among them."""

    at: datetime
    number: int
    jobs: tuple[Job, ...]


Signal = (
    JobObserved
    | JobGone
    | Tick
    | OperatorCommand
    | FindingsObserved
    | AgentReported
    | ReportInvalid
    | ActionsDone
    | CreateRefused
    | QuarantineRefused
    | Paused
    | RecordOutdated
)
