"""What must hold of a run that was soaked: its losses, its samples, its checkpoints, and that it was alone."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.soaking import remedied
from bench.soaking.account import BUCKET, Twin
from bench.soaking.notes import different, lineage, lost_steps, uncovered
from bench.soaking.play import Play
from cli.demo.scenarios import BATCH_SIZE
from cli.demo.scripts import OURS
from cli.saves import saves_under
from rerail.accounting.goodput import make_account
from rerail.model import skipped_samples
from rerail.model.run import Attempt, RunState

SKIPPING = re.compile(r"skipping samples (\d+)-(\d+)")


@dataclass(frozen=True, slots=True)
class Learning:
    """What was trained, beside a twin's losses; `twin` says which: undisturbed, or with the same remedies. `from_plain`
    is the difference of the last loss from the undisturbed twin's."""

    steps: int
    lost: int
    samples: int
    twin: str
    compared: int
    other_bits: int
    from_plain: float


@dataclass(frozen=True, slots=True)
class Judgement:
    """One run beside its twin; `share` is its goodput as Rerail accounts for it, `wrong` is what did not hold."""

    run: str
    faults: int
    attempts: int
    skipped: int
    run_s: float
    twin_s: float
    share: float | None
    saves: int
    is_complete: bool
    learnt: Learning
    wrong: tuple[str, ...]


def judge(play: Play, twin: Twin, folder: Path, tell: Callable[[str], None]) -> Judgement:
    """Everything that can be said of a run when it is over."""
    run = play.run
    assert run is not None, "it was adopted, or it is not judged"
    wrong = [*play.problems, *(f"{strike.due.name}: {each}" for strike in play.strikes for each in strike.problems)]
    jobs = list(play.described())
    wrong += _uncaused(play)
    wrong += _alone(play, jobs)
    wrong += _saves_kept(play)
    if early := play.notes.killed_in_save.count(False):
        wrong.append(f"{early} nodes that were to die in a save died without one")
    ended = max(_ended(job) for _, job in jobs)
    run_s = (ended - jobs[0][1]["CreationTime"]).total_seconds()
    expected = RunState.STOPPED if play.course.faults[-1].name == "sigterm" else RunState.COMPLETED
    if run.state is not expected:
        wrong.append(f"the run is {run.state}, it must be {expected} ({run.hold_reason})")
    learnt = _learning(play, twin, folder, wrong, tell) if play.home.script is OURS else _curves(play, twin, wrong)
    meant = skipped_samples.parse_ranges(run.attempts[-1].skip_samples)
    return Judgement(
        run=play.name,
        faults=len(play.strikes),
        attempts=len(run.attempts),
        skipped=sum(last - first + 1 for first, last in meant),
        run_s=run_s,
        twin_s=twin.seconds,
        share=make_account(run, ended, play.account.policy).share,
        saves=len(play.seen_saves),
        is_complete=run.state is RunState.COMPLETED,
        wrong=tuple(wrong),
        learnt=learnt,
    )


def _learning(play: Play, twin: Twin, folder: Path, wrong: list[str], tell: Callable[[str], None]) -> Learning:
    """The final lineage's samples and losses, beside the twin's."""
    run, lives = play.run, play.notes.lives
    assert run is not None
    final = lineage(lives)
    steps = max(final, default=0) if run.state is RunState.STOPPED else play.course.steps
    meant = skipped_samples.parse_ranges(run.attempts[-1].skip_samples)
    named = skipped_samples.merge_ranges(
        [(int(m[1]), int(m[2])) for entry in play.timeline for m in SKIPPING.finditer(entry.reason)]
    )
    if meant != named:
        wrong.append(f"the run skips {meant or 'nothing'}, its timeline names {named or 'nothing'}")
    read = {number: play.notes.samples(life, step) for number, (life, step) in final.items()}
    wrong += uncovered(read, steps=steps, batch=BATCH_SIZE, skipped=meant)
    mine = {number: step.loss for number, (_, step) in final.items()}
    plain = {number: step.loss for number, (_, step) in lineage(twin.notes.lives).items()}
    theirs, kind, weights = plain, "undisturbed", twin.notes.weights
    parts = remedied.stretches(final)
    stayed = (each for each in play.strikes if each.fault.stays and final[each.step][0].at < each.at.timestamp())
    bad = [strike.fault.drill.format(step=strike.step) for strike in stayed]
    if len(parts) > 1 or bad or any(part.skipped or part.rate != 1 for part in parts):
        place = folder / f"remedied-{play.name}"
        reference = remedied.train(parts, steps=play.course.steps, folder=place, tell=tell, bad=bad)
        theirs, kind, weights = remedied.losses(reference), "same remedies", reference.weights
    other, apart = different(mine, theirs)
    if other:
        first = min(step for step in mine if mine[step] != theirs.get(step))
        wrong.append(f"{other} losses differ from those of the twin ({kind}) by up to {apart:g}, first at step {first}")
    if lacking := sorted(mine.keys() - theirs.keys()):
        wrong.append(f"the twin ({kind}) has no loss for {len(lacking)} steps, the first is {lacking[0]}")
    if run.state is RunState.COMPLETED and play.notes.weights != weights:
        wrong.append(f"the final weights are {play.notes.weights or 'unknown'}, the twin's ({kind}) {weights}")
    last = max(mine.keys() & plain.keys(), default=0)
    return Learning(
        steps=steps,
        lost=lost_steps(lives, final),
        samples=sum(len(ids) for ids in read.values()),
        twin=kind,
        compared=len(mine.keys() & theirs.keys()),
        other_bits=other,
        from_plain=abs(float.fromhex(mine[last]) - float.fromhex(plain[last])) if last else 0.0,
    )


def _curves(play: Play, twin: Twin, wrong: list[str]) -> Learning:
    """Of a script that is not ours the losses alone are known, from its own checkpoints."""
    script, s3 = play.home.script, play.account.s3
    mine = dict(script.saved_losses(s3, BUCKET, f"{play.name}/"))
    theirs = dict(script.saved_losses(s3, BUCKET, f"{twin.name}/"))
    shared = mine.keys() & theirs.keys()
    apart = max((abs(mine[step] - theirs[step]) for step in shared), default=0.0)
    other = sum(mine[step] != theirs[step] for step in shared)
    if other or len(shared) != play.course.steps:
        wrong.append(f"{other} of {len(shared)} losses differ from the twin's, by up to {apart:g}")
    attempts = play.run.attempts if play.run else ()
    pairs = zip(attempts, attempts[1:], strict=False)
    lost = sum(play.curves[one.job_name].last_step - (two.resumed_from_step or 0) for one, two in pairs)
    return Learning(
        steps=play.course.steps,
        lost=lost,
        samples=0,
        twin="undisturbed",
        compared=len(shared),
        other_bits=other,
        from_plain=apart,
    )


def _uncaused(play: Play) -> Iterator[str]:
    """Nothing was done to a healthy run: every incident lies within a fault, from its strike until it was over."""
    for incident in play.run.incidents if play.run else ():
        faults = (each for each in play.strikes if each.at <= incident.decided_at)
        if not any(each.over_at is None or incident.decided_at <= each.over_at for each in faults):
            yield f"an incident that no fault has caused: {incident.kind} in attempt {incident.attempt}"


def _alone(play: Play, jobs: Sequence[tuple[Attempt, dict[str, Any]]]) -> Iterator[str]:
    """Never two live attempts: as the processes saw it, and as SageMaker tells it."""
    yield from play.notes.violations
    for (_, before), (_, after) in zip(jobs, jobs[1:], strict=False):
        if after["CreationTime"] < _ended(before):
            yield f"{after['TrainingJobName']} was created while {before['TrainingJobName']} lived"


def _ended(job: Mapping[str, Any]) -> datetime:
    """When the job came to its last state; one that never had machines has no TrainingEndTime."""
    last: datetime = job.get("TrainingEndTime") or job["SecondaryStatusTransitions"][-1]["StartTime"]
    return last


def _saves_kept(play: Play) -> Iterator[str]:
    """Every checkpoint that was ever seen in S3 is still there, in its place or put aside, and whole."""
    if play.home.script is not OURS:
        return
    found = saves_under(play.account.s3, f"s3://{BUCKET}/{play.name}/")
    there = {(save.step, save.checkpoint.attempt) for save in found if save.checkpoint and save.is_whole}
    if gone := sorted(set(play.seen_saves) - there - play.damaged):
        yield f"{len(gone)} checkpoints are gone, the first is of step {gone[0][0]} in attempt {gone[0][1]}"
