"""Trains a small GPT and can be killed at any moment. Run by launch.py, or by hand: `python train.py --steps 100`.

Top to bottom: the options, the loop, one step, and the state that a resumed run needs to go on as if nothing had
happened (weights, optimizer, random numbers of every rank, data position; the learning rate follows from the step).
"""

import argparse
import math
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import FrameType
from typing import Any, NoReturn

import numpy as np
import torch
from torch import nn

import checkpoint
import data
import failure
import faults
import parallel
from job import Job, base_folder, failure_file
from model import GPT, SIZES


class Options(argparse.ArgumentParser):
    """Raises instead of exiting, so that a mistyped hyperparameter ends in the failure file."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"hyperparameters: {message}")


def read_options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Each hyperparameter of the job is one option; `--step-seconds` and `--step_seconds` are the same."""
    options = Options(description=__doc__.splitlines()[0], allow_abbrev=False)

    def add(name: str, **settings: Any) -> None:
        options.add_argument(*dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}")), **settings)

    add("steps", type=int, default=1000, help="optimizer steps of the whole run")
    add("batch-size", type=int, default=16, help="samples a step, over all ranks")
    add("learning-rate", type=float, default=3e-3, help="at its peak, after the warm-up")
    add("warmup-steps", type=int, default=20, help="steps of linear warm-up; a cosine to a tenth follows")
    add("weight-decay", type=float, default=0.1)
    add("clip", type=float, default=1.0, help="the largest norm of the gradient")
    add("seed", type=int, default=1)
    add("model-size", choices=SIZES, default="demo")
    add("checkpoint-every", type=int, default=50, help="steps between checkpoints")
    add("keep", type=int, default=3, help="checkpoints to keep")
    add("log-every", type=int, default=1, help="steps between metric lines")
    add("step-seconds", type=float, default=0.0, help="the least a step takes, for a demo to watch")
    add("collective-timeout-seconds", type=float, default=600.0, help="how long a rank waits for a hung one")
    chosen = options.parse_args(argv)
    for name in ("steps", "batch_size", "checkpoint_every", "keep", "log_every"):
        if getattr(chosen, name) < 1:
            options.error(f"{name} must be at least 1")
    return chosen


@dataclass
class Stop:
    """Raised by SIGTERM: a Stop, a reclaimed spot machine or the end of MaxRuntime, 120 s before the kill."""

    requested: bool = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        self.requested = True

    def listen(self) -> None:
        signal.signal(signal.SIGTERM, self)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # launch.py holds an early one back until now


@dataclass
class State:
    """Everything that changes from step to step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    replica: nn.Module  # the model as it is trained: with its gradients averaged over the ranks
    step: int = 0
    consumed_samples: int = 0
    loss: float = math.nan

    def parts(self, random_states: list[dict[str, Any]]) -> dict[str, Any]:
        """What goes into the files of a checkpoint."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": random_states,
        }


@dataclass
class Meter:
    """Prints the metric line that CloudWatch's regular expressions and Rerail's detectors read."""

    tokens_per_step: int
    steps: int = 0
    since: float = field(default_factory=time.perf_counter)

    def report(self, state: State, *, grad_norm: float, learning_rate: float) -> None:
        now = time.perf_counter()
        speed = self.tokens_per_step * self.steps / (now - self.since)
        self.steps, self.since = 0, now
        # CloudWatch takes no NaN, hence the flag. Nine digits give a float32 back bit for bit.
        nonfinite = int(not (math.isfinite(state.loss) and math.isfinite(grad_norm)))
        print(
            f"rerail step={state.step} loss={state.loss:.9g} grad_norm={grad_norm:.6g} lr={learning_rate:.6g}"
            f" tokens_per_s={speed:.0f} nonfinite={nonfinite}",
            flush=True,
        )


def main() -> None:
    """One rank, from its first to its last moment; the state stays alive until then (see parallel.leave)."""
    stop = Stop()
    stop.listen()
    try:
        with failure.recorded(failure_file(base_folder()), rank=int(os.environ.get("RANK", "0"))) as position:
            state = train(read_options(), Job.from_environment(), position=position, stop=stop)
    except SystemExit as ending:
        parallel.leave(ending.code if isinstance(ending.code, int) else int(ending.code is not None))
    except BaseException:
        traceback.print_exc()
        parallel.leave(1)
    tell(f"rank {position.rank} ends after step {state.step}")
    parallel.leave(0)


def train(options: argparse.Namespace, job: Job, *, position: failure.Position, stop: Stop) -> State:
    """The whole attempt: from the state to resume from, to the last step or to a request to stop."""
    drills = faults.parse(os.environ.get("RERAIL_DRILL", ""))
    make_repeatable(options.seed)
    world = parallel.join(timeout=timedelta(seconds=options.collective_timeout_seconds))
    if options.batch_size % world.size:
        raise ValueError(f"batch_size={options.batch_size}: must be a multiple of the {world.size} ranks")

    size = SIZES[options.model_size]
    corpus = data.open_corpus(job.channel("train"), context=size.context, seed=options.seed)
    model = GPT(size).to(world.device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.learning_rate, betas=(0.9, 0.95), weight_decay=options.weight_decay
    )
    state = State(model=model, optimizer=optimizer, replica=world.wrap(model, corpus.batch(range(1))))
    seed_everything(options.seed + 1 + world.rank)  # from here on each rank draws its own dropout
    resume(state, job, world)
    plan = faults.Plan.of(drills, attempt=job.attempt, rank=world.rank, world_size=world.size)
    meter = Meter(tokens_per_step=options.batch_size * size.context)

    stopping = False
    while state.step < options.steps and not stopping:
        step = position.step = state.step + 1
        started = time.perf_counter()
        plan.strike(step, model=model, optimizer=optimizer, stopped=lambda: stop.requested)

        learning_rate = scheduled_learning_rate(step, options)
        loss, grad_norm = take_step(
            state,
            corpus,
            learning_rate=learning_rate,
            options=options,
            world=world,
            wrong_labels=plan.wrong_labels(step),
        )
        time.sleep(max(0.0, options.step_seconds - (time.perf_counter() - started)))
        time.sleep((plan.slowdown(step) - 1) * (time.perf_counter() - started))
        state.loss, stopping = world.agree(loss, stop.requested)
        state.step = step
        state.consumed_samples += options.batch_size

        meter.steps += 1
        is_last = step == options.steps
        is_logged = step % options.log_every == 0 or is_last or stopping
        if world.is_first and is_logged and not plan.is_blind(step):
            meter.report(state, grad_norm=float(grad_norm), learning_rate=learning_rate)
        if is_last or stopping or step % options.checkpoint_every == 0:
            reason = "final" if is_last else "sigterm" if stopping else "periodic"
            save(state, job, world, reason=reason, keep=options.keep)

    finish(state, job, world, steps=options.steps)
    world.wait_for_all()
    return state


def take_step(
    state: State,
    corpus: data.Corpus,
    *,
    learning_rate: float,
    options: argparse.Namespace,
    world: parallel.World,
    wrong_labels: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One optimizer step on the next batch; returns this rank's loss and the norm of the averaged gradient.

    A batch with a share of wrong labels (a drill's) is looked at and not learnt from.
    """
    for group in state.optimizer.param_groups:
        group["lr"] = learning_rate
    ids = data.sample_ids(state.consumed_samples, options.batch_size, rank=world.rank, world_size=world.size)
    inputs, targets = corpus.batch(ids)
    if wrong_labels:
        targets = faults.mislabel(targets, wrong_labels, step=state.step + 1)
    loss = state.replica(inputs.to(world.device), targets.to(world.device))
    state.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    grad_norm = nn.utils.clip_grad_norm_(state.model.parameters(), options.clip)
    if not wrong_labels:
        state.optimizer.step()
    return loss.detach(), grad_norm


def scheduled_learning_rate(step: int, options: argparse.Namespace) -> float:
    """Linear warm-up, then a cosine to a tenth of the peak: a function of the step, so there is nothing to save."""
    peak: float = options.learning_rate
    warmup_steps: int = options.warmup_steps
    if step <= warmup_steps:
        return peak * step / warmup_steps
    progress = (step - warmup_steps) / max(1, options.steps - warmup_steps)
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, progress))))


def resume(state: State, job: Job, world: parallel.World) -> None:
    """Takes up the newest checkpoint that this attempt may use; without one the run starts at step 0."""
    if world.is_first:
        set_aside_tainted(job)
    world.wait_for_all()
    step = newest_common(job, world)
    if step:
        restore(state, *checkpoint.load(job.checkpoints, step, torch.device("cpu")), world=world)
    if not world.is_first:
        return
    if job.resume_at_most and step < job.resume_at_most:
        tell(f"asked to resume from step {job.resume_at_most}, which is not there whole; taking step {step} instead")
    tell(f"attempt {job.attempt} of {job.run} starts after step {step}, {world.size} rank(s), {world.backend}")


def set_aside_tainted(job: Job) -> None:
    """Told to go back, an attempt does not trust what earlier ones saved after that step.

    Out of the way, it neither keeps this attempt from saving those steps nor is resumed from after a later crash.
    """
    if job.attempt == 1 or job.resume_at_most is None:
        return

    def of_an_earlier_attempt(manifest: checkpoint.Manifest) -> bool:
        # Its own newer ones stay, for a restart in place: see newest_common.
        return manifest.run != job.run or manifest.attempt < job.attempt

    checkpoint.quarantine(job.checkpoints, after=job.resume_at_most, tainted=of_an_earlier_attempt, tell=tell)


def newest_common(job: Job, world: parallel.World) -> int:
    """The newest allowed step that is whole on every rank's disk: each node has its own copies."""
    at_most = sys.maxsize

    def allowed(manifest: checkpoint.Manifest) -> bool:
        # SageMaker restarts a job in place after a hardware repair, with the environment of its first start: what this
        # same attempt has saved since then is newer than the step named there.
        own = (manifest.run, manifest.attempt) == (job.run, job.attempt)
        in_time = job.resume_at_most is None or manifest.step <= job.resume_at_most
        return manifest.step <= at_most and (in_time or own)

    while True:
        mine = checkpoint.newest_whole(job.checkpoints, allowed, tell)
        at_most = world.smallest(mine)
        if at_most == world.largest(mine):
            return at_most


def restore(state: State, manifest: checkpoint.Manifest, parts: dict[str, Any], *, world: parallel.World) -> None:
    """Puts a checkpoint's state in place; the random numbers too, if the number of ranks is still the same."""
    state.model.load_state_dict(parts["model"])
    state.optimizer.load_state_dict(parts["optimizer"])
    state.step = manifest.step
    state.consumed_samples = manifest.consumed_samples
    state.loss = math.nan if manifest.loss is None else manifest.loss
    if manifest.world_size == world.size:
        restore_random_state(parts["random"][world.rank])
    else:
        seed_everything(torch.initial_seed() + 1_000_003 * manifest.step)  # anything but the start of the run again


def save(state: State, job: Job, world: parallel.World, *, reason: str, keep: int) -> None:
    """Every rank hands in its random state; rank 0 writes, so that one node holds all files and lists them."""
    random_states = world.gather(random_state())
    if not world.is_first:
        return
    manifest = checkpoint.Manifest(
        run=job.run,
        attempt=job.attempt,
        step=state.step,
        consumed_samples=state.consumed_samples,
        world_size=world.size,
        loss=state.loss if math.isfinite(state.loss) else None,
        reason=reason,
        health="clean" if math.isfinite(state.loss) else "suspect",
    )
    written = checkpoint.save(job.checkpoints, manifest, state.parts(random_states))
    checkpoint.prune(job.checkpoints, keep=keep, newest=state.step)
    tell(f"checkpoint {checkpoint.folder_name(state.step)} {'saved' if written else 'was there already'} ({reason})")


def finish(state: State, job: Job, world: parallel.World, *, steps: int) -> None:
    """A finished model goes to SageMaker's model folder. Not before: a Stop uploads that folder, and bills the time."""
    if not world.is_first:
        return
    if state.step >= steps:
        job.model.mkdir(parents=True, exist_ok=True)
        torch.save(state.model.state_dict(), job.model / "model.pt")
    ending = "finished" if state.step >= steps else "stopped as asked"
    tell(f"{ending} after step {state.step}, weights {checkpoint.fingerprint(state.model.state_dict())}")


def make_repeatable(seed: int) -> None:
    """The same numbers on every run: one thread, deterministic kernels, and the same first weights on every rank."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=torch.cuda.is_available())
    seed_everything(seed)


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state() -> dict[str, Any]:
    """The state of every generator a training script may draw from, in types that torch.load takes without pickle."""
    name, keys, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (str(name), np.asarray(keys).tolist(), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def restore_random_state(saved: dict[str, Any]) -> None:
    random.setstate(saved["python"])
    np.random.set_state(saved["numpy"])
    torch.set_rng_state(saved["torch"])
    if saved["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(saved["cuda"])


def tell(message: str) -> None:
    """A line for the human, apart from the metrics."""
    print(f"train: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
