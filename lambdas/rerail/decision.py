"""A decision, and the changes to a run that decisions are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from rerail.actions import Action, CreateJob, PostCommand, ReleaseWarmPool, Severity, StopJob, Tell
from rerail.checkpoints import Checkpoint, Health, newest_usable
from rerail.ledger import started
from rerail.mailbox import LIMITS, Command, Wish
from rerail.model import Attempt, Run, RunState, Stop, successor_name
from rerail.policy import Mode, Policy
from rerail.signals import JobSeen


@dataclass(frozen=True, slots=True)
class Decision:
    """What to record, what to do, and why in words that a sleepy human understands.

    An empty `reason` means that only facts were noted, if anything at all.
    """

    run: Run
    actions: tuple[Action | Tell, ...] = ()
    reason: str = ""
    finding: str = ""
    inputs: Mapping[str, Any] = field(default_factory=dict)


def may_act(run: Run, policy: Policy) -> bool:
    """Neither the policy nor the way the run was adopted limits us to observing."""
    return policy.mode is Mode.ACT and not run.observe_only


def owes(run: Run, kind: type[Action]) -> bool:
    """An action of this kind is pending."""
    return any(isinstance(action, kind) for action in run.pending)


def without(run: Run, *kinds: type[Action]) -> Run:
    """The run, owing no action of these kinds."""
    return replace(run, pending=tuple(action for action in run.pending if not isinstance(action, kinds)))


def with_attempt(run: Run, attempt: Attempt) -> Run:
    """The run with its current attempt replaced."""
    return replace(run, attempts=(*run.attempts[:-1], attempt))


def ended(run: Run, state: RunState) -> Run:
    """The run at an end: nothing is waited for any more, and nothing asked of its agent."""
    return replace(without(run, PostCommand), state=state, wake_at=None, stop=None)


def closed(run: Run, resolution: str, at: datetime, *, mended: bool = False) -> Run:
    """The run with its open incident closed, if it has one."""
    if run.open_incident is None:
        return run
    incident = replace(run.open_incident, closed_at=at, resolution=resolution, mended=mended)
    return replace(run, incidents=(*run.incidents[:-1], incident))


def next_attempt(run: Run, resume_step: int | None, *, wake_at: datetime) -> Run:
    """The run with its next attempt named: only ever called when the current one is known to have ended."""
    assert not run.current.may_be_live
    number = run.current.number + 1
    before = run.current
    attempt = Attempt(
        number=number,
        job_name=successor_name(run.id, number),
        resumed_from_step=resume_step,
        skip_samples=before.skip_samples,
        rate=before.rate,
        machines=before.machines,
        max_runtime_s=before.max_runtime_s,
    )
    run = without(run, PostCommand)
    return replace(run, state=RunState.WAITING, attempts=(*run.attempts, attempt), wake_at=wake_at, stop=None)


def launched(run: Run, at: datetime, policy: Policy) -> tuple[Run, tuple[Action, ...]]:
    """The run with its current attempt being created, and the actions that create it: first of all the agents of older
    attempts, should one be alive against all evidence, are told that the run is not theirs any more."""
    run = replace(run, state=RunState.STARTING, wake_at=None, ledger=started(run.ledger, at=at, limits=policy.limits))
    attempt = run.current
    create = creation(run)
    if attempt.number == 1:
        return run, (create,)
    return without(run, PostCommand), (PostCommand(command_for(run, Wish.TRAIN, at=at)), create)


def creation(run: Run) -> CreateJob:
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
    )


def command_for(run: Run, wish: Wish, *, at: datetime, deadline: datetime | None = None, reason: str = "") -> Command:
    """A wish to the current attempt's agent. Its id is made of what it says, so that a repetition is the same command;
    there is one at a time, and a newer one takes its place."""
    number = run.current.number
    name = f"{wish}-a{number:03d}-{at.astimezone(UTC):%Y%m%dT%H%M%S.%f}"
    return Command(name, run.mailbox, number, wish, asked_at=at, deadline=deadline, reason=reason[: LIMITS["reason"]])


def relaunch_now(run: Run, seen: JobSeen, policy: Policy, what: str) -> Decision:
    """Launch the next attempt without a wait, from the newest usable checkpoint that our stop allows."""
    step = resume_step(seen.checkpoints, before_step=run.stop.before_step if run.stop else None)
    if step is None and run.stop and not run.checkpoint_uri:
        step = _unseen_step(run.stop)
    release = release_pool(run) if run.stop and run.stop.fresh_machines else ()
    run = _resumed(run, step) if run.stop else run
    run, actions = launched(next_attempt(run, step, wake_at=seen.at), seen.at, policy)
    return Decision(run, (*release, *actions), f"{what}: relaunching {spoken_start(step)}")


def _unseen_step(stop: Stop) -> int | None:
    """On a file system that only the jobs can see: the agent's word is all there is, or a bound for a rollback."""
    return stop.committed_step if stop.before_step is None else max(0, stop.before_step - 1)


def _resumed(run: Run, step: int | None) -> Run:
    """The run whose incident knows what the stop has cost: a checkpoint may have been saved since it was opened."""
    incident = run.open_incident
    if incident is None or incident.attempt != run.current.number:
        return run
    return replace(run, incidents=(*run.incidents[:-1], replace(incident, resume_step=step)))


def release_pool(run: Run) -> tuple[Action, ...]:
    """Give the current job's warm pool back, if it keeps one."""
    return (ReleaseWarmPool(run.current.job_name),) if run.current.keep_alive_seconds else ()


def resume_step(checkpoints: Sequence[Checkpoint] | None, *, before_step: int | None = None) -> int | None:
    """The step to resume from; None where there is no usable checkpoint."""
    newest = newest_usable(checkpoints or (), before_step=before_step)
    return newest.step if newest else None


def stop_now(run: Run, reason: str) -> Decision:
    """Stop the current job; the intent is recorded with the action, before anything is called."""
    run = replace(without(run, PostCommand), state=RunState.STOPPING)
    return Decision(run, (StopJob(run.current.job_name),), reason)


def finish_stopped(run: Run, seen: JobSeen, reason: str) -> Decision:
    """The run ends because its job was stopped."""
    run = closed(ended(run, RunState.STOPPED), "the run was stopped", seen.at)
    return Decision(run, (notice(run, Severity.INFORM, "stopped", reason, key="stopped"),), reason, finding="stopped")


def held(run: Run, at: datetime, reason: str, *, severity: Severity = Severity.PAGE) -> Decision:
    """Stop trying and ask a human."""
    run = replace(closed(ended(run, RunState.HELD), "the run was held", at), hold_reason=reason)
    body = f"{reason}\nWhen that is done: rerail release {run.id}"
    tell = notice(run, severity, "held", body, key=f"held-{run.current.number}")
    return Decision(run, (tell,), reason)


def notice(run: Run, severity: Severity, title: str, body: str, *, key: str) -> Tell:
    """A notice about the run; `key` is unique within it."""
    return Tell(severity=severity, title=f"{run.id}: {title}", body=body, key=f"{run.id}/{key}")


def suspected(run: Run, checkpoints: Sequence[Checkpoint]) -> tuple[Checkpoint, ...]:
    """The checkpoints, those suspect that an attempt saved after its loss went wrong: they lie in the folder until the
    next attempt moves them aside, and are neither progress nor a place to resume from."""
    onsets = [(i.attempt, i.onset_step) for i in run.incidents if i.onset_step is not None]
    return tuple(
        replace(c, health=Health.SUSPECT)
        if c.health is Health.CLEAN and any(c.attempt <= attempt and c.step >= onset for attempt, onset in onsets)
        else c
        for c in checkpoints
    )


def spoken_start(step: int | None) -> str:
    """Where an attempt begins, as people say it."""
    return "from the start" if step is None else f"from step {step}"
