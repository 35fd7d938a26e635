"""The checks of a run after the soak: its losses, samples and checkpoints, and that no other job was live."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.soaking import remedied
from bench.soaking.account import BUCKET, ReferenceRun
from bench.soaking.notes import Notes, Start, Step, different, lineage, lost_steps, uncovered
from bench.soaking.soak_run import SoakRun
from cli.demo.scenarios import BATCH_SIZE
from cli.saves import list_checkpoints
from rerail.model import skipped_samples
from rerail.model.run import Attempt, Run, RunState

SKIPPING = re.compile(r"skipping samples (\d+)-(\d+)")


@dataclass(frozen=True, slots=True)
class Judgement:
    """A run compared with its reference run."""

    run: str
    faults: int
    attempts: int
    saves: int
    # The trained steps, and those that had to be trained again.
    steps: int
    lost: int
    samples: int
    # Whether the reference run is undisturbed or has the same remedies.
    reference: str
    compared: int
    other_bits: int
    # The difference of the last loss from the undisturbed one.
    from_plain: float
    # The checks that failed.
    wrong: tuple[str, ...]


def evaluate_run(soak_run: SoakRun, reference: ReferenceRun, folder: Path, log: Callable[[str], None]) -> Judgement:
    """Return the evaluation of a run that has ended."""
    run = soak_run.run
    assert run is not None, "only adopted runs are judged"
    wrong = list(soak_run.problems)
    for injection in soak_run.injections:
        wrong += [f"{injection.planned.name}: {problem}" for problem in injection.problems]
    jobs = list(soak_run.described())
    wrong += _uncaused(soak_run)
    wrong += _alone(soak_run, jobs)
    wrong += _saves_kept(soak_run)
    if early := soak_run.notes.killed_in_save.count(False):
        wrong.append(f"{early} nodes were killed outside of a save")
    expected = RunState.STOPPED if soak_run.plan.faults[-1].name == "sigterm" else RunState.COMPLETED
    if run.state is not expected:
        wrong.append(f"the run is {run.state}, it must be {expected} ({run.hold_reason})")
    starts, final = soak_run.notes.starts, lineage(soak_run.notes.starts)
    steps = max(final, default=0) if run.state is RunState.STOPPED else soak_run.plan.steps
    samples, problems = _check_samples(soak_run, run, final, steps)
    wrong += problems
    mine = {number: step.loss for number, (_, step) in final.items()}
    plain = {number: step.loss for number, (_, step) in lineage(reference.notes.starts).items()}
    theirs, kind, weights = plain, "undisturbed", reference.notes.weights
    if (trained := _train_with_remedies(soak_run, folder, log)) is not None:
        theirs, kind, weights = remedied.losses(trained), "same remedies", trained.weights
    other, apart = different(mine, theirs)
    if other:
        first = min(step for step in mine if mine[step] != theirs.get(step))
        wrong.append(
            f"{other} losses differ from those of the reference ({kind}) by up to {apart:g}, first at step {first}"
        )
    if lacking := sorted(mine.keys() - theirs.keys()):
        wrong.append(f"the reference ({kind}) has no loss for {len(lacking)} steps, the first is {lacking[0]}")
    if run.state is RunState.COMPLETED and soak_run.notes.weights != weights:
        wrong.append(f"the final weights are {soak_run.notes.weights or 'unknown'}, the reference's ({kind}) {weights}")
    last = max(mine.keys() & plain.keys(), default=0)
    return Judgement(
        run=soak_run.name,
        faults=len(soak_run.injections),
        attempts=len(run.attempts),
        saves=len(soak_run.seen_saves),
        steps=steps,
        lost=lost_steps(starts, final),
        samples=samples,
        reference=kind,
        compared=len(mine.keys() & theirs.keys()),
        other_bits=other,
        from_plain=abs(float.fromhex(mine[last]) - float.fromhex(plain[last])) if last else 0.0,
        wrong=tuple(wrong),
    )


def _check_samples(
    soak_run: SoakRun, run: Run, final: Mapping[int, tuple[Start, Step]], steps: int
) -> tuple[int, list[str]]:
    """Return the number of samples of the final lineage, and what is wrong with them."""
    meant = skipped_samples.parse_ranges(run.attempts[-1].skip_samples)
    named = skipped_samples.merge_ranges(
        [(int(m[1]), int(m[2])) for entry in soak_run.timeline for m in SKIPPING.finditer(entry.reason)]
    )
    read = {number: soak_run.notes.samples(start, step) for number, (start, step) in final.items()}
    wrong = list(uncovered(read, steps=steps, batch=BATCH_SIZE, skipped=meant))
    if meant != named:
        wrong.append(f"the run skips {meant or 'nothing'}, its timeline names {named or 'nothing'}")
    return sum(map(len, read.values())), wrong


def _train_with_remedies(soak_run: SoakRun, folder: Path, log: Callable[[str], None]) -> Notes | None:
    """Train a reference with the remedies and the lasting faults of the run's final lineage; None if it has none."""
    final = lineage(soak_run.notes.starts)
    parts, staying = remedied.stretches(final), [found for found in soak_run.injections if found.fault.stays]
    stayed = [found for found in staying if final[found.step][0].at < found.at.timestamp()]
    bad = [found.fault.drill.format(step=found.step) for found in stayed]
    if len(parts) <= 1 and not bad and not any(part.skipped or part.rate != 1 for part in parts):
        return None
    place = folder / f"remedied-{soak_run.name}"
    return remedied.train(parts, steps=soak_run.plan.steps, folder=place, log=log, bad=bad)


def _uncaused(soak_run: SoakRun) -> Iterator[str]:
    """Yield the incidents that lie outside of every fault: nothing may be done to a healthy run."""
    for incident in soak_run.run.incidents if soak_run.run else ():
        faults = (injection for injection in soak_run.injections if injection.at <= incident.decided_at)
        if not any(fault.over_at is None or incident.decided_at <= fault.over_at for fault in faults):
            yield f"an incident that no fault has caused: {incident.kind} in attempt {incident.attempt}"


def _alone(soak_run: SoakRun, jobs: Sequence[tuple[Attempt, dict[str, Any]]]) -> Iterator[str]:
    """Check that two attempts were never live at once, by the processes' notes and by SageMaker's times."""
    yield from soak_run.notes.violations
    for (_, before), (_, after) in zip(jobs, jobs[1:], strict=False):
        if after["CreationTime"] < _ended(before):
            yield f"{after['TrainingJobName']} was created while {before['TrainingJobName']} lived"


def _ended(job: Mapping[str, Any]) -> datetime:
    """Return when the job reached its last state; one that never had machines has no TrainingEndTime."""
    last: datetime = job.get("TrainingEndTime") or job["SecondaryStatusTransitions"][-1]["StartTime"]
    return last


def _saves_kept(soak_run: SoakRun) -> Iterator[str]:
    """Yield the loss of checkpoints that were seen in S3: each must be in place or in quarantine, and complete."""
    found = list_checkpoints(soak_run.account.s3, f"s3://{BUCKET}/{soak_run.name}/")
    there = {(save.step, save.checkpoint.attempt) for save in found if save.checkpoint and save.is_whole}
    if gone := sorted(set(soak_run.seen_saves) - there - soak_run.damaged):
        yield f"{len(gone)} checkpoints are gone, the first is of step {gone[0][0]} in attempt {gone[0][1]}"
