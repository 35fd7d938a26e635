"""A decision, and the changes to a run that decisions are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from rerail.decisions import warm_pools as pools
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

A_MOMENT = timedelta(seconds=5)
KEPT_WARNINGS = 20


@dataclass(frozen=True, slots=True)
class Decision:
    """What to record, what to do, and why in words that a sleepy human understands.

    An empty `reason` means that only facts were noted, if anything at all.
    """

    run: Run
    actions: tuple[Action | Notify, ...] = ()
    reason: str = ""
    finding: str = ""
    inputs: Mapping[str, Any] = field(default_factory=dict)


def may_act(run: Run, policy: Policy) -> bool:
    """Neither the policy nor the way the run was adopted limits us to observing; whether it is to be at once, and
    without a human, is another question."""
    return policy.mode is not Mode.OBSERVE and not run.observe_only


def has_pending(run: Run, kind: type[Action]) -> bool:
    """An action of this kind is pending."""
    return any(isinstance(action, kind) for action in run.pending)


def without_pending(run: Run, *kinds: type[Action]) -> Run:
    """The run, owing no action of these kinds."""
    return replace(run, pending=tuple(action for action in run.pending if not isinstance(action, kinds)))


def with_attempt(run: Run, attempt: Attempt) -> Run:
    """The run with its current attempt replaced."""
    return replace(run, attempts=(*run.attempts[:-1], attempt))


def with_facts(attempt: Attempt, job: Job, at: datetime) -> Attempt:
    """The attempt with the facts of the description; what SageMaker no longer says is kept."""
    repaired = attempt.secondary == "Training" and job.secondary in ON_THE_WAY
    step = parse_step(job.metrics)
    return replace(
        attempt,
        status=job.status,
        secondary=job.secondary,
        created_at=job.created_at,
        training_started_at=job.training_started_at or attempt.training_started_at or (at if job.is_training else None),
        ended_at=(job.ended_at or at) if job.status.is_terminal else None,
        failure_reason=job.failure_reason,
        # Only a job that has ended: a note of each minute's step would be a write a minute, read by nobody.
        last_step=step if step is not None and job.status.is_terminal else attempt.last_step,
        # Two looks may miss one; the job's own history misses none, where it is told.
        self_repairs=max(attempt.self_repairs + repaired, job.repaired.total),
        repairs=job.repaired.counts or attempt.repairs,
        repair_seconds=max(attempt.repair_seconds, job.repaired.seconds),
        keep_alive_seconds=job.keep_alive_seconds,
        instance_type=job.instance_type or attempt.instance_type,
        instance_count=job.instance_count,
        billable_s=job.billable_s if job.status.is_terminal else attempt.billable_s,
        pool=job.pool or attempt.pool,
    )


def with_warnings(run: Run, *keys: str) -> Run:
    """The run, which remembers that people were told of these; of too many the oldest are forgotten."""
    return replace(run, warnings=(*run.warnings, *keys)[-KEPT_WARNINGS:])


def with_end(run: Run, state: RunState) -> Run:
    """The run at an end: nothing is waited for any more, and nothing asked of its agent."""
    run = without_pending(run, PostCommand, QuarantineCheckpoints)
    return replace(run, state=state, wake_at=None, stop=None, kept_back="", proposal=None)


def with_incident_closed(run: Run, resolution: str, at: datetime, *, mended: bool = False) -> Run:
    """The run with its open incident closed, if it has one."""
    if run.open_incident is None:
        return run
    incident = replace(run.open_incident, closed_at=at, resolution=resolution, mended=mended)
    return replace(run, incidents=(*run.incidents[:-1], incident))


def with_next_attempt(run: Run, resume_step: int | None, *, wake_at: datetime) -> Run:
    """The run with its next attempt named: only ever called when the current one is known to have ended."""
    assert not run.current.may_be_live
    number = run.current.number + 1
    before = run.current
    attempt = Attempt(
        number=number,
        job_name=make_job_name(run.id, number),
        resumed_from_step=resume_step,
        skip_samples=before.skip_samples,
        rate=before.rate,
        machines=before.machines,
        max_runtime_s=before.max_runtime_s,
        approved_by=run.stop.approved_by if run.stop else "",
    )
    run = without_pending(run, PostCommand)
    return replace(run, state=RunState.WAITING, attempts=(*run.attempts, attempt), wake_at=wake_at, stop=None)


def with_launch(run: Run, at: datetime, policy: Policy) -> tuple[Run, tuple[Action, ...]]:
    """The run with its current attempt being created, and the actions that create it: first of all the agents of older
    attempts, should one be alive against all evidence, are told that the run is not theirs any more.

    Where the gate does not let it pass, the run with its launch kept back, and no action."""
    if found := find_obstacle(run, at, policy):
        return with_launch_blocked(run, found, at), ()
    ledger = with_start(run.ledger, at=at, limits=policy.limits)
    run = replace(run, state=RunState.STARTING, wake_at=None, ledger=ledger, kept_back="", proposal=None)
    run = with_runtime_left(run, at, policy)
    attempt = run.current
    create = make_create_job(run)
    if attempt.number == 1:
        return run, (create,)
    first = (PostCommand(make_command(run, CommandKind.TRAIN, at=at)), *make_quarantine_actions(run, at))
    return without_pending(run, PostCommand, QuarantineCheckpoints), (*first, create)


def make_quarantine_actions(run: Run, at: datetime) -> tuple[Action, ...]:
    """What must be out of the way before the current attempt is created: the attempt before was rolled back, or left
    something behind, and no agent in the job will look away from that."""
    rolled_back = run.attempts[-2].onset_step is not None
    if not (rolled_back or run.current.is_littered) or not run.checkpoint_uri or has_agent(run):
        return ()
    # The job may have ended, with its last upload, a moment after we began to look.
    saved_before = at + A_MOMENT
    place, step, number = run.checkpoint_uri, run.current.resumed_from_step, run.attempts[-2].number
    return (QuarantineCheckpoints(run.id, number, place, step, saved_before, strict=rolled_back, is_vital=rolled_back),)


def with_stale_checkpoints_noted(run: Run, checkpoints: Sequence[Checkpoint] | None) -> Run:
    """The run with its next attempt named, which knows whether a script that takes the newest save would take a wrong
    one: one that is not trusted, or that lacks what it cannot be loaded without."""
    newer = [c for c in checkpoints or () if not c.has_manifest and c.step > (run.current.resumed_from_step or 0)]
    bad = any(c.health is not Health.CLEAN or UNLOADABLE & set(c.missing) for c in newer)
    return with_attempt(run, replace(run.current, is_littered=bad))


def has_agent(run: Run) -> bool:
    """An agent of ours works in the run's jobs, as one of them has said."""
    return any(attempt.agent for attempt in run.attempts)


def make_create_job(run: Run) -> CreateJob:
    """The launch of the run's current attempt."""
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
    run: Run, wish: CommandKind, *, at: datetime, deadline: datetime | None = None, reason: str = ""
) -> Command:
    """A wish to the current attempt's agent. Its id is made of what it says, so that a repetition is the same command;
    there is one at a time, and a newer one takes its place."""
    number = run.current.number
    name = f"{wish}-a{number:03d}-{at.astimezone(UTC):%Y%m%dT%H%M%S.%f}"
    return Command(name, run.mailbox, number, wish, asked_at=at, deadline=deadline, reason=reason[: LIMITS["reason"]])


def relaunch_now(run: Run, seen: JobObserved, policy: Policy, what: str) -> Decision:
    """Launch the next attempt without a wait, from the newest usable checkpoint that our stop allows, or on the rung of
    the ladder that is due."""
    stop, rung = run.stop, _rung(run, seen, policy)
    if isinstance(rung, Hold):
        return hold_as_ruled(run, seen.at, what, rung)
    step = choose_resume_step(seen.checkpoints, before_step=stop.before_step if stop else None)
    if stop and stop.drill:
        step = choose_resume_step(_no_newer(seen.checkpoints, stop.to_step)) or step
    if step is None and stop and not run.checkpoint_uri:
        step = _unseen_step(stop)
    if step is None and stop and stop.is_rollback and stop.to_step:
        lost = f"nothing clean is left that was saved at or before step {stop.to_step}"
        todo = f"see what there is with `rerail checkpoints {run.id}`, and roll back to a step that is there"
        return hold_as_ruled(run, seen.at, what, Hold(lost, todo, Runbook.DIVERGED))
    step = rung.resume_step if rung else step
    before = run.current
    run = _resumed(run, step) if stop else run
    run = with_stale_checkpoints_noted(with_next_attempt(run, step, wake_at=seen.at), seen.checkpoints)
    run = with_attempt(run, replace(run.current, drill=bool(stop and stop.drill)))
    if rung and stop and stop.before_step is not None:
        run = with_rung_taken(run, rung, stop.before_step, at=seen.at)
        what = f"{what}; {rung.why}"
    elif stop and stop.is_tainted and not stop.is_rollback:  # what could not be done in place is done by a new job
        run = with_attempt(run, replace(run.current, rung=before.rung))
    run = with_machines(run, stop.machines) if stop and stop.moves else run
    release = pools.make_release(run) if (stop and stop.fresh_machines) or pools.is_unmatched(run) else ()
    pool = format_machines(replace(run, pending=(*run.pending, *release)), seen.at)
    run, actions = with_launch(run, seen.at, policy)
    aside = (
        ", once what was saved since is set aside" if any(isinstance(a, QuarantineCheckpoints) for a in actions) else ""
    )
    return Decision(run, (*release, *actions), f"{what}: relaunching {format_start(step)}{aside}{pool}")


def _rung(run: Run, seen: JobObserved, policy: Policy) -> RollbackPlan | Hold | None:
    """What the ladder says to a stop that rolls the run back, on the checkpoints as they are now; nothing where a
    restart in place has come to nothing: the rung that it was to climb is kept."""
    order = run.current.orders[-1] if run.current.orders else None
    if run.stop is None or run.stop.before_step is None or (order and (order.failed or not order.restarted_at)):
        return None
    if run.stop.is_rollback:
        return None  # an operator has chosen
    rung = plan_rollback(run, run.stop.before_step, seen.checkpoints or (), policy)
    return None if isinstance(rung, Hold) and is_untried_elsewhere(run) else rung


def is_untried_elsewhere(run: Run) -> bool:
    """All that was tried for the open incident was restarts in place: other machines have not had their turn."""
    orders, incident = run.current.orders, run.open_incident
    if not orders or incident is None or incident.attempt != run.current.number:
        return False
    return orders[-1].asked_at >= incident.decided_at


def _no_newer(checkpoints: Sequence[Checkpoint] | None, step: int | None) -> Sequence[Checkpoint]:
    """Those that are no newer than this step."""
    return [each for each in checkpoints or () if step is None or each.step <= step]


def _unseen_step(stop: PlannedStop) -> int | None:
    """On a file system that only the jobs can see: the agent's word is all there is, or a bound for a rollback."""
    return stop.committed_step if stop.before_step is None else max(0, stop.before_step - 1)


def _resumed(run: Run, step: int | None) -> Run:
    """The run whose incident knows what the stop has cost: a checkpoint may have been saved since it was opened."""
    incident = run.open_incident
    if incident is None or incident.attempt != run.current.number:
        return run
    return replace(run, incidents=(*run.incidents[:-1], replace(incident, resume_step=step)))


def format_machines(run: Run, at: datetime) -> str:
    """Where the run's next attempt goes, if not to the request's own machines, and whether it gets the warm pool of the
    one before: to be added to a reason."""
    there, said = run.current.machines, pools.format_forecast(run, at)
    return (f" on {format_instance_types(there)}" if there else "") + (f"; {said}" if said else "")


def choose_resume_step(checkpoints: Sequence[Checkpoint] | None, *, before_step: int | None = None) -> int | None:
    """The step to resume from; None where there is no usable checkpoint. A suspect one is taken where nothing is clean,
    unless it is a matter of what came before a step."""
    found = checkpoints or ()
    newest = newest_resumable(found) if before_step is None else newest_usable(found, before_step=before_step)
    return newest.step if newest else None


def choose_resume_step_again(run: Run, checkpoints: Sequence[Checkpoint] | None) -> tuple[Run, str]:
    """The run whose next attempt resumes from what is still there, never from anything newer than was chosen before;
    and what there is to say about it."""
    wanted = run.current.resumed_from_step
    there = [c for c in checkpoints or () if wanted is not None and c.step <= wanted]
    if checkpoints is None or wanted is None or any(c.step == wanted and is_resumable(c) for c in there):
        return run, ""
    newest = newest_resumable(there)
    step = newest.step if newest else None
    run = with_attempt(run, replace(run.current, resumed_from_step=step))
    return run, f" (the checkpoint of step {wanted} cannot be resumed from any more)"


def stop_now(run: Run, reason: str) -> Decision:
    """Stop the current job; the intent is recorded with the action, before anything is called."""
    run = replace(without_pending(run, PostCommand), state=RunState.STOPPING)
    return Decision(run, (StopJob(run.current.job_name),), reason)


def finish_stopped(run: Run, seen: JobObserved, reason: str) -> Decision:
    """The run ends because its job was stopped."""
    run = with_incident_closed(with_end(run, RunState.STOPPED), "the run was stopped", seen.at)
    tell = make_notice(run, Severity.INFORM, "stopped", reason, key="stopped", did="nothing more: the run has ended")
    return Decision(run, (tell,), reason, finding="stopped")


def hold_as_ruled(run: Run, at: datetime, what: str, hold: Hold, *, gives_back: bool = True) -> Decision:
    """Stop trying, as the rules say, after what has happened."""
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
    """A held run that somebody has looked at: every budget starts afresh, and what is over is forgiven in money and
    time."""
    over = run.current.exists and not run.current.may_be_live
    ledger = with_fresh_budgets(run.ledger, who=who, at=at)
    ledger = replace(ledger, forgiven=run.current.number if over else run.current.number - 1)
    return replace(run, hold_reason="", held_by="", ledger=ledger, climbs=())


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
    """Stop trying and ask a human. Machines that are kept after the run's last job are given back at once, where we may
    do anything at all: whoever is asked takes longer than they are worth.

    `because` are the few words for the title, `happened` is for people where `what` says too much, `todo` is what comes
    before the run is released.
    """
    release = pools.make_release(run) if gives_back and not run.observe_only else ()
    reason = f"{what}. To do: {todo}" if todo else what
    since = run.open_incident.happened_at if run.open_incident else at
    run = replace(
        with_incident_closed(with_end(run, RunState.HELD), "the run was held", at), hold_reason=reason, held_by=""
    )
    did = "the job that runs goes on, unsupervised" if run.current.may_be_live else "no other job is launched"
    did += ", until you release the run" + ("; the machines kept for it are given back" if release else "")
    tell = make_notice(
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
    return Decision(run, (*release, tell), reason)


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
    """A notice about the run; `key` is unique within it."""
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
    """A remedy as a sentence of its own, to begin a line with."""
    return advice[:1].upper() + advice[1:]


def select_known(run: Run, checkpoints: Sequence[Checkpoint]) -> tuple[Checkpoint, ...]:
    """The checkpoints that the run may reckon with, and their health as it is known now: where there is an agent, it
    resumes from nothing without a manifest."""
    return with_health(run, [with_attempt_number(run, c) for c in checkpoints if c.has_manifest or not has_agent(run)])


def with_attempt_number(run: Run, checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with its attempt, where it does not say that itself: jobs of a run follow one another."""
    if checkpoint.has_manifest:
        return checkpoint
    begun = [a.number for a in run.attempts if a.created_at and a.created_at <= checkpoint.saved_at]
    return replace(checkpoint, attempt=max(begun, default=0))


def find_proving_step(run: Run, incident: Incident) -> int:
    """A clean checkpoint beyond this step proves that an incident is over: the run had resumed from before it, and it
    got past the place where the loss had gone wrong."""
    steps = [incident.resume_step or 0, incident.onset_step or 0]
    if incident.onset_step is not None:
        steps += [climb.onset_step for climb in run.climbs if climb.attempt >= incident.attempt]
    return max(steps)


def format_start(step: int | None) -> str:
    """Where an attempt begins, as people say it."""
    return "from the start" if step is None else f"from step {step}"
