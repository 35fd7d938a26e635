"""The observations of `rerail acceptance`: jobs, events, notices, metrics and uploads, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from cli.demo.scenarios import Scenario


@dataclass(frozen=True, slots=True)
class StatusTransition:
    """An entry of a job's SecondaryStatusTransitions."""

    status: str
    started_at: datetime
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """A training job as DescribeTrainingJob and ListTags returned it last."""

    name: str
    status: str
    created_at: datetime
    transitions: tuple[StatusTransition, ...] = ()
    # TrainingEndTime.
    ended_at: datetime | None = None
    failure_reason: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    is_spot: bool = False
    # When StopTrainingJob was called: by this command, or by Rerail according to the run's timeline.
    stop_called_at: datetime | None = None
    # The job of this acceptance whose warm pool it took over; empty if there is none.
    pool_of: str = ""

    @property
    def has_trained(self) -> bool:
        """Return whether its script was started."""
        return self.find_start("Training") is not None

    def find_start(self, status: str) -> datetime | None:
        """Return when the job first had this secondary status."""
        return next((entry.started_at for entry in self.transitions if entry.status == status), None)


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """An event about a job's state that reached the temporary queue."""

    job: str
    status: str
    secondary: str
    # When the state changed, by the event's own LastModifiedTime.
    changed_at: datetime | None
    arrived_at: datetime


@dataclass(frozen=True, slots=True)
class ReceivedNotice:
    """A notice that reached the temporary queue through its SNS topic."""

    run: str
    title: str
    sent_at: datetime
    arrived_at: datetime


@dataclass(frozen=True, slots=True)
class UploadedCheckpoint:
    """A checkpoint that the job wrote to its disk and SageMaker uploaded."""

    step: int
    reason: str
    # When the job completed it, by its manifest.
    saved_at: datetime
    # When its manifest, and the last of its other files, reached S3.
    manifest_at: datetime
    files_at: datetime


@dataclass(frozen=True, slots=True)
class Observation:
    """The observations of one trial."""

    trial: str
    run: str = ""
    # How its run had to end.
    scenario: Scenario | None = None
    # The facts that `rerail demo` collects of a run; empty if Rerail has no record of the run.
    facts: Mapping[str, Any] = field(default_factory=dict)
    jobs: tuple[ObservedJob, ...] = ()
    decisions: tuple[str, ...] = ()
    # How many decisions were made on reports of the agent, which come by EventBridge and the queue of signals.
    reports: int = 0
    uploads: tuple[UploadedCheckpoint, ...] = ()
    # The age in seconds of the newest value of each metric when it was first visible.
    metric_ages: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    # Why it was not tried; empty if it was.
    not_tried: str = ""


@dataclass(frozen=True, slots=True)
class ObservedAccount:
    """The observations of the deployment itself."""

    events: tuple[ReceivedEvent, ...] = ()
    notices: tuple[ReceivedNotice, ...] = ()
    # Lines of the functions' logs that say that AWS denied a call.
    denials: tuple[str, ...] = ()
    # The encryption of an object that a job wrote to the mailbox; empty if there is none.
    mailbox_encryption: str = ""
    # The key of the queue of signals, and that of the deployment.
    queue_key: str = ""
    data_key: str = ""
    # Name of the check to why its observation could not be made.
    unread: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observations:
    """All observations of an acceptance."""

    trials: Mapping[str, Observation]
    account: ObservedAccount = field(default_factory=ObservedAccount)

    @property
    def jobs(self) -> tuple[ObservedJob, ...]:
        """Return all jobs, in the order of the trials."""
        return tuple(job for trial in self.trials.values() for job in trial.jobs)
