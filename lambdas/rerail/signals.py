"""What the world told us, each with its time."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from rerail.actions import Action, CreateJob, Tell
from rerail.checkpoints import Checkpoint
from rerail.detectors.finding import Finding
from rerail.mailbox import Report
from rerail.model import Job


@dataclass(frozen=True, slots=True)
class JobSeen:
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
    """Time has passed."""

    at: datetime


class Verb(StrEnum):
    """What an operator may ask of a run."""

    HOLD = "hold"
    RELEASE = "release"
    STOP = "stop"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class Commanded:
    """An operator's wish; `who` and `why` are quoted in the timeline, a release resumes from the newest checkpoint."""

    at: datetime
    id: str
    verb: Verb
    who: str
    why: str
    checkpoints: Sequence[Checkpoint] | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """Actions that were carried out; carrying them out again would change nothing."""

    at: datetime
    actions: tuple[Action | Tell, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """What the detectors say of a job that runs, and its checkpoints where that may matter.

    `witnessed`: whoever says so looks at the process itself, and silence needs no second witness."""

    at: datetime
    job_name: str
    findings: tuple[Finding, ...]
    checkpoints: Sequence[Checkpoint] | None = None
    witnessed: bool = False


@dataclass(frozen=True, slots=True)
class Reported:
    """What an agent has to say, at the time at which we heard it, and the checkpoints where somebody looked."""

    at: datetime
    report: Report
    checkpoints: Sequence[Checkpoint] | None = None


@dataclass(frozen=True, slots=True)
class MailRefused:
    """A report that cannot be read; `defect` is the kind of defect, `why` names the field."""

    at: datetime
    defect: str
    why: str


class Refusal(StrEnum):
    """Why SageMaker did not create a job."""

    CAPACITY = "capacity"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class CreateRefused:
    """CreateTrainingJob answered no."""

    at: datetime
    action: CreateJob
    refusal: Refusal
    message: str


Signal = JobSeen | JobGone | Tick | Commanded | Found | Reported | MailRefused | Done | CreateRefused
