"""The interfaces through which the core uses AWS; rerail.aws implements them, and the tests use fakes."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from rerail.model.actions import CopyCheckpoint, QuarantineCheckpoints
from rerail.model.checkpoints import Checkpoint
from rerail.model.errors import PolicyError
from rerail.model.file_copies import FileCopy
from rerail.model.mailbox import Command, Heartbeat, Report
from rerail.model.notice import Notice
from rerail.model.partitions import PARTITIONS
from rerail.model.policy import Mode, Policy
from rerail.model.rate_limit import Admission, LaunchRequest
from rerail.model.run import Job, JobStatus, Run, TimelineEntry
from rerail.model.run_event import RunEvent


class Runs(Protocol):
    """The store of runs, their requests and timelines, and the run of each job."""

    def load(self, run_id: str) -> Run | None:
        """Return the run as last recorded, or None."""

    def save(self, run: Run, entry: TimelineEntry | None = None, request: Mapping[str, Any] | None = None) -> None:
        """Record the run with the names of its jobs, a timeline entry and its request, all or nothing.

        Raise Conflict unless the stored version is `run.version - 1`, RequestTooLarge if the request cannot be stored.
        An entry that is too large is recorded without its signal.
        """

    def request(self, run_id: str) -> Mapping[str, Any]:
        """Return the CreateTrainingJob request that the run's attempts are launched from."""

    def run_of(self, job_name: str) -> str | None:
        """Return the id of the run that the job belongs to, or None."""

    def ignore(self, job_name: str, reason: str, *, until: datetime) -> bool:
        """Record that the job is not supervised; return False if that was already recorded."""

    def is_ignored(self, job_name: str) -> bool:
        """Return whether it is recorded that the job is not supervised, and the record has not expired."""

    def confirm_delivery(self, id: str, *, until: datetime) -> None:
        """Record that the event with this id has arrived, for those who wait for it."""

    def find_unknown_jobs(self, job_names: Collection[str]) -> set[str]:
        """Return the jobs that neither belong to a run nor are ignored."""

    def open_runs(self, parts: Iterable[int] = range(PARTITIONS)) -> Iterable[tuple[str, Run | None]]:
        """Return the id and the record of every run that the sweep must visit, from these parts of the index.

        The record is None if it cannot be read.
        """


class Jobs(Protocol):
    """SageMaker's training jobs."""

    def describe(self, job_name: str) -> tuple[Job, Mapping[str, Any]]:
        """Return the job and the description it was read from; raise JobNotFound if there is none."""

    def tags(self, arn: str) -> Mapping[str, str]:
        """Return the job's tags."""

    def list_capacities(self, plan: str) -> Sequence[tuple[datetime, datetime]]:
        """Return when each capacity that a training plan (an ARN) reserves begins and ends; () where it is not known.

        Raise StateUnknown on failure.
        """

    def request_members(self) -> Collection[str]:
        """Return the names of the request members of CreateTrainingJob."""

    def changed_since(self, time: datetime) -> Mapping[str, tuple[JobStatus, str]]:
        """Return the status and secondary status of the jobs that changed since then; raise StateUnknown on failure."""

    def create(self, request: Mapping[str, Any]) -> None:
        """Launch a job; raise JobExists, CapacityRefused, RequestRefused or Throttled."""

    def stop(self, job_name: str) -> None:
        """Stop a job; one that is stopping, has ended or does not exist counts as stopped. Raise Throttled."""

    def release_warm_pool(self, job_name: str) -> None:
        """Release the warm pool; a job without one counts as released. Raise Throttled."""


class FailureLogs(Protocol):
    """Access to the ends of training jobs' logs."""

    def read_ends(self, job: Job) -> Sequence[str]:
        """Return the end of each host's log, of a limited number of hosts, lines and seconds.

        Return nothing if there is no log; raise StateUnknown or Throttled if it cannot be read.
        """


class ListedSaves(NamedTuple):
    """The facts about a job's checkpoints that a listing has."""

    # When they were saved.
    times: Sequence[datetime]
    # The files that the script overwrites in place, if it saves nothing else.
    files: Sequence[Checkpoint] = ()


class Checkpoints(Protocol):
    """The checkpoints of jobs."""

    def list_checkpoints(
        self, uri: str, *, upto: int | None = None, signing_key: str = "", signed_only: bool = True
    ) -> Sequence[Checkpoint]:
        """Return the newest checkpoints below the URI that have a readable manifest, newest first.

        With `upto`, only checkpoints up to that step count. With a key, each says whether it is signed with that. With
        `signed_only` too, manifests are read until a signed one is usable: unsigned ones hide none. Checkpoints of a
        known layout are returned too, unless there are manifests and `signed_only` is set.
        """

    def list_saves(self, uri: str) -> ListedSaves:
        """Return what a listing has about the checkpoints below the URI; raise StateUnknown on failure."""

    def copy_file(self, action: CopyCheckpoint, authorize: Callable[[], None]) -> FileCopy | None:
        """Copy a file that its script overwrites in place, and delete the expired copies.

        Return the copy, or None if the file has changed since it was listed. `authorize` is called before anything is
        copied, and raises QuarantineFailed to prevent it. A repetition continues. Raise as `quarantine` does.
        """

    def quarantine(self, action: QuarantineCheckpoints, authorize: Callable[[], None]) -> None:
        """Move checkpoints that a script must not resume from to the quarantine folder.

        `authorize` is called before anything is moved, and raises QuarantineFailed to prevent it. Nothing is lost if it
        is interrupted, and a repetition continues. Raise ActionUnfinished if time ran out, Throttled, CallFailed, or
        QuarantineFailed if waiting does not help.
        """


class Policies(Protocol):
    """Policies by name."""

    def get(self, name: str) -> Policy:
        """Return the policy as deployed; raise UnknownPolicy or PolicyError."""


class PausedPolicies(Policies, Protocol):
    """Policies by name, and what the account's pause leaves of a policy."""

    def with_pause(self, policy: Policy) -> Policy:
        """Return the policy as it applies now: with the mode `pause` while Rerail is paused.

        In a deployment that may only observe, the mode is `observe`.
        """


class Pause(Protocol):
    """The pause of the account."""

    def is_paused(self) -> bool:
        """Return whether Rerail is paused, so that no job may be stopped or created.

        If the state cannot be read, return the last known one.
        """


class RateLimit(Protocol):
    """The rate limit on relaunches of the account."""

    def admit(self, request: LaunchRequest, *, at: datetime, limit: int, window: timedelta) -> Admission:
        """Count one launch or postpone it; see `rerail.model.rate_limit`. Raise Throttled."""

    def claim_page(self, run: str, error: str, *, at: datetime) -> str:
        """Return the run that pages on-call about the error that several runs share. Raise Throttled."""

    def claim_adoption_notice(self, job_name: str, *, at: datetime) -> int:
        """Return the number of a notice about a job that is not adopted as asked, 0 for no notice."""


class Bus(Protocol):
    """The event bus of notices and run events, for people and for users' own rules."""

    def publish(self, notice: Notice) -> None:
        """Publish a notice; raise an error if it was not accepted."""

    def publish_change(self, event: RunEvent) -> None:
        """Publish the event of a run's state change; raise an error if it was not accepted."""


class ReceivedHeartbeat(NamedTuple):
    """A heartbeat from the mailbox."""

    heartbeat: Heartbeat
    # When it arrived, by the mailbox's clock: the job's clock may be wrong.
    at: datetime
    # Signed with the run's key.
    is_signed: bool = False


class ReceivedHeartbeats(NamedTuple):
    """The heartbeats of several mailbox folders."""

    received: Mapping[str, ReceivedHeartbeat]
    # Why a heartbeat could not be read, by folder.
    unread: Mapping[str, str]


class Mailbox(Protocol):
    """The commands to the agents in running jobs, and their reports and heartbeats."""

    def post(self, command: Command, signing_key: str = "") -> None:
        """Replace the command in the folder of its run, signed with a key; raise Throttled or CommandNotStored."""

    def report(self, key: str, signing_key: str = "") -> Report | None:
        """Return the report in this object, or None if it does not exist.

        Raise BadMailboxObject if it is malformed or signed with another key, StateUnknown if S3 does not answer.
        """

    def change(self, run: str, digest: str) -> bytes:
        """Return the change of the run's request that has this digest.

        Raise BadMailboxObject if it does not exist or has another digest, StateUnknown if S3 does not answer.
        """

    def heartbeats(self, folders: Collection[str], signing_keys: Mapping[str, str] | None = None) -> ReceivedHeartbeats:
        """Return the newest heartbeat of each folder, checked with the signing keys of their runs."""


class Queue(Protocol):
    """The supervisor's queue."""

    def wake(self, messages: Sequence[Mapping[str, Any]], *, at: datetime) -> None:
        """Send the supervisor requests to evaluate runs or jobs, or findings."""


def policy_of(run: Run, policies: PausedPolicies) -> Policy:
    """Return the policy that the run is under now.

    If it was removed or is malformed, the last known one applies; if none is known, the run is only observed.
    """
    try:
        policy = policies.get(run.policy)
    except PolicyError:
        policy = run.last_policy or Policy(name=run.policy, mode=Mode.OBSERVE)
    return policies.with_pause(policy)
