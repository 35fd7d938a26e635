"""A failed attempt: diagnose it, settle the ledger, ask the rules, and open an incident."""

from dataclasses import replace
from datetime import datetime
from typing import Any, assert_never

from rerail.actions import CreateJob, Severity
from rerail.causes import Cause
from rerail.decision import (
    Decision,
    closed,
    finish_stopped,
    held,
    may_act,
    next_attempt,
    notice,
    release_pool,
    resume_step,
    spoken_start,
    with_attempt,
    without,
)
from rerail.diagnosis import diagnose
from rerail.ledger import charged, refunded
from rerail.model import Attempt, Incident, Run, RunState, Then
from rerail.policy import Policy
from rerail.remedies import Failure, Hold, Relaunch, Verdict, capacity_verdict, remedy, spoken
from rerail.signals import CreateRefused, JobSeen, Refusal

# An incident quotes its decisions, the newest in full: one record must hold it, whatever a night brings.
REASONS_LIMIT, ACTIONS_LIMIT = 4_000, 50


def on_failed(run: Run, seen: JobSeen, policy: Policy) -> Decision:
    """Diagnose, settle the ledger, ask the rules, and open an incident."""
    diagnosis = diagnose(seen.job.failure_reason, secondary_status=seen.job.secondary)
    failure = Failure(
        diagnosis=diagnosis,
        last_step=diagnosis.step if diagnosis.step is not None else run.current.last_step,
        resume_step=resume_step(seen.checkpoints),
        at=seen.at,
    )
    run = settled(with_attempt(run, _judged(run.current, failure)), failure)
    what = f"attempt {run.current.number} failed: {diagnosis.cause} ({diagnosis.evidence or 'no reason given'})"
    if run.state is RunState.HELD:
        reason = f"{what}; the run stays held"
        tell = notice(run, Severity.INFORM, "failed while held", reason, key=f"failed-{run.current.number}")
        return Decision(opened(run, failure, reason, ()), (tell,), reason, finding="job_failed")
    if run.stop and run.stop.then is Then.END:
        return finish_stopped(run, seen, f"{what}, while it was being stopped ({run.stop.reason})")
    decision = _applied(run, remedy(run, failure, policy), failure, policy, what)
    return replace(decision, finding="job_failed", inputs=_inputs(run, failure, seen))


def _judged(attempt: Attempt, failure: Failure) -> Attempt:
    return replace(
        attempt,
        cause=failure.diagnosis.cause,
        fingerprint=failure.diagnosis.fingerprint,
        last_step=failure.last_step,
    )


def settled(run: Run, failure: Failure) -> Run:
    """The run's ledger with this failure charged. A script that keeps no manifests proves its progress by getting
    farther than any attempt before it."""
    before = run.ledger
    farthest = failure.resume_step if failure.resume_step is not None else failure.last_step
    ledger = refunded(before, newest_step=farthest or 0, at=failure.at)
    return replace(
        run,
        ledger=charged(
            ledger,
            failure.diagnosis.cause,
            trained=run.current.training_started_at is not None,
            progressed=ledger.progress_step != before.progress_step,
            at=failure.at,
        ),
    )


def _applied(run: Run, verdict: Verdict, failure: Failure, policy: Policy, what: str) -> Decision:
    """A verdict of the rules turned into a new state, its actions and one notice."""
    match verdict:
        case Hold():
            reason = f"{what}; held: {verdict.why}. To do: {verdict.advice}"
            run = opened(run, failure, reason, ("hold",))
            return held(run, failure.at, reason)
        case Relaunch() if not may_act(run, policy):
            plan = f"{spoken_start(failure.resume_step)} in {spoken(verdict.delay)} ({verdict.why})"
            reason = f"{what}; observing only: would relaunch {plan}"
            return held(opened(run, failure, reason, ()), failure.at, reason, severity=Severity.INFORM)
        case Relaunch():
            release = release_pool(run) if verdict.fresh_machines else ()
            reason = (
                f"{what}; relaunching {spoken_start(failure.resume_step)} in {spoken(verdict.delay)} ({verdict.why})"
            )
            tell = notice(
                run,
                Severity.INFORM,
                f"{failure.diagnosis.cause}: relaunching",
                reason,
                key=f"failed-{run.current.number}",
            )
            run = opened(run, failure, reason, (*("release_warm_pool" for _ in release), "relaunch"))
            run = next_attempt(run, failure.resume_step, wake_at=failure.at + verdict.delay)
            return Decision(run, (*release, tell), reason)
        case _ as unreachable:
            assert_never(unreachable)


def _inputs(run: Run, failure: Failure, seen: JobSeen) -> dict[str, Any]:
    return {
        "failure_reason": seen.job.failure_reason,
        "rule": failure.diagnosis.rule,
        "last_step": failure.last_step,
        "resume_step": failure.resume_step,
        "checkpoints": [c.step for c in (seen.checkpoints or ())][:10],
        "charges": dict(run.ledger.charges),
        "without_progress": run.ledger.without_progress,
    }


def opened(
    run: Run,
    failure: Failure,
    reason: str,
    actions: tuple[str, ...],
    *,
    kind: str = "job_failed",
    onset_step: int | None = None,
    began: datetime | None = None,
) -> Run:
    """The run with this failure in its open incident, or in a new one where there was progress since."""
    before = run.open_incident
    if before and (failure.resume_step or 0) > (before.resume_step or 0):
        run = closed(run, f"recovered: a new checkpoint at step {failure.resume_step}", failure.at, mended=True)
    elif before:
        quoted = f"{before.reason}\n{reason}"[-REASONS_LIMIT:]
        longer = replace(before, reason=quoted, actions=(*before.actions, *actions)[-ACTIONS_LIMIT:])
        return replace(run, incidents=(*run.incidents[:-1], longer))
    incident = Incident(
        number=len(run.incidents) + 1,
        kind=kind,
        attempt=run.current.number,
        cause=failure.diagnosis.cause,
        reason=reason,
        evidence=failure.diagnosis.evidence,
        happened_at=began or run.current.ended_at or failure.at,
        decided_at=failure.at,
        step=failure.last_step,
        resume_step=failure.resume_step,
        onset_step=onset_step,
        actions=actions,
    )
    return replace(run, incidents=(*run.incidents, incident))


def on_refusal(run: Run, refused: CreateRefused, policy: Policy) -> Decision:
    """SageMaker did not create the job: wait for capacity, or hold where it never will."""
    if run.state is not RunState.STARTING or refused.action.job_name != run.current.job_name or run.current.exists:
        return Decision(run)
    run = without(run, CreateJob)
    if refused.refusal is Refusal.INVALID:
        what = f"SageMaker refuses to create {run.current.job_name}: {refused.message}"
        return held(run, refused.at, f"{what}. To do: mend the request, then release the run")
    run = replace(run, ledger=charged(run.ledger, Cause.CAPACITY, trained=False, progressed=False, at=refused.at))
    verdict = capacity_verdict(run, policy, at=refused.at)
    what = f"SageMaker has no room for {run.current.job_name} ({refused.message})"
    if isinstance(verdict, Hold):
        return held(run, refused.at, f"{what}; held: {verdict.why}. To do: {verdict.advice}")
    run = replace(run, state=RunState.WAITING, wake_at=refused.at + verdict.delay)
    return Decision(
        run, reason=f"{what}; trying again in {spoken(verdict.delay)} ({verdict.why})", finding="capacity_wait"
    )
