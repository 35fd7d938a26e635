"""Observe, decide, record, act: one turn of the supervisor, the same whatever woke it.

A decision is recorded with its actions pending (one conditional write) before anything is done, and they are cleared
when they are done. Whatever dies in between is found pending by the next turn, and done again without harm."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, assert_never

from rerail.decisions.adoption import Adopted, AdoptionRefused, adopt
from rerail.decisions.cost_benefit import KINDS as WEIGHED
from rerail.decisions.decide import decide
from rerail.decisions.decision import Decision
from rerail.decisions.on_report import REFUSED_SAVES, redact_report
from rerail.decisions.reconcile import Claim, find_missed_jobs, is_believable, read_claim, rebuild_run
from rerail.decisions.remedies import format_duration
from rerail.hyperpod.events import ClusterEventReceived
from rerail.messages.messages import (
    AlarmStateChanged,
    ClusterDue,
    CommandReceived,
    FindingsReceived,
    JobStateChanged,
    Message,
    QueueMessage,
    ReportFiled,
    RunDue,
    UnrelatedObject,
)
from rerail.model.actions import Action, CreateJob, Notify, PostCommand, QuarantineCheckpoints, ReleaseWarmPool, StopJob
from rerail.model.checkpoints import Checkpoint
from rerail.model.codec import plain
from rerail.model.errors import (
    ActionUnfinished,
    BadMailboxObject,
    BadMessage,
    CapacityRefused,
    Conflict,
    JobExists,
    JobNotFound,
    QuarantineFailed,
    RequestRefused,
    RerailError,
    StateUnknown,
    Throttled,
)
from rerail.model.finding import Finding, Kind, Level
from rerail.model.mailbox import Report, ReportKind
from rerail.model.policy import Mode, OnAlarm, Policy
from rerail.model.run import Job, Run, TimelineEntry, run_id
from rerail.model.signals import (
    ActionsDone,
    AgentReported,
    CreateRefused,
    FindingsObserved,
    JobObserved,
    OperatorCommand,
    OperatorVerb,
    Paused,
    QuarantineRefused,
    RecordOutdated,
    Refusal,
    ReportInvalid,
    Signal,
    Tick,
)
from rerail.model.signatures import UNSEALED, must_be_signed
from rerail.notices.notice import Notice, make_job_notice, make_run_notice
from rerail.ports import Bus, Checkpoints, Jobs, Mailbox, Policies, RateLimit, Runs, policy_of
from rerail.requests.relaunch import (
    ATTEMPT_TAG,
    RUN_TAG,
    is_handed,
    make_request,
    read_signing_key,
    rebuild,
    with_signing_key,
)
from rerail.supervisor.decision_metrics import RecordedDecision
from rerail.supervisor.observe import has_looked_since, observe

CONFLICTS_BEFORE_GIVING_UP = 8
UNSUPERVISED_FOR = timedelta(hours=1)
# Word of an object comes after the object: one that is not there is asked for again, by the queue, for so long.
GONE_AFTER = timedelta(minutes=15)
# Older agents are told and bad machines given back before the next job is launched; people are told last.
ORDER = (PostCommand, StopJob, ReleaseWarmPool, QuarantineCheckpoints, CreateJob, Notify)
# No job is created before these are done: what it starts from depends on them.
FIRST = (ReleaseWarmPool, QuarantineCheckpoints)
# What is not done while Rerail is paused.
PAUSABLE = (StopJob, CreateJob)
# What we were woken for as a signal, made of the run and of its checkpoints where somebody has looked already.
Hearing = Callable[[Run, Sequence[Checkpoint] | None], Signal]


@dataclass(frozen=True, slots=True)
class Supervisor:
    """The loop over its ports; `clock` is the only source of time, `new_key` of chance: a key that nobody can guess, or
    nothing, which does without seals. `failed` and `turns` are what has failed on one message, and what was decided."""

    runs: Runs
    jobs: Jobs
    checkpoints: Checkpoints
    policies: Policies
    bus: Bus
    mailbox: Mailbox
    brake: RateLimit
    clock: Callable[[], datetime]
    new_key: Callable[[], str] = str
    failed: list[Exception] = field(default_factory=list, init=False)
    turns: list[RecordedDecision] = field(default_factory=list, init=False)

    def handle(self, wakeup: Message, post: QueueMessage | None = None) -> Run | None:
        """Do all that this wake-up and the state of the world ask for; the run as it is afterwards. `post` says when
        it was sent, if the queue tells.

        An action that fails keeps nothing else from being done or decided; its error is raised last."""
        self.failed.clear()
        self.turns.clear()
        run = self._handled(wakeup, post)
        if self.failed:
            raise self.failed[0]
        return run

    def _handled(self, wakeup: Message, post: QueueMessage | None) -> Run | None:
        match wakeup:
            case JobStateChanged():
                return self.hear(wakeup.job_name, post)
            case RunDue():
                return self.visit(wakeup.run, post=post)
            case CommandReceived():
                return self.command(wakeup)
            case FindingsReceived():
                return self.trouble(wakeup.run, wakeup.job_name, wakeup.findings)
            case AlarmStateChanged():
                return self.alarm(wakeup)
            case ReportFiled():
                return self.report(wakeup, post)
            case (
                UnrelatedObject() | ClusterEventReceived() | ClusterDue()
            ):  # a cluster is no run's: see rerail.hyperpod.clusters
                return None
            case _ as unreachable:
                assert_never(unreachable)

    def hear(self, job_name: str, post: QueueMessage | None = None) -> Run | None:
        """Look at the run that the job belongs to, or adopt the job."""
        run_id = self.runs.run_of(job_name)
        if run_id is None:
            return self.adopt(job_name)
        run = self.visit(run_id, post=post)
        return self.adopt(job_name) if run.state.is_end and self._is_another(job_name, run) else run

    def visit(self, run_id: str, hear: Hearing | None = None, *, post: QueueMessage | None = None) -> Run:
        """Finish what is pending, look at the run's job, hear what we were woken for, and decide on each; nothing,
        where there is only to look, and somebody has looked since.

        The job comes first: what somebody says of it may be over by now. The time comes last: what was just heard may
        be what a deadline waits for."""
        run = self._load(run_id)
        if has_looked_since(run, post):
            return run
        if run.pending:
            run = self._act(run)
        signals = observe(run, self.jobs, self.checkpoints, at=self.clock())
        seen = next((signal.checkpoints for signal in signals if isinstance(signal, JobObserved)), None)
        for signal in signals:
            if isinstance(signal, Tick) and hear:
                run = self._turn(run, hear(run, seen))
            run = self._turn(run, signal, looked_at=post.received_at if post else None)
        return run

    def command(self, given: CommandReceived) -> Run:
        """Grant an operator's wish, on the world as it is now."""

        def wish(run: Run, seen: Sequence[Checkpoint] | None) -> Signal:
            saved = self._asked(run, seen, given)
            verb, who, why = given.verb, given.who, given.why
            return OperatorCommand(
                self.clock(), given.id, verb, who, why, saved, given.proposal, given.step, given.asked_at
            )

        return self.visit(given.run, wish)

    def _asked(
        self, run: Run, seen: Sequence[Checkpoint] | None, given: CommandReceived
    ) -> Sequence[Checkpoint] | None:
        """The checkpoints, where there is a step to choose; an operator may choose a rather old one."""
        if given.verb in (OperatorVerb.ROLLBACK, OperatorVerb.DRILL) and run.checkpoint_uri:
            return self.checkpoints.under(run.checkpoint_uri, upto=given.step)
        return self._saved(run, seen) if given.verb in (OperatorVerb.RELEASE, OperatorVerb.APPROVE) else None

    def trouble(self, run_id: str, job_name: str, findings: tuple[Finding, ...]) -> Run:
        """Judge what was found, on the world as it is now."""

        def found(run: Run, seen: Sequence[Checkpoint] | None) -> Signal:
            saved = self._saved(run, seen) if self._is_grave(run, findings) else None
            return FindingsObserved(self.clock(), job_name, findings, saved)

        return self.visit(run_id, found)

    def report(self, filed: ReportFiled, post: QueueMessage | None = None) -> Run | None:
        """Hear what an agent has to say of the run whose folder it uses. What cannot be read is refused, and said; what
        is not there, though the queue has just brought word of it, is asked for again: raises Blind."""
        run = self.runs.load(self.runs.run_of(filed.run) or filed.run)
        if run is None or run.mailbox != filed.run:
            return None  # of a job that nobody asked us to supervise, or of an attempt that is over
        try:
            report = self.mailbox.report(filed.key, run.seal_key)
            if report and not report.sealed and must_be_signed(run, policy_of(run, self.policies)):
                raise BadMailboxObject(f"object {filed.key!r}: it has no seal", defect=UNSEALED)
        except BadMailboxObject as error:
            return self._turn(run, ReportInvalid(self.clock(), error.defect, str(error)))
        if report is None and post and self.clock() - post.sent_at < GONE_AFTER:
            raise StateUnknown(f"object {filed.key!r} was filed, and is not there")
        return self._hear(run, report) if report else run

    def _hear(self, run: Run, report: Report) -> Run:
        if report.job != run.current.job_name and report.told not in REFUSED_SAVES:
            return run  # an older attempt's, or nobody's: not worth a look
        if report.reason or report.evidence or report.findings:
            report = redact_report(report, self.runs.request(run.id))

        def reported(run: Run, seen: Sequence[Checkpoint] | None) -> Signal:
            looks = self._is_grave(run, report.findings) or report.told is ReportKind.CRASHED
            saved = self._saved(run, seen) if looks else seen
            return AgentReported(self.clock(), report, saved)

        return self.visit(run.id, reported)

    def _saved(self, run: Run, seen: Sequence[Checkpoint] | None) -> Sequence[Checkpoint] | None:
        """The run's checkpoints; listed only where nobody has just done so."""
        return seen if seen is not None or not run.checkpoint_uri else self.checkpoints.under(run.checkpoint_uri)

    def _is_grave(self, run: Run, findings: Sequence[Finding]) -> bool:
        """Something may come of it that needs a step to resume from."""
        return _grave(findings) or (_weighable(findings) and policy_of(run, self.policies).weighing.enabled)

    def alarm(self, heard: AlarmStateChanged) -> Run | None:
        """A user's own alarm on a supervised job; one that returns to OK says nothing new."""
        run_id = self.runs.run_of(heard.job_name)
        if run_id is None or heard.state != "ALARM":
            return None
        acts = policy_of(self._load(run_id), self.policies).on_alarm is OnAlarm.RESTART
        level = Level.INTERVENE if acts else Level.WARN
        finding = Finding(Kind.ALARM, level, None, None, f"alarm {heard.alarm} went off: {heard.reason}", self.clock())
        return self.trouble(run_id, heard.job_name, (finding,))

    def adopt(self, job_name: str) -> Run | None:
        """Take a job under supervision if its tags ask for it."""
        try:
            job, description = self.jobs.describe(job_name)
        except JobNotFound:
            return None  # an event about a job that has been deleted since
        tags, at = self.jobs.tags(job.arn), self.clock()
        if claim := read_claim(job_name, tags):
            run = self.runs.load(claim.run)
            if is_believable(claim, run) and (run is None or is_handed(description, run.seal_key)):
                return self._take_up(claim, run, job, description, tags)
        namesake = self.runs.load(run_id(job_name))
        if namesake and namesake.attempts[0].created_at == job.created_at:
            return self.visit(namesake.id)  # somebody else adopted it in the same moment
        match adopt(job, description, tags, self.policies, taken=namesake is not None, at=at):
            case AdoptionRefused() as refused:
                new = self.runs.ignore(job_name, refused.reason, until=at + UNSUPERVISED_FOR)
                if new and refused.notice:
                    self.bus.publish(make_job_notice(refused.notice, job_name, at=at))
                return None
            case Adopted() as enrolled:
                request = rebuild(description, tags, members=self.jobs.request_members())
                self._enrol(enrolled, request, at)
                return self.visit(enrolled.run.id)

    def _take_up(
        self, claim: Claim, run: Run | None, job: Job, description: Mapping[str, Any], tags: Mapping[str, str]
    ) -> Run | None:
        """Watch an attempt that was launched by us, and that the memory knows nothing of."""
        at = self.clock()
        if run is None:
            own = {key: value for key, value in tags.items() if key not in (RUN_TAG, ATTEMPT_TAG)}
            enrolled = adopt(job, description, own, self.policies, taken=False, at=at)
            if isinstance(enrolled, AdoptionRefused):
                return None
            found = rebuild_run(replace(enrolled.run, id=claim.run), claim.number, job)
            reason = f"{enrolled.reason}, as attempt {claim.number} of {claim.run}: its record is lost"
            request = rebuild(description, own, members=self.jobs.request_members())
            self._enrol(replace(enrolled, run=found, reason=reason), request, at)
            return self.visit(claim.run)
        jobs = [seen for name in find_missed_jobs(run, claim.number) if (seen := self._still_known(name))]
        self._turn(run, RecordOutdated(at, claim.number, (*jobs, job)))
        return self.visit(run.id)

    def _still_known(self, job_name: str) -> Job | None:
        try:
            return self.jobs.describe(job_name)[0]
        except JobNotFound:
            return None

    def _is_another(self, job_name: str, run: Run) -> bool:
        """The name was given to a new job after DeleteTrainingJob."""
        ours = {attempt.created_at for attempt in run.attempts if attempt.job_name == job_name}
        try:
            return self.jobs.describe(job_name)[0].created_at not in ours
        except JobNotFound:
            return False

    def _enrol(self, enrolled: Adopted, request: dict[str, Any], at: datetime) -> None:
        request = with_signing_key(request, read_signing_key(request) or self.new_key())
        run = replace(enrolled.run, version=1, seal_key=read_signing_key(request))
        entry = TimelineEntry(
            run=run.id, version=1, at=at, before=run.state, after=run.state, reason=enrolled.reason, finding="adopted"
        )
        try:
            self.runs.save(run, entry, request)
        except Conflict:
            return  # somebody else adopted it in the same moment

    def _turn(self, run: Run, signal: Signal, *, looked_at: datetime | None = None) -> Run:
        """Decide, record, act; read the run and decide again where somebody else recorded first. `looked_at`: what is
        decided on was looked at after this."""
        for _ in range(CONFLICTS_BEFORE_GIVING_UP):
            decision = decide(run, signal, policy_of(run, self.policies))
            if decision.run == run and not decision.reason:
                return run
            looks = [at for at in (run.looked_at, looked_at) if at]
            after = replace(decision.run, version=run.version + 1, looked_at=max(looks, default=None))
            try:
                self.runs.save(after, _entry(run, after, signal, decision) if decision.reason else None)
            except Conflict:
                run = self._load(run.id)
                continue
            self.turns.append(RecordedDecision(run, decision))
            return self._act(after)
        raise Conflict(f"run {run.id} is being changed by others again and again: try later")

    def _act(self, run: Run) -> Run:
        """Carry out what is pending, in order, and record what came of it.

        One action's error keeps no other from being done; what failed stays pending, and its error is raised last.
        """
        done: list[Action | Notify] = []
        refusals: list[CreateRefused | QuarantineRefused] = []
        waits, paused = self._held_back(run)
        for action in sorted(run.pending, key=lambda action: ORDER.index(type(action))):
            if isinstance(action, waits):
                continue
            if isinstance(action, CreateJob) and any(isinstance(a, FIRST) and a not in done for a in run.pending):
                continue
            if isinstance(action, Notify) and any(a not in done for a in _told_first(run, action)):
                continue
            try:
                refusal = self._perform(run, action)
            except (Throttled, ActionUnfinished):
                continue  # the sweep finds it pending in a minute
            except Exception as error:  # whatever it is, all else comes first: see `handle`
                self.failed.append(error)
            else:
                refusals.append(refusal) if refusal else done.append(action)
        if done:
            run = self._turn(run, ActionsDone(self.clock(), tuple(done)))
        for refused in refusals:
            run = self._turn(run, refused)
        if paused and any(isinstance(action, StopJob) for action in run.pending):
            run = self._turn(run, Paused(self.clock()))
        return run

    def _perform(self, run: Run, action: Action | Notify) -> CreateRefused | QuarantineRefused | None:
        match action:
            case QuarantineCheckpoints():
                return self._set_aside(action)
            case CreateJob():
                return self._create(run, action)
            case StopJob():
                self.jobs.stop(action.job_name)
            case ReleaseWarmPool():
                self.jobs.release_warm_pool(action.job_name)
            case PostCommand():
                self.mailbox.post(action.command)
            case Notify():
                self.bus.publish(self._notice(run, action))
            case _ as unreachable:
                assert_never(unreachable)
        return None

    def _notice(self, run: Run, tell: Notify) -> Notice:
        """People are told, whatever has become of the policy: then with the prices that everybody has."""
        try:
            policy = policy_of(run, self.policies)
        except RerailError:
            policy = Policy()
        return make_run_notice(tell, run, at=self.clock(), policy=policy)

    def _set_aside(self, action: QuarantineCheckpoints) -> QuarantineRefused | None:
        try:
            self.checkpoints.set_aside(action)
        except QuarantineFailed as error:
            return QuarantineRefused(self.clock(), action, str(error))
        return None

    def _create(self, run: Run, action: CreateJob) -> CreateRefused | None:
        if braked := self._braked(run, action):
            return braked
        try:
            self.jobs.create(make_request(self.runs.request(run.id), action, run=run.id))
        except JobExists:
            return (
                None if self._is_ours(run, action) else self._no(action, Refusal.INVALID, "another job has that name")
            )
        except CapacityRefused as error:
            return self._no(action, Refusal.CAPACITY, str(error))
        except RequestRefused as error:
            return self._no(action, Refusal.INVALID, str(error))
        return None

    def _is_ours(self, run: Run, action: CreateJob) -> bool:
        """The job of that name carries our key and tags: an earlier try of the same launch went through."""
        job, description = self.jobs.describe(action.job_name)
        if not is_handed(description, run.seal_key):
            return False
        tags = self.jobs.tags(job.arn)
        return (tags.get(RUN_TAG), tags.get(ATTEMPT_TAG)) == (run.id, str(action.attempt))

    def _braked(self, run: Run, action: CreateJob) -> CreateRefused | None:
        """Ask for one launch of all that the account may have; asked for twice, it is one."""
        limits, at = policy_of(run, self.policies).limits, self.clock()
        window = limits.account_window
        answer = self.brake.admit(action.job_name, at=at, limit=limits.account_relaunches, window=window)
        if answer.granted:
            return None
        most = limits.account_relaunches
        why = f"{answer.count} relaunches over all runs within {format_duration(window)}, of at most {most}"
        return CreateRefused(at, action, Refusal.BRAKE, why, answer.until, answer.paged_at)

    def _held_back(self, run: Run) -> tuple[tuple[type[Action], ...], bool]:
        """The kinds of action that wait, and whether it is a pause that they wait for; where nobody can tell
        what the policy says, they wait too."""
        if not any(isinstance(action, PAUSABLE) for action in run.pending):
            return (), False
        try:
            paused = policy_of(run, self.policies).mode is Mode.PAUSE
        except RerailError as error:
            self.failed.append(error)
            return PAUSABLE, False
        return (PAUSABLE, True) if paused else ((), False)

    def _no(self, action: CreateJob, refusal: Refusal, message: str) -> CreateRefused:
        return CreateRefused(self.clock(), action, refusal, message)

    def _load(self, run_id: str) -> Run:
        run = self.runs.load(run_id)
        if run is None:
            raise BadMessage(f"there is no run {run_id!r}; `rerail status` lists the runs")
        return run


def _told_first(run: Run, tell: Notify) -> list[Notify]:
    """What is owed of the same page and was decided before: no all-clear before its page, nor after the next one."""
    before = run.pending[: run.pending.index(tell)]
    page = tell.clears or tell.key
    return [each for each in before if isinstance(each, Notify) and (each.clears or each.key) == page]


def _grave(findings: Sequence[Finding]) -> bool:
    return any(finding.level is Level.INTERVENE for finding in findings)


def _weighable(findings: Sequence[Finding]) -> bool:
    return any(finding.kind in WEIGHED for finding in findings)


def _entry(before: Run, after: Run, signal: Signal, decision: Decision) -> TimelineEntry:
    return TimelineEntry(
        run=after.id,
        version=after.version,
        at=signal.at,
        before=before.state,
        after=after.state,
        reason=decision.reason,
        finding=decision.finding,
        signal=plain(signal),
        inputs=plain(decision.inputs),
        actions=tuple(plain(action) for action in decision.actions),
    )
