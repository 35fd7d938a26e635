"""A finding about a job that runs: people are told at once, the job is stopped only for what will not mend."""

from dataclasses import replace

from rerail.actions import Severity
from rerail.causes import Cause
from rerail.checkpoints import newest_usable
from rerail.decision import Decision, held, may_act, notice, resume_step, spoken_start, stop_now, with_attempt
from rerail.detectors.finding import Finding, Kind, Level
from rerail.diagnosis import Diagnosis
from rerail.failures import opened, settled
from rerail.model import Run, RunState, Stop, Then
from rerail.policy import Policy
from rerail.remedies import Failure, Hold, Verdict, remedy
from rerail.saving import save_first
from rerail.signals import Found

KEPT_WARNINGS = 20
# What stopping the job can mend, and the cause that its budget is charged to. Anything else is for people.
CAUSES = {
    Kind.NON_FINITE: Cause.DIVERGED,
    Kind.LOSS_SPIKE: Cause.DIVERGED,
    Kind.DIVERGENCE: Cause.DIVERGED,
    Kind.FROZEN_LOSS: Cause.DIVERGED,
    Kind.THROUGHPUT_DROP: Cause.HARDWARE,
    Kind.STALL: Cause.HANG,
    Kind.STARTUP_STALL: Cause.HANG,
    Kind.ALARM: Cause.UNKNOWN,
}
# It will not save any more, whoever asks.
HANGS = (Kind.STALL, Kind.STARTUP_STALL)
LIVE = (RunState.WATCHING, RunState.STARTING)


def on_found(run: Run, found: Found, policy: Policy) -> Decision:
    """The gravest finding decides; each is told once."""
    if run.state not in LIVE or found.job_name != run.current.job_name or not run.current.may_be_live:
        return Decision(run)  # it is being dealt with already, or speaks of an attempt that is over
    away = run.current.secondary not in ("", "Training")  # SageMaker restarts it: nothing moves, and nothing is wrong
    findings = tuple(f for f in found.findings if not (away and f.kind in HANGS))
    findings = findings if found.witnessed else tuple(_borne_out(f, found) for f in findings)
    fresh = tuple(finding for finding in findings if _key(run, finding) not in run.warnings)
    grave = [finding for finding in fresh if finding.level is Level.INTERVENE]
    if grave:
        return _on_grave(_told(run, grave[:1]), grave[0], found, policy)
    return _on_warning(run, fresh) if fresh else Decision(run)


def _borne_out(finding: Finding, found: Found) -> Finding:
    """A job that saves does not stand still: then it is we who are blind, and that stops no job."""
    newest = newest_usable(found.checkpoints or ())
    if finding.kind is not Kind.STALL or newest is None or finding.onset_at is None:
        return finding
    if newest.saved_at <= finding.onset_at:
        return finding
    text = f"{finding.evidence}, yet a checkpoint was saved at step {newest.step}: its metrics are missing"
    return replace(finding, kind=Kind.BLIND, evidence=text)


def _on_warning(run: Run, findings: tuple[Finding, ...]) -> Decision:
    reason = "; ".join(f"warning: {finding.kind}: {finding.evidence}" for finding in findings)
    tells = tuple(
        notice(run, Severity.INFORM, f"{f.kind} (warning)", f"{f.evidence}. Nothing is to be done.", key=_key(run, f))
        for f in findings
    )
    return Decision(_told(run, findings), tells, reason, finding=findings[0].kind)


def _on_grave(run: Run, finding: Finding, found: Found, policy: Policy) -> Decision:
    cause = CAUSES.get(finding.kind)
    what = f"{finding.kind}: {finding.evidence}"
    if cause is None:
        body = f"{what}. The job goes on; nobody but you can tell whether it should"
        tell = notice(run, Severity.PAGE, finding.kind, body, key=_key(run, finding))
        return Decision(run, (tell,), body, finding=finding.kind)
    before_step = finding.onset_step if cause is Cause.DIVERGED else None
    failure = _failure(run, finding, cause, found, before_step)
    charged = settled(with_attempt(run, replace(run.current, cause=cause, fingerprint=finding.kind)), failure)
    verdict = remedy(charged, failure, policy)
    if not may_act(run, policy):  # nothing is done, so nothing is charged, and the job has not failed
        reason = f"{what}; observing only: it would be {_plan(verdict, failure)}"
        tell = notice(run, Severity.INFORM, f"{finding.kind}: observing only", reason, key=_key(run, finding))
        return Decision(run, (tell,), reason, finding=finding.kind)
    if isinstance(verdict, Hold):
        reason = f"{what}; {_plan(verdict, failure)}. To do: {verdict.advice}; the job goes on until you stop it"
        return _named(held(opened(charged, failure, reason, ("hold",), kind=finding.kind), found.at, reason), finding)
    reason = f"{what}; {_plan(verdict, failure)}"
    return _named(_stopping(charged, failure, finding, policy, reason, before_step), finding)


def _plan(verdict: Verdict, failure: Failure) -> str:
    if isinstance(verdict, Hold):
        return f"held: {verdict.why}"
    return f"stopping the job, to relaunch {spoken_start(failure.resume_step)} ({verdict.why})"


def _stopping(
    run: Run, failure: Failure, finding: Finding, policy: Policy, reason: str, before_step: int | None
) -> Decision:
    """Stop at once where no checkpoint would ever come; else have one saved first."""
    began = finding.onset_at or finding.at or failure.at
    actions = ("stop", "relaunch")
    run = opened(run, failure, reason, actions, kind=finding.kind, onset_step=before_step, began=began)
    stop = Stop(
        then=Then.RELAUNCH,
        reason=finding.kind,
        asked_at=failure.at,
        deadline=failure.at + policy.save.deadline,
        before_step=before_step,
        fresh_machines=failure.diagnosis.cause is Cause.HARDWARE,
    )
    tell = notice(run, Severity.INFORM, f"{finding.kind}: relaunching", reason, key=_key(run, finding))
    if finding.kind not in HANGS:
        return save_first(run, stop, policy, reason, tell)
    decision = stop_now(replace(run, stop=stop), reason)
    return replace(decision, actions=(*decision.actions, tell))


def _failure(run: Run, finding: Finding, cause: Cause, found: Found, before_step: int | None) -> Failure:
    return Failure(
        diagnosis=Diagnosis(cause, finding.evidence, finding.kind, finding.kind, step=finding.onset_step),
        last_step=finding.step if finding.step is not None else run.current.last_step,
        resume_step=resume_step(found.checkpoints, before_step=before_step),
        at=found.at,
    )


def _named(decision: Decision, finding: Finding) -> Decision:
    return replace(decision, finding=finding.kind, inputs={"level": finding.level, "onset_step": finding.onset_step})


def _told(run: Run, findings: tuple[Finding, ...] | list[Finding]) -> Run:
    keys = tuple(_key(run, finding) for finding in findings)
    return replace(run, warnings=(*run.warnings, *keys)[-KEPT_WARNINGS:])


def _key(run: Run, finding: Finding) -> str:
    """One notice for each level of each trouble in each attempt, however often the detectors repeat it."""
    return f"{finding.kind}-{finding.level}-{run.current.number}-{finding.onset_step}"
