"""Measure what the agent costs a training step, and that all ranks agree: `python -m bench.agent [--json FILE]`.

Times are of this machine, so each is set beside something measured in the same run: the reduced loss beside a plain
all-reduce, step after step in turns, and the agreement beside ranks that act on what they see themselves.
"""

import argparse
import json
import math
import multiprocessing
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

from rerail.model.mailbox import Command, CommandKind, serialize

sys.path.append(str(Path(__file__).resolve().parent.parent / "agent"))

from rerail_agent import agreement
from rerail_agent.detection import StepDetection
from rerail_agent.guard import Guard
from rerail_agent.mailbox_objects import MailboxBucket, MailboxObject

WARM_UP = 600  # steps until the detectors' windows are full
STEP_GOAL_US = 50
SKEW_S = 2.0
SCALE = 1000  # skew and step are a thousandth of what they stand for


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status: 1 if ranks ever disagreed."""
    options = _options(argv)
    console = Console()
    parts: tuple[tuple[str, Callable[[], dict[str, float]]], ...] = (
        ("a step", lambda: step_cost(options.steps)),
        ("a reduced loss, 2 ranks", lambda: reduce_cost(options.steps)),
        (f"{options.agreements:,} agreements, 3 ranks", lambda: agreement_trial(options.agreements, console)),
        (f"a command, polled every {options.poll:g} s", lambda: command_latency(options.commands, options.poll)),
    )
    found: dict[str, float] = {}
    for number, (name, measure) in enumerate(parts, 1):
        console.print(f"{number}/{len(parts)} {name} ...", style="dim", highlight=False)
        found |= measure()
    console.print(_table(found, options))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 1 if found["agreement_mismatches"] else 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    options = argparse.ArgumentParser(prog="python -m bench.agent", description=(__doc__ or "").splitlines()[0])
    options.add_argument("--json", type=Path, help="write every number to this file")
    options.add_argument("--steps", type=int, default=4000, help="steps that are timed")
    options.add_argument("--agreements", type=int, default=10_000, help="flags raised, each at a random moment")
    options.add_argument("--commands", type=int, default=20, help="commands sent")
    options.add_argument("--poll", type=float, default=0.5, help="seconds between two looks into the mailbox")
    return options.parse_args(argv)


def _table(found: dict[str, float], options: argparse.Namespace) -> Table:
    table = Table("", "measured", "goal", title="The agent in a training step", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("step() on rank 0, p50 / p90", _us(found, "step_p50_us", "step_p90_us"), f"<= {STEP_GOAL_US} us")
    table.add_row("  of it the detectors, p50", f"{found['detectors_p50_us']:.0f} us", "")
    table.add_row("  on the other ranks, p50", f"{found['other_rank_p50_us']:.0f} us", "")
    table.add_row("reduce(), p50", f"{found['reduce_p50_us']:.0f} us", "")
    table.add_row("  a plain all-reduce in turns with it, p50", f"{found['plain_p50_us']:.0f} us", "")
    table.add_row(
        "  ratio of p50s / of means", f"{found['reduce_ratio']:.3f} / {found['reduce_mean_ratio']:.3f}", "~ 1"
    )
    skew = f"skew up to {SKEW_S:g} s, scaled by {SCALE}"
    table.add_row(f"disagreements in {options.agreements:,} ({skew})", f"{found['agreement_mismatches']:.0f}", "0")
    table.add_row("  had each rank acted on what it saw", f"{found['local_mismatches']:.0f}", "")
    table.add_row("  steps from a flag to its agreement, at most", f"{found['agreement_steps_max']:.0f}", "1")
    latency = f"{found['latency_p50_s']:.3f} / {found['latency_max_s']:.3f} s"
    table.add_row(f"command to flag, p50 / max, poll {options.poll:g} s", latency, f"<= {options.poll:g} s")
    return table


def _us(found: dict[str, float], *names: str) -> str:
    return " / ".join(f"{found[name]:.0f}" for name in names) + " us"


# ---------------------------------------------------------------------------------------------------- a step alone


def step_cost(steps: int) -> dict[str, float]:
    """Rank 0 with detectors and a metric line in each step; and the detectors alone on the same rows."""
    from rerail.model.sample import Sample
    from rerail.model.thresholds import Thresholds

    chance = random.Random(1)
    rows = [(2 * math.exp(chance.gauss(0, 0.01)), 1 + chance.random()) for _ in range(WARM_UP + steps)]
    # Between these steps there is nothing else, so the noise of microseconds must not be taken for slow steps.
    deaf = {
        "RERAIL_DETECTION": '{"throughput_rows": 1000000, "throughput_patience_rows": 1000000, "stall_factor": 1e9}'
    }
    guard, whole = Guard(environment=deaf), []
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        for step, (loss, norm) in enumerate(rows, 1):
            began = time.perf_counter()
            guard.step(step=step, loss=loss, grad_norm=norm, tokens=4096, lr=3e-4, extra={"mfu": 0.41})
            whole.append(time.perf_counter() - began)
    guard.close()
    other, others = Guard(environment={"RANK": "1"}), []
    for step, (loss, norm) in enumerate(rows, 1):
        began = time.perf_counter()
        other.step(step=step, loss=loss, grad_norm=norm, tokens=4096, lr=3e-4, extra={"mfu": 0.41})
        others.append(time.perf_counter() - began)
    other.close()
    judgement, alone = StepDetection(Thresholds()), []
    for step, (loss, norm) in enumerate(rows, 1):
        sample = Sample(step=step, loss=loss, grad_norm=norm, step_time_s=0.1 + chance.random() / 1000, lr=3e-4)
        began = time.perf_counter()
        judgement.evaluate(sample)
        alone.append(time.perf_counter() - began)
    return {
        "step_p50_us": _quantile(whole[WARM_UP:], 0.5) * 1e6,
        "step_p90_us": _quantile(whole[WARM_UP:], 0.9) * 1e6,
        "other_rank_p50_us": _quantile(others[WARM_UP:], 0.5) * 1e6,
        "detectors_p50_us": _quantile(alone[WARM_UP:], 0.5) * 1e6,
    }


# ---------------------------------------------------------------------------------------------------- with ranks


def reduce_cost(steps: int) -> dict[str, float]:
    """reduce() and a plain all-reduce of the same loss in turns, so that both see the same moments of the machine."""
    times: tuple[list[float], list[float]] = _together(_reducing, 2, steps)[0]
    mine, plain = (series[WARM_UP // 2 :] for series in times)
    return {
        "reduce_p50_us": _quantile(mine, 0.5) * 1e6,
        "plain_p50_us": _quantile(plain, 0.5) * 1e6,
        "reduce_ratio": _quantile(mine, 0.5) / _quantile(plain, 0.5),
        "reduce_mean_ratio": _mean(_middle(mine)) / _mean(_middle(plain)),
    }


def _reducing(rank: int, said: Connection, steps: int) -> tuple[list[float], list[float]]:
    import torch
    from torch import distributed as dist

    guard, loss = Guard(environment={"RANK": str(rank), "WORLD_SIZE": "2"}), torch.tensor(2.0 + rank)

    def plain() -> None:
        mean = loss.detach().float() / 2
        dist.all_reduce(mean)
        mean.item()

    mine: list[float] = []
    others: list[float] = []
    for step in range(WARM_UP // 2 + steps):
        pair: list[tuple[Callable[[], object], list[float]]] = [(lambda: guard.reduce(loss), mine), (plain, others)]
        for work, times in pair if step % 2 else pair[::-1]:
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
    return mine, others


def agreement_trial(agreements: int, console: Console) -> dict[str, float]:
    """Measure at which step the ranks agree on a flag that one of them raises in every other step.

    Each rank is late by a random time in each step. Beside it: at which step each rank would have acted on a flag that
    all can see at the end of its step.
    """
    seen = multiprocessing.get_context("fork").Value("q", 0, lock=False)
    answers = _together(_agreeing, 3, agreements, seen, console=console)
    saves, looks = ([answer[part] for answer in answers] for part in (0, 1))
    mismatches = sum(len({tuple(steps) for steps in trial}) > 1 for trial in zip(*saves, strict=True))
    return {
        "agreement_mismatches": float(mismatches),
        "local_mismatches": float(sum(len(set(trial)) > 1 for trial in zip(*looks, strict=True))),
        "agreement_steps_max": float(max(step - 2 * trial for trial, steps in enumerate(saves[0]) for step in steps)),
        "agreements": float(agreements),
    }


def _agreeing(rank: int, said: Connection, agreements: int, seen: Any) -> tuple[list[list[int]], list[int]]:
    """Return, for each flag, the steps at which this rank saved, and the step at whose end it first saw the flag
    itself."""
    guard = Guard(log_every=10**9, environment={"RANK": str(rank), "WORLD_SIZE": "3"})
    chance, common = random.Random(rank), random.Random(99)
    saves: list[list[int]] = [[] for _ in range(agreements)]
    looks = [-1] * agreements
    skew_s = SKEW_S / SCALE
    for step in range(2 * agreements):
        trial, raises = step // 2, common.randrange(3)
        late = chance.random() * skew_s
        if step % 2 == 0 and raises == rank:
            moment = chance.random() * late
            time.sleep(moment)
            seen.value = trial + 1
            guard._agreement.raise_flag(_flag(trial))
            time.sleep(late - moment)
        else:
            time.sleep(late)
        if looks[trial] < 0 and seen.value > trial:
            looks[trial] = step
        guard.step(step=step, loss=guard.reduce(2.0), log=False)
        if guard.wants_checkpoint:
            saves[trial].append(step)
        if rank == 0 and step % max(1, agreements // 5) == 0:
            said.send(("progress", f"{trial:,} of {agreements:,} agreed"))
    return saves, looks


def _flag(trial: int) -> int:
    """Return a command and a warning in turns, because SIGTERM comes only once."""
    return agreement.WARNING if trial % 2 else agreement.COMMAND


def _together(loop: Callable[..., Any], size: int, *arguments: Any, console: Console | None = None) -> list[Any]:
    """Return the results of the loop on each of the ranks, which are joined by gloo."""
    import torch  # noqa: F401  (once, before the fork)

    fork = multiprocessing.get_context("fork")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pipes, processes = [], []
    for rank in range(size):
        here, there = fork.Pipe()
        process = fork.Process(target=_become, args=(loop, rank, size, port, there, arguments), daemon=True)
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)
    answers = [_answer(pipe, console) for pipe in pipes]
    for process in processes:
        process.join()
    return answers


def _answer(pipe: Connection, console: Console | None) -> Any:
    while True:
        kind, value = pipe.recv()
        if kind == "answer":
            return value
        if console is not None:
            console.print(f"    {value}", style="dim", highlight=False)


def _become(
    loop: Callable[..., Any], rank: int, size: int, port: int, said: Connection, arguments: tuple[Any, ...]
) -> None:
    import torch
    from torch import distributed as dist

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    said.send(("answer", loop(rank, said, *arguments)))
    os._exit(0)  # destroying a gloo group can hang


# ---------------------------------------------------------------------------------------------------- a command


class MemoryBucket(MailboxBucket):
    """A mailbox in memory, in place of the bucket: the network's own time is left out."""

    content: MailboxObject | None = None

    def read(self, key: str, *, unless: str = "") -> MailboxObject | None:
        content = MemoryBucket.content
        return content if content and content.tag != unless else None

    def write(self, key: str, text: bytes, *, once: bool = False) -> None:
        """Drop what is written: nobody reads it."""


def command_latency(commands: int, poll_s: float) -> dict[str, float]:
    """From a command's arrival in the mailbox to the step that wants the checkpoint, with steps of 2 ms."""
    job = {
        "TRAINING_JOB_NAME": "bench",
        "TRAINING_JOB_ARN": "arn:aws:sagemaker:us-east-1:000000000000:training-job/bench",
        "RERAIL_POLL_SECONDS": str(poll_s),
    }
    chance, step, times = random.Random(5), 0, []
    with patch("rerail_agent.guard.MailboxBucket", MemoryBucket):
        guard = Guard(log_every=10**9, environment=job)
        for number in range(commands):
            time.sleep(chance.random() * poll_s)
            at = datetime.now(UTC)
            asked = Command(f"c{number}", "bench", 1, CommandKind.CHECKPOINT, at, at + timedelta(minutes=5))
            began = time.perf_counter()
            MemoryBucket.content = MailboxObject(serialize(asked), str(number), at)
            while not guard.wants_checkpoint:
                step += 1
                time.sleep(0.002)
                guard.step(step=step, loss=2.0, log=False)
            times.append(time.perf_counter() - began)
            guard.committed("/nowhere", step)
            guard.step(step=step + 1, loss=2.0, log=False)
        guard.close()
    return {"latency_p50_s": _quantile(times, 0.5), "latency_max_s": max(times), "poll_s": poll_s}


# ---------------------------------------------------------------------------------------------------- numbers


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _middle(values: Sequence[float]) -> list[float]:
    """Without the slowest tenth, which is other people's work."""
    return sorted(values)[: max(1, len(values) * 9 // 10)]


if __name__ == "__main__":
    sys.exit(main())
