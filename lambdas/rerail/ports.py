"""What the core needs of the world, in the core's own words; rerail.aws answers with AWS, the tests with fakes."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from rerail.model.actions import QuarantineCheckpoints
from rerail.model.checkpoints import Checkpoint
from rerail.model.errors import UnknownPolicy
from rerail.model.mailbox import Command, Heartbeat, Report
from rerail.model.policy import Policy
from rerail.model.run import Job, JobStatus, Run, TimelineEntry
from rerail.notices.notice import Notice
from rerail.supervisor.rate_limit import Admission
from rerail.sweep.shards import PARTITIONS


class Runs(Protocol):
    """The memory: runs, their requests and timelines, and which run a job belongs to."""

    def load(self, run_id: str) -> Run | None:
        """The run as last saved."""

    def save(self, run: Run, entry: TimelineEntry | None = None, request: Mapping[str, Any] | None = None) -> None:
        """Record the run (and the names of its jobs, a timeline entry, its request) if the stored version is
        `run.version - 1`; raises Conflict if it is not. All of it or nothing."""

    def request(self, run_id: str) -> Mapping[str, Any]:
        """The CreateTrainingJob request that the run's attempts are made from."""

    def run_of(self, job_name: str) -> str | None:
        """The run that the job belongs to."""

    def ignore(self, job_name: str, reason: str, *, until: datetime) -> bool:
        """Remember that the job is not ours; False if that was known already."""

    def unheard_of(self, job_names: Collection[str]) -> set[str]:
        """Those jobs that are neither of a run nor ignored."""

    def open_runs(self, parts: Iterable[int] = range(PARTITIONS)) -> Iterable[tuple[str, Run | None]]:
        """Name and record of every run, in these parts of the index, that the sweep has to ask about; None where the
        record cannot be read."""


class Jobs(Protocol):
    """SageMaker's training jobs."""

    def describe(self, job_name: str) -> tuple[Job, Mapping[str, Any]]:
        """The job, and the whole description it was read from; raises JobNotFound."""

    def tags(self, arn: str) -> Mapping[str, str]:
        """The job's tags."""

    def request_members(self) -> Collection[str]:
        """The members that CreateTrainingJob takes."""

    def changed_since(self, time: datetime) -> Mapping[str, tuple[JobStatus, str]]:
        """The jobs that changed since then, by name, each with its status and its secondary status; raises Blind."""

    def create(self, request: Mapping[str, Any]) -> None:
        """Launch; raises JobExists, CapacityRefused, RequestRefused or Throttled."""

    def stop(self, job_name: str) -> None:
        """Stop; a job that is stopping, has ended or never was counts as stopped; raises Throttled."""

    def release_warm_pool(self, job_name: str) -> None:
        """Give the retained instances back; no pool counts as released; raises Throttled."""


class Checkpoints(Protocol):
    """Saved states."""

    def under(self, uri: str, *, upto: int | None = None) -> Sequence[Checkpoint]:
        """The newest checkpoints below the URI that have a readable manifest, newest first, of those up to a step where
        that is given; where nothing has one, all saves of a script whose layout is known."""

    def times(self, uri: str) -> Sequence[datetime]:
        """When the saves below the URI were made, by a listing alone; raises Blind."""

    def set_aside(self, action: QuarantineCheckpoints) -> None:
        """Move aside what a script must not resume from; nothing is lost, wherever it ends, and repeating it goes on.

        Raises Unfinished where time was up, Throttled, CallFailed, or QuarantineFailed where waiting does not help."""


class Policies(Protocol):
    """Policies by name."""

    def get(self, name: str) -> Policy:
        """The policy; raises UnknownPolicy or PolicyError."""


class Pause(Protocol):
    """The account's pause."""

    def is_paused(self) -> bool:
        """Return whether Rerail is paused, so that no job may be stopped or created; where nobody can tell, what was
        known last."""


class RateLimit(Protocol):
    """The count of all relaunches of the account."""

    def admit(self, job_name: str, *, at: datetime, limit: int, window: timedelta) -> Admission:
        """Count one launch, or keep it back: see `rerail.supervisor.rate_limit`; raises Throttled."""


class Bus(Protocol):
    """The voice: notices for people and for anyone's own rules."""

    def publish(self, notice: Notice) -> None:
        """Put the notice on the bus; raises where it was not accepted."""


class ReceivedHeartbeat(NamedTuple):
    """A heartbeat, when it arrived by the mailbox's own clock (the job's may be wrong), and whether the run's key has
    sealed it."""

    heartbeat: Heartbeat
    at: datetime
    sealed: bool = False


class ReceivedHeartbeats(NamedTuple):
    """The heartbeats that there are, by folder, and of the others that should be readable why they are not."""

    heard: Mapping[str, ReceivedHeartbeat]
    unread: Mapping[str, str]


class Mailbox(Protocol):
    """Commands to the agents in running jobs, and what they have to say."""

    def post(self, command: Command) -> None:
        """Replace the command in the folder of its run; raises Throttled or CommandNotStored."""

    def report(self, key: str, seal_key: str = "") -> Report | None:
        """Return the report in this object, or None where there is none.

        Raises BadMailboxObject, also for the signature of another key, and StateUnknown where S3 does not answer."""

    def heartbeats(self, folders: Collection[str], seal_keys: Mapping[str, str] | None = None) -> ReceivedHeartbeats:
        """The newest heartbeat in each of these folders, whose runs have these keys."""


class Queue(Protocol):
    """The way to the supervisor."""

    def wake(self, wakeups: Sequence[Mapping[str, Any]], *, at: datetime) -> None:
        """Ask the supervisor to look at these runs or jobs, or tell it what was found."""


def policy_of(run: Run, policies: Policies) -> Policy:
    """The run's policy; one that was removed since the run began gives way to the default."""
    try:
        return policies.get(run.policy)
    except UnknownPolicy:
        return policies.get("default")
