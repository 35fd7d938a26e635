"""Compare expected and measured step times of layouts: `python -m bench.layout_times [--json FILE]`.

Two ranks, joined by gloo, train a GPT in every strategy. On a machine with few cores an idle rank makes the other one
faster, so a bubble would cost nothing. So each layer sleeps in proportion to its samples, beside a small computation;
shards, schedules and collectives are real. The cost model gets this machine's figures, measured in the same run: the
FLOP/s of such a rank, and the bandwidth and latency of an all-reduce. Its order of the layouts is compared with the
measured one by Spearman's rank correlation. Exit status 1 below the floor.
"""

import argparse
import functools
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from statistics import correlation
from typing import Any

import torch
from torch import distributed as dist
from torch import multiprocessing

sys.path += [str(Path(__file__).resolve().parent.parent / folder) for folder in ("agent", "container", "lambdas")]

import parallel
from choices import Choices, Parallel, Schedule, TrainingPlan
from cost_model import LinkClass, MachineSpeed, estimate_step
from layout_search import format_choices
from model import GPT, VOCABULARY, ModelSize
from speed import count_flops_per_token

RANKS, BATCH = 2, 16
SIZE = ModelSize(layers=8, heads=8, width=256, context=4, dropout=0.0)
ROUNDS = 4
# Of a layer's forward pass for the whole batch; a backward pass takes twice as long.
LAYER_S = 0.06
FLOOR = 0.8
ALL_REDUCE_BYTES = 8 << 20


def list_layouts() -> list[Choices]:
    """Return every strategy that two ranks can have, and what makes each slower."""
    whole = Choices()
    plain = [
        whole,
        Choices(shard_optimizer=True),
        Choices(parallel=Parallel.FSDP),
        Choices(tensor_parallel=2),
    ]
    pipelines = [
        Choices(pipeline_parallel=2, pipeline_schedule=schedule, microbatches=parts)
        for schedule in (Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED)
        for parts in (2, 4, 8)
    ]
    again = [
        Choices(activation_checkpointing=True),
        Choices(parallel=Parallel.FSDP, activation_checkpointing=True),
        Choices(tensor_parallel=2, activation_checkpointing=True),
        Choices(pipeline_parallel=2, microbatches=4, activation_checkpointing=True),
    ]
    return [*plain, *pipelines, *again]


class SlowGradient(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """The identity, whose gradient takes some seconds."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None


def sleep_and(forward: Callable[[torch.Tensor], torch.Tensor], ranks: int, x: torch.Tensor) -> torch.Tensor:
    """Do a layer's forward pass as slowly as these samples take, of a layer that `ranks` share."""
    seconds = LAYER_S * len(x) / BATCH / ranks
    time.sleep(seconds)
    return forward(SlowGradient.apply(x, 2 * seconds))


def make_model(choices: Choices) -> GPT:
    torch.manual_seed(1)
    model = GPT(SIZE)
    for block in model.blocks:
        block.forward = functools.partial(sleep_and, block.forward, choices.tensor_parallel)
    return model


def time_least(work: Callable[[], Any], times: int) -> float:
    """Return the shortest of some durations in seconds: other programs only add to it."""
    taken = []
    for _ in range(times):
        dist.barrier()
        started = time.perf_counter()
        work()
        dist.barrier()
        taken.append(time.perf_counter() - started)
    return min(taken)


def measure_machines() -> MachineSpeed:
    """Return this machine's figures, both ranks measuring at the same time."""
    model = make_model(Choices())
    tokens = torch.zeros(BATCH // RANKS, SIZE.context, dtype=torch.long)
    seconds = time_least(lambda: model(tokens, tokens).backward(), ROUNDS)
    flops = count_flops_per_token(model, SIZE) * tokens.numel() / seconds
    small, large = torch.zeros(1), torch.zeros(ALL_REDUCE_BYTES // 4)
    latency = time_least(lambda: [dist.all_reduce(small) for _ in range(20)], ROUNDS) / 20

    def communicate() -> None:
        """Do each collective of the layouts once; the all-reduce sends twice as much as the others."""
        part = torch.empty(len(large) // RANKS)
        dist.reduce_scatter_tensor(part, large)
        dist.all_gather_into_tensor(torch.empty_like(large), part)
        dist.all_reduce(large)

    sent = 4 * ALL_REDUCE_BYTES * (RANKS - 1) / RANKS
    bandwidth = sent / (time_least(communicate, ROUNDS) - 3 * latency)
    figures = [flops, bandwidth, latency]
    dist.broadcast_object_list(figures)
    link = LinkClass("loopback", figures[1], figures[2])
    return MachineSpeed(figures[0], link, link)


def make_step(choices: Choices, world: parallel.DistributedWorld) -> Callable[[], None]:
    """Return one step in a layout, done once already."""
    layout = parallel.ParallelLayout.of(argparse.Namespace(**vars(choices)), world)
    model = make_model(choices)
    rows = torch.randint(0, VOCABULARY, (BATCH // layout.data_size, SIZE.context))
    replica, optimizer = layout.apply(model, torch.optim.SGD, example=(rows[:1], rows[:1]))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        layout.compute_gradients(replica, rows, rows)

    step()
    return step


def become(rank: int, port: int, file: str) -> None:
    """Measure every layout as one of the ranks."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(RANKS))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    world = parallel.join(timeout=timedelta(seconds=120))
    machines = measure_machines()
    steps = {choices: make_step(choices, world) for choices in list_layouts()}
    measured = dict.fromkeys(steps, float("inf"))
    for _ in range(ROUNDS):  # all layouts in each, so that a busy moment hits one round of some
        for choices, step in steps.items():
            measured[choices] = min(measured[choices], time_least(step, 1))
    rows = []
    for choices, seconds in measured.items():
        plan = TrainingPlan(choices, 1, "", RANKS, SIZE, BATCH)
        expected = estimate_step(plan, machines).total
        rows.append({"layout": format_choices(choices), "expected": expected, "measured": seconds})
    if world.is_first:
        Path(file).write_text(json.dumps({"machine": [machines.flops, *vars(machines.within).values()], "rows": rows}))
    world.wait_for_all()
    parallel.leave(0)


def correlate(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Spearman's rank correlation of two series; equal values share the mean of their ranks."""
    ranks = [
        [sum(other < value for other in series) + sum(other == value for other in series) / 2 for value in series]
        for series in (one, other)
    ]
    return correlation(ranks[0], ranks[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        file = Path(folder) / "rows.json"
        multiprocessing.spawn(become, (port, str(file)), nprocs=RANKS)
        found = json.loads(file.read_text())
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    rows = sorted(found["rows"], key=lambda row: row["measured"])
    base = {name: next(row[name] for row in rows if row["layout"] == "ddp") for name in ("expected", "measured")}
    print("| layout | expected / ddp | measured / ddp |\n|---|---|---|")
    for row in rows:
        ratios = [row[name] / base[name] for name in ("expected", "measured")]
        print(f"| {row['layout']} | {ratios[0]:.2f} | {ratios[1]:.2f} |")
    agreement = correlate([row["expected"] for row in rows], [row["measured"] for row in rows])
    print(f"rank correlation {agreement:.2f} over {len(rows)} layouts (floor {FLOOR})")
    return int(agreement < FLOOR)


if __name__ == "__main__":
    raise SystemExit(main())
