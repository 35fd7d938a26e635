"""The nouns: run, attempt, incident, ledger, and a training job as SageMaker describes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any

from rerail.model.actions import Action, Machines, Notify
from rerail.model.causes import Cause
from rerail.model.checkpoints import Health
from rerail.model.codec import FORMER_WORDS
from rerail.model.finding import Finding
from rerail.model.machines import Cluster, WarmPool
from rerail.model.self_repairs import SelfRepair, SelfRepairs

JOB_NAME_LIMIT = 63
SUCCESSOR_SUFFIX = len("-a99999")
STEP_LIMIT = 10**18
FORMER = {FORMER_WORDS: {"kill switch": "pause"}}


class JobStatus(StrEnum):
    """TrainingJobStatus, as SageMaker spells it; anything new reads as UNKNOWN and changes nothing."""

    IN_PROGRESS = "InProgress"
    COMPLETED = "Completed"
    FAILED = "Failed"
    STOPPING = "Stopping"
    STOPPED = "Stopped"
    DELETING = "Deleting"
    UNKNOWN = "Unknown"

    @classmethod
    def _missing_(cls, value: object) -> "JobStatus":
        return cls.UNKNOWN

    @property
    def is_terminal(self) -> bool:
        """Nothing of this job runs any more."""
        return self in (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.STOPPED)


class RunState(StrEnum):
    """Where a run is in its life; the last three are ends, and a human can release a held one."""

    WATCHING = "watching"
    SAVING = "saving"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    WAITING = "waiting"
    STARTING = "starting"
    COMPLETED = "completed"
    STOPPED = "stopped"
    HELD = "held"

    @property
    def is_end(self) -> bool:
        """Rerail does nothing more unless a human asks."""
        return self in (RunState.COMPLETED, RunState.STOPPED, RunState.HELD)


class AfterStop(StrEnum):
    """What follows a stop of ours."""

    END = "end"
    RELAUNCH = "relaunch"


@dataclass(frozen=True, slots=True)
class Job:
    """A training job as DescribeTrainingJob tells it: the truth, at one moment.

    `metrics` are its last values, `defined_metrics` the names that its MetricDefinitions may ever give; `billable_s`
    are the seconds that one of its machines is billed for, `max_runtime_s` its MaxRuntimeInSeconds. `cluster` are
    the machines that it asks for, `pool` those kept after it; `lacks_machines` says that it is accepted and waits for
    capacity, `pending_ran_out` that SageMaker stopped it because it had waited for its MaxPendingTimeInSeconds;
    `repaired` is what SageMaker itself has mended in it.
    """

    name: str
    arn: str
    status: JobStatus
    secondary: str
    created_at: datetime
    training_started_at: datetime | None = None
    ended_at: datetime | None = None
    failure_reason: str = ""
    checkpoint_uri: str = ""
    keep_alive_seconds: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    defined_metrics: tuple[str, ...] = ()
    cluster: Cluster = field(default_factory=Cluster)
    pool: WarmPool | None = None
    lacks_machines: bool = False
    pending_ran_out: bool = False
    repaired: SelfRepairs = field(default_factory=SelfRepairs)
    instance_type: str = ""
    instance_count: int = 1
    billable_s: int | None = None
    max_runtime_s: int | None = None

    @property
    def is_training(self) -> bool:
        """The user's code is running now."""
        return self.status is JobStatus.IN_PROGRESS and self.secondary == "Training"


@dataclass(frozen=True, slots=True)
class InPlaceRestart:
    """A restart of an attempt's training processes in place; `number` counts them within the attempt, from 1 on.

    `resume_step`, `skip_samples` and `rate` are what it asks for (see Command); `before_step` is the onset of what went
    wrong, `fingerprint` and `last_step` those of the failure that it answers, `repairs` how often SageMaker itself had
    restarted the job by then. `restarted_at` is when the processes were known to run again, `stepped_at` when their
    first step was; `repaired_at` when SageMaker was first seen to restart the job since, whose container counts its
    restarts anew; `failed` says why it came to nothing.
    """

    number: int
    command_id: str
    reason: str
    asked_at: datetime
    deadline: datetime
    resume_step: int | None = None
    skip_samples: str = ""
    rate: float = 1.0
    before_step: int | None = None
    fingerprint: str = ""
    last_step: int | None = None
    repairs: int = 0
    restarted_at: datetime | None = None
    stepped_at: datetime | None = None
    repaired_at: datetime | None = None
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One SageMaker job of a run; `agent` says that an agent of ours works in it, which can be asked to save.

    `abilities` are what the agent says its script can do; `skip_samples`, `rate`, `machines` and `max_runtime_s` are
    what the job is launched with (see CreateJob), or was restarted with in place, by the `orders`. `pool` are the
    machines kept after it, as last seen; `self_repairs` counts how often SageMaker itself restarted it, `repairs` why,
    and `repair_seconds` how long that took; `rung` is that of the ladder which it climbed (see ladder.py). `billable_s`
    are the seconds that one of its machines is billed for; `approved_by` is who asked for the launch or agreed to it,
    where that was a human. `onset_step` is where what the attempt was stopped for began: nothing that it or those
    before it saved from there on is resumed from. `is_littered`: a script without an agent would stumble over, or
    resume from, something newer than it should. `drill`: it was launched to prove that the run can be restarted.
    """

    number: int
    job_name: str
    status: JobStatus | None = None
    secondary: str = ""
    created_at: datetime | None = None
    training_started_at: datetime | None = None
    ended_at: datetime | None = None
    failure_reason: str = ""
    cause: Cause | None = None
    fingerprint: str = ""
    resumed_from_step: int | None = None
    last_step: int | None = None
    self_repairs: int = 0
    keep_alive_seconds: int = 0
    agent: bool = False
    abilities: tuple[str, ...] = ()
    skip_samples: str = ""
    rate: float = 1.0
    machines: Machines | None = None
    max_runtime_s: int | None = None
    pool: WarmPool | None = None
    repairs: Mapping[SelfRepair, int] = field(default_factory=dict)
    repair_seconds: float = 0.0
    instance_type: str = ""
    instance_count: int = 1
    billable_s: int | None = None
    approved_by: str = ""
    orders: tuple[InPlaceRestart, ...] = ()
    rung: str = ""
    onset_step: int | None = None
    is_littered: bool = False
    drill: bool = False

    @property
    def restart(self) -> int:
        """The number of the newest restart in place that the training processes are known to owe their lives to."""
        return max((order.number for order in self.orders if order.restarted_at), default=0)

    def is_outdated(self, restart: int) -> bool:
        """Processes of that restart in place, 0 for the job's own start, have been ended by a later one; a container
        that SageMaker itself has restarted since counts anew."""
        return restart < self.restart and self.orders[-1].repairs == self.self_repairs

    def counted_anew(self, restart: int, at: datetime) -> bool:
        """What was saved then is of a container that SageMaker had restarted since the restart in place after this one:
        its numbers begin at 0 again, and prove nothing."""
        order = next((order for order in self.orders if order.number == restart + 1), None)
        return order is not None and order.repaired_at is not None and at > order.repaired_at

    @property
    def exists(self) -> bool:
        """SageMaker is known to have accepted this job."""
        return self.status is not None

    @property
    def may_be_live(self) -> bool:
        """The job exists and was not seen to be terminal."""
        return self.status is not None and not self.status.is_terminal


@dataclass(frozen=True, slots=True)
class Incident:
    """From the first finding to the first progress beyond it, or to a hold; failures in between belong to it.

    `mended` says that it closed by progress; `reason` quotes the decisions in it; `onset_step` is where the trouble
    began, if the run was rolled back to before that; `restart` is the attempt's restart in place that it befell.
    """

    number: int
    kind: str
    attempt: int
    cause: Cause
    reason: str
    evidence: str
    happened_at: datetime
    decided_at: datetime
    step: int | None = None
    resume_step: int | None = None
    onset_step: int | None = None
    actions: tuple[str, ...] = ()
    closed_at: datetime | None = None
    mended: bool = False
    resolution: str = ""
    restart: int = 0

    @property
    def lost_steps(self) -> int | None:
        """Steps that have to be trained again, where both ends are known."""
        return None if self.step is None else max(0, self.step - (self.resume_step or 0))


@dataclass(frozen=True, slots=True)
class Ledger:
    """What each budget has spent since the last proven progress, and why.

    `charges` counts failures by cause; `without_progress` counts attempts that trained and left no newer checkpoint;
    `progress_step` is the newest checkpoint ever proven; `starts` are the recent launches, for the storm rule;
    `fallbacks` are the other machines that were tried since capacity was missed first. `charged_at` are the times of
    the charges, which are forgotten with their window; what the attempts up to number `forgiven` have cost, in money
    and time, a human has forgiven.
    """

    charges: Mapping[Cause, int] = field(default_factory=dict)
    without_progress: int = 0
    progress_step: int | None = None
    starts: tuple[datetime, ...] = ()
    capacity_since: datetime | None = None
    entries: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()
    charged_at: Mapping[Cause, tuple[datetime, ...]] = field(default_factory=dict)
    forgiven: int = 0


@dataclass(frozen=True, slots=True)
class PlannedStop:
    """A stop that we mean: recorded before StopTrainingJob is called, so that ours is never taken for a human's.

    `before_step` is the onset of what went wrong: the successor resumes from a checkpoint older than that. Where the
    agent was asked to save first: `command_id` is the wish, `answer_by` until when it should be heard (None when that
    is settled), `heard_at` when it was, `committed_step` the checkpoint that is on its way to S3. `moves` says that the
    successor is launched on other machines, namely `machines`, None being those of the run's own request.
    `approved_by` is who asked for it or agreed to it, where that was a human; `put_off` says that a pause came
    before the call. `to_step` is the step that an operator named: the successor resumes from the newest clean
    checkpoint that is no newer, whatever the ladder says. `drill`: it is only to prove that the run can be restarted.
    """

    then: AfterStop
    reason: str
    asked_at: datetime
    deadline: datetime
    before_step: int | None = None
    fresh_machines: bool = False
    command_id: str = ""
    answer_by: datetime | None = None
    heard_at: datetime | None = None
    committed_step: int | None = None
    approved_by: str = ""
    put_off: bool = False
    moves: bool = False
    machines: Machines | None = None
    to_step: int | None = None
    drill: bool = False

    @property
    def is_rollback(self) -> bool:
        """An operator has named the step to go back to, and nothing newer is to be resumed from."""
        return self.to_step is not None and self.before_step is not None

    @property
    def is_tainted(self) -> bool:
        """What the job would save now holds what went wrong: it is evidence, and never resumed from."""
        return self.before_step is not None


class ProposedAction(StrEnum):
    """What a proposal would do: launch the next job, or stop the one that runs and relaunch it."""

    LAUNCH = "launch"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Proposal:
    """A costly action that waits for somebody's word; `id` is unique within the run, and what a word must name.

    `attempt` is the one that it concerns, `dollars` what it is estimated to cost, where that is known; `finding` is
    why a running job would be stopped. `awaits` is who has to speak: a human, or whoever lifts the pause.
    """

    id: str
    plan: ProposedAction
    attempt: int
    what: str
    why: str
    asked_at: datetime
    expires_at: datetime
    awaits: str = field(default="approval", metadata=FORMER)
    dollars: float | None = None
    finding: Finding | None = None


@dataclass(frozen=True, slots=True)
class HealthLabel:
    """What was learnt of saves after they were made: of all that attempts up to `attempt`, and the last one's restarts
    in place up to `restart`, have saved from `step` on, or until step `until` and time `before` where these are given.
    `source` is the finding or the report that said so, `why` is for people."""

    step: int
    attempt: int
    health: Health
    why: str
    source: str = ""
    until: int | None = None
    restart: int = 0
    before: datetime | None = None


@dataclass(frozen=True, slots=True)
class RungTaken:
    """One rung of the ladder that was climbed for a loss that went wrong at `onset_step`: `attempt` is the one that it
    led to, the rest is what it was launched with."""

    rung: str
    attempt: int
    onset_step: int
    resume_step: int | None
    skip_samples: str
    rate: float
    at: datetime


@dataclass(frozen=True, slots=True)
class OpenPage:
    """A page that stands: what was told, of which attempt, and when it was told last."""

    tell: Notify
    attempt: int
    told_at: datetime


@dataclass(frozen=True, slots=True)
class Run:
    """One training effort, however many jobs it takes.

    `version` grows by one with every recorded decision; `pending` are the actions decided and not yet known to be done;
    `commands` are the ids of the operators' last wishes, so that one that arrives twice is granted once; `warnings` are
    the findings that people were told of last, `defects` the kinds of malformed mail, for the same reason; `cluster`
    are the machines that the run's own request asks for. `proposal` waits for a human's word; `kept_back` says which
    check the next launch waits for; `max_runtime_s` is the first request's MaxRuntimeInSeconds. `labels` are what was
    learnt of saves after they were made, `climbs` the rungs of the ladder that the run has climbed. `pages` are those
    that stand: what they are about is not over. `hyperpod` is the name or ARN of the HyperPod cluster that the run
    depends on, where its tag says so; `held_by` is the operator who holds it, `commanded_at` when the newest of
    the wishes was spoken that hold, release, stop or move it. `seal_key` is what its jobs are handed
    to seal their reports with, `seals` that an agent of it has done so: from then on it is heard by nothing else.
    `defined_metrics` are the names that its jobs' MetricDefinitions may give, None until one was described. The world
    was looked at after `looked_at`, by the clock of the queue that brought the wake-up: ours may jump.
    """

    id: str
    policy: str
    state: RunState
    created_at: datetime
    attempts: tuple[Attempt, ...]
    checkpoint_uri: str = ""
    cluster: Cluster = field(default_factory=Cluster)
    ledger: Ledger = field(default_factory=Ledger)
    incidents: tuple[Incident, ...] = ()
    pending: tuple[Action | Notify, ...] = ()
    stop: PlannedStop | None = None
    wake_at: datetime | None = None
    hold_reason: str = ""
    held_by: str = ""
    commanded_at: datetime | None = None
    observe_only: bool = False
    commands: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    defects: tuple[str, ...] = ()
    proposal: Proposal | None = None
    kept_back: str = field(default="", metadata=FORMER)
    max_runtime_s: int | None = None
    labels: tuple[HealthLabel, ...] = ()
    climbs: tuple[RungTaken, ...] = ()
    pages: tuple[OpenPage, ...] = ()
    hyperpod: str = ""
    seal_key: str = ""
    seals: bool = False
    defined_metrics: tuple[str, ...] | None = None
    looked_at: datetime | None = None
    version: int = 0

    @property
    def current(self) -> Attempt:
        """The newest attempt: the only one that may be live."""
        return self.attempts[-1]

    @property
    def mailbox(self) -> str:
        """The folder of the mailbox that the current attempt's agent uses: we tell successors the run's name, the first
        job knows only its own, which differs where it is long or was used before."""
        return self.current.job_name if self.current.number == 1 else self.id

    @property
    def open_incident(self) -> Incident | None:
        """The incident that has seen no progress yet."""
        return self.incidents[-1] if self.incidents and self.incidents[-1].closed_at is None else None

    @property
    def is_open(self) -> bool:
        """Something may still come of this run by itself: it has not ended, owes an action, or has a job that may be
        live."""
        return not self.state.is_end or bool(self.pending) or self.current.may_be_live

    @property
    def is_swept(self) -> bool:
        """The sweep has to come by: the run is open, or a page of it stands, and is to be told again some time."""
        return self.is_open or bool(self.pages)


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One decision as it is kept: what was heard, what was known, what was found, why, and what was asked for."""

    run: str
    version: int
    at: datetime
    before: RunState
    after: RunState
    reason: str
    finding: str = ""
    signal: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    actions: tuple[Mapping[str, Any], ...] = ()


def parse_step(metrics: Mapping[str, float]) -> int | None:
    """The step among a job's metrics; None where there is none, or a number that is no step: a script may print any."""
    step = metrics.get("step")
    return int(step) if step is not None and abs(step) < STEP_LIMIT else None


def run_id(job_name: str) -> str:
    """The run's name: the first job's, shortened (with a digest, so that it stays unique) to leave room for `-a002`."""
    limit = JOB_NAME_LIMIT - SUCCESSOR_SUFFIX
    if len(job_name) <= limit:
        return job_name
    digest = sha256(job_name.encode()).hexdigest()[:8]
    return f"{job_name[: limit - 9].rstrip('-')}-{digest}"


def make_job_name(run: str, attempt: int) -> str:
    """The job's name as a function of run and attempt, so that a repeated CreateTrainingJob collides with itself."""
    return f"{run}-a{attempt:03d}"
