"""The type of a decision, and the changes to a run that decisions share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from rerail.decisions import warm_pools
from rerail.decisions.budgets import with_fresh_budgets, with_start
from rerail.decisions.checkpoint_health import is_resumable, newest_resumable, with_health
from rerail.decisions.fallback_machines import with_machines
from rerail.decisions.launch_checks import find_obstacle, with_launch_blocked, with_runtime_left
from rerail.decisions.remedies import Hold
from rerail.decisions.rollback_ladder import RollbackPlan, plan_rollback, with_rung_taken
from rerail.model.actions import (
    Action,
    ClearedBy,
    CreateJob,
    Notify,
    PostCommand,
    QuarantineCheckpoints,
    Severity,
    StopJob,
)
from rerail.model.checkpoint_layouts import UNLOADABLE
from rerail.model.checkpoints import Checkpoint, Health, newest_usable
from rerail.model.machines import format_instance_types
from rerail.model.mailbox import LIMITS, Command, CommandKind
from rerail.model.policy import Mode, Policy
from rerail.model.run import Attempt, Incident, Job, PlannedStop, Run, RunState, make_job_name, parse_step
from rerail.model.runbooks import Runbook
from rerail.model.self_repairs import ON_THE_WAY
from rerail.model.signals import JobObserved

CLOCK_MARGIN = timedelta(seconds=5)
MAX_WARNINGS = 20
# The resolution of an incident that ended in a hold; reports recognize held incidents by it.
HELD_RESOLUTION = "the run was held"


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision: the new run to record, the actions to perform, and the reason."""

    run: Run
    actions: tuple[Action | Notify, ...] = ()  # to carry out, in this order
    reason: str = ""  # For people; empty where only facts were recorded, if anything at all.
    finding: str = ""  # what was observed, for metrics and the timeline; empty if nothing
    inputs: Mapping[str, Any] = field(default_factory=dict)  # the facts that the decision rests on, for the timeline


def may_act(run: Run, policy: Policy) -> bool:
    """Return whether the policy and the run's adoption allow actions rather than observation only.

    Whether an action needs an approval or must wait is not checked here.
    """
    return policy.mode is not Mode.OBSERVE and not run.observe_only


def has_pending(run: Run, kind: type[Action]) -> bool:
    """Return whether an action of this kind is pending."""
    return any(isinstance(action, kind) for action in run.pending)


def without_pending(run: Run, *kinds: type[Action]) -> Run:
    """Return the run without pending actions of these kinds."""
    return replace(run, pending=tuple(action for action in run.pending if not isinstance(action, kinds)))


def with_attempt(run: Run, attempt: Attempt) -> Run:
    """Return the run with its current attempt replaced."""
    return replace(run, attempts=(*run.attempts[:-1], attempt))


def with_facts(attempt: Attempt, job: Job, at: datetime) -> Attempt:
    """Return the attempt with the facts of a job description; facts that it no longer contains are kept."""
    restarted = attempt.secondary == "Training" and job.secondary in ON_THE_WAY
    step = parse_step(job.metrics)
    return replace(
        attempt,
        status=job.status,
        secondary=job.secondary,
        created_at=job.created_at,
        training_started_at=job.training_started_at or attempt.training_started_at or (at if job.is_training else None),
        ended_at=(job.ended_at or at) if job.status.is_terminal else None,
        failure_reason=job.failure_reason,
        # Only for an ended job: recording each minute's step would cost a write a minute that is never read.
        last_step=step if step is not None and job.status.is_terminal else attempt.last_step,
        # Two observations may miss a restart in between; the job's status history, where available, misses none.
        self_repairs=max(attempt.self_repairs + restarted, job.repaired.total),
        repairs=job.repaired.counts or attempt.repairs,
        repair_seconds=max(attempt.repair_seconds, job.repaired.seconds),
        keep_alive_seconds=job.keep_alive_seconds,
        instance_type=job.instance_type or attempt.instance_type,
        instance_count=job.instance_count,
        billable_s=job.billable_s if job.status.is_terminal else attempt.billable_s,
        pool=job.pool or attempt.pool,
    )


def with_warnings(run: Run, *keys: str) -> Run:
    """Return the run with these notices recorded as sent; at the limit, drop the oldest."""
    return replace(run, warnings=(*run.warnings, *keys)[-MAX_WARNINGS:])


def with_end(run: Run, state: RunState) -> Run:
    """Return the run in an end state, without anything that it waits for or has requested of its agent."""
    run = without_pending(run, PostCommand, QuarantineCheckpoints)
    return replace(run, state=state, wake_at=None, stop=None, blocked_by=None, proposal=None)


def with_incident_closed(run: Run, resolution: str, at: datetime, *, mended: bool = False) -> Run:
    """Return the run with its open incident closed, if it has one."""
    if run.open_incident is None:
        return run
    incident = replace(run.open_incident, closed_at=at, resolution=resolution, mended=mended)
    return replace(run, incidents=(*run.incidents[:-1], incident))


def with_next_attempt(run: Run, resume_step: int | None, *, wake_at: datetime) -> Run:
    """Return the run with its next attempt named; the current attempt must have ended."""
    assert not run.current.may_be_live
    number = run.current.number + 1
    previous = run.current
    attempt = Attempt(
        number=number,
        job_name=make_job_name(run.id, number),
        resumed_from_step=resume_step,
        skip_samples=previous.skip_samples,
        rate=previous.rate,
        machines=previous.machines,
        max_runtime_s=previous.max_runtime_s,
        approved_by=run.stop.approved_by if run.stop else "",
    )
    run = without_pending(run, PostCommand)
    return replace(run, state=RunState.WAITING, attempts=(*run.attempts, attempt), wake_at=wake_at, stop=None)


def with_launch(run: Run, at: datetime, policy: Policy) -> tuple[Run, tuple[Action, ...]]:
    """Return the run with its current attempt being created, and the actions that create it.

    The first action tells the agents of older attempts, should one still be alive, that they no longer own the run.
    Where a launch check fails, return the run with its launch deferred, and no action.
    """
    if obstacle := find_obstacle(run, at, policy):
        return with_launch_blocked(run, obstacle, at), ()
    ledger = with_start(run.ledger, at=at, limits=policy.limits)
    run = replace(run, state=RunState.STARTING, wake_at=None, ledger=ledger, blocked_by=None, proposal=None)
    run = with_runtime_left(run, at, policy)
    attempt = run.current
    create = make_create_job(run)
    if attempt.number == 1:
        return run, (create,)
    first = (PostCommand(make_command(run, CommandKind.TRAIN, at=at)), *make_quarantine_actions(run, at))
    return without_pending(run, PostCommand, QuarantineCheckpoints), (*first, create)


def make_quarantine_actions(run: Run, at: datetime) -> tuple[Action, ...]:
    """Return the quarantine to carry out before the current attempt is created, if any.

    It is needed after a rollback, or where unloadable checkpoints are left, in jobs without an agent to skip them.
    """
    rolled_back = run.attempts[-2].onset_step is not None
    if not (rolled_back or run.current.is_littered) or not run.checkpoint_uri or has_agent(run):
        return ()
    # The job's last upload may have finished shortly after its end was observed.
    saved_before = at + CLOCK_MARGIN
    uri, step, number = run.checkpoint_uri, run.current.resumed_from_step, run.attempts[-2].number
    return (QuarantineCheckpoints(run.id, number, uri, step, saved_before, strict=rolled_back, is_vital=rolled_back),)


def with_stale_checkpoints_noted(run: Run, checkpoints: Sequence[Checkpoint] | None) -> Run:
    """Return the run whose next attempt records whether a newer checkpoint must not be loaded.

    A script that takes the newest checkpoint would load a suspect one, or one that lacks required files.
    """
    newer = [c for c in checkpoints or () if not c.has_manifest and c.step > (run.current.resumed_from_step or 0)]
    bad = any(c.health is not Health.CLEAN or UNLOADABLE & set(c.missing) for c in newer)
    return with_attempt(run, replace(run.current, is_littered=bad))


def has_agent(run: Run) -> bool:
    """Return whether one of the run's jobs has reported a Rerail agent."""
    return any(attempt.agent for attempt in run.attempts)


def make_create_job(run: Run) -> CreateJob:
    """Return the action that creates the current attempt's job."""
    attempt = run.current
    return CreateJob(
        attempt.job_name,
        attempt.number,
        attempt.resumed_from_step,
        skip_samples=attempt.skip_samples,
        rate=attempt.rate,
        machines=attempt.machines,
        max_runtime_s=attempt.max_runtime_s,
        drill=attempt.drill,
    )


def make_command(
    run: Run, kind: CommandKind, *, at: datetime, deadline: datetime | None = None, reason: str = ""
) -> Command:
    """Return a command to the current attempt's agent.

    The id is derived from its content, so a repetition is the same command. There is one at a time; a newer one
    replaces it.
    """
    number = run.current.number
    name = f"{kind}-a{number:03d}-{at.astimezone(UTC):%Y%m%dT%H%M%S.%f}"
    return Command(name, run.mailbox, number, kind, asked_at=at, deadline=deadline, reason=reason[: LIMITS["reason"]])


def relaunch_now(run: Run, seen: JobObserved, policy: Policy, what: str) -> Decision:
    """Launch the next attempt without delay.

    It resumes from the newest usable checkpoint that the planned stop allows, or as the next rung of the rollback
    ladder says.
    """
    stop, rung = run.stop, _plan_rung(run, seen, policy)
    if isinstance(rung, Hold):
        return hold_as_ruled(run, seen.at, what, rung)
    step = choose_resume_step(seen.checkpoints, before_step=stop.before_step if stop else None)
    if stop and stop.drill:
        step = choose_resume_step(_select_up_to(seen.checkpoints, stop.to_step)) or step
    if step is None and stop and not run.checkpoint_uri:
        step = _estimate_unlisted_step(stop)
    if step is None and stop and stop.is_rollback and stop.to_step:
        why = f"nothing clean is left that was saved at or before step {stop.to_step}"
        todo = f"see what there is with `rerail checkpoints {run.id}`, and roll back to a step that is there"
        return hold_as_ruled(run, seen.at, what, Hold(why, todo, Runbook.DIVERGED))
    step = rung.resume_step if rung else step
    previous = run.current
    run = _with_resume_step(run, step) if stop else run
    run = with_stale_checkpoints_noted(with_next_attempt(run, step, wake_at=seen.at), seen.checkpoints)
    run = with_attempt(run, replace(run.current, drill=bool(stop and stop.drill)))
    if rung and stop and stop.before_step is not None:
        run = with_rung_taken(run, rung, stop.before_step, at=seen.at)
        what = f"{what}; {rung.why}"
    elif stop and stop.is_tainted and not stop.is_rollback:  # an in-place restart that failed is repeated by a new job
        run = with_attempt(run, replace(run.current, rung=previous.rung))
    run = with_machines(run, stop.machines) if stop and stop.moves else run
    release = warm_pools.make_release(run) if (stop and stop.fresh_machines) or warm_pools.is_unmatched(run) else ()
    pool = format_machines(replace(run, pending=(*run.pending, *release)), seen.at)
    run, actions = with_launch(run, seen.at, policy)
    note = (
        ", once newer checkpoints are quarantined" if any(isinstance(a, QuarantineCheckpoints) for a in actions) else ""
    )
    return Decision(run, (*release, *actions), f"{what}: relaunching {format_start(step)}{note}{pool}")


def _plan_rung(run: Run, seen: JobObserved, policy: Policy) -> RollbackPlan | Hold | None:
    """Return the ladder's next rung for a stop that rolls the run back, by the checkpoints as they are now.

    None where the stop is no rollback, an operator chose the step, or an in-place restart failed: its rung is kept.
    """
    order = run.current.orders[-1] if run.current.orders else None
    if run.stop is None or run.stop.before_step is None or (order and (order.failed or not order.restarted_at)):
        return None
    if run.stop.is_rollback:
        return None  # an operator has chosen the step
    rung = plan_rollback(run, run.stop.before_step, seen.checkpoints or (), policy)
    return None if isinstance(rung, Hold) and is_untried_elsewhere(run) else rung


def is_untried_elsewhere(run: Run) -> bool:
    """Return whether the open incident was answered by in-place restarts only, never on other machines."""
    orders, incident = run.current.orders, run.open_incident
    if not orders or incident is None or incident.attempt != run.current.number:
        return False
    return orders[-1].asked_at >= incident.decided_at


def _select_up_to(checkpoints: Sequence[Checkpoint] | None, step: int | None) -> Sequence[Checkpoint]:
    """Return the checkpoints that are no newer than this step."""
    return [checkpoint for checkpoint in checkpoints or () if step is None or checkpoint.step <= step]


def _estimate_unlisted_step(stop: PlannedStop) -> int | None:
    """Return the step to resume from on a file system that only the jobs can read.

    That is what the agent reported, or an upper bound for a rollback.
    """
    return stop.committed_step if stop.before_step is None else max(0, stop.before_step - 1)


def _with_resume_step(run: Run, step: int | None) -> Run:
    """Return the run whose open incident has the step that is resumed from now.

    A checkpoint may have been committed since the incident was opened.
    """
    incident = run.open_incident
    if incident is None or incident.attempt != run.current.number:
        return run
    return replace(run, incidents=(*run.incidents[:-1], replace(incident, resume_step=step)))


def format_machines(run: Run, at: datetime) -> str:
    """Return a suffix for a reason: the next attempt's machines, and whether it gets the warm pool.

    The machines are named only where they differ from those of the request.
    """
    machines, forecast = run.current.machines, warm_pools.format_forecast(run, at)
    return (f" on {format_instance_types(machines)}" if machines else "") + (f"; {forecast}" if forecast else "")


def choose_resume_step(checkpoints: Sequence[Checkpoint] | None, *, before_step: int | None = None) -> int | None:
    """Return the step to resume from, or None without a usable checkpoint.

    Without a clean checkpoint a suspect one is taken, except where `before_step` limits the choice.
    """
    known = checkpoints or ()
    newest = newest_resumable(known) if before_step is None else newest_usable(known, before_step=before_step)
    return newest.step if newest else None


def choose_resume_step_again(run: Run, checkpoints: Sequence[Checkpoint] | None) -> tuple[Run, str]:
    """Return the run resuming from what still exists, never newer than first chosen, and a note for the reason.

    The note is empty where nothing changed.
    """
    wanted = run.current.resumed_from_step
    candidates = [c for c in checkpoints or () if wanted is not None and c.step <= wanted]
    if checkpoints is None or wanted is None or any(c.step == wanted and is_resumable(c) for c in candidates):
        return run, ""
    newest = newest_resumable(candidates)
    step = newest.step if newest else None
    run = with_attempt(run, replace(run.current, resumed_from_step=step))
    return run, f" (the checkpoint of step {wanted} cannot be resumed from any more)"


def stop_now(run: Run, reason: str) -> Decision:
    """Stop the current job; the intent is recorded with the action, before StopTrainingJob is called."""
    run = replace(without_pending(run, PostCommand), state=RunState.STOPPING)
    return Decision(run, (StopJob(run.current.job_name),), reason)


def finish_stopped(run: Run, seen: JobObserved, reason: str) -> Decision:
    """End the run because its job was stopped."""
    run = with_incident_closed(with_end(run, RunState.STOPPED), "the run was stopped", seen.at)
    notice = make_notice(run, Severity.INFORM, "stopped", reason, key="stopped", did="nothing more: the run has ended")
    return Decision(run, (notice,), reason, finding="stopped")


def hold_as_ruled(run: Run, at: datetime, what: str, hold: Hold, *, gives_back: bool = True) -> Decision:
    """Hold the run as the rules decided, after what has happened."""
    return hold_run(
        run,
        at,
        f"{what}; held: {hold.why}",
        because=hold.why,
        todo=hold.advice,
        runbook=hold.runbook,
        gives_back=gives_back,
    )


def with_release(run: Run, *, who: str, at: datetime) -> Run:
    """Return the released run: its budgets start again, and ended attempts no longer count in cost and time."""
    ended = run.current.exists and not run.current.may_be_live
    ledger = with_fresh_budgets(run.ledger, who=who, at=at)
    ledger = replace(ledger, forgiven=run.current.number if ended else run.current.number - 1)
    return replace(without_hold(run), ledger=ledger, climbs=())


def with_hold(run: Run, reason: str, *, advice: str = "", runbook: Runbook | None = None, by: str = "") -> Run:
    """Return the run with why it is held, what to do before it is released, and the operator who holds it, if any."""
    return replace(run, hold_reason=reason, hold_advice=advice, hold_runbook=runbook, held_by=by)


def without_hold(run: Run) -> Run:
    """Return the run with no hold recorded."""
    return with_hold(run, "")


def hold_run(
    run: Run,
    at: datetime,
    what: str,
    *,
    because: str = "",
    happened: str = "",
    todo: str = "",
    runbook: Runbook = Runbook.BUDGET_SPENT,
    severity: Severity = Severity.PAGE,
    gives_back: bool = True,
) -> Decision:
    """Hold the run and page the operator.

    Args: `because` is a few words for the title. `happened` replaces `what` in the notice where `what` is too long.
    `todo` is what to do before the run is released. With `gives_back`, a kept warm pool is released at once: an answer
    takes longer than the pool is worth.
    """
    release = warm_pools.make_release(run) if gives_back and not run.observe_only else ()
    since = run.open_incident.happened_at if run.open_incident else at
    run = with_hold(
        with_incident_closed(with_end(run, RunState.HELD), HELD_RESOLUTION, at), what, advice=todo, runbook=runbook
    )
    did = "the job that runs goes on, unsupervised" if run.current.may_be_live else "no other job is launched"
    did += ", until you release the run" + ("; the machines kept for it are given back" if release else "")
    notice = make_notice(
        run,
        severity,
        f"held: {because}" if because else "held",
        happened or what,
        key=f"held-{run.current.number}",
        runbook=runbook,
        did=did,
        todo="\n".join(filter(None, (format_instruction(todo), f"When that is done: rerail release {run.id}"))),
        since=since,
    )
    return Decision(run, (*release, notice), run.hold_text)


def make_notice(
    run: Run,
    severity: Severity,
    title: str,
    body: str,
    *,
    key: str,
    runbook: Runbook = Runbook.INFORMED,
    did: str = "",
    todo: str = "",
    since: datetime | None = None,
    by: datetime | None = None,
    until: ClearedBy = ClearedBy.RELEASED,
    about: str = "",
) -> Notify:
    """Return a notice about the run; `key` is unique within the run."""
    return Notify(
        severity=severity,
        title=f"{run.id}: {title}",
        body=body,
        key=f"{run.id}/{key}",
        runbook=runbook,
        did=did,
        todo=todo,
        since=since,
        by=by,
        until=until,
        about=about,
    )


def format_instruction(advice: str) -> str:
    """Return advice as a sentence that begins with a capital letter."""
    return advice[:1].upper() + advice[1:]


def select_known(run: Run, checkpoints: Sequence[Checkpoint]) -> tuple[Checkpoint, ...]:
    """Return the checkpoints that the run may resume from, with their health as it is known now.

    A run with an agent resumes only from checkpoints with a manifest.
    """
    return with_health(
        run,
        [
            with_attempt_number(run, checkpoint)
            for checkpoint in checkpoints
            if checkpoint.has_manifest or not has_agent(run)
        ],
    )


def with_attempt_number(run: Run, checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with the attempt that saved it.

    Without a manifest it is the last attempt created before the checkpoint: a run's jobs never overlap.
    """
    if checkpoint.has_manifest:
        return checkpoint
    created = [a.number for a in run.attempts if a.created_at and a.created_at <= checkpoint.saved_at]
    return replace(checkpoint, attempt=max(created, default=0))


def find_proving_step(run: Run, incident: Incident) -> int:
    """Return the step beyond which a clean checkpoint proves that an incident is over.

    It is beyond both the step that the run resumed from and the onset of the trouble with the loss.
    """
    steps = [incident.resume_step or 0, incident.onset_step or 0]
    if incident.onset_step is not None:
        steps += [rung.onset_step for rung in run.climbs if rung.attempt >= incident.attempt]
    return max(steps)


def format_start(step: int | None) -> str:
    """Return where an attempt starts, in words."""
    return "from the start" if step is None else f"from step {step}"
