"""In-place restart: the container's init restarts the training processes inside the running job.

It is the first remedy for failures that need no other machine. A relaunch follows where the init cannot do it or it has
not helped.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from rerail.decisions.decision import (
    Decision,
    choose_resume_step,
    format_start,
    make_command,
    make_notice,
    may_act,
    stop_now,
    with_attempt,
    with_warnings,
    without_pending,
)
from rerail.decisions.launch import relaunch_now
from rerail.decisions.on_failure import with_diagnosis, with_failure_charged, with_incident
from rerail.decisions.remedies import Failure, Hold, choose_remedy
from rerail.diagnosis.classify import diagnose_job, diagnose_report
from rerail.model.actions import Action, PostCommand, Severity
from rerail.model.causes import Cause
from rerail.model.checkpoints import Checkpoint
from rerail.model.diagnosis import Diagnosis
from rerail.model.finding import Finding
from rerail.model.formatting import format_duration
from rerail.model.mailbox import LIMITS, Ability, CommandKind, Report, ReportKind
from rerail.model.policy import Mode, Policy
from rerail.model.run import AfterStop, Incident, InPlaceRestart, JobStatus, PlannedStop, Run, RunState
from rerail.model.signals import AgentReported, JobObserved

# Causes for which the machines are not at fault.
IN_PLACE = (Cause.DIVERGED, Cause.USER_CODE, Cause.DATA)
# What a rank reports after its peer on another machine died: the peer's own init reports the real cause.
PEER_FAILURE_CAUSES = (Cause.INFRASTRUCTURE, Cause.HANG)
LIVE_STATES = (RunState.WATCHING, RunState.STARTING)


@dataclass(frozen=True, slots=True)
class RestartTarget:
    """The state in which the training processes are restarted."""

    resume_step: int | None  # None: the newest checkpoint that they find; 0: from the start
    before_step: int | None  # the onset of the trouble if the run is rolled back to before it
    skip_samples: str  # ranges of sample ids
    rate: float  # factor on the learning-rate schedule


def choose_target(run: Run, failure: Failure, before_step: int | None) -> RestartTarget:
    """Return where to restart: at the failure's resume step, or from the start without one.

    On a file system that only the job can read, any checkpoint before the onset will do.
    """
    step = failure.resume_step or 0
    if failure.resume_step is None and not run.checkpoint_uri and before_step is not None:
        step = max(0, before_step - 1)
    return RestartTarget(step, before_step, run.current.skip_samples, run.current.rate)


def find_obstacle(run: Run, failure: Failure, aim: RestartTarget, policy: Policy) -> str:
    """Return why the training processes cannot be restarted in place, or an empty string."""
    orders, incident, cause = run.current.in_place_restarts, run.open_incident, failure.diagnosis.cause
    if not policy.restart.in_place:
        return "the policy restarts nothing in place"
    if cause not in IN_PLACE:
        return f"{cause} may be the machines' fault"
    if len(orders) >= policy.restart.per_attempt:
        return f"all {policy.restart.per_attempt} restarts in place of this attempt are spent"
    if len(aim.skip_samples) > LIMITS["skip_samples"]:
        return "the samples to pass over are too many for an order"
    if not orders or incident is None or orders[-1].asked_at < incident.decided_at:
        return ""
    if (failure.resume_step or 0) > (incident.resume_step or 0):
        return ""  # there was progress since: it is another incident
    if orders[-1].failed:
        return f"the restart in place before this one failed ({orders[-1].failed})"
    previous = RestartTarget(orders[-1].resume_step, orders[-1].before_step, orders[-1].skip_samples, orders[-1].rate)
    return "the same restart in place has not helped" if replace(previous, before_step=aim.before_step) == aim else ""


def can_restart(run: Run) -> bool:
    """Return whether the attempt's agent has reported that a Rerail init can restart the processes."""
    return Ability.RESTART in run.current.abilities


def restart(
    run: Run,
    failure: Failure,
    aim: RestartTarget,
    policy: Policy,
    what: str,
    *,
    kind: str,
    began: datetime | None = None,
) -> Decision:
    """Order the restart. The failure must be charged already, and there must be no obstacle."""
    number = 1 + max((order.number for order in run.current.in_place_restarts), default=0)
    start = format_start(run, aim.resume_step or None) if aim.resume_step is not None else "from the newest checkpoint"
    did = f"restarting the training processes in place, {start} (restart {number} of this attempt)"
    reason = f"{what}; {did}"
    run = _with_rollback_noted(
        with_incident(run, failure, reason, ("restart",), kind=kind, onset_step=aim.before_step, began=began), aim
    )
    deadline = failure.at + policy.restart.deadline
    command = replace(
        make_command(run, CommandKind.RESTART, at=failure.at, deadline=deadline, reason=kind),
        restart=number,
        resume_step=aim.resume_step,
        skip_samples=aim.skip_samples,
        rate=aim.rate,
    )
    order = InPlaceRestart(
        number=number,
        command_id=command.id,
        reason=kind,
        asked_at=failure.at,
        deadline=deadline,
        resume_step=aim.resume_step,
        skip_samples=aim.skip_samples,
        rate=aim.rate,
        before_step=aim.before_step,
        fingerprint=failure.diagnosis.fingerprint,
        last_step=failure.last_step,
        repairs=run.current.self_repairs,
    )
    attempt = replace(
        run.current,
        in_place_restarts=(*run.current.in_place_restarts, order),
        skip_samples=aim.skip_samples,
        rate=aim.rate,
    )
    run = replace(with_attempt(without_pending(run, PostCommand), attempt), state=RunState.RESTARTING)
    key = f"restart-{attempt.number}-{number}"
    notice = make_notice(run, Severity.INFORM, f"{kind}: restarting in place", what, key=key, did=did, since=began)
    return Decision(run, (PostCommand(command), notice), reason)


def _with_rollback_noted(run: Run, aim: RestartTarget) -> Run:
    """Return the run whose open incident records that this attempt's checkpoints since the onset are rolled back."""
    incident = run.open_incident
    if incident is None or aim.before_step is None:
        return run
    onset = aim.before_step if incident.onset_step is None else min(aim.before_step, incident.onset_step)
    number, restart, resume_step = run.current.number, run.current.restart, aim.resume_step or None
    noted = replace(incident, attempt=number, restart=restart, resume_step=resume_step, onset_step=onset)
    return replace(run, incidents=(*run.incidents[:-1], noted))


# Reports about a restart


def is_saved_since_restart(run: Run, incident: Incident, checkpoint: Checkpoint) -> bool:
    """Return whether the checkpoint was saved by processes that were started after the incident.

    Earlier checkpoints of the same attempt are not progress. Without Rerail's manifests the time of the checkpoint
    decides.
    """
    order = find_newest_restart(run)
    if run.current.number != incident.attempt or order is None or checkpoint.restart > incident.restart:
        return True
    if run.current.is_from_restarted_container(incident.restart, checkpoint.saved_at):
        return True
    return order.restarted_at is not None and checkpoint.saved_at > order.restarted_at


def find_newest_restart(run: Run) -> InPlaceRestart | None:
    """Return the attempt's newest in-place restart, whatever its progress, or None."""
    return run.current.in_place_restarts[-1] if run.current.in_place_restarts else None


def on_processes_restarted(run: Run, report: Report, *, at: datetime) -> Decision:
    """Record that restarted processes run again: any report from one of them proves it."""
    order = find_newest_restart(run)
    if order is None or report.restart != order.number or order.failed or report.kind is ReportKind.REFUSED:
        return Decision(run)
    has_stepped = report.kind is ReportKind.RESTARTED and report.step is not None
    updated = replace(
        order,
        restarted_at=order.restarted_at or at,
        stepped_at=order.stepped_at or (at if has_stepped else None),
        first_step=report.step if has_stepped and order.first_step is None else order.first_step,
    )
    if updated == order:
        return Decision(run)
    after = format_duration(at - order.asked_at)
    run = _with_order(run, updated)
    if run.state is RunState.RESTARTING:
        run = replace(without_pending(run, PostCommand), state=RunState.WATCHING)
    if updated.stepped_at and not order.stepped_at:
        return Decision(
            run, reason=f"restart {order.number} in place: step {report.step} is done, {after} after the order"
        )
    return Decision(run, reason=f"restart {order.number} in place: the training processes run again, after {after}")


def is_from_before_restart(run: Run, finding: Finding) -> bool:
    """Return whether the finding was observed before the last in-place restart."""
    order = find_newest_restart(run)
    return bool(order and order.restarted_at and finding.at and finding.at <= order.restarted_at)


def is_about_newest_restart(run: Run, report: Report) -> bool:
    """Return whether the report answers the attempt's newest restart command."""
    order = find_newest_restart(run)
    return order is not None and report.command == order.command_id


def on_refused(run: Run, reported: AgentReported) -> Decision:
    """Give up the restart when one machine's init cannot do it: the others would wait for its ranks."""
    order = find_newest_restart(run)
    waiting = run.state in (RunState.RESTARTING, *LIVE_STATES)
    if order is None or order.stepped_at or order.failed or not waiting or _is_being_stopped(run):
        return Decision(run)
    why = reported.report.reason or "it does not say why"
    return _give_up(run, order, f"the job's init cannot restart it in place ({why})", at=reported.at)


def on_restart_due(run: Run, at: datetime, policy: Policy) -> Decision:
    """Stop the job for a relaunch once the restart's deadline has passed.

    While SageMaker itself restarts the job the deadline is extended: the new container's init finds the command.
    """
    order = find_newest_restart(run)
    if order is None or at < order.deadline or _is_being_stopped(run):
        return Decision(run)
    if run.current.secondary not in ("", "Training"):
        return Decision(_with_order(run, replace(order, deadline=at + policy.restart.deadline)))
    waited = format_duration(at - order.asked_at)
    return _give_up(run, order, f"no report of the restart in place arrived within {waited}", at=at)


def _is_being_stopped(run: Run) -> bool:
    """Return whether an operator is stopping the job: taking that for Rerail's stop would relaunch it against them."""
    return run.current.status is JobStatus.STOPPING


def _give_up(run: Run, order: InPlaceRestart, why: str, *, at: datetime) -> Decision:
    """Record that the restart failed, and stop the job to relaunch it."""
    run = _with_order(run, replace(order, failed=why[:200]))
    run = with_attempt(run, replace(run.current, onset_step=order.before_step))
    stop = PlannedStop(
        AfterStop.RELAUNCH,
        order.reason,
        asked_at=at,
        deadline=at,
        before_step=_choose_before_step(order),
        approved_by=order.approved_by,
    )
    return stop_now(replace(run, stop=stop), f"{why}: stopping the job, to relaunch it")


def _choose_before_step(order: InPlaceRestart) -> int | None:
    """Return the bound that makes the next attempt resume where the restart should have."""
    return order.before_step if order.resume_step is None else order.resume_step + 1


def _with_order(run: Run, order: InPlaceRestart) -> Run:
    """Return the run with its newest in-place restart replaced."""
    return with_attempt(run, replace(run.current, in_place_restarts=(*run.current.in_place_restarts[:-1], order)))


def with_approval(run: Run, who: str) -> Run:
    """Return the run with the approval recorded at the restart that it has just ordered; otherwise unchanged."""
    order = find_newest_restart(run)
    if run.state is not RunState.RESTARTING or order is None:
        return run
    return _with_order(run, replace(order, approved_by=who))


def on_failed_instead(run: Run, seen: JobObserved, policy: Policy) -> Decision | None:
    """Relaunch if the job ended from the failure that the restart was to resolve: it is charged already.

    None for every other end.
    """
    order = find_newest_restart(run)
    ours = run.state is RunState.RESTARTING or (run.stop is not None and run.stop.then is AfterStop.RELAUNCH)
    if order is None or order.restarted_at or not ours or not may_act(run, policy):
        return None
    if run.stop and run.stop.is_rollback:
        return None  # an operator's command came after the restart was ordered
    diagnosis = diagnose_job(seen.job)
    if diagnosis.fingerprint != order.fingerprint:
        return None
    why = order.failed or "the job ended before it could be restarted in place"
    run = _with_order(run, replace(order, failed=why))
    stop = PlannedStop(
        AfterStop.RELAUNCH, order.reason, asked_at=seen.at, deadline=seen.at, before_step=_choose_before_step(order)
    )
    return replace(relaunch_now(replace(run, stop=stop), seen, policy, why), finding="job_failed")


# Crashes of the training processes while the container still runs


def on_crash(run: Run, reported: AgentReported, policy: Policy) -> Decision:
    """Decide on a crash as on a failed job; where the rules relaunch on the same machines, restart in place."""
    report = reported.report
    diagnosis = reported.diagnosis or diagnose_report(report)
    key = f"crashed-{run.current.number}-{report.restart}"
    if (
        run.state not in LIVE_STATES
        or key in run.warnings
        or diagnosis.cause in PEER_FAILURE_CAUSES
        or _is_being_stopped(run)
    ):
        return Decision(run)
    failure = Failure(
        diagnosis=diagnosis,
        last_step=diagnosis.step if diagnosis.step is not None else run.current.last_step,
        resume_step=choose_resume_step(reported.checkpoints),
        at=reported.at,
    )
    what = _format_crash(run, diagnosis)
    charged = with_failure_charged(with_attempt(run, with_diagnosis(run.current, failure)), failure)
    aim = RestartTarget(None, None, run.current.skip_samples, run.current.rate)
    verdict = choose_remedy(charged, failure, policy)
    obstacle = verdict.why if isinstance(verdict, Hold) else find_obstacle(charged, failure, aim, policy)
    if policy.mode is not Mode.ACT or not may_act(run, policy):
        obstacle = "nothing is done without a human" if may_act(run, policy) else "observing only"
    run = with_warnings(run, key)
    if obstacle:
        return _let_job_end(run, f"{what}: not restarted in place ({obstacle}), the job ends", reported.at)
    charged = replace(charged, warnings=run.warnings)
    return replace(restart(charged, failure, aim, policy, what, kind="crashed"), finding="crashed")


def _format_crash(run: Run, diagnosis: Diagnosis) -> str:
    """Return the crash in words."""
    evidence = diagnosis.evidence or "no reason given"
    return f"the training processes of attempt {run.current.number} died: {diagnosis.cause} ({evidence})"


def _let_job_end(run: Run, reason: str, at: datetime) -> Decision:
    """Tell the waiting init that no restart follows.

    Nothing is charged here: the job's own failure will be.
    """
    command = make_command(run, CommandKind.TRAIN, at=at, reason="no restart in place")
    return Decision(without_pending(run, PostCommand), (PostCommand(command),), reason, finding="crashed")


def make_withdrawal(run: Run, at: datetime) -> Sequence[Action]:
    """Return the command that cancels a restart that has not been carried out yet, if there is one."""
    if run.state is not RunState.RESTARTING:
        return ()
    return (PostCommand(make_command(run, CommandKind.TRAIN, at=at, reason="the restart in place is cancelled")),)
