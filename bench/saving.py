"""Times a checkpoint beside what a machine can do at best, and beside PyTorch: `python -m bench.saving`.

Two ranks on gloo, each round all contenders one after the other, so that a busy machine is busy for all of them. Goals
are ratios; absolute times are this machine's. Exit status 1 when a goal is missed.
"""

import argparse
import json
import os
import shutil
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.multiprocessing as mp
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import distributed as dist
from torch.distributed import checkpoint as dcp

sys.path.append(str(Path(__file__).resolve().parent.parent / "agent"))

from rerail_agent.checkpoints import Manifest, Saver, open_store

RANKS = 2
# Layers and width of a transformer. Three float32 copies of its weights make the state: weights, Adam's two moments.
SIZES = {"xs": (2, 256), "s": (8, 592), "m": (10, 992)}  # about 19 MB, 404 MB and 1.4 GB
STEPS_WITHOUT = 60

OURS, COPY, TORCH_SAVE, DCP_SAVE = "ours", "plain copy", "torch.save, rank 0", "dcp.save"
ASYNC, CACHED, BARE = "dcp.async_save", "dcp.async_save, cached stager", "bare write + fsync"


@dataclass(frozen=True)
class RatioGoal:
    """One ratio, and how large or small it has to be."""

    name: str
    value: float
    limit: float
    at_most: bool = True
    # How far two measurements of the same thing differ; beyond the limit the ratio is not measurable.
    unrest: float = 0.0

    @property
    def is_met(self) -> bool:
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    @property
    def is_measurable(self) -> bool:
        return self.unrest <= abs(self.limit - 1)

    @property
    def verdict(self) -> str:
        if self.is_met:
            return "[green]met[/]"
        return "[red]missed[/]" if self.is_measurable else f"unrest of {self.unrest:.0%}: not to be said here"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    options = _options(argv)
    console = Console() if sys.stdout.isatty() else Console(width=120)
    measured = _measure(options, console)
    console.print(_times(measured))
    goals = _goals(measured)
    console.print(verdicts(goals))
    if options.json:
        options.json.write_text(json.dumps({"measured": measured, "goals": [vars(goal) for goal in goals]}, indent=1))
    return 0 if all(goal.is_met or not goal.is_measurable for goal in goals) else 1


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.saving", description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="s", help="of the state: 19 MB, 404 MB or 1.4 GB")
    parser.add_argument("--rounds", type=int, default=7, help="saves by each contender, the first one apart")
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder by default")
    parser.add_argument("--json", type=Path, help="writes the figures there too")
    return parser.parse_args(argv)


def _measure(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Run the ranks with a display of their progress; return the measurements of rank 0."""
    root = tempfile.mkdtemp(prefix="rerail-saving-", dir=options.folder)
    messages = mp.get_context("spawn").SimpleQueue()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    try:
        ranks = mp.spawn(_rank, (options.size, options.rounds, root, _free_port(), messages), RANKS, join=False)
        found: dict[str, Any] = {}
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("starting", total=2 * options.rounds + 2)
            ended = False
            while not ended:
                ended = ranks.join(timeout=0.1)
                while not messages.empty():
                    said = messages.get()
                    if isinstance(said, str):
                        progress.update(task, description=said, advance=1)
                    else:
                        found = said
        return found
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _rank(rank: int, size: str, rounds: int, root: str, port: int, messages: Any) -> None:
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(RANKS))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with open(os.devnull, "w") as nowhere:
        sys.stderr = nowhere  # DCP warns about each of its own defaults
        bench = SavingBench(rank, size, Path(root), report=messages.put if rank == 0 else lambda thing: None)
        found = bench.run(rounds)
    if rank == 0:
        messages.put(found)
    dist.barrier()
    bench.saver.close()
    sys.stdout.flush()
    os._exit(0)  # destroying a gloo group can hang


class SavingBench:
    """Run the benchmark on one rank."""

    def __init__(self, rank: int, size: str, root: Path, report: Callable[[Any], None]) -> None:
        self.rank, self.root, self.report = rank, root, report
        self.state = make_state(*SIZES[size])
        self.saver = Saver(open_store(root / "ours"), rank=rank, world_size=RANKS, log=lambda line: None)
        self.background = dist.new_group(backend="gloo")  # async_save on the default group can deadlock
        self.stall: dict[str, list[float]] = {}
        self.durable: dict[str, list[float]] = {}
        self.number = 0

    def run(self, rounds: int) -> dict[str, Any]:
        self.report("preparing")
        prepared = self._timed(lambda: self.saver.prepare(self.state))
        assert self.saver._plan is not None
        share = self.saver._plan.staged_bytes
        self.source = torch.ones(share, dtype=torch.uint8)
        self.target = torch.zeros(share, dtype=torch.uint8)
        contenders = self._contenders()
        for round_ in range(rounds + 1):
            for name, contender in contenders.items():
                self.report(f"round {round_} of {rounds}: {name}") if name == OURS else None
                self._one(name, contender)
        drag = self._drag(rounds)
        return {
            "state_bytes": sum(t.nbytes for group in self.state.values() for t in group.values()),
            "staged_bytes": share,
            "prepare_s": prepared,
            "stall_s": self.stall,
            "durable_s": self.durable,
            "drag": drag,
        }

    def _contenders(self) -> dict[str, Callable[[Path], Any]]:
        contenders: dict[str, Callable[[Path], Any]] = {
            COPY: self._copy,
            OURS: self._ours,
            BARE: self._bare,
            TORCH_SAVE: self._torch_save,
            DCP_SAVE: self._dcp_save,
            ASYNC: lambda folder: dcp.async_save(self.state, checkpoint_id=folder, process_group=self.background),
        }
        stager = _cached_stager()
        if stager is not None:
            contenders[CACHED] = lambda folder: dcp.async_save(
                self.state, checkpoint_id=folder, process_group=self.background, async_stager=stager
            )
        return contenders

    def _one(self, name: str, contender: Callable[[Path], Any]) -> None:
        """Measure one save: the time that the loop stood still, and until it was on disk, each on the slower rank."""
        self.number += 1
        folder = self.root / f"{self.number}"
        folder.mkdir(exist_ok=True)
        os.sync()
        dist.barrier()
        began = time.perf_counter()
        under_way = contender(folder)
        stalled = time.perf_counter() - began
        if name == OURS:
            ended = self.saver.wait(60)
            assert ended and ended[0].error is None, ended
        elif under_way is not None:
            getattr(under_way, "upload_completion", under_way).result()
        durable = time.perf_counter() - began
        self.stall.setdefault(name, []).append(self._slowest(stalled))
        self.durable.setdefault(name, []).append(self._slowest(durable))
        dist.barrier()
        self._clear(folder)

    def _copy(self, folder: Path) -> None:
        self.target.copy_(self.source)

    def _dcp_save(self, folder: Path) -> None:
        dcp.save(self.state, checkpoint_id=folder)

    def _ours(self, folder: Path) -> None:
        self.saver.save(self.state, _manifest(self.number, reason="emergency"))

    def _bare(self, folder: Path) -> None:
        with open(folder / str(self.rank), "wb", buffering=0) as file:
            view = memoryview(self.source.numpy())
            while view:
                view = view[file.write(view[: 1 << 23]) :]
            os.fsync(file.fileno())

    def _torch_save(self, folder: Path) -> None:
        if self.rank == 0:
            with open(folder / "state.pt", "wb") as file:
                torch.save(self.state, file)
                file.flush()
                os.fsync(file.fileno())
            (folder / "state.pt").rename(folder / "whole.pt")
        dist.barrier()

    def _drag(self, rounds: int) -> dict[str, list[float]]:
        """Measure the steps of a training loop during a save, and right before and after it."""
        work = torch.rand(512, 512)
        self._train(work, 30)
        found: dict[str, list[float]] = {"before": [], "while writing": [], "after": []}
        for round_ in range(rounds):
            self.report(f"steps while writing: {round_ + 1} of {rounds}")
            found["before"].append(median(self._train(work, STEPS_WITHOUT)))
            self.number += 1
            self.saver.save(self.state, _manifest(self.number, reason="periodic"))
            found["while writing"].append(median(self._train(work, None)))
            found["after"].append(median(self._train(work, STEPS_WITHOUT)))
            self.saver.finished()
            self._clear(self.root / "ours")
            os.sync()
        return found

    def _clear(self, folder: Path) -> None:
        dist.barrier()
        if self.rank == 0:
            for place in (folder, self.root / "ours"):
                shutil.rmtree(place, ignore_errors=True)
        dist.barrier()

    def _train(self, work: torch.Tensor, steps: int | None) -> list[float]:
        """Return the times of steps, which are arithmetic and one all-reduce, until a save is done or for a number of
        steps."""
        times: list[float] = []
        flag = torch.zeros(1)
        while steps is None or len(times) < steps:
            began = time.perf_counter()
            result = work
            for _ in range(4):
                result = torch.tanh(work @ result)
            flag[0] = float(self.saver._commit_queue is not None and not self.saver._commit_queue.await_end(0))
            dist.all_reduce(flag)
            times.append(time.perf_counter() - began)
            if steps is None and not flag.item():
                break
        return times

    def _slowest(self, seconds: float) -> float:
        both = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(both, dist.ReduceOp.MAX)
        return float(both)

    def _timed(self, act: Callable[[], Any]) -> float:
        dist.barrier()
        began = time.perf_counter()
        act()
        return self._slowest(time.perf_counter() - began)


def make_state(layers: int, width: int) -> dict[str, dict[str, torch.Tensor]]:
    """Return the weights and two moments of a transformer, from its embedding to its last norm."""
    shapes: dict[str, tuple[int, ...]] = {"embedding": (4096, width)}
    for layer in range(layers):
        shapes[f"{layer}.norm"] = (width,)
        shapes |= {f"{layer}.qkv": (3 * width, width), f"{layer}.out": (width, width)}
        shapes |= {f"{layer}.up": (4 * width, width), f"{layer}.down": (width, 4 * width)}
    return {part: {name: torch.rand(shape) for name, shape in shapes.items()} for part in ("model", "first", "second")}


def _manifest(step: int, *, reason: str) -> Manifest:
    return Manifest("bench", 1, step, step, RANKS, 1.0, reason)


def _cached_stager() -> Any:
    """Return DCP's own remedy for a slow first copy, if this version of PyTorch has it."""
    try:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    except ImportError:
        return None
    return DefaultStager(
        StagingOptions(
            use_pinned_memory=False, use_shared_memory=True, use_async_staging=False, use_non_blocking_copy=False
        )
    )


def _goals(measured: Mapping[str, Any]) -> list[RatioGoal]:
    stall, durable = measured["stall_s"], measured["durable_s"]
    ratios = [ours / copy for ours, copy in zip(stall[OURS][1:], stall[COPY][1:], strict=True)]
    goals = [
        RatioGoal("stall / plain copy of the same bytes, median", median(ratios), 1.25),
        RatioGoal("worst stall / worst plain copy", max(stall[OURS][1:]) / max(stall[COPY][1:]), 2.0),
        RatioGoal("first stall / later ones", stall[OURS][0] / _later(stall, OURS), 2.0),
        RatioGoal("dcp.async_save stall / ours", _later(stall, ASYNC) / _later(stall, OURS), 2.0, at_most=False),
    ]
    if CACHED in stall:
        goals += [
            RatioGoal(
                "cached async_save stall / ours", _later(stall, CACHED) / _later(stall, OURS), 2.0, at_most=False
            ),
            RatioGoal(
                "cached async_save first stall / our first", stall[CACHED][0] / stall[OURS][0], 8.0, at_most=False
            ),
        ]
    windows = list(zip(*(measured["drag"][key] for key in ("before", "while writing", "after")), strict=True))
    drag = median(2 * writing / (before + after) for before, writing, after in windows)
    return [
        *goals,
        RatioGoal("on disk / bare write + fsync of the same bytes", _later(durable, OURS) / _later(durable, BARE), 1.5),
        RatioGoal("step while writing / step without", drag, 1.03, unrest=_unrest(windows)),
    ]


def _unrest(windows: Sequence[tuple[float, float, float]]) -> float:
    """Return how much the steps before and after a checkpoint differ; nothing is written in either window."""
    return median(abs(before - after) / min(before, after) for before, _, after in windows)


def _later(times: Mapping[str, Sequence[float]], name: str) -> float:
    return median(times[name][1:])


def _times(measured: Mapping[str, Any]) -> Table:
    megabytes = measured["staged_bytes"] / 1e6
    table = Table(
        title=f"{RANKS} ranks, a state of {measured['state_bytes'] / 1e6:.0f} MB, {megabytes:.0f} MB a rank for us"
    )
    for heading in ("", "first stall ms", "stall ms", "worst ms", "on disk ms", "GB/s of stall"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, stall in measured["stall_s"].items():
        on_disk = "" if name == COPY else f"{1e3 * _later(measured['durable_s'], name):.0f}"
        speed = f"{measured['staged_bytes'] / 1e9 / median(stall[1:]):.1f}" if name in (OURS, COPY) else ""
        figures = (stall[0], median(stall[1:]), max(stall[1:]))
        table.add_row(name, *(f"{1e3 * figure:.1f}" for figure in figures), on_disk, speed)
    table.caption = f"prepare() took {measured['prepare_s']:.2f} s"
    return table


def verdicts(goals: Sequence[RatioGoal]) -> Table:
    """Return each ratio with its goal."""
    table = Table(title="goals")
    for heading in ("ratio", "measured", "goal", "verdict"):
        table.add_column(heading, justify="left" if heading in ("ratio", "verdict") else "right")
    for goal in goals:
        table.add_row(goal.name, f"{goal.value:.3g}", f"{'<=' if goal.at_most else '>='} {goal.limit:g}", goal.verdict)
    return table


if __name__ == "__main__":
    sys.exit(main())
