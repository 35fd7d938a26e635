"""Trains a tiny model in every layout, with ranks forked from one process; run: `python layouts.py <folder> ring`.

A line of JSON for each run goes to stdout, written by rank 0. The folder holds the checkpoints. Each layout also saves
with the agent's Saver, and resumes what the one before has saved. With `matrix` as the second argument it resumes what
every other has. Some layouts, with `matrix` all, are also rolled back behind a checkpoint of damaged weights.
"""

import argparse
import contextlib
import gc
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.distributed import checkpoint as dcp

import parallel
from model import GPT, VOCABULARY, ModelSize
from rerail_agent.checkpoints import Manifest, Saver, open_store

SIZE = ModelSize(layers=2, heads=4, width=32, context=8, dropout=0.0)
SIZES = (8, 4, 2, 1)
LIMIT_S = 600 if "matrix" in sys.argv else 300
STEPS = 4
HALF = 2
BATCH = 8
FSDP_ON_CPU = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 6)
AGAIN = {"activation_checkpointing": True}
GROUPED = {"checkpoint_group": 2}
OFF = {"activation_offload": True}
FSDP, HYBRID, BF16 = {"parallel": "fsdp"}, {"parallel": "hybrid", "shard_size": 2}, {"precision": "bf16"}
TWO, CUT = {"tensor_parallel": 2}, {"shard_optimizer": True}
DROPOUT = {"dropout": 0.2}
# A stage has a layer at least, and some schedules have two stages on each rank.
DEEP = {"layers": 4}


def piped(schedule: str, ranks: int, microbatches: int = 2) -> dict[str, Any]:
    return DEEP | {"pipeline_parallel": ranks, "pipeline_schedule": schedule, "microbatches": microbatches}


Options = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """A training from step 0 to the last, or from a checkpoint on; `saves` writes one after half of the steps."""

    name: str
    options: Options = field(default_factory=dict)
    saves: bool = False
    resumes: str = ""

    @property
    def can_run(self) -> bool:
        cut_up = ("fsdp", "hybrid", "shard_optimizer", " x ")
        return FSDP_ON_CPU or not any(word in f"{self.name} {self.resumes}" for word in cut_up)


def runs(ranks: int) -> list[Run]:
    """Return what is trained with this many ranks, in order, without what `RESUMED` shows already."""
    if ranks == 1:
        return [Run("one"), Run("one pipeline", DEEP)]
    if ranks == 2:
        return [
            Run("ddp checkpointing", AGAIN),
            Run("ddp split", {"parts": 2}),
            Run("fsdp split", FSDP | {"parts": 2}),
            Run("ddp bf16", BF16),
            Run("fsdp bf16", FSDP | BF16),
            Run("tensor bf16", TWO | BF16),
        ]
    return (ranks == 4) * [
        Run("pipeline 1f1b x fsdp grouped", piped("1f1b", 2) | FSDP | AGAIN | GROUPED),
        Run("pipeline zero_bubble x ddp checkpointed", piped("zero_bubble", 2) | AGAIN),
        Run("fsdp x tensor grouped", TWO | FSDP | AGAIN | GROUPED),
        Run("ddp", {}),
        Run("fsdp checkpointing offload", FSDP | AGAIN | OFF),
        Run("fsdp x tensor checkpointing bf16", TWO | FSDP | AGAIN | BF16),
        *(
            run
            for name, options in {"ddp": {}, "fsdp": FSDP, "fsdp x tensor": TWO | FSDP}.items()
            for run in (
                Run(f"{name} dropout", options | DROPOUT, saves=True),
                Run(f"{name} dropout resumed", options | DROPOUT, resumes=f"{name} dropout"),
            )
        ),
    ]


# Every strategy, each with the ranks that it takes.
RESUMED: dict[str, tuple[int, Options]] = {
    name: (ranks, DEEP | options)
    for name, ranks, options in (
        ("one", 1, {}),
        ("pipeline x ddp x tensor", 8, piped("1f1b", 2) | TWO),
        ("ddp", 2, {}),
        ("interleaved x fsdp", 4, piped("interleaved", 2) | FSDP),
        ("shard_optimizer", 2, CUT),
        ("zbv x tensor", 4, piped("zbv", 2) | TWO),
        ("fsdp", 4, FSDP),
        ("gpipe", 2, piped("gpipe", 2)),
        ("tensor", 2, TWO),
        ("hybrid", 4, HYBRID),
        ("fsdp x tensor", 4, TWO | FSDP),
    )
}


# tests/container/test_ranks.py rolls a sharded model back.
ROLLED_BACK = ("one", "ddp", "gpipe")


def list_resumes(*, all_pairs: bool) -> list[tuple[str, str]]:
    """Who saves and who resumes: every pair, or each layout with the next one, so that each does both once."""
    names = list(RESUMED)
    if all_pairs:
        return [(source, target) for source in names for target in names]
    return list(zip(names, [*names[1:], names[0]], strict=True))


class Trainer:
    """A run's model in its layout, and the steps of its training."""

    def __init__(self, run: Run, world: parallel.DistributedWorld) -> None:
        self.parts = run.options.get("parts", 1)
        self.layout = parallel.ParallelLayout.of(argparse.Namespace(**run.options), world)
        torch.manual_seed(1)
        self.model = GPT(replace(SIZE, **{name: run.options[name] for name in DROPOUT | DEEP if name in run.options}))
        self.replica, self.optimizer = self.layout.apply(self.model, adamw, example=batch(0, 0, BATCH))
        torch.manual_seed(2 + self.layout.random_rank)

    def step(self, step: int) -> tuple[float, float]:
        self.optimizer.zero_grad(set_to_none=True)
        samples = batch(step, self.layout.data_rank, self.layout.data_size)
        loss = self.layout.compute_gradients(self.replica, *samples, parts=self.parts)
        norm = self.layout.clip(self.model, 0.5)
        self.optimizer.step()
        return float(loss), float(norm)

    def state(self) -> dict[str, Any]:
        """With the random numbers of every rank, each under a name of its own."""
        randoms = self.layout.world.gather(torch.get_rng_state())
        return self.layout.state(self.model, self.optimizer) | {"random": dict(enumerate(randoms))}

    def use_saver(self, folder: Path) -> Saver:
        world = self.layout.world
        return Saver(
            open_store(folder), rank=world.rank, world_size=world.size, log=lambda line: print(line, file=sys.stderr)
        )

    def save_with_agent(self, folder: Path, *, step: int = HALF, reason: str = "periodic") -> None:
        """As train.py does, with random numbers under the layout's key."""
        with contextlib.closing(self.use_saver(folder)) as saver:
            ranks = saver.world_size
            manifest = Manifest(
                run="layouts", attempt=1, step=step, consumed_samples=0, world_size=ranks, loss=None, reason=reason
            )
            saver.save(self.full_state(), manifest)
            assert [result.error for result in saver.wait()] == [None]

    def full_state(self) -> dict[str, Any]:
        randoms = {self.layout.random_key: torch.get_rng_state().tolist()}
        return self.layout.state(self.model, self.optimizer) | {"random": randoms}

    def restore_with_agent(self, folder: Path) -> None:
        with contextlib.closing(self.use_saver(folder)) as saver:
            state = self.full_state()
            found = saver.restore(state)
            assert found is not None
            assert found.step == HALF
            self.layout.restore(self.model, self.optimizer, state)

    def roll_back(self, folder: Path, *, to: int) -> int:
        """Quarantine what was saved after the step, and restore the newest checkpoint that is left; return its step."""
        with contextlib.closing(self.use_saver(folder)) as saver:
            saver.quarantine(after=to, tainted=lambda manifest: True)
            state = self.full_state()
            found = saver.restore(state)
            self.layout.restore(self.model, self.optimizer, state)
            return found.step if found else 0

    def load(self, folder: Path, *, alike: bool) -> None:
        """`alike`: saved by as many ranks, so that their random numbers are there too."""
        state = self.state()
        if not alike:
            del state["random"]
        dcp.load(state, checkpoint_id=folder)
        self.layout.restore(self.model, self.optimizer, state)
        if alike:
            torch.set_rng_state(state["random"][self.layout.world.rank])


def adamw(parameters: Iterator[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)


TEXT = torch.randint(0, VOCABULARY, (STEPS * BATCH, SIZE.context + 1), generator=torch.Generator().manual_seed(3))


def batch(step: int, rank: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = TEXT[step * BATCH + rank : (step + 1) * BATCH : size]
    return rows[:, :-1], rows[:, 1:]


def train(run: Run, world: parallel.DistributedWorld, folder: Path) -> dict[str, Any]:
    trainer = Trainer(run, world)
    if run.resumes:
        trainer.load(folder / run.resumes, alike="dropout" in run.resumes)
    pairs = []
    for step in range(HALF if run.resumes else 0, STEPS):
        if run.saves and step == HALF:
            dcp.save(trainer.state(), checkpoint_id=folder / run.name)
        pairs.append(trainer.step(step))
    return summarize(trainer, pairs, world)


def summarize(trainer: Trainer, pairs: list[tuple[float, float]], world: parallel.DistributedWorld) -> dict[str, Any]:
    whole = trainer.layout.gather_weights(trainer.model)
    by_rank = world.gather([loss for loss, _ in pairs])
    return {
        "losses": [sum(losses) / len(losses) for losses in zip(*by_rank, strict=True)],
        "losses_of_ranks": by_rank,
        "norms": [norm for _, norm in pairs],
        "weights": float(sum(weight.double().square().sum() for weight in whole.values())),
        "names": sorted(whole),
        "kinds": sorted({type(weight).__name__ for weight in whole.values()}),
    }


def become(rank: int, ranks: int, port: str, work: Callable[[parallel.DistributedWorld], None]) -> NoReturn:
    """One rank, through all runs of its number of ranks."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    try:
        torch.set_num_threads(1)
        world = parallel.join(timeout=timedelta(seconds=LIMIT_S))
        work(world)
        world.wait_for_all()
    except BaseException:
        traceback.print_exc()
        parallel.leave(1)
    parallel.leave(0)


def run_all(world: parallel.DistributedWorld) -> None:
    for run in runs(world.size):
        results = train(run, world, Path(sys.argv[1])) if run.can_run else {}
        if world.is_first:
            print(json.dumps({"ranks": world.size, "run": run.name, **results}), flush=True)


def save_all(world: parallel.DistributedWorld) -> None:
    """Train each layout of this many ranks for half of the steps, and save it."""
    for name, (ranks, options) in RESUMED.items():
        if ranks == world.size:
            trainer = Trainer(Run(name, options), world)
            losses = world.gather([trainer.step(step)[0] for step in range(HALF)])
            trainer.save_with_agent(Path(sys.argv[1]) / name)
            if world.is_first:
                means = [sum(of_ranks) / ranks for of_ranks in zip(*losses, strict=True)]
                print(json.dumps({"ranks": "saved", "run": name, "losses": means}), flush=True)


def resume_all(world: parallel.DistributedWorld) -> None:
    """Resume in each layout of this many ranks what others have saved, and train on to the end."""
    for source, target in list_resumes(all_pairs=sys.argv[2] == "matrix"):
        ranks, options = RESUMED[target]
        if ranks == world.size:
            trainer = Trainer(Run(target, options), world)
            trainer.restore_with_agent(Path(sys.argv[1]) / source)
            pairs = [trainer.step(step) for step in range(HALF, STEPS)]
            results = summarize(trainer, pairs, world)
            if world.is_first:
                print(json.dumps({"ranks": f"{source} to", "run": target, **results}), flush=True)


def roll_back_all(world: parallel.DistributedWorld) -> None:
    """In layouts of this many ranks: damage the weights, save them in an emergency, and go back before that."""
    for name, (ranks, options) in RESUMED.items():
        if ranks == world.size and (sys.argv[2] == "matrix" or name in ROLLED_BACK):
            folder = Path(sys.argv[1]) / "rolled back" / name
            trainer = Trainer(Run(name, options), world)
            trainer.step(0)
            trainer.save_with_agent(folder, step=1)
            with torch.no_grad():
                for weight in trainer.model.parameters():
                    weight.mul_(2)
            trainer.step(1)
            trainer.save_with_agent(folder, step=HALF, reason="emergency")
            found = trainer.roll_back(folder, to=1)
            pairs = [trainer.step(step) for step in range(1, STEPS)]
            results = summarize(trainer, pairs, world)
            if world.is_first:
                kept = sorted(path.name for path in (folder / "quarantine").iterdir())
                facts = {"found": found, "quarantined": kept}
                print(json.dumps({"ranks": "rolled back", "run": name, **facts, **results}), flush=True)


def work(world: parallel.DistributedWorld) -> None:
    """Do all that takes this many ranks in one process each: what PyTorch works out for a layout is kept there.

    One number of ranks comes after the other: many processes on few cores take more CPU time for the same work.
    """
    turn = SIZES.index(world.size)
    with my_turn(world, turn):
        run_all(world)
        if FSDP_ON_CPU:
            save_all(world)
            roll_back_all(world)
    with my_turn(world, turn + len(SIZES)):
        if FSDP_ON_CPU:
            resume_all(world)


@contextlib.contextmanager
def my_turn(world: parallel.DistributedWorld, number: int) -> Iterator[None]:
    """Wait until the turns before have ended; the other ranks wait for the first."""
    folder, deadline = Path(sys.argv[1]), time.monotonic() + LIMIT_S
    while world.is_first and number and not (folder / f"turn-{number - 1}").exists():
        assert time.monotonic() < deadline, f"turn {number - 1} does not end"
        time.sleep(0.05)
    world.wait_for_all()
    yield
    world.wait_for_all()
    if world.is_first:
        (folder / f"turn-{number}").touch()


def fork(ranks: int) -> list[int]:
    """Start this many ranks; return their pids."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    pids = []
    for rank in range(ranks):
        pid = os.fork()
        if not pid:
            become(rank, ranks, port, work)
        pids.append(pid)
    return pids


def main() -> int:
    pids = {pid for ranks in SIZES for pid in fork(ranks)}
    while pids:
        ended, status = os.wait()
        pids.remove(ended)
        if status:  # the others would wait for it
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            return 1
    return 0


if __name__ == "__main__":
    import torch._dynamo  # every rank would import it by itself, for AdamW and DDP

    gc.freeze()  # nor need every rank search what is there already
    raise SystemExit(main())
