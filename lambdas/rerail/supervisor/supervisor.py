"""The supervisor's loop: observe, decide, record, act, the same for every message.

A decision is recorded with its actions pending, in one conditional write, before anything is done. Actions are cleared
when they are done. If the function dies in between, the next invocation finds them pending and repeats them, which is
harmless.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, assert_never

from rerail.accounting.save_interval import estimate_mtbf
from rerail.decisions.adoption import (
    Adopted,
    AdoptionRefused,
    adopt,
    is_first_job_of_rebuilt,
    list_first_job_names,
    refuse,
    with_limit,
)
from rerail.decisions.decide import decide
from rerail.decisions.decision import Decision, find_first_start, may_carry_out
from rerail.decisions.on_command import EXPIRES_AFTER
from rerail.decisions.on_finding import make_alarm_finding
from rerail.decisions.on_report import REFUSED_SAVES, redact_report
from rerail.decisions.quarantine import BY_HAND, check_folder, has_claim, may_share
from rerail.decisions.reconcile import Claim, find_missed_jobs, is_believable, read_claim, rebuild_run
from rerail.decisions.shared_errors import find_shareable_error, has_recovered, make_error_key
from rerail.diagnosis.classify import diagnose_report, with_named_cause, with_redaction
from rerail.messages.cluster_events import ClusterEventReceived
from rerail.messages.messages import (
    JOB_NAME,
    AlarmStateChanged,
    ClusterDue,
    CommandReceived,
    DeliveryCheck,
    FindingsReceived,
    JobStateChanged,
    Message,
    QueueMessage,
    ReportFiled,
    RunDue,
    UnrelatedObject,
)
from rerail.model.actions import (
    Action,
    CopyCheckpoint,
    CreateJob,
    Notify,
    PostCommand,
    QuarantineCheckpoints,
    ReleaseWarmPool,
    Severity,
    StopJob,
)
from rerail.model.checkpoints import Checkpoint
from rerail.model.codec import to_plain
from rerail.model.errors import (
    ActionUnfinished,
    BadMailboxObject,
    BadMessage,
    BoundsExceeded,
    CapacityRefused,
    Conflict,
    JobExists,
    JobNotFound,
    PolicyError,
    QuarantineFailed,
    RequestRefused,
    RequestTooLarge,
    RerailError,
    StateUnknown,
    Throttled,
)
from rerail.model.finding import Finding, Level
from rerail.model.formatting import format_duration
from rerail.model.machines import read_cluster
from rerail.model.mailbox import CommandKind, Report, ReportKind
from rerail.model.notice import Notice
from rerail.model.policy import Mode, Policy
from rerail.model.rate_limit import LaunchRequest
from rerail.model.redaction import find_secrets
from rerail.model.run import (
    Attempt,
    Job,
    JobStatus,
    Run,
    RunState,
    StateChange,
    TimelineEntry,
    make_run_id,
    make_state_change,
)
from rerail.model.runbooks import Runbook
from rerail.model.signals import (
    NAME_TAKEN,
    ActionsDone,
    AgentReported,
    CheckpointsRefused,
    CreateRefused,
    FileCopied,
    FindingsObserved,
    JobObserved,
    OperatorCommand,
    OperatorVerb,
    Paused,
    QuarantineRefused,
    RecordOutdated,
    Refusal,
    ReportInvalid,
    RequestChange,
    Signal,
    StopThrottled,
    Tick,
)
from rerail.model.signature_policy import must_be_signed
from rerail.model.signatures import UNSEALED
from rerail.notices.notice import make_job_notice, make_run_notice
from rerail.ports import Bus, Checkpoints, FailureLogs, Jobs, Mailbox, PausedPolicies, RateLimit, Runs, policy_of
from rerail.requests.continuation import change_request, describe_change, read_change
from rerail.requests.relaunch import (
    ATTEMPT_TAG,
    POLICY_TAG,
    RUN_TAG,
    is_handed,
    make_request,
    read_signing_key,
    rebuild,
    with_signing_key,
)
from rerail.requests.states import EXECUTION_VARIABLE
from rerail.supervisor.decision_metrics import RecordedDecision
from rerail.supervisor.observe import has_looked_since, list_with_signatures, may_have_lost_job, observe, observe_policy
from rerail.supervisor.run_events import make_run_event

MAX_CONFLICTS = 8
IGNORED_FOR = timedelta(hours=1)
CONFIRMED_FOR = timedelta(hours=1)
# S3 sends an event after the object exists: a missing object is retried through the queue for this long.
REPORT_RETRY_PERIOD = timedelta(minutes=15)
# A notice is left for this long to the function that recorded it: SNS would send it twice.
NOTICE_LEASE = timedelta(minutes=1)
# In other states the time of a message belongs to the relaunch.
BACKGROUND_STATES = (RunState.WATCHING, RunState.SAVING)
# Commands that resume from the newest checkpoint.
LISTING_VERBS = (OperatorVerb.RELEASE, OperatorVerb.APPROVE, OperatorVerb.CONTINUE)
# Makes the message's signal from the run and its checkpoints; those are None where they were not listed.
SignalFactory = Callable[[Run, Sequence[Checkpoint] | None], Signal]


@dataclass(frozen=True, slots=True)
class Supervisor:
    """The supervisor over its ports."""

    runs: Runs
    jobs: Jobs
    checkpoints: Checkpoints
    policies: PausedPolicies
    bus: Bus
    mailbox: Mailbox
    rate_limit: RateLimit  # the account's rate limit on relaunches
    clock: Callable[[], datetime]  # the only source of time
    logs: FailureLogs | None = None  # the logs of failed jobs; None: they are diagnosed without
    # the only source of randomness: returns an unguessable signing key, or an empty string for unsigned reports
    new_key: Callable[[], str] = str
    # the folders in which the checkpoints of a role's jobs may be moved, by role ARN
    quarantine_folders: Mapping[str, Sequence[str]] = field(default_factory=dict)
    reports: str = ""  # the bucket of the incident reports, for the runs' events
    observe_only: str = ""  # why this deployment may only observe; "" if it may act
    failed: list[Exception] = field(default_factory=list, init=False)  # errors while handling the current message
    # the request that the current message makes of that of its run, if it is to be replaced
    changed: list[Mapping[str, Any]] = field(default_factory=list, init=False)
    turns: list[RecordedDecision] = field(default_factory=list, init=False)  # decisions on the current message

    def handle(self, message: Message, post: QueueMessage | None = None) -> Run | None:
        """Do everything that the message and the state of the run call for, and return the run afterwards.

        `post` says when the message was sent, if known. A failed action does not prevent other actions and decisions;
        its error is raised last.
        """
        self.failed.clear()
        self.turns.clear()
        self.changed.clear()
        run = self._dispatch(message, post)
        if self.failed:
            raise self.failed[0]
        return run

    def _dispatch(self, message: Message, post: QueueMessage | None) -> Run | None:
        """Handle the message by its type."""
        match message:
            case JobStateChanged():
                return self.on_job_changed(message.job_name, post, is_routine=message.is_routine)
            case RunDue():
                return self.visit(message.run, post=post, lists=message.lists)
            case CommandReceived():
                return self.on_command(message)
            case FindingsReceived():
                return self.on_findings(message.run, message.job_name, message.findings, message.first_step)
            case AlarmStateChanged():
                return self.on_alarm(message)
            case ReportFiled():
                return self.on_report(message, post)
            case DeliveryCheck():
                self.runs.confirm_delivery(message.id, until=self.clock() + CONFIRMED_FOR)
                return None
            case (
                UnrelatedObject() | ClusterEventReceived() | ClusterDue()
            ):  # clusters are handled by rerail.hyperpod.clusters
                return None
            case _ as unreachable:
                assert_never(unreachable)

    def on_job_changed(
        self, job_name: str, post: QueueMessage | None = None, *, is_routine: bool = False
    ) -> Run | None:
        """Visit the run that the job belongs to, or adopt the job.

        SageMaker is not asked about each event of a job that is not supervised: the account's calls are few, and those
        about failures wait for them.
        """
        run_id = self.runs.run_of(job_name)
        if run_id is None:
            return None if is_routine and self.runs.is_ignored(job_name) else self.adopt(job_name)
        run = self.visit(run_id, post=post)
        is_new = (run.state.is_end and self._is_reused_name(job_name, run)) or self._is_later_job(job_name, run)
        return self.adopt(job_name) if is_new else run

    def visit(
        self,
        run_id: str,
        make_signal: SignalFactory | None = None,
        *,
        post: QueueMessage | None = None,
        lists: bool = False,
    ) -> Run:
        """Finish pending actions, observe the run, and decide on each signal; return the run afterwards.

        Nothing is done if the message carries no signal and the run was observed after it was sent. The job is decided
        on first: the message may be outdated. The time comes last: the message may contain what a deadline waits for.
        """
        run = self._load(run_id)
        if has_looked_since(run, post):
            return run
        for policy_read in observe_policy(run, self.policies, at=self.clock()):
            run = self._handle_signals(run, policy_read)
        if run.has_work:
            run = self._handle_signals(run, *self._act(run, found=run))
        if may_have_lost_job(run):
            run = self._look_for_lost_job(run, must_know=make_signal is not None)
        policy = policy_of(run, self.policies)
        signals = observe(run, self.jobs, self.checkpoints, at=self.clock(), lists=lists, logs=self.logs, policy=policy)
        seen = next((signal.checkpoints for signal in signals if isinstance(signal, JobObserved)), None)
        for signal in signals:
            if isinstance(signal, Tick) and make_signal:
                run = self._handle_signals(run, self._make_signal(run, seen, make_signal))
            run = self._handle_signals(run, signal, looked_at=post.received_at if post else None)
        return self._act_in_background(run)

    def _make_signal(self, run: Run, seen: Sequence[Checkpoint] | None, make_signal: SignalFactory) -> Signal:
        """Return the message's signal, or that its decision needs checkpoints that are more than Rerail reads."""
        try:
            return make_signal(run, seen)
        except BoundsExceeded as error:
            if error.may_pass:
                raise  # the queue delivers the message again
            return CheckpointsRefused(self.clock(), error.message, error.advice, is_needed=True)

    def _look_for_lost_job(self, run: Run, *, must_know: bool) -> Run:
        """Return the run with its current job, if that lives although its creation was believed to have failed.

        Without `must_know`, the run is handled even if SageMaker does not answer: a refused launch is checked again.
        """
        try:
            job = self._find_own_job(run)
        except StateUnknown:
            if must_know:
                raise
            return run
        if job is None or job.status.is_terminal:
            return run
        return self._handle_signals(run, JobObserved(self.clock(), job))

    def on_command(self, received: CommandReceived) -> Run:
        """Carry out an operator's command, by the state of the run now."""

        def make_command(run: Run, seen: Sequence[Checkpoint] | None) -> Signal:
            saved = self._list_for_command(run, seen, received)
            verb, who, why = received.verb, received.who, received.why
            change = self._read_change(run, received) if verb is OperatorVerb.CONTINUE else None
            asked = received.proposal, received.step, received.asked_at, change, received.at_once
            limits = self.observe_only, self._find_unmovable(run, received)
            return OperatorCommand(self.clock(), received.id, verb, who, why, saved, *asked, *limits)

        return self.visit(received.run, make_command)

    def _read_change(self, run: Run, received: CommandReceived) -> RequestChange:
        """Return what the operator changes in the run's request, or why it cannot be changed."""
        try:
            change = read_change(self.mailbox.change(run.id, received.change)) if received.change else {}
            policy = self.policies.get(received.policy) if received.policy else None
            request = self.runs.request(run.id)
            changed = change_request(request, change, received.policy)
        except (BadMailboxObject, RequestRefused, PolicyError) as error:
            return RequestChange(problem=str(error))
        self.changed[:] = [changed]
        before, cluster = read_cluster(request), read_cluster(changed)
        return RequestChange(describe_change(request, changed), cluster if cluster != before else None, policy)

    def _find_unmovable(self, run: Run, received: CommandReceived) -> str:
        """Return why a rollback could not move what a live job has saved; "" if it could. Such a job is not stopped."""
        if received.verb is not OperatorVerb.ROLLBACK or not run.current.may_be_live or not run.checkpoint_uri:
            return ""
        at, since = self.clock(), find_first_start(run)
        move = QuarantineCheckpoints(run.id, run.current.number, run.checkpoint_uri, received.step, at)
        try:
            self._authorize(run, move, since)
        except QuarantineFailed as error:
            return f"{error.message}: {error.advice.partition(', and release the run')[0]}"
        return ""

    def _list_for_command(
        self, run: Run, seen: Sequence[Checkpoint] | None, received: CommandReceived
    ) -> Sequence[Checkpoint] | None:
        """Return the checkpoints if the command needs a step; an operator may choose one older than usual."""
        if received.verb in (OperatorVerb.ROLLBACK, OperatorVerb.DRILL) and run.checkpoint_uri:
            return list_with_signatures(run, self.checkpoints, upto=received.step)
        return self._list_checkpoints(run, seen) if received.verb in LISTING_VERBS else None

    def on_findings(
        self, run_id: str, job_name: str, findings: tuple[Finding, ...], first_step: int | None = None
    ) -> Run:
        """Decide on findings, by the state of the run now."""

        def make_observed(run: Run, seen: Sequence[Checkpoint] | None) -> Signal:
            saved = self._list_checkpoints(run, seen) if _has_intervention(findings) else None
            return FindingsObserved(self.clock(), job_name, findings, saved, first_step=first_step)

        return self.visit(run_id, make_observed)

    def on_report(self, filed: ReportFiled, post: QueueMessage | None = None) -> Run | None:
        """Handle an agent's report for the run that owns its folder.

        An invalid report is recorded as such. Raises StateUnknown while a recently filed object cannot be read, so that
        the queue retries.
        """
        run = self.runs.load(self.runs.run_of(filed.run) or filed.run)
        if run is None or run.mailbox != filed.run:
            return None  # from an unsupervised job, or another job's mailbox
        try:
            report, refused = self.mailbox.report(filed.key, run.signing_key), None
        except BadMailboxObject as error:
            report, refused = None, error
        is_unsigned = refused.is_unsigned if refused else report is not None and not report.is_signed
        if is_unsigned and must_be_signed(run, policy_of(run, self.policies)):
            # Whatever else is wrong with it, the run's agent has not written it.
            refused = BadMailboxObject(f"object {filed.key!r}: it has no seal", defect=UNSEALED)
        if refused:
            return self._handle_signals(run, ReportInvalid(self.clock(), refused.defect, str(refused)))
        if report is None and post and self.clock() - post.sent_at < REPORT_RETRY_PERIOD:
            raise StateUnknown(f"object {filed.key!r} was filed, and is not there")
        return self._on_report(run, report) if report else run

    def _on_report(self, run: Run, report: Report) -> Run:
        """Decide on a valid report."""
        if report.job != run.current.job_name and report.kind not in REFUSED_SAVES:
            return run  # an older attempt's, or an unknown job's
        diagnosis = None
        if report.reason or report.evidence or report.findings:
            secrets = find_secrets(self.runs.request(run.id))
            if report.kind is ReportKind.CRASHED:
                causes, texts = policy_of(run, self.policies).causes, (report.reason, report.evidence)
                diagnosis = with_redaction(with_named_cause(diagnose_report(report), texts, causes), secrets)
            report = redact_report(report, secrets)

        def make_reported(run: Run, seen: Sequence[Checkpoint] | None) -> Signal:
            needs_checkpoints = _has_intervention(report.findings) or report.kind is ReportKind.CRASHED
            saved = self._list_checkpoints(run, seen) if needs_checkpoints else seen
            return AgentReported(self.clock(), report, saved, diagnosis)

        return self.visit(run.id, make_reported)

    def _list_checkpoints(self, run: Run, seen: Sequence[Checkpoint] | None) -> Sequence[Checkpoint] | None:
        """Return the run's checkpoints; they are listed only if that was not done just before."""
        return seen if seen is not None or not run.checkpoint_uri else list_with_signatures(run, self.checkpoints)

    def on_alarm(self, changed: AlarmStateChanged) -> Run | None:
        """Decide on a user's own CloudWatch alarm on a supervised job; a return to OK changes nothing."""
        run_id = self.runs.run_of(changed.job_name)
        if run_id is None or changed.state != "ALARM":
            return None
        run, now = self._load(run_id), self.clock()
        at = min(changed.at or now, now)
        if run.current.created_at and at < run.current.created_at:
            return None  # on an older job of that name
        policy, is_late = policy_of(run, self.policies), now - at > EXPIRES_AFTER
        finding = make_alarm_finding(changed.alarm, changed.namespace, changed.reason, policy, at=at, is_late=is_late)
        return self.on_findings(run_id, changed.job_name, (finding,))

    def adopt(self, job_name: str) -> Run | None:
        """Adopt a job if its tags request supervision."""
        try:
            job, description = self.jobs.describe(job_name)
        except JobNotFound:
            return None  # an event about a job that has been deleted since
        try:
            return self._adopt_described(job, description)
        except RequestTooLarge as error:
            self._ignore(job_name, refuse(job, str(error)), self.clock())
            return None

    def _adopt_described(self, job: Job, description: Mapping[str, Any]) -> Run | None:
        """Adopt a job by its description, or continue the run that it belongs to."""
        job_name, tags, at = job.name, self.jobs.tags(job.arn), self.clock()
        if claim := read_claim(job_name, tags):
            run = self.runs.load(claim.run)
            if run is None and not self._has_first_job(claim, job, description):
                tags = _without_claim(tags)  # a separate run
            elif is_believable(claim, run) and (run is None or is_handed(description, run.signing_key)):
                return self._restore_record(claim, run, job, description, tags)
        namesake = self.runs.load(make_run_id(job_name))
        if namesake and namesake.attempts[0].created_at == job.created_at:
            return self.visit(namesake.id)  # adopted concurrently
        if namesake and is_first_job_of_rebuilt(namesake, job):
            return namesake
        match adopt(job, description, tags, self.policies, taken=namesake is not None, at=at):
            case AdoptionRefused() as refused:
                self._ignore(job_name, refused, at)
                return None
            case Adopted() as adopted:
                adopted = self._with_limited_notices(adopted, job_name, at)
                request = rebuild(description, tags, members=self.jobs.request_members())
                self._save_adopted(adopted, request, at)
                return self.visit(adopted.run.id)

    def _ignore(self, job_name: str, refused: AdoptionRefused, at: datetime) -> None:
        """Do not supervise the job, and send the notice about it once."""
        new = self.runs.ignore(job_name, refused.reason, until=at + IGNORED_FOR)
        if new and refused.notice and (number := self.rate_limit.claim_adoption_notice(job_name, at=at)):
            self.bus.publish(make_job_notice(with_limit(refused.notice, number, at), job_name, at=at))

    def _with_limited_notices(self, adopted: Adopted, job_name: str, at: datetime) -> Adopted:
        """Return the new run with its notices, or without them if many jobs have had such notices within the hour."""
        if not any(isinstance(action, Notify) for action in adopted.run.pending):
            return adopted
        number = self.rate_limit.claim_adoption_notice(job_name, at=at)
        pending = tuple(
            with_limit(action, number, at) if isinstance(action, Notify) else action
            for action in adopted.run.pending
            if number or not isinstance(action, Notify)
        )
        return replace(adopted, run=replace(adopted.run, pending=pending))

    def _restore_record(
        self, claim: Claim, run: Run | None, job: Job, description: Mapping[str, Any], tags: Mapping[str, str]
    ) -> Run | None:
        """Watch an attempt that Rerail launched and whose record is missing."""
        at = self.clock()
        if run is None:
            own_tags = _without_claim(tags)
            adopted = adopt(job, description, own_tags, self.policies, taken=False, at=at)
            if isinstance(adopted, AdoptionRefused):
                return None
            rebuilt = rebuild_run(replace(adopted.run, id=claim.run), claim.number, job)
            reason = f"{adopted.reason}, as attempt {claim.number} of {claim.run}: its record is lost"
            request = rebuild(description, own_tags, members=self.jobs.request_members())
            self._save_adopted(replace(adopted, run=rebuilt, reason=reason), request, at)
            return self.visit(claim.run)
        jobs = [seen for name in find_missed_jobs(run, claim.number) if (seen := self._describe_if_exists(name))]
        self._handle_signals(run, RecordOutdated(at, claim.number, (*jobs, job)))
        return self.visit(run.id)

    def _has_first_job(self, claim: Claim, job: Job, description: Mapping[str, Any]) -> bool:
        """Return whether a run without a record began with a job that has ended, is supervised and has the same key.

        Anyone can give a job that name and those tags, so they do not prove that there was such a run. If the run's id
        does not contain the first job's name, they are nevertheless enough.
        """
        names = list_first_job_names(claim.run)
        return not names or any(self._is_first_job(name, job, description) for name in names)

    def _is_first_job(self, name: str, job: Job, description: Mapping[str, Any]) -> bool:
        try:
            first, its_description = self.jobs.describe(name) if JOB_NAME.fullmatch(name) else (None, {})
        except JobNotFound:
            return False
        if first is None or not first.status.is_terminal or first.created_at >= job.created_at:
            return False
        return POLICY_TAG in self.jobs.tags(first.arn) and is_handed(description, read_signing_key(its_description))

    def _describe_if_exists(self, job_name: str) -> Job | None:
        """Return the job, or None if it was deleted."""
        try:
            return self.jobs.describe(job_name)[0]
        except JobNotFound:
            return None

    def _is_reused_name(self, job_name: str, run: Run) -> bool:
        """Return whether the name belongs to a new job, created after DeleteTrainingJob."""
        known = {attempt.created_at for attempt in run.attempts if attempt.job_name == job_name}
        try:
            return self.jobs.describe(job_name)[0].created_at not in known
        except JobNotFound:
            return False

    def _is_later_job(self, job_name: str, run: Run) -> bool:
        """Return whether the job was created after the attempts that followed the one of its name.

        Then it is not that attempt, whose record was rebuilt from its name after that job was deleted.
        """
        newest = run.current.created_at
        if newest is None or not any(a.job_name == job_name and a.created_at is None for a in run.attempts[:-1]):
            return False
        try:
            return self.jobs.describe(job_name)[0].created_at > newest
        except JobNotFound:
            return False

    def _save_adopted(self, adopted: Adopted, request: dict[str, Any], at: datetime) -> None:
        """Save a new run with its request and its first timeline entry."""
        own_key = read_signing_key(request)
        request = with_signing_key(request, own_key or self.new_key())
        key = read_signing_key(request)
        execution = (request.get("Environment") or {}).get(EXECUTION_VARIABLE, "")
        run = replace(adopted.run, version=1, signing_key=key, requires_signature=bool(own_key), execution=execution)
        change = make_state_change(run, None, at=at, version=run.version, reason=adopted.reason)
        run = replace(run, unpublished=(change,))
        entry = TimelineEntry(
            run=run.id, version=1, at=at, before=run.state, after=run.state, reason=adopted.reason, finding="adopted"
        )
        try:
            self.runs.save(run, entry, request)
        except Conflict:
            return  # adopted concurrently

    def _handle_signals(self, run: Run, *signals: Signal, looked_at: datetime | None = None) -> Run:
        """Decide on each signal, and at once on what its actions lead to; return the run afterwards.

        `looked_at`: the observation is no older than this.
        """
        waiting = deque(signals)
        while waiting:
            found, run = self._record_turn(run, waiting.popleft(), looked_at)
            if run is not found:
                waiting.extendleft(reversed(self._act(run, found=found)))
        return run

    def _record_turn(self, run: Run, signal: Signal, looked_at: datetime | None) -> tuple[Run, Run]:
        """Decide and record; return the run as found and as recorded, the same twice if nothing has changed.

        On a conflicting write, load the run and decide again. Raises Conflict after several conflicts in a row.
        """
        for _ in range(MAX_CONFLICTS):
            decision = decide(run, signal, policy_of(run, self.policies))
            if decision.run == run and not decision.reason:
                return run, run
            times = [at for at in (run.looked_at, looked_at) if at]
            updated = replace(decision.run, version=run.version + 1, looked_at=max(times, default=None))
            entry = _make_entry(run, updated, signal, decision) if decision.reason else None
            try:
                self.runs.save(updated, entry, self.changed[0] if decision.replaces_request else None)
            except Conflict:
                run = self._load(run.id)
                continue
            self.turns.append(RecordedDecision(run, decision))
            return run, updated
        raise Conflict(f"run {run.id} is being changed by others again and again: try later")

    def _is_to_wait(self, run: Run, action: Action | Notify, done: Collection[Action | Notify], *, found: Run) -> bool:
        """Return whether the action must wait for others, or belongs to another function."""
        if isinstance(action, CreateJob):
            return any(other.PRECEDES_CREATE and other not in done for other in run.pending)
        if not isinstance(action, Notify):
            return action.IS_BACKGROUND
        if any(earlier not in done for earlier in _list_earlier_notices(run, action)):
            return True
        # That function may still be about to send it; the sweep does if it has ended.
        is_fresh = action.decided_at is not None and abs(self.clock() - action.decided_at) < NOTICE_LEASE
        return is_fresh and action in found.pending

    def _act(self, run: Run, *, found: Run) -> list[Signal]:
        """Carry out pending actions in order, and publish state changes; return what came of it.

        An action that fails does not prevent the others. It stays pending, and its error is raised last. `found` is the
        run as recorded before: its work is perhaps another function's, which does it now.
        """
        done: list[Action | Notify] = []
        refusals: list[Signal] = []
        is_deferred, paused = self._find_deferral(run)
        throttled = False
        for action in sorted(run.pending, key=lambda action: action.RANK):
            if (is_deferred and _is_blocked_by_pause(action)) or self._is_to_wait(run, action, done, found=found):
                continue
            try:
                refusal = self._perform(run, action)
            except (Throttled, ActionUnfinished):
                throttled = throttled or (isinstance(action, StopJob) and action not in found.pending)
                continue  # the sweep retries it within a minute
            except Exception as error:  # raised after all other actions: see `handle`
                self.failed.append(error)
            else:
                refusals.append(refusal) if refusal else done.append(action)
        published = self._publish_changes(run, found)
        signals: list[Signal] = []
        if done or published:
            signals.append(ActionsDone(self.clock(), tuple(done), published))
        signals += refusals
        if paused and any(isinstance(action, StopJob) for action in run.pending):
            signals.append(Paused(self.clock()))
        elif throttled:
            signals.append(StopThrottled(self.clock()))
        return signals

    def _publish_changes(self, run: Run, found: Run) -> tuple[str, ...]:
        """Publish the events of the run's state changes, oldest first; return the ids of those that the bus has taken.

        After a failure the rest waits for the next visit, so that the events leave in order.
        """
        published: list[str] = []
        for change in run.unpublished:
            if change in found.unpublished and _is_being_published(change, self.clock()):
                break  # the sweep has it published if that function has ended
            try:
                self.bus.publish_change(
                    make_run_event(run, change, at=self.clock(), policy=self._read_policy(run), reports=self.reports)
                )
            except Throttled:
                break  # the sweep retries it within a minute
            except Exception as error:  # raised after all other actions: see `handle`
                self.failed.append(error)
                break
            published.append(change.id)
        return tuple(published)

    def _act_in_background(self, run: Run) -> Run:
        """Carry out one action that nothing waits for, unless the run is being relaunched; the next visit continues."""
        action = next((action for action in run.pending if isinstance(action, CopyCheckpoint)), None)
        if action is None or (run.state not in BACKGROUND_STATES and not run.state.is_end):
            return run
        try:
            copied = self._copy_file(run, action)
        except (Throttled, ActionUnfinished):
            return run  # the sweep retries it within a minute
        except Exception as error:  # raised at the end: see `handle`
            self.failed.append(error)
            return run
        return self._handle_signals(run, copied)

    def _copy_file(self, run: Run, action: CopyCheckpoint) -> FileCopied:
        """Copy a file; return the copy, or why it must not be made."""
        try:
            copy = self.checkpoints.copy_file(action, lambda: self._authorize_copy(run, action))
        except QuarantineFailed as error:
            return FileCopied(self.clock(), action, problem=f"{error.message}. To do: {error.advice}")
        return FileCopied(self.clock(), action, copy)

    def _authorize_copy(self, run: Run, action: CopyCheckpoint) -> None:
        """Raise QuarantineFailed unless the checkpoints may be moved; all other runs are read once for an attempt."""
        if action.is_first:
            self._authorize(run, action, find_first_start(run))
        else:
            check_folder(action, self._read_request(run.id), self.quarantine_folders)

    def _perform(self, run: Run, action: Action | Notify) -> CreateRefused | QuarantineRefused | None:
        """Carry out one action; return SageMaker's or S3's refusal, or None if it was done."""
        match action:
            case QuarantineCheckpoints():
                return self._quarantine(run, action)
            case CopyCheckpoint():
                raise AssertionError("carried out in the background")
            case CreateJob():
                return self._create(run, action)
            case StopJob():
                self._stop(run, action)
            case ReleaseWarmPool():
                self.jobs.release_warm_pool(action.job_name)
            case PostCommand():
                self.mailbox.post(action.command, run.signing_key)
            case Notify():
                self.bus.publish(self._make_notice(run, self._without_repeated_page(run, action)))
            case _ as unreachable:
                assert_never(unreachable)
        return None

    def _stop(self, run: Run, action: StopJob) -> None:
        """Stop the job; raise Throttled also if another has stopped it since an earlier call was not taken."""
        if run.stop and run.stop.is_throttled:
            with suppress(JobNotFound):
                if self.jobs.describe(action.job_name)[0].status in (JobStatus.STOPPING, JobStatus.STOPPED):
                    raise Throttled(f"{action.job_name} is being stopped, and not by Rerail")
        self.jobs.stop(action.job_name)

    def _without_repeated_page(self, run: Run, notice: Notify) -> Notify:
        """Return the notice; one that only informs if another run has paged on-call about the same error."""
        is_hold = run.state is RunState.HELD and notice.severity is Severity.PAGE
        if not is_hold or notice.runbook not in (Runbook.BUDGET_SPENT, Runbook.SAME_ERROR):
            return notice
        is_limited = self._read_policy(run).limits.account_relaunches
        if not is_limited or not find_shareable_error(run, run.current):
            return notice
        paged_by = self.rate_limit.claim_page(run.id, self._make_error_key(run, run.current), at=self.clock())
        if paged_by == run.id:
            return notice
        did = f"{notice.did}; on-call was paged about this error of run {paged_by}"
        return replace(notice, severity=Severity.INFORM, did=did)

    def _make_error_key(self, run: Run, attempt: Attempt) -> str:
        """Return the key of the error that the attempt failed with, from its diagnosis and the run's image."""
        image = (self._read_request(run.id).get("AlgorithmSpecification") or {}).get("TrainingImage", "")
        return make_error_key(attempt, image)

    def _make_notice(self, run: Run, notice: Notify) -> Notice:
        """Return the notice for people."""
        return make_run_notice(notice, run, at=self.clock(), policy=self._read_policy(run))

    def _read_policy(self, run: Run) -> Policy:
        """Return the run's policy for a notice; the default one if it cannot be read."""
        try:
            return policy_of(run, self.policies)
        except RerailError:
            return Policy()

    def _make_request(self, run: Run, action: CreateJob) -> dict[str, Any]:
        """Return the request of a launch."""
        request, policy = self.runs.request(run.id), policy_of(run, self.policies)
        mtbf_s, _ = estimate_mtbf(run, policy, at=self.clock())
        return make_request(
            request, action, run=run.id, detection=policy.detection, interval=policy.interval, mtbf_s=mtbf_s
        )

    def _quarantine(self, run: Run, action: QuarantineCheckpoints) -> QuarantineRefused | None:
        """Move checkpoints out of the way; return the refusal if that is not possible."""
        since = find_first_start(run)
        try:
            # An action that an older version has recorded lacks the time.
            self.checkpoints.quarantine(replace(action, saved_after=since), lambda: self._authorize(run, action, since))
        except QuarantineFailed as error:
            return QuarantineRefused(self.clock(), action, error.message, error.advice)
        return None

    def _authorize(self, run: Run, action: QuarantineCheckpoints | CopyCheckpoint, since: datetime) -> None:
        """Raise QuarantineFailed unless the run's own jobs may move the checkpoints, which no other run shares."""
        check_folder(action, self._read_request(run.id), self.quarantine_folders)
        for name, other in self.runs.open_runs():
            if other is None:
                raise QuarantineFailed(
                    f"the record of run {name} cannot be read, so it is not known whether it saves to {action.uri} too",
                    advice=f"deploy the version of Rerail that wrote the record, and release the run; or {BY_HAND}",
                )
            if name == run.id or not may_share(other, action.uri, since):
                continue
            if has_claim(other, self._read_request(name), self.quarantine_folders):
                raise QuarantineFailed(
                    f"run {name} saves to {other.checkpoint_uri}, which overlaps with {action.uri}: what is moved "
                    "could be a checkpoint of that run",
                    advice=f"{BY_HAND}; give each run a folder of its own",
                )

    def _read_request(self, run_id: str) -> Mapping[str, Any]:
        """Return the request of the run's jobs; empty, which permits nothing, if it is not stored."""
        try:
            return self.runs.request(run_id)
        except RequestRefused:
            return {}

    def _create(self, run: Run, action: CreateJob) -> CreateRefused | None:
        """Create the job if the account's rate limit allows it; return the refusal, if any.

        The answer to an earlier try may have been lost: no refusal is believed before the name was described.
        """
        refusal = self._check_rate_limit(run, action) or self._request_launch(run, action)
        return None if refusal and self._find_own_job(run) else refusal

    def _request_launch(self, run: Run, action: CreateJob) -> CreateRefused | None:
        """Call CreateTrainingJob; return its refusal, if any."""
        try:
            self.jobs.create(self._make_request(run, action))
        except JobExists:
            return CreateRefused(self.clock(), action, Refusal.INVALID, NAME_TAKEN)
        except CapacityRefused as error:
            return CreateRefused(self.clock(), action, Refusal.CAPACITY, str(error))
        except RequestRefused as error:
            return CreateRefused(self.clock(), action, Refusal.INVALID, str(error))
        return None

    def _find_own_job(self, run: Run) -> Job | None:
        """Return the job of the current attempt if it has the run's key and tags: its launch has succeeded."""
        try:
            job, description = self.jobs.describe(run.current.job_name)
        except JobNotFound:
            return None
        if not is_handed(description, run.signing_key):
            return None
        tags = self.jobs.tags(job.arn)
        return job if (tags.get(RUN_TAG), tags.get(ATTEMPT_TAG)) == (run.id, str(run.current.number)) else None

    def _check_rate_limit(self, run: Run, action: CreateJob) -> CreateRefused | None:
        """Request one launch from the account's rate limit; a repeated request counts once."""
        limits, at = policy_of(run, self.policies).limits, self.clock()
        failed = run.attempts[-2] if len(run.attempts) > 1 else run.current
        evidence = find_shareable_error(run, failed)
        error = self._make_error_key(run, failed) if evidence else ""
        request = LaunchRequest(
            action.job_name, run.id, error, failed_at=failed.ended_at, is_approved=bool(run.current.approved_by)
        )
        admit = partial(self.rate_limit.admit, at=at, limit=limits.account_relaunches, window=limits.account_window)
        admission = admit(request)
        if any(self._has_recovered(name, tried_at, at) for name, tried_at in admission.tries.items()):
            admission = admit(replace(request, is_solved=True))
        if admission.granted:
            return None
        window, limit = format_duration(limits.account_window), limits.account_relaunches
        why = f"{admission.count} relaunches over all runs within {window}, of at most {limit}"
        if admission.tries:
            names = ", ".join(sorted(admission.tries))
            why = f"{names} failed with the same error and have not recovered since their relaunch: {evidence}"
        shared_by = tuple(sorted(admission.tries))
        return CreateRefused(at, action, Refusal.RATE_LIMIT, why, admission.until, admission.paged_at, shared_by)

    def _has_recovered(self, run_id: str, since: datetime, at: datetime) -> bool:
        """Return whether another run has recovered; not one whose record is missing or cannot be read."""
        try:
            other = self.runs.load(run_id)
        except RerailError:
            return False
        return other is not None and has_recovered(other, since, at)

    def _find_deferral(self, run: Run) -> tuple[bool, bool]:
        """Return whether stops, restarts and launches of the run wait, and whether a pause is the reason.

        They also wait while the policy cannot be read. If Rerail may only observe or asks first since they were decided
        on, the next visit withdraws them, unless they are approved.
        """
        if not any(map(_is_blocked_by_pause, run.pending)):
            return False, False
        decided = run.stop or (run.current.in_place_restarts[-1] if run.state is RunState.RESTARTING else run.current)
        try:
            policy = policy_of(run, self.policies)
        except RerailError as error:
            self.failed.append(error)
            return True, False
        paused = policy.mode is Mode.PAUSE
        return paused or not may_carry_out(run, policy, decided.approved_by), paused

    def _load(self, run_id: str) -> Run:
        """Return the run; raises BadMessage if it does not exist."""
        run = self.runs.load(run_id)
        if run is None:
            raise BadMessage(f"there is no run {run_id!r}; `rerail status` lists the runs")
        return run


def _without_claim(tags: Mapping[str, str]) -> dict[str, str]:
    """Return a job's tags without those that name a run and an attempt."""
    return {key: value for key, value in tags.items() if key not in (RUN_TAG, ATTEMPT_TAG)}


def _is_blocked_by_pause(action: Action | Notify) -> bool:
    """Return whether the action stops or launches the job or its processes."""
    is_restart = isinstance(action, PostCommand) and action.command.kind is CommandKind.RESTART
    return is_restart or action.IS_BLOCKED_BY_PAUSE


def _list_earlier_notices(run: Run, notice: Notify) -> list[Notify]:
    """Return pending notices of the same page that were decided before this one.

    An all-clear must not be sent before its page, nor after the next one.
    """
    queue = run.pending[: run.pending.index(notice)]
    page = notice.clears or notice.key
    return [earlier for earlier in queue if isinstance(earlier, Notify) and (earlier.clears or earlier.key) == page]


def _is_being_published(change: StateChange, at: datetime) -> bool:
    """Return whether the function that recorded the change may still be about to publish it.

    An adoption is published by the visit that follows it.
    """
    return change.before is not None and abs(at - change.at) < NOTICE_LEASE


def _has_intervention(findings: Sequence[Finding]) -> bool:
    """Return whether a finding calls for action."""
    return any(finding.level is Level.INTERVENE for finding in findings)


def _make_entry(before: Run, after: Run, signal: Signal, decision: Decision) -> TimelineEntry:
    """Return the timeline entry of a decision."""
    said = before.state, after.state, decision.reason, decision.finding
    seen = to_plain(signal), to_plain(decision.inputs), tuple(to_plain(action) for action in decision.actions)
    return TimelineEntry(after.id, after.version, signal.at, *said, *seen)
