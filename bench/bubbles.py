"""Measure the bubble of each pipeline schedule beside its formula: `python -m bench.bubbles [--json FILE]`.

The stages sleep instead of computing, so that a machine with few cores can wait like one with a GPU for each rank:
torch's schedules, gloo and the image's own Pipeline are real. A forward pass, a gradient of the input and a gradient of
the weights take a sleep each. The bubble is the share of a step in which a rank sleeps for no stage: 1 - slept / step,
both measured in the same step, the least of some steps: other programs only add to it. Exit status 1 when gpipe, 1f1b
or interleaved is far from its formula, or a zero-bubble schedule, which has none here, waits longer than 1f1b.
"""

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import distributed as dist
from torch import multiprocessing, nn

sys.path += [str(Path(__file__).resolve().parent.parent / folder) for folder in ("agent", "container", "lambdas")]

from choices import Choices, Schedule
from pipeline import Pipeline, list_stages
from rank_groups import compute_bubble

CASES = [(2, 2), (2, 4), (2, 8), (4, 4), (4, 8), (4, 16)]
SLEEP_S = 0.03
ROUNDS, WARM_UP = 3, 1
# How far a measured bubble may be above or below its formula, as a share of the step.
TOLERANCE = 0.06

_slept = 0.0


def sleep() -> None:
    """Sleep as long as one part of a microbatch takes, and count what that really took."""
    global _slept
    started = time.perf_counter()
    time.sleep(SLEEP_S)
    _slept += time.perf_counter() - started


class SleepInBackward(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """The identity, whose gradient takes a sleep."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        sleep()
        return gradient


class SleepingStage(nn.Module):  # type: ignore[misc, unused-ignore]
    """A stage whose forward pass and two gradients take a sleep each."""

    width = vocabulary = 4

    def __init__(self, *, is_first: bool, is_last: bool) -> None:
        super().__init__()
        self.is_first, self.is_last = is_first, is_last
        self.weight = nn.Parameter(torch.ones(self.width))
        self.tokens = nn.Embedding(8, self.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sleep()
        entry = SleepInBackward.apply(self.tokens(x) if self.is_first else x)
        return entry * SleepInBackward.apply(self.weight)


def measure(choices: Choices, rank: int) -> float:
    """Return this rank's bubble, the least of some steps."""
    global _slept
    count = choices.pipeline_parallel * choices.pipeline_schedule.stages_per_rank
    indices = list_stages(choices.pipeline_schedule, rank, choices.pipeline_parallel)
    stages = {index: SleepingStage(is_first=index == 0, is_last=index == count - 1) for index in indices}
    assert dist.group.WORLD is not None
    line = Pipeline(stages, choices, dist.group.WORLD, torch.device("cpu"), torch.float32)
    batch = torch.zeros(choices.microbatches, 2, dtype=torch.long)
    bubbles = []
    for _ in range(WARM_UP + ROUNDS):
        dist.barrier()
        _slept, started = 0.0, time.perf_counter()
        line.step(batch, batch % 4)
        bubbles.append(1 - _slept / (time.perf_counter() - started))
    return min(bubbles[WARM_UP:])


def become(rank: int, ranks: int, port: int, folder: str, cases: Sequence[tuple[int, int]]) -> None:
    """Measure every case of this number of ranks as one of them."""
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=ranks, timeout=timedelta(seconds=120))
    rows = []
    for schedule in Schedule:
        for microbatches in (parts for size, parts in cases if size == ranks):
            choices = Choices(pipeline_parallel=ranks, pipeline_schedule=schedule, microbatches=microbatches)
            everyone: list[float] = [0.0] * ranks
            dist.all_gather_object(everyone, measure(choices, rank))
            rows.append(
                {
                    "schedule": str(schedule),
                    "ranks": ranks,
                    "microbatches": microbatches,
                    "formula": compute_bubble(choices),
                    "measured": mean(everyone),
                }
            )
    if rank == 0:
        (Path(folder) / f"{ranks}.json").write_text(json.dumps(rows))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # see parallel.leave


def measure_all(folder: Path, cases: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Return a row for each schedule, number of ranks and number of microbatches."""
    for ranks in sorted({ranks for ranks, _ in cases}):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        multiprocessing.start_processes(become, (ranks, port, str(folder), cases), nprocs=ranks, start_method="fork")
    return [row for path in sorted(folder.glob("*.json")) for row in json.loads(path.read_text())]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=len(CASES), help="only the first of the sizes")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        rows = measure_all(Path(folder), CASES[: options.cases])
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    print("| schedule | ranks | microbatches | formula | measured |\n|---|---|---|---|---|")
    for row in rows:
        print("| {schedule} | {ranks} | {microbatches} | {formula:.3f} | {measured:.3f} |".format(**row))
    far = [row for row in rows if is_far(row, rows)]
    print(f"{len(rows) - len(far)} of {len(rows)} are as expected (within {TOLERANCE} of a formula, or below 1f1b)")
    return int(bool(far))


def is_far(row: dict[str, Any], rows: list[dict[str, Any]]) -> bool:
    """Return whether a bubble is not as expected."""
    if not Schedule(row["schedule"]).splits_backward:
        return bool(abs(row["measured"] - row["formula"]) > TOLERANCE)
    alike = (other for other in rows if all(other[name] == row[name] for name in ("ranks", "microbatches")))
    return any(other["schedule"] == Schedule.ONE_F_ONE_B and row["measured"] > other["measured"] for other in alike)


if __name__ == "__main__":
    raise SystemExit(main())
