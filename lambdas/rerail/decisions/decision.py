"""The type of a decision, and the changes to a run that decisions share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from rerail.accounting.costs import find_dollars_per_hour
from rerail.decisions import warm_pools
from rerail.decisions.budgets import with_fresh_budgets
from rerail.decisions.checkpoint_health import find_newest_resumable, with_health
from rerail.decisions.remedies import REPEATS, Hold, format_continue
from rerail.model.actions import Action, ClearedBy, Notify, PostCommand, QuarantineCheckpoints, Severity, StopJob
from rerail.model.agent_settings import format_settings
from rerail.model.checkpoints import Checkpoint, find_newest_step, find_newest_usable
from rerail.model.finding import UNDECIDED, Level
from rerail.model.formatting import format_dollars
from rerail.model.mailbox import LIMITS, Command, CommandKind
from rerail.model.policy import Mode, Policy
from rerail.model.run import Attempt, Incident, Job, Run, RunState
from rerail.model.runbooks import Runbook
from rerail.model.sample import parse_step
from rerail.model.self_repairs import INTERRUPTION_STATUSES
from rerail.model.signals import JobObserved, OperatorCommand

MAX_WARNINGS = 20
# The resolution of an incident that ended in a hold; reports recognize held incidents by it.
HELD_RESOLUTION = "the run was held"
# Who approves a proposal at its expiry, where the policy acts then.
THE_POLICY = "the policy"


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision: the new run to record, the actions to perform, and the reason."""

    run: Run
    actions: tuple[Action | Notify, ...] = ()  # to carry out, in this order
    reason: str = ""  # For people; empty where only facts were recorded, if anything at all.
    finding: str = ""  # what was observed, for metrics and the timeline; empty if nothing
    inputs: Mapping[str, Any] = field(default_factory=dict)  # the facts that the decision rests on, for the timeline
    replaces_request: bool = False  # record the request that the operator's change makes, for this and later attempts


def may_act(run: Run, policy: Policy, *, approved_by: str = "") -> bool:
    """Return whether the policy and the run's adoption allow actions rather than observation only.

    One that an operator has approved is allowed. Whether it needs an approval or must wait is not checked here.
    """
    return approved_by not in ("", THE_POLICY) or (policy.mode is not Mode.OBSERVE and not run.observe_only)


def may_carry_out(run: Run, policy: Policy, approved_by: str) -> bool:
    """Return whether a stop or launch that was decided on may be called now, by the mode that the policy has now."""
    asks = policy.mode is Mode.APPROVE
    return may_act(run, policy, approved_by=approved_by) and (bool(approved_by) or not asks)


def has_pending(run: Run, kind: type[Action]) -> bool:
    """Return whether an action of this kind is pending."""
    return any(isinstance(action, kind) for action in run.pending)


def without_pending(run: Run, *kinds: type[Action]) -> Run:
    """Return the run without pending actions of these kinds."""
    left = tuple(action for action in run.pending if not isinstance(action, kinds))
    return run if left == run.pending else replace(run, pending=left)


def with_attempt(run: Run, attempt: Attempt) -> Run:
    """Return the run with its current attempt replaced."""
    return replace(run, attempts=(*run.attempts[:-1], attempt))


def with_facts(attempt: Attempt, job: Job, at: datetime) -> Attempt:
    """Return the attempt with the facts of a job description; facts that it no longer contains are kept."""
    # Other statuses on the way to training may be of an older description, which was recorded late.
    restarted = attempt.secondary == "Training" and job.secondary in INTERRUPTION_STATUSES
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
        artifacts=job.artifacts or attempt.artifacts,
    )


def with_warnings(run: Run, *keys: str) -> Run:
    """Return the run with these notices recorded as sent; at the limit, drop the oldest."""
    return replace(run, warnings=(*run.warnings, *keys)[-MAX_WARNINGS:])


def with_undecided(run: Run, kind: str) -> Run:
    """Return the run whose findings of this kind, if they still hold, are decided on once Rerail may act."""
    decided, undecided = (f"{kind}-{level}-" for level in (Level.INTERVENE, UNDECIDED))
    keys = (undecided + key.removeprefix(decided) if key.startswith(decided) else key for key in run.warnings)
    return replace(run, warnings=tuple(keys))


def with_end(run: Run, state: RunState) -> Run:
    """Return the run in an end state, without anything that it waits for or has requested of its agent."""
    run = without_pending(run, PostCommand, QuarantineCheckpoints)
    return replace(run, state=state, wake_at=None, stop=None, blocked_by=None, proposal=None)


def with_incident_closed(run: Run, resolution: str, at: datetime, *, is_recovered: bool = False) -> Run:
    """Return the run with its open incident closed, if it has one."""
    if run.open_incident is None:
        return run
    incident = replace(run.open_incident, closed_at=at, resolution=resolution, recovered=is_recovered)
    return replace(run, incidents=(*run.incidents[:-1], incident))


def has_agent(run: Run) -> bool:
    """Return whether one of the run's jobs has reported a Rerail agent."""
    return any(attempt.agent for attempt in run.attempts)


def make_command(
    run: Run, kind: CommandKind, *, at: datetime, deadline: datetime | None = None, reason: str = ""
) -> Command:
    """Return a command to the current attempt's agent.

    The id is derived from its content, so a repetition is the same command. There is one at a time; a newer one
    replaces it.
    """
    number = run.current.number
    name = f"{kind}-a{number:03d}-{at.astimezone(UTC):%Y%m%dT%H%M%S.%f}"
    settings = format_settings(run.last_policy, machines=run.current.instance_count) if run.last_policy else ""
    reason = reason[: LIMITS["reason"]]
    return Command(name, run.mailbox, number, kind, at, deadline=deadline, reason=reason, settings=settings)


def choose_resume_step(checkpoints: Sequence[Checkpoint] | None, *, before_step: int | None = None) -> int | None:
    """Return the step to resume from, or None without a usable checkpoint.

    Without a clean checkpoint a suspect one is taken, except where `before_step` limits the choice.
    """
    known = checkpoints or ()
    newest = find_newest_resumable(known) if before_step is None else find_newest_usable(known, before_step=before_step)
    return newest.step if newest else None


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
        because=hold.title or hold.why,
        todo=hold.advice,
        runbook=hold.runbook,
        gives_back=gives_back,
    )


def with_release(run: Run, command: OperatorCommand) -> Run:
    """Return the released run: its budgets start again, and ended attempts no longer count in cost and time.

    Progress starts again from the newest checkpoint that is there.
    """
    ended = run.current.exists and not run.current.may_be_live
    ledger = with_fresh_budgets(run.ledger, who=command.who, at=command.at)
    if command.checkpoints is not None and ledger.progress_step is not None:
        ledger = replace(ledger, progress_step=min(ledger.progress_step, find_newest_step(command.checkpoints)))
    ledger = replace(ledger, forgiven=run.current.number if ended else run.current.number - 1)
    return replace(without_hold(run), ledger=ledger, rungs_taken=())


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
    # The advice may name the command that ends the list.
    then = "" if run.hold_advice.startswith(REPEATS) else f"When that is done: {format_next_command(run)}"
    notice = make_notice(
        run,
        severity,
        f"held: {because}" if because else "held",
        happened or what,
        key=f"held-{run.current.number}",
        runbook=runbook,
        did=did,
        todo="\n".join(filter(None, (format_instruction(todo), then, format_stop(run)))),
        since=since,
    )
    return Decision(run, (*release, notice), run.hold_text)


def format_stop(run: Run) -> str:
    """Return the to-do line that ends a run with a live job, with the job's price if it is known; "" without one."""
    hourly = find_dollars_per_hour(run, run.last_policy.prices if run.last_policy else {})
    costs = f", which costs {format_dollars(hourly)} an hour" if hourly else ""
    return f"To end the run and its job{costs}: rerail stop {run.id}" if run.current.may_be_live else ""


def format_next_command(run: Run) -> str:
    """Return the command that takes a held run up again: a release repeats code, arguments and machines."""
    return format_continue(run) if run.hold_advice.startswith(REPEATS) else f"rerail release {run.id}"


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
    named = f"{run.id}: {title}", body, f"{run.id}/{key}"
    return Notify(severity, *named, runbook, did, todo, since, by, until=until, about=about)


def format_instruction(advice: str) -> str:
    """Return advice as a sentence that begins with a capital letter."""
    return advice[:1].upper() + advice[1:]


def select_known(run: Run, checkpoints: Sequence[Checkpoint]) -> tuple[Checkpoint, ...]:
    """Return the checkpoints that the run may resume from, with their health as it is known now.

    A run with an agent resumes only from checkpoints with a manifest that it may have written. Another resumes from
    one kind: those without a manifest if it has saved such, otherwise those with one.
    """
    with_manifest = [checkpoint for checkpoint in checkpoints if checkpoint.has_manifest]
    if has_agent(run):
        checkpoints = _select_trusted(run, with_manifest)
    elif with_manifest and _saves_without_manifest(run, checkpoints):
        checkpoints = [checkpoint for checkpoint in checkpoints if not checkpoint.has_manifest]
    else:
        checkpoints = with_manifest or checkpoints
    return with_health(run, [with_attempt_number(run, checkpoint) for checkpoint in checkpoints])


def _select_trusted(run: Run, checkpoints: Sequence[Checkpoint]) -> Sequence[Checkpoint]:
    """Return the checkpoints that a run whose agent signs its manifests may have written.

    An agent with the run's key signs each manifest. Unsigned ones are trusted if S3 received them before the first job
    with such an agent began, and if they come before the first signed step, as the agent itself demands.
    """
    first = find_first_signed_step(checkpoints)
    return [
        checkpoint
        for checkpoint in checkpoints
        if checkpoint.is_signed
        or (not was_written_unsigned(run, checkpoint) and (first is None or checkpoint.step < first))
    ]


def find_first_signed_step(checkpoints: Sequence[Checkpoint]) -> int | None:
    return min((checkpoint.step for checkpoint in checkpoints if checkpoint.is_signed), default=None)


def _saves_without_manifest(run: Run, checkpoints: Sequence[Checkpoint]) -> bool:
    """Return whether a checkpoint without a manifest is the run's own, or newer than all that have one."""
    newest = max((c.saved_at for c in checkpoints if not c.has_manifest and c.is_whole), default=None)
    if newest is None:
        return False
    others = (c.written_at or c.saved_at for c in checkpoints if c.has_manifest)
    return newest >= find_first_start(run) or newest > max(others)


def was_written_unsigned(run: Run, checkpoint: Checkpoint) -> bool:
    """Return whether an unsigned manifest was written after the run had an agent that signs all of its manifests."""
    signer = next((attempt for attempt in run.attempts if attempt.agent), None)
    began = signer and (signer.training_started_at or signer.created_at)
    if checkpoint.is_signed or not checkpoint.has_manifest or not run.signing_key or not began:
        return False
    # S3 counts whole seconds.
    return (checkpoint.written_at or checkpoint.saved_at) >= began.replace(microsecond=0)


def find_manifest_key(run: Run) -> str:
    """Return the key with which the run's agent signs manifests; "" if no agent with the key is known."""
    return run.signing_key if has_agent(run) else ""


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

    It is beyond both the step that the run resumed from and the onset of the trouble with the loss. Without an agent,
    which evaluates each step, trouble that returns is known only after some minutes: about when it was found before.
    """
    steps = [incident.resume_step or 0, incident.onset_step or 0]
    if incident.onset_step is not None:
        steps += [] if has_agent(run) else [incident.step or 0]
        steps += [rung.onset_step for rung in run.rungs_taken if rung.attempt >= incident.attempt]
    return max(steps)


def find_first_start(run: Run) -> datetime:
    """Return when the run's first job began, in whole seconds as S3: older checkpoints are not the run's own."""
    first = run.attempts[0]
    return (first.training_started_at or first.created_at or run.created_at).replace(microsecond=0)


def format_start(run: Run, step: int | None) -> str:
    """Return where an attempt starts, in words; only an agent tells that a script without a checkpoint starts anew."""
    if step is None and not has_agent(run):
        return "from wherever its script resumes"
    return "from the start" if step is None else f"from step {step}"
