"""Observe, decide, record, act: one turn of the supervisor, the same whatever woke it.

A decision is recorded with its actions pending (one conditional write) before anything is done, and they are cleared
when they are done. Whatever dies in between is found pending by the next turn, and done again without harm."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import assert_never

from rerail.actions import Action, CreateJob, ReleaseWarmPool, StopJob, Tell
from rerail.codec import plain
from rerail.decide import decide
from rerail.decision import Decision
from rerail.detectors.finding import Finding, Kind, Level
from rerail.enrol import Enrolled, Refused, enrol
from rerail.errors import BadMessage, CapacityRefused, Conflict, JobExists, JobNotFound, RequestRefused, Throttled
from rerail.model import Run, TimelineEntry, run_id
from rerail.observe import observe
from rerail.policy import OnAlarm
from rerail.ports import Bus, Checkpoints, Jobs, Policies, Runs, policy_of
from rerail.relaunch import ATTEMPT_TAG, RUN_TAG, rebuild, successor
from rerail.signals import Commanded, CreateRefused, Done, Found, Refusal, Signal, Verb
from rerail.wakeups import AlarmHeard, CommandGiven, JobHeard, RunDue, TroubleFound, Wakeup

CONFLICTS_BEFORE_GIVING_UP = 8
UNSUPERVISED_FOR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Supervisor:
    """The loop over its ports; `clock` is the only source of time."""

    runs: Runs
    jobs: Jobs
    checkpoints: Checkpoints
    policies: Policies
    bus: Bus
    clock: Callable[[], datetime]

    def handle(self, wakeup: Wakeup) -> Run | None:
        """Do all that this wake-up and the state of the world ask for; the run as it is afterwards."""
        match wakeup:
            case JobHeard():
                return self.hear(wakeup.job_name)
            case RunDue():
                return self.visit(wakeup.run)
            case CommandGiven():
                return self.command(wakeup)
            case TroubleFound():
                return self.trouble(wakeup.run, wakeup.job_name, wakeup.findings)
            case AlarmHeard():
                return self.alarm(wakeup)
            case _ as unreachable:
                assert_never(unreachable)

    def hear(self, job_name: str) -> Run | None:
        """Look at the run that the job belongs to, or adopt the job."""
        run_id = self.runs.run_of(job_name)
        if run_id is None:
            return self.adopt(job_name)
        run = self.visit(run_id)
        return self.adopt(job_name) if run.state.is_end and self._is_another(job_name, run) else run

    def visit(self, run_id: str) -> Run:
        """Finish what is pending, look at the run's job, and decide."""
        run = self._load(run_id)
        if run.pending:
            run = self._act(run)
        for signal in observe(run, self.jobs, self.checkpoints, at=self.clock()):
            run = self._turn(run_id, signal)
        return run

    def command(self, given: CommandGiven) -> Run:
        """Grant an operator's wish, on the world as it is now."""
        run = self.visit(given.run)
        relaunches = given.verb is Verb.RELEASE and run.checkpoint_uri  # only then is there a step to choose
        seen = self.checkpoints.under(run.checkpoint_uri) if relaunches else None
        return self._turn(run.id, Commanded(self.clock(), given.id, given.verb, given.who, given.why, seen))

    def trouble(self, run_id: str, job_name: str, findings: tuple[Finding, ...]) -> Run:
        """Look at the job first: what was found may be over by now."""
        run = self.visit(run_id)
        grave = any(finding.level is Level.INTERVENE for finding in findings)
        seen = self.checkpoints.under(run.checkpoint_uri) if grave and run.checkpoint_uri else None
        return self._turn(run_id, Found(self.clock(), job_name, findings, seen))

    def alarm(self, heard: AlarmHeard) -> Run | None:
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
        namesake = self.runs.load(run_id(job_name))
        if namesake and namesake.attempts[0].created_at == job.created_at:
            return self.visit(namesake.id)  # somebody else adopted it in the same moment
        match enrol(job, description, tags, self.policies, taken=namesake is not None, at=at):
            case Refused() as refused:
                new = self.runs.ignore(job_name, refused.reason, until=at + UNSUPERVISED_FOR)
                if new and refused.notice:
                    self.bus.publish(refused.notice, run=job_name, at=at)
                return None
            case Enrolled() as enrolled:
                request = rebuild(description, tags, members=self.jobs.request_members())
                self._enrol(enrolled, request, at)
                return self.visit(enrolled.run.id)

    def _is_another(self, job_name: str, run: Run) -> bool:
        """The name was given to a new job after DeleteTrainingJob."""
        ours = {attempt.created_at for attempt in run.attempts if attempt.job_name == job_name}
        try:
            return self.jobs.describe(job_name)[0].created_at not in ours
        except JobNotFound:
            return False

    def _enrol(self, enrolled: Enrolled, request: dict[str, object], at: datetime) -> None:
        run = replace(enrolled.run, version=1)
        entry = TimelineEntry(
            run=run.id, version=1, at=at, before=run.state, after=run.state, reason=enrolled.reason, finding="adopted"
        )
        try:
            self.runs.save(run, entry, request)
        except Conflict:
            return  # somebody else adopted it in the same moment

    def _turn(self, run_id: str, signal: Signal) -> Run:
        """Decide, record, act; decide again where somebody else recorded first."""
        for _ in range(CONFLICTS_BEFORE_GIVING_UP):
            run = self._load(run_id)
            decision = decide(run, signal, policy_of(run, self.policies))
            if decision.run == run and not decision.reason:
                return run
            after = replace(decision.run, version=run.version + 1)
            try:
                self.runs.save(after, _entry(run, after, signal, decision) if decision.reason else None)
            except Conflict:
                continue
            return self._act(after)
        raise Conflict(f"run {run_id} is being changed by others again and again: try later")

    def _act(self, run: Run) -> Run:
        """Carry out what is pending, notices last, and record what came of it.

        One action's error keeps no other from being done; what failed stays pending, and its error is raised last.
        """
        done: list[Action | Tell] = []
        refusals: list[CreateRefused] = []
        errors: list[Exception] = []
        for action in sorted(run.pending, key=lambda action: isinstance(action, Tell)):
            try:
                refusal = self._perform(run, action)
            except Throttled:
                continue  # the sweep finds it pending in a minute
            except Exception as error:  # whatever it is, the other actions come first; raised below
                errors.append(error)
            else:
                refusals.append(refusal) if refusal else done.append(action)
        if done:
            run = self._turn(run.id, Done(self.clock(), tuple(done)))
        for refused in refusals:
            run = self._turn(run.id, refused)
        if errors:
            raise errors[0]
        return run

    def _perform(self, run: Run, action: Action | Tell) -> CreateRefused | None:
        match action:
            case CreateJob():
                return self._create(run, action)
            case StopJob():
                self.jobs.stop(action.job_name)
            case ReleaseWarmPool():
                self.jobs.release_warm_pool(action.job_name)
            case Tell():
                self.bus.publish(action, run=run.id, at=self.clock())
            case _ as unreachable:
                assert_never(unreachable)
        return None

    def _create(self, run: Run, action: CreateJob) -> CreateRefused | None:
        try:
            self.jobs.create(successor(self.runs.request(run.id), action, run=run.id))
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
        """The job of that name carries our tags: an earlier try of the same launch went through."""
        job, _ = self.jobs.describe(action.job_name)
        tags = self.jobs.tags(job.arn)
        return (tags.get(RUN_TAG), tags.get(ATTEMPT_TAG)) == (run.id, str(action.attempt))

    def _no(self, action: CreateJob, refusal: Refusal, message: str) -> CreateRefused:
        return CreateRefused(self.clock(), action, refusal, message)

    def _load(self, run_id: str) -> Run:
        run = self.runs.load(run_id)
        if run is None:
            raise BadMessage(f"there is no run {run_id!r}; `rerail status` lists the runs")
        return run


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
