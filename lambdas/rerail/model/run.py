"""The core records: runs, attempts, incidents, budgets, and a training job as SageMaker describes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any

from rerail.model.actions import Action, Machines, Notify
from rerail.model.causes import Cause
from rerail.model.checkpoints import Health
from rerail.model.diagnosis import Diagnosis
from rerail.model.file_copies import FileCopy
from rerail.model.finding import UNDECIDED, Finding, Level
from rerail.model.machines import Cluster, WarmPool
from rerail.model.policy import Policy
from rerail.model.record import Record
from rerail.model.runbooks import Runbook
from rerail.model.self_repairs import SelfRepair, SelfRepairs

JOB_NAME_LIMIT = 63  # characters that SageMaker allows in a job name
SUCCESSOR_SUFFIX_LENGTH = len("-a99999")
# Characters of the reason that a run's event quotes; the timeline has all of it.
CHANGE_REASON_LIMIT = 1_000


class JobStatus(StrEnum):
    """The TrainingJobStatus values of SageMaker; values added later are read as UNKNOWN and trigger no action."""

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
        """Return whether the job has ended, so that none of its processes run any more."""
        return self in (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.STOPPED)


class RunState(StrEnum):
    """The state of a run; the last three are final, except that an operator can release a held run."""

    WATCHING = "watching"  # a job is live and monitored
    SAVING = "saving"  # the agent was asked for a checkpoint before a planned stop
    RESTARTING = "restarting"  # the training processes are being restarted in place
    STOPPING = "stopping"  # the job is being stopped
    WAITING = "waiting"  # the next launch is due later, or waits for a check or an approval
    STARTING = "starting"  # the next job is being launched
    COMPLETED = "completed"
    STOPPED = "stopped"
    HELD = "held"  # Rerail launches nothing until an operator releases the run

    @property
    def is_end(self) -> bool:
        """Return whether Rerail takes no further action unless an operator requests one."""
        return self in (RunState.COMPLETED, RunState.STOPPED, RunState.HELD)


class LaunchCheck(StrEnum):
    """A check before a job is created; a launch waits until all of them pass."""

    PAUSE = "pause"
    RUN_TIME = "run time"
    RUN_COST = "run cost"
    INCIDENT_COST = "incident cost"
    APPROVAL = "approval"
    # The account's rate limit on relaunches.
    RATE_LIMIT = "rate limit"


class AfterStop(StrEnum):
    """The next step after a stop that Rerail initiated."""

    END = "end"
    RELAUNCH = "relaunch"


@dataclass(frozen=True, slots=True)
class Job:
    """A training job as DescribeTrainingJob returned it at one moment."""

    name: str
    arn: str
    status: JobStatus
    secondary: str  # SecondaryStatus
    created_at: datetime
    training_started_at: datetime | None = None
    ended_at: datetime | None = None
    failure_reason: str = ""
    # Made from the failure reason before secrets were removed from it; None: diagnose the failure reason.
    diagnosis: Diagnosis | None = None
    # The error with which the log of a completed job ends.
    error_at_end: str = ""
    # The loss with which the log of a completed job ends, if it is far above those before or not finite.
    loss_at_end: str = ""
    # Why the end of the log of a completed job could not be read.
    unread_end: str = ""
    # The number of steps that its hyperparameters ask for, where they name one.
    planned_steps: int | None = None
    checkpoint_uri: str = ""
    # KeepAlivePeriodInSeconds of the warm pool.
    keep_alive_seconds: int = 0
    # The last value of each metric (FinalMetricDataList).
    metrics: Mapping[str, float] = field(default_factory=dict)
    # All metric names that the job's MetricDefinitions can produce.
    defined_metrics: tuple[str, ...] = ()
    # The machines that the job requests.
    cluster: Cluster = field(default_factory=Cluster)
    # The machines kept after the job ended.
    pool: WarmPool | None = None
    # The job was accepted and waits for capacity.
    lacks_machines: bool = False
    # SageMaker stopped the job because it had waited longer than MaxPendingTimeInSeconds.
    pending_ran_out: bool = False
    # When the capacity that a training plan reserved for the job ended, if the job ended with it.
    capacity_ended_at: datetime | None = None
    # The restarts that SageMaker itself made within the job.
    repaired: SelfRepairs = field(default_factory=SelfRepairs)
    instance_type: str = ""
    instance_count: int = 1
    # Seconds that each machine is billed for.
    billable_s: int | None = None
    # MaxRuntimeInSeconds.
    max_runtime_s: int | None = None
    # Where the model is (ModelArtifacts.S3ModelArtifacts); empty until the job has uploaded one.
    artifacts: str = ""
    # The script of a job in script mode; empty if it is not known, or started by one of Rerail's own.
    script: str = ""

    @property
    def is_training(self) -> bool:
        """Return whether the training script is running now."""
        return self.status is JobStatus.IN_PROGRESS and self.secondary == "Training"


def find_began_step(ordered: int | None, first: int | None) -> int | None:
    """Return the step that processes resumed from, by the one ordered and the first that they reported.

    A script may report every tenth step only, so a later first step does not mean that they resumed later.
    """
    if first is None or (ordered is not None and first >= ordered):
        return ordered
    return max(0, first - 1)


@dataclass(frozen=True, slots=True)
class InPlaceRestart(Record):
    """A restart of an attempt's training processes within the running job."""

    # Counts the in-place restarts of the attempt, starting at 1.
    number: int
    command_id: str
    reason: str
    asked_at: datetime
    deadline: datetime
    # The newest step to resume from; see Command.
    resume_step: int | None = None
    # The samples to skip, as `first-last,first-last`.
    skip_samples: str = ""
    # The factor on the learning rate.
    rate: float = 1.0
    # The onset of the problem: only checkpoints older than this step are resumed from.
    before_step: int | None = None
    # Fingerprint and last step of the failure that caused the restart.
    fingerprint: str = ""
    last_step: int | None = None
    # How often SageMaker had restarted the job when the restart was requested.
    repairs: int = 0
    # When the processes were reported to run again.
    restarted_at: datetime | None = None
    # When they completed their first step.
    stepped_at: datetime | None = None
    # When SageMaker was first seen to restart the job afterwards; the new container counts its restarts from 0.
    repaired_at: datetime | None = None
    # Why the restart failed.
    failed: str = ""
    # Who approved it; empty: no approval was needed. It covers the stop that follows if the restart fails.
    approved_by: str = ""
    # The first step that the restarted processes reported.
    first_step: int | None = None
    # The steps between two checkpoints when it was ordered.
    save_steps: int | None = None

    @property
    def began_step(self) -> int | None:
        """Return the step that the processes resumed from, as far as known: the ordered one until they report less."""
        return find_began_step(self.resume_step, self.first_step)


@dataclass(frozen=True, slots=True)
class Attempt(Record):
    """One SageMaker training job of a run."""

    number: int
    job_name: str
    # None until SageMaker is known to have accepted the job.
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
    # How often SageMaker itself restarted the job.
    self_repairs: int = 0
    keep_alive_seconds: int = 0
    # An agent runs in the job and can be asked for checkpoints.
    agent: bool = False
    # What the script can do, as reported by the agent; see Ability.
    abilities: tuple[str, ...] = ()
    # The next five: what the job was launched with (see CreateJob), or last restarted with in place.
    skip_samples: str = ""
    rate: float = 1.0
    microbatches: int = 1
    machines: Machines | None = None
    max_runtime_s: int | None = None
    # The machines kept after the job, as last seen.
    pool: WarmPool | None = None
    # SageMaker's own restarts by reason, and the seconds they took in all.
    repairs: Mapping[SelfRepair, int] = field(default_factory=dict)
    repair_seconds: float = 0.0
    instance_type: str = ""
    instance_count: int = 1
    # Seconds that each machine is billed for.
    billable_s: int | None = None
    # The operator who requested or approved the launch; empty if Rerail launched it on its own.
    approved_by: str = ""
    # The in-place restarts, oldest first.
    in_place_restarts: tuple[InPlaceRestart, ...] = ()
    # The rung of the rollback ladder that led to this attempt; see rollback_ladder.py.
    rung: str = ""
    # Onset of the problem that the attempt was stopped for: no checkpoint of this or an earlier attempt from this step
    # on is resumed from.
    onset_step: int | None = None
    # The checkpoint folder holds something newer than the resume step; a script without an agent would fail on it or
    # resume from it.
    has_stale_checkpoints: bool = False
    # The attempt was launched to prove that the run can be restarted.
    drill: bool = False
    # The first step that it reported.
    first_step: int | None = None
    # A checkpoint confirms that first step: without an agent, many scripts count from 0 in each launch.
    is_start_confirmed: bool = False
    # The steps between two checkpoints when the attempt was prepared.
    save_steps: int | None = None
    # When the problem that the next attempt goes back before began: of files without a step, what was saved since then
    # is neither resumed from nor restored.
    onset_at: datetime | None = None
    # Why its files cannot be copied, and when that was last found.
    copy_problem: str = ""
    copy_refused_at: datetime | None = None
    # Where the job's model is (ModelArtifacts.S3ModelArtifacts).
    artifacts: str = ""
    # When its launch was last recorded, or CreateTrainingJob last known to have succeeded.
    requested_at: datetime | None = None
    # The GPU that it failed on, with its UUID first.
    gpu: str = ""
    # Since when it makes no step and is left alone, as a policy or an operator says; the seconds of earlier such times.
    stalled_at: datetime | None = None
    stalled_seconds: float = 0.0
    # The newest step that was saved when it ended; None: not known.
    kept_step: int | None = None
    # The newest recovery of each kind of problem: messages about the problem itself may come after it.
    recoveries: tuple[Finding, ...] = ()

    @property
    def began_step(self) -> int | None:
        """Return the step that it resumed from, as far as known: the ordered one until it is proven to be less."""
        is_proven = self.agent or self.is_start_confirmed or self.resumed_from_step is None
        return find_began_step(self.resumed_from_step, self.first_step if is_proven else None)

    @property
    def restart(self) -> int:
        """Return the number of the newest in-place restart that is known to have succeeded; 0 if there is none."""
        return max((order.number for order in self.in_place_restarts if order.restarted_at), default=0)

    def is_outdated(self, restart: int) -> bool:
        """Return whether a later in-place restart has ended the processes of `restart` (0: the job's own start).

        Return False after SageMaker restarted the container, because its count begins at 0 again.
        """
        return restart < self.restart and self.in_place_restarts[-1].repairs == self.self_repairs

    def is_from_restarted_container(self, restart: int, at: datetime) -> bool:
        """Return whether a checkpoint saved at `at` is from a container that counts its restarts from 0 again.

        That is so if SageMaker restarted the container after the next in-place restart; the number `restart` is then
        no evidence.
        """
        order = next((order for order in self.in_place_restarts if order.number == restart + 1), None)
        return order is not None and order.repaired_at is not None and at > order.repaired_at

    @property
    def exists(self) -> bool:
        """Return whether SageMaker is known to have accepted the job."""
        return self.status is not None

    @property
    def is_unconfirmed(self) -> bool:
        """Return whether the launch was withdrawn while a function may have been creating the job."""
        return self.status is not None and self.created_at is None and not self.secondary

    @property
    def may_be_live(self) -> bool:
        """Return whether the job exists and was not seen to have ended."""
        return self.status is not None and not self.status.is_terminal


@dataclass(frozen=True, slots=True)
class Incident(Record):
    """A problem of a run, from its first finding to the first progress beyond it, or to a hold.

    Further failures in between belong to the same incident.
    """

    number: int
    kind: str
    attempt: int
    cause: Cause
    # Quotes the decisions made in the incident.
    reason: str
    evidence: str
    happened_at: datetime
    decided_at: datetime
    # The last step before the failure.
    step: int | None = None
    resume_step: int | None = None
    # The step at which the problem began, if the run was rolled back to before it.
    onset_step: int | None = None
    actions: tuple[str, ...] = ()
    closed_at: datetime | None = None
    # The incident was closed by progress.
    recovered: bool = False
    resolution: str = ""
    # The attempt's in-place restart during which it happened; 0 is the job's own start.
    restart: int = 0
    # The step that the run went on from, if it is less than `resume_step`.
    began_step: int | None = None
    # When a later attempt was first seen beyond `step`, where only a file that it overwrites in place can prove that it
    # recovered.
    passed_at: datetime | None = None

    @property
    def lost_steps(self) -> int | None:
        """Return how many steps have to be trained again; None if where it failed or resumes is unknown.

        A step far below the checkpoint's is counted in another unit, such as within an epoch.
        """
        began = self.resume_step if self.began_step is None else self.began_step
        return None if self.step is None or began is None or 2 * self.step < began else max(0, self.step - began)


@dataclass(frozen=True, slots=True)
class Ledger(Record):
    """The charges to each budget of a run since the last proven progress."""

    # Failures by cause.
    charges: Mapping[Cause, int] = field(default_factory=dict)
    # Attempts in a row that trained and left no newer checkpoint.
    without_progress: int = 0
    # The newest checkpoint step ever proven.
    progress_step: int | None = None
    # Recent launches, for the restart-storm limit.
    starts: tuple[datetime, ...] = ()
    # Since when capacity is missing.
    capacity_since: datetime | None = None
    # The reasons for the charges, for people.
    entries: tuple[str, ...] = ()
    # The fallback machines tried since capacity was first missing.
    fallbacks: tuple[str, ...] = ()
    # When each failure was charged; failures older than the budget's window are dropped.
    charged_at: Mapping[Cause, tuple[datetime, ...]] = field(default_factory=dict)
    # The cost and run time of attempts up to this number no longer count, because an operator released the run.
    forgiven: int = 0


@dataclass(frozen=True, slots=True)
class PlannedStop(Record):
    """A stop that Rerail initiates, recorded before StopTrainingJob is called.

    The record is how Rerail's own stops are distinguished from stops by a user.
    """

    then: AfterStop
    reason: str
    asked_at: datetime
    deadline: datetime
    # The onset of the problem: the successor resumes from a checkpoint older than this step.
    before_step: int | None = None
    # Release the warm pool, so that the successor starts on other machines.
    fresh_machines: bool = False
    # The command that asks the agent for a checkpoint before the stop; empty if none was sent.
    command_id: str = ""
    # Until when the agent has to acknowledge the command; None once that is settled.
    answer_by: datetime | None = None
    # When the agent acknowledged it.
    acknowledged_at: datetime | None = None
    # The step of the committed checkpoint that is being uploaded to S3.
    committed_step: int | None = None
    # The operator who requested or approved the stop, if any.
    approved_by: str = ""
    # Rerail was paused before StopTrainingJob was called.
    is_deferred: bool = False
    # Launch the successor on `machines`, where None stands for those of the run's own request.
    changes_machines: bool = False
    machines: Machines | None = None
    # The step named by an operator: the successor resumes from the newest clean checkpoint that is no newer, whatever
    # the ladder proposes.
    to_step: int | None = None
    # The stop only serves to prove that the run can be restarted.
    drill: bool = False
    # SageMaker has not taken the last call: until it takes one, a stop of the job is somebody else's.
    is_throttled: bool = False

    @property
    def is_rollback(self) -> bool:
        """Return whether an operator named the step to roll back to, so that nothing newer is resumed from."""
        return self.to_step is not None and self.before_step is not None

    @property
    def is_tainted(self) -> bool:
        """Return whether a checkpoint saved now would contain the problem: it is evidence and never resumed from."""
        return self.before_step is not None


class ProposedAction(StrEnum):
    """The action of a proposal: launch the next job, or stop and relaunch the running one."""

    LAUNCH = "launch"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Proposal(Record):
    """A costly action that waits for an operator's answer."""

    # Unique within the run; an operator's answer must name it.
    id: str
    plan: ProposedAction
    # The number of the attempt that the action concerns.
    attempt: int
    what: str
    why: str
    asked_at: datetime
    expires_at: datetime
    # What the action waits for: an approval, or the end of the account's pause.
    awaits: LaunchCheck = LaunchCheck.APPROVAL
    # The estimated cost of the action; None if unknown.
    dollars: float | None = None
    # What the estimate assumes, in words.
    dollars_source: str = ""
    # Why a running job would be stopped.
    finding: Finding | None = None


@dataclass(frozen=True, slots=True)
class HealthLabel(Record):
    """A health label for checkpoints that were already saved.

    It applies to checkpoints of all attempts up to `attempt`; of that attempt itself, only up to `restart`.
    """

    # The first step that the label applies to.
    step: int
    attempt: int
    health: Health
    # The explanation for people.
    why: str
    # The finding or report that the label comes from.
    source: str = ""
    # The last step that the label applies to; None: no limit.
    until: int | None = None
    # The last in-place restart of `attempt` that the label applies to.
    restart: int = 0
    # Only checkpoints saved before this time; None: no limit.
    before: datetime | None = None


@dataclass(frozen=True, slots=True)
class RungTaken(Record):
    """One rung of the rollback ladder that was taken, and what the resulting attempt was launched with."""

    rung: str
    # The number of the attempt that was launched.
    attempt: int
    # The step at which the loss went wrong.
    onset_step: int
    resume_step: int | None
    skip_samples: str
    # The factor on the learning rate.
    rate: float
    at: datetime
    # What the attempt had before: it has that again if the rung is withdrawn.
    former_skip_samples: str = ""
    former_rate: float = 1.0
    former_rung: str = ""


@dataclass(frozen=True, slots=True)
class OpenPage(Record):
    """A page that is still open."""

    notice: Notify
    # The number of the attempt that the page is about.
    attempt: int
    # When it was last sent.
    notified_at: datetime


@dataclass(frozen=True, slots=True)
class StateChange(Record):
    """A change of a run's state whose event is not known to be published."""

    # The same for every publication of the event.
    id: str
    # None: the run was adopted.
    before: RunState | None
    after: RunState
    at: datetime
    # The version of the run's record that has the change; orders the events of a run.
    version: int
    # The number of the attempt that was the current one.
    attempt: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Run(Record):
    """One training effort, in one or more SageMaker jobs."""

    id: str
    # The name of the policy.
    policy: str
    state: RunState
    created_at: datetime
    # Oldest first; never empty.
    attempts: tuple[Attempt, ...]
    checkpoint_uri: str = ""
    # The machines that the run's own request asks for.
    cluster: Cluster = field(default_factory=Cluster)
    ledger: Ledger = field(default_factory=Ledger)
    incidents: tuple[Incident, ...] = ()
    # Actions that were decided and are not yet known to be done.
    pending: tuple[Action | Notify, ...] = ()
    stop: PlannedStop | None = None
    # When the run has to be evaluated next.
    wake_at: datetime | None = None
    hold_reason: str = ""
    # What to do before the run is released.
    hold_advice: str = ""
    # The runbook of the hold; None if an operator holds the run.
    hold_runbook: Runbook | None = None
    # The operator who holds the run.
    held_by: str = ""
    # When the newest hold, release, stop or move command was issued; older ones are ignored.
    commanded_at: datetime | None = None
    observe_only: bool = False
    # The ids of the last operator commands, so that a command that arrives twice is carried out once.
    commands: tuple[str, ...] = ()
    # The findings last sent as notices, and the kinds of malformed mailbox objects, so that each is reported once.
    warnings: tuple[str, ...] = ()
    defects: tuple[str, ...] = ()
    # The action that waits for an operator's answer.
    proposal: Proposal | None = None
    # The launch check that the next launch waits for.
    blocked_by: LaunchCheck | None = None
    # MaxRuntimeInSeconds of the first request.
    max_runtime_s: int | None = None
    # Health labels for checkpoints that were already saved.
    labels: tuple[HealthLabel, ...] = ()
    # The rungs of the rollback ladder taken so far.
    rungs_taken: tuple[RungTaken, ...] = ()
    # The open pages: what they are about is not resolved.
    pages: tuple[OpenPage, ...] = ()
    # Name or ARN of the HyperPod cluster that the run depends on, from its tag.
    hyperpod: str = ""
    # The key that the run's jobs receive to sign their reports with.
    signing_key: str = ""
    # The first job was started with the key, or an agent of the run has signed a report: unsigned ones are ignored.
    requires_signature: bool = False
    # The ARN of the execution that started the first job, as that job names it: only its stop stops the run.
    execution: str = ""
    # The metric names that the jobs' MetricDefinitions can produce; None until a job was described.
    defined_metrics: tuple[str, ...] | None = None
    # The script of its newest job; see Job.
    script: str = ""
    # The AWS state that the last decision used was read after this time, by the clock of the queue that delivered the
    # wake-up; the function's own clock may jump.
    looked_at: datetime | None = None
    # The policy as last read; it applies while the policy is missing or malformed.
    last_policy: Policy | None = None
    # Since when the policy cannot be used.
    policy_lost_at: datetime | None = None
    # The copies of files that its script overwrites in place.
    copies: tuple[FileCopy, ...] = ()
    # The state changes whose events are not known to be published, oldest first.
    unpublished: tuple[StateChange, ...] = ()
    # Incremented with every recorded decision.
    version: int = 0

    @property
    def current(self) -> Attempt:
        """Return the newest attempt, the only one that may be live."""
        return self.attempts[-1]

    @property
    def mailbox(self) -> str:
        """Return the mailbox folder that the current attempt's agent uses.

        Successors receive the run's name. The first job has only its own name, which differs from the run's if it is
        long or was used before.
        """
        return self.current.job_name if self.current.number == 1 else self.id

    @property
    def hold_text(self) -> str:
        """Return why the run is held, and what to do about it."""
        return f"{self.hold_reason}. To do: {self.hold_advice}" if self.hold_advice else self.hold_reason

    @property
    def open_incident(self) -> Incident | None:
        """Return the incident that is still open, or None."""
        return self.incidents[-1] if self.incidents and self.incidents[-1].closed_at is None else None

    @property
    def _start(self) -> str:
        """Return the number of the attempt, and of its in-place restart if there was one."""
        attempt, restart = self.current.number, self.current.restart
        return f"{attempt}.{restart}" if restart else str(attempt)

    def make_warning_key(self, finding: Finding, level: str = "") -> str:
        """Return the key of a finding's notice: one per kind, level, onset and start of the processes."""
        return f"{finding.kind}-{level or finding.level}-{self._start}-{finding.onset_step}"

    @property
    def open_warnings(self) -> dict[str, int | None]:
        """Return the kinds of open findings of the current processes, each with the step at which it began or None."""
        reported = (key.split("-", 3) for key in self.warnings)
        newest = {words[0]: words for words in reported if len(words) == 4 and words[2] == self._start}
        is_open = (Level.WARN, Level.INTERVENE, UNDECIDED)
        return {kind: int(at) if at.isdecimal() else None for kind, level, _, at in newest.values() if level in is_open}

    def find_start(self, attempt: Attempt) -> int | None:
        """Return the step that an attempt resumed from, 0 for none, even if another one was ordered.

        None: without an agent and a readable checkpoint its script resumes by itself, and has reported no step yet.
        """
        if (began := attempt.began_step) is not None:
            return began
        return 0 if attempt.number == 1 or any(known.agent for known in self.attempts) else None

    @property
    def has_work(self) -> bool:
        """Return whether recorded actions are not known to be done, or events not to be published."""
        return bool(self.pending or self.unpublished)

    @property
    def is_open(self) -> bool:
        """Return whether the run has not ended, has work left, or has a job that may be live."""
        return not self.state.is_end or self.has_work or self.current.may_be_live

    @property
    def is_swept(self) -> bool:
        """Return whether the sweep must visit the run: it is open, or has an open page that may be repeated."""
        return self.is_open or bool(self.pages)


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One decision as recorded in a run's timeline."""

    run: str
    version: int
    at: datetime
    # The run's state before and after the decision.
    before: RunState
    after: RunState
    reason: str
    finding: str = ""
    # The signal that led to the decision.
    signal: Mapping[str, Any] = field(default_factory=dict)
    # The facts that the decision was based on.
    inputs: Mapping[str, Any] = field(default_factory=dict)
    # The actions that were decided.
    actions: tuple[Mapping[str, Any], ...] = ()


def make_run_id(job_name: str) -> str:
    """Return the run's name: the first job's name, shortened with a digest if needed to leave room for `-a002`."""
    limit = JOB_NAME_LIMIT - SUCCESSOR_SUFFIX_LENGTH
    if len(job_name) <= limit:
        return job_name
    digest = sha256(job_name.encode()).hexdigest()[:8]
    return f"{job_name[: limit - 9].rstrip('-')}-{digest}"


def make_state_change(run: Run, before: RunState | None, *, at: datetime, version: int, reason: str) -> StateChange:
    """Return the change that led to the run's state, for the record of this version.

    A table restored from a backup repeats versions, so the id has the time too.
    """
    return StateChange(
        id=f"{run.id}/{version}/{at.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}",
        before=before,
        after=run.state,
        at=at,
        version=version,
        attempt=run.current.number,
        reason=reason[:CHANGE_REASON_LIMIT],
    )


def make_job_name(run: str, attempt: int) -> str:
    """Return the job name for an attempt; it is deterministic, so that a repeated CreateTrainingJob is rejected."""
    return f"{run}-a{attempt:03d}"
