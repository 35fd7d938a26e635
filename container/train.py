"""Train a small GPT that can be killed at any moment. Run by launch.py, or by hand: `python train.py --steps 100`.

Top to bottom: the options, the loop, one step, and the state that a resumed run needs to continue exactly. That is
weights, optimizer, random numbers of every rank and data position; the learning rate follows from the step.
"""

import argparse
import contextlib
import math
import os
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import nn

import data
import faults
import parallel
import plan
import preflight
import random_state
import rank_groups
from job import TrainingCluster, TrainingJob, find_base_folder, find_failure_file
from memory import count_parameters
from model import GPT
from options import find_size, read_options
from replay import Replay, fingerprint
from rerail.model.finding import Finding, Kind, Level
from rerail_agent import Guard, failure
from rerail_agent.checkpoints import CommitResult, Manifest, Saver, Snapshots, open_store
from speed import FlopsMeter
from start_weights import load_weights
from update_filter import UpdateFilter

LAST_SAVE_S = 30.0
ABILITIES = ("skip", "rate")  # what this script does with RERAIL_SKIP_SAMPLES and RERAIL_LR_SCALE


@dataclass
class TrainingRun:
    """One rank of an attempt; the fields below `microbatches` change from step to step."""

    options: argparse.Namespace
    job: TrainingJob
    layout: parallel.ParallelLayout
    guard: Guard
    saver: Saver
    snapshots: Snapshots
    corpus: data.TextCorpus
    replay: Replay
    # The one to save.
    model: nn.Module
    # The one that computes gradients, averaged over the ranks.
    replica: Any
    optimizer: torch.optim.Optimizer
    update_filter: UpdateFilter
    # The equal parts in which a rank computes its samples of a batch.
    microbatches: int = 1
    step: int = 0
    consumed_samples: int = 0
    loss: float = math.nan

    @property
    def is_first(self) -> bool:
        return self.layout.world.is_first

    def state(self) -> dict[str, Any]:
        """Return what goes into a checkpoint; the manifest has the step and the data position."""
        return {
            **self.layout.state(self.model, self.optimizer),
            "random": {self.layout.random_key: random_state.capture()},
            "sieve": self.update_filter.state_dict(),
            "guard": self.guard.state_dict(),
        }


def main() -> None:
    """Train as one rank, and end the process; the run stays alive until then (see parallel.leave)."""
    try:
        with (
            # First of all: launch.py keeps SIGTERM blocked.
            contextlib.closing(Guard.from_env(abilities=ABILITIES)) as guard,
            failure.record_failure(
                find_failure_file(find_base_folder()), rank=int(os.environ.get("RANK", "0"))
            ) as position,
        ):
            run = train(read_options(), TrainingJob.from_environment(), position=position, guard=guard)
    except SystemExit as ending:
        parallel.leave(ending.code if isinstance(ending.code, int) else int(ending.code is not None))
    except BaseException:
        traceback.print_exc()
        parallel.leave(1)
    log(f"rank {position.rank} ends after step {run.step}")
    parallel.leave(0)


def train(options: argparse.Namespace, job: TrainingJob, *, position: failure.Position, guard: Guard) -> TrainingRun:
    """Run the whole attempt: from the state to resume from, to the last step or to a request to stop."""
    drills = faults.parse(os.environ.get("RERAIL_DRILL", ""))
    random_state.make_repeatable(options.seed)
    world = parallel.join(timeout=timedelta(seconds=options.collective_timeout_seconds), options=options)
    position.rank = world.rank
    check(options, job, world)
    saver = Saver(open_store(job.checkpoints), rank=world.rank, world_size=world.size, device=world.device, log=log)
    snapshots = Snapshots.from_environment(saver, interface=TrainingCluster.read(job.base).network_interface, log=log)
    with contextlib.closing(saver), contextlib.closing(snapshots):
        run = build(options, job, parallel.ParallelLayout.of(options, world), guard, saver, snapshots)
        resume(run)
        saver.prepare(run.state())
        snapshots.prepare(run.state())
        saver.prune(keep=options.keep)
        here = {"attempt": job.attempt, "restart": job.restart, "rank": world.rank, "world_size": world.size}
        drill = faults.FaultPlan.of(drills, **here, resumed_step=run.step)
        try:
            loop(run, drill, position)
        except Exception:
            wait_for_saves(run, within_s=LAST_SAVE_S)  # what is copied already can still be saved
            raise
        wait_for_saves(run)
        finish(run)
        world.wait_for_all()
    return run


def check(options: argparse.Namespace, job: TrainingJob, world: parallel.DistributedWorld) -> None:
    """Check before anything is built whether it can work; raise all errors, and log warnings."""
    cluster, size = TrainingCluster.read(job.base), find_size(options)
    findings = plan.check(options, cluster, size, ranks_per_node=world.local_size)
    plan.raise_errors(findings)
    if world.is_first:
        asked = plan.make_plan(options, cluster, size, ranks_per_node=world.local_size)
        log(f"layout: {rank_groups.describe(asked, world.backend)}")
    for finding in findings if world.is_first else ():
        log(f"{finding.level}: {finding}")
    block, others = count_parameters(size)
    state_bytes = 12 * (size.layers * block + others) // len(cluster.hosts)  # fp32 weights and two moments
    preflight.inspect(world, job, cluster, log=log, state_bytes=state_bytes)


def build(
    options: argparse.Namespace,
    job: TrainingJob,
    layout: parallel.ParallelLayout,
    guard: Guard,
    saver: Saver,
    snapshots: Snapshots,
) -> TrainingRun:
    """Make everything as before the first step of the run."""
    size = find_size(options)
    corpus = data.open_corpus(job.channel("train"), context=size.context, seed=options.seed)
    model = GPT(size)
    replica, optimizer = layout.apply(
        model,
        lambda parameters: torch.optim.AdamW(
            parameters, lr=options.learning_rate, betas=(0.9, 0.95), weight_decay=options.weight_decay
        ),
        example=corpus.batch(range(1)),
    )
    random_state.seed_everything(options.seed + 1 + layout.random_rank)  # from here on each draws its own dropout
    samples = 1 if layout.is_pipelined else options.batch_size // layout.data_size
    parts = math.gcd(samples, guard.microbatches)
    if samples // parts % 2 == 0:
        guard.announce("microbatch")
    replay = Replay.on(layout.world, options, skipped=job.skipped, rate=job.rate, parts=parts)
    update_filter = UpdateFilter(options.skip_bad_updates)
    return TrainingRun(
        options, job, layout, guard, saver, snapshots, corpus, replay, model, replica, optimizer, update_filter, parts
    )


def loop(run: TrainingRun, drill: faults.FaultPlan, position: failure.Position) -> None:
    """Train step after step, until the last one or until a rank was asked to stop."""
    options, guard = run.options, run.guard
    tokens = options.batch_size * run.corpus.context
    meter = FlopsMeter.on(run.layout, find_size(options), tokens=tokens)
    while run.step < options.steps and not guard.should_stop:
        step = position.step = run.step + 1
        started = time.perf_counter()
        ids = data.choose_batch_ids(run.consumed_samples, options.batch_size, skipped=run.job.skipped)
        microbatch_size = len(ids) // run.layout.data_size // run.microbatches
        drill.apply(step, model=run.model, optimizer=run.optimizer, batch=ids, rate=run.job.rate, size=microbatch_size)
        learning_rate = compute_learning_rate(step, options) * run.job.rate
        grad_norm = take_step(run, ids, learning_rate=learning_rate, wrong_labels=drill.wrong_labels(step))
        time.sleep(max(0.0, options.step_seconds - (time.perf_counter() - started)))
        time.sleep((drill.slowdown(step) - 1) * (time.perf_counter() - started))

        is_last = step == options.steps
        meter.steps += 1
        is_logged = (step % options.log_every == 0 or is_last) and not drill.is_blind(step)
        guard.step(
            step=step,
            loss=run.loss,
            grad_norm=grad_norm,
            tokens=tokens,
            lr=learning_rate,
            extra={**meter.measure(), **run.update_filter.get_counts()} if is_logged else {},
            log=is_logged,
        )
        compare_replay(run)
        if guard.wants_checkpoint or is_last or step % options.checkpoint_every == 0:
            save(run, reason="final" if is_last else guard.reason or "periodic")
        elif run.snapshots.due(step):
            with guard.phase("save"):
                run.snapshots.take(run.state(), make_manifest(run, reason="snapshot"))
        report_saves(run, run.saver.finished())
        run.replay.write_due(run.saver.place)


def take_step(run: TrainingRun, ids: Sequence[int], *, learning_rate: float, wrong_labels: float = 0.0) -> torch.Tensor:
    """Make one optimizer step on the batch of these samples; set the mean loss of all ranks, return the gradient's
    norm.

    A batch with a share of wrong labels (a drill's) is evaluated and not learned from.
    """
    for group in run.optimizer.param_groups:
        group["lr"] = learning_rate
    layout = run.layout
    inputs, targets = run.corpus.batch(data.select_for_rank(ids, rank=layout.data_rank, world_size=layout.data_size))
    if wrong_labels:
        targets = faults.mislabel(targets, wrong_labels, step=run.step + 1)
    run.optimizer.zero_grad(set_to_none=True)
    loss = layout.compute_gradients(run.replica, inputs, targets, parts=run.microbatches)
    grad_norm = layout.clip(run.model, run.options.clip)
    run.loss = run.guard.reduce(loss)
    # Both numbers are the same on every rank, so all make the update or none does.
    if run.update_filter.accepts(run.loss, grad_norm) and not wrong_labels:
        run.optimizer.step()
    run.step += 1
    run.consumed_samples = ids[-1] + 1
    return grad_norm


def compute_learning_rate(step: int, options: argparse.Namespace) -> float:
    """Compute linear warm-up, then a cosine to a tenth of the peak: a function of the step, so nothing is saved."""
    peak: float = options.learning_rate
    warmup_steps: int = options.warmup_steps
    if step <= warmup_steps:
        return peak * step / warmup_steps
    progress = (step - warmup_steps) / max(1, options.steps - warmup_steps)
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, progress))))


def resume(run: TrainingRun) -> None:
    """Resume from the newest checkpoint that this attempt may use; without one the run starts at step 0."""
    job, world = run.job, run.layout.world
    if job.is_rollback and job.resume_at_most is not None:
        # In quarantine it neither prevents this attempt's saves nor is resumed from after a later crash.
        run.saver.quarantine(after=job.resume_at_most, tainted=job.must_quarantine)
    state = run.state()
    state["random"][run.layout.random_key] = None  # stays so where the checkpoint has no such key
    # A suspect one is used if there is no other: it may be sound, and a start from scratch loses everything.
    try:
        found = (
            run.snapshots.restore(state, job.trusts)  # if it is newer than any checkpoint
            or run.saver.restore(state, job.trusts)
            or run.saver.restore(state, job.may_resume_from)
        )
    finally:
        for step, refusal in run.saver.refusals.items():
            run.guard.not_restored(step, refusal.reason, damaged=refusal.is_certain, saved_by=refusal.attempt)
    if found is not None:
        restore(run, found, state)
    elif run.options.start_from:
        load_weights(run.options.start_from, run.layout, run.model, log)
    if not run.is_first:
        return
    asked = job.resume_at_most or 0
    if run.step < asked:
        log(f"asked to resume from step {asked}, which is missing or incomplete; taking step {run.step} instead")
    start = f"attempt {job.attempt}" + (f", restarted in place ({job.restart})," if job.restart else "")
    log(f"{start} of {job.run} starts after step {run.step}, {world.size} rank(s), {world.backend}")
    if 0 < run.step < run.options.steps and (reason := run.replay.load_expected(run.step, run.saver.place)):
        log(reason)


def restore(run: TrainingRun, manifest: Manifest, state: dict[str, Any]) -> None:
    """Apply a checkpoint's state; the random numbers too, if the data goes to as many ranks as then."""
    run.layout.restore(run.model, run.optimizer, state)
    run.update_filter.load_state_dict(state["sieve"])
    run.guard.load_state_dict(state["guard"])
    run.step, run.consumed_samples = manifest.step, manifest.consumed_samples
    run.loss = math.nan if manifest.loss is None else manifest.loss
    if (saved := state["random"][run.layout.random_key]) is not None:
        random_state.restore(saved)
    else:  # not the random numbers of the run's start
        random_state.seed_everything(torch.initial_seed() + 1_000_003 * manifest.step)


def save(run: TrainingRun, *, reason: str) -> None:
    """Return when the state is copied: the next step runs while it is written, and report_saves() handles its end."""
    if run.guard.fenced:
        return
    with run.guard.phase("save"):
        is_new = run.saver.save(run.state(), make_manifest(run, reason=reason))
    if is_new:
        run.replay.start_recording(run.step)
    else:
        place = run.saver.place
        log_on_first_rank(run, f"checkpoint of step {run.step} was there already ({reason})")
        run.guard.committed(place.path(run.step), step=run.step, durability=place.durability)


def make_manifest(run: TrainingRun, *, reason: str) -> Manifest:
    """Make the manifest of a checkpoint or a snapshot of this moment."""
    return Manifest(
        run=run.job.run,
        attempt=run.job.attempt,
        restart=run.job.restart,
        step=run.step,
        consumed_samples=run.consumed_samples,
        world_size=run.layout.world.size,
        loss=run.loss if math.isfinite(run.loss) else None,
        reason=reason,
        health=run.guard.health,
    )


def report_saves(run: TrainingRun, ended: Iterable[CommitResult]) -> None:
    """Report the saves that have ended; one that failed costs that checkpoint and not the run."""
    for result in ended:
        reason = result.manifest.reason
        if result.error is None:
            run.guard.committed(result.path, step=result.step, durability=result.durability)
            run.replay.committed.add(result.step)
            log_on_first_rank(
                run, f"checkpoint of step {result.step} saved ({reason}), {result.seconds:.2f} s after its step"
            )
        else:
            if reason != "periodic":  # no command waits for a periodic one
                run.guard.save_failed(result.error)
            log_on_first_rank(run, f"checkpoint of step {result.step} could not be saved ({reason}): {result.error}")


def wait_for_saves(run: TrainingRun, *, within_s: float | None = None) -> None:
    """Wait for pending saves at the end of the attempt."""
    with run.guard.phase("save"):
        report_saves(run, run.saver.wait(within_s))
    run.replay.write_due(run.saver.place, is_last=True)


def compare_replay(run: TrainingRun) -> None:
    """Compare the losses after a resume with those before it; a difference is reported, and training goes on."""
    result = run.replay.compare(run.step, run.loss) if run.is_first else None
    if result is None or result.is_same:
        log(result.text) if result else None
        return
    log(f"the resume has forgotten something: {result.text}")
    run.guard.report(Finding(Kind.RESUME_MISMATCH, Level.WARN, run.step, onset_step=run.step, evidence=result.text))


def finish(run: TrainingRun) -> None:
    """Write a finished model to SageMaker's model folder.

    Not before: a stop uploads that folder, and bills the time.
    """
    if run.step < run.options.steps:
        log_on_first_rank(run, f"stopped as asked after step {run.step}")
        return
    weights = run.layout.gather_weights(run.model)
    if run.is_first:
        run.job.model.mkdir(parents=True, exist_ok=True)
        torch.save(weights, run.job.model / "model.pt")
        log(f"finished after step {run.step}, weights {fingerprint(weights)}")


def log_on_first_rank(run: TrainingRun, message: str) -> None:
    if run.is_first:
        log(message)


def log(message: str) -> None:
    """Print a line for people, apart from the metrics."""
    print(f"train: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
