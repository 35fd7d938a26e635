"""Times snapshots beside a plain memory copy, restores them after losses, and counts what is wrong: zero, or it fails.

`python -m bench.snapshots`. Two ranks on two nodes (each node a keeper process of its own); goals are ratios within
one run. Then real ranks and keepers are killed at random moments, and memory is damaged: what the next ranks restore
must be one step everywhere, bit for bit, and as new as what was whole. Exit status 1 when a goal is missed or a restore
is wrong.
"""

import argparse
import json
import mmap
import os
import random
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import distributed as dist

sys.path.append(str(Path(__file__).resolve().parent.parent / "agent"))

from bench.saving import SIZES, RatioGoal, make_state, verdicts
from rerail_agent.checkpoints import Manifest, Saver, Snapshots, open_store
from rerail_agent.snapshot_launch import SnapshotProcessHandle

NODES = 3  # of the random losses, one rank each
DURABLE_EVERY = 7  # snapshots
PATIENCE_S = 60.0
LONGEST_PAUSE_S = 0.03
DOORS = 2  # of a keeper: for the ranks, and for other keepers
STEPS_APART = 60
PAUSE_S = 0.1  # the steps between two snapshots; in them every rank learns that the last one is complete

COPY, SNAPSHOT, SAVE = "plain copy", "snapshot", "save"
MEMORY, NEIGHBOUR = "from memory", "one node lost, from its neighbour"
DISK, CACHED = "from disk", "from disk, files cached"
LARGE = 100_000_000  # bytes a rank; below, handing over some sixty tensors shows beside the copy


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    options = _options(argv)
    os.environ["PYTHONWARNINGS"] = "ignore::RuntimeWarning:runpy"  # each process warns that it runs a module
    console = Console() if sys.stdout.isatty() else Console(width=120)
    context = get_context("forkserver")
    context.set_forkserver_preload(["bench.snapshots"])
    measured = {size: timed(context, size, options.rounds) for size in options.sizes}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("losses", total=options.losses)
        tally = losses(context, options.losses, options.seed, lambda: progress.advance(task))
    goals = [goal for size, figures in measured.items() for goal in _goals(size, figures)]
    for table in (*(_times(size, figures) for size, figures in measured.items()), verdicts(goals), _losses(tally)):
        console.print(table)
    for line in tally.wrong[:20]:
        console.print(line, style="red", highlight=False)
    if options.json:
        text = {"measured": measured, "goals": [vars(goal) for goal in goals], "losses": vars(tally)}
        options.json.write_text(json.dumps(text, indent=1))
    missed = any(not goal.is_met and goal.is_measurable for goal in goals)
    return 1 if missed or tally.wrong else 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.snapshots", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sizes", nargs="*", choices=SIZES, default=["xs", "s"], help="of the state: 19, 404 MB, 1.4 GB"
    )
    parser.add_argument("--rounds", type=int, default=15, help="snapshots of each size, the first one apart")
    parser.add_argument("--losses", type=int, default=1000, help="random kills of ranks and nodes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="writes the figures there too")
    return parser.parse_args(argv)


class Nodes:
    """The keepers of a few nodes, and the ranks that run on them; both can be killed."""

    def __init__(self, context: Any, count: int) -> None:
        self.context = context
        self.root = Path(tempfile.mkdtemp(prefix="rerail-snapshots-"))
        self.keepers = [self._keeper(node) for node in range(count)]
        self.store: Any = None
        self.ranks: list[Any] = []
        self.pipes: list[Connection] = []

    def _keeper(self, node: int) -> SnapshotProcessHandle:
        environment = {"SAGEMAKER_BASE_DIR": str(self.root / f"node{node}"), "RERAIL_SNAPSHOT_STEPS": "1"}
        keeper = SnapshotProcessHandle.start(environment, print)
        assert keeper is not None
        return keeper

    def lose(self, node: int) -> None:
        """Kill the keeper of a node with all its memory, and start an empty one in its place."""
        self.keepers[node].stop()
        self.keepers[node] = self._keeper(node)

    def start(self, target: Callable[..., None], *arguments: Any) -> None:
        """Start one rank on each node, with their own store: target(pipe, rank, world size, port, folders, ...)."""
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        folders = [str(keeper.folder) for keeper in self.keepers]
        self.ranks, self.pipes = [], []
        for rank, folder in enumerate(folders):
            ours, theirs = self.context.Pipe()
            place = (theirs, rank, len(folders), self.store.port, str(self.root / "durable"), folder)
            self.ranks.append(self.context.Process(target=target, args=(*place, *arguments)))
            self.ranks[-1].start()
            theirs.close()
            self.pipes.append(ours)

    def kill(self) -> None:
        for process in self.ranks:
            os.kill(process.pid, signal.SIGKILL)
        for process in self.ranks:
            process.join()

    def close(self) -> None:
        for keeper in self.keepers:
            keeper.stop()
        shutil.rmtree(self.root, ignore_errors=True)


@dataclass
class Worker:
    """One rank, from a start to the next: its saver and its snapshots."""

    rank: int
    size: int
    store: Any
    place: str
    folder: str
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        log = self.lines.append
        store = dist.PrefixStore(secrets.token_hex(2) if self.size == 1 else "life", self.store)
        self.saver = Saver(open_store(self.place), rank=self.rank, world_size=self.size, store=store, log=log)
        self.snapshots = Snapshots(self.saver, every=1, folder=self.folder, store=store, log=log, patience_s=PATIENCE_S)

    def prepare(self, state: dict[str, Any]) -> None:
        self.saver.prepare(state)
        self.snapshots.prepare(state)

    def close(self) -> None:
        self.snapshots.close()
        self.saver.close()


def _manifest(step: int, size: int, *, reason: str = "snapshot") -> Manifest:
    return Manifest("bench", 1, step, step, size, 1.0, reason)


# ---------------------------------------------------------------------- times


def timed(context: Any, size: str, rounds: int) -> dict[str, Any]:
    """Return the measurements of rank 0 of two, on two nodes."""
    nodes = Nodes(context, 2)
    try:
        nodes.start(measure, size, rounds)
        found: dict[str, Any] = nodes.pipes[0].recv()
        nodes.pipes[1].recv()
        nodes.lose(1)
        for pipe in nodes.pipes:
            pipe.send([str(keeper.folder) for keeper in nodes.keepers])
        found["restore_s"][NEIGHBOUR] = nodes.pipes[0].recv()
        nodes.pipes[1].recv()
        nodes.kill()
        return found
    finally:
        nodes.close()


def measure(
    pipe: Connection, rank: int, world: int, port: int, place: str, folder: str, size: str, rounds: int
) -> None:
    """Measure one rank: stalls, steps during a snapshot, then restores."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=dist.PrefixStore("gloo", store), rank=rank, world_size=world)
    found = SnapshotBench(Worker(rank, world, dist.PrefixStore("one", store), place, folder), size).run(rounds)
    state = make_state(*SIZES[size])
    last = rounds + STEPS_APART
    found["restore_s"] = {}
    for name in (MEMORY, CACHED, DISK):
        if name == DISK and rank == 0:
            drop_cached(Path(place))
        worker = Worker(rank, world, dist.PrefixStore(name, store), place, folder)
        act = worker.snapshots.restore if name == MEMORY else worker.saver.restore
        worker.snapshots._connect() if name == MEMORY else worker.saver._connect()
        found["restore_s"][name], restored = _slowest_of(lambda act=act: act(state))  # type: ignore[misc]
        assert restored is not None and (restored.step >= last or name != MEMORY), restored
        worker.close()
    pipe.send(found)
    folder = pipe.recv()[rank]
    worker = Worker(rank, world, dist.PrefixStore(NEIGHBOUR, store), place, folder)
    worker.snapshots._connect()
    seconds, restored = _slowest_of(lambda: worker.snapshots.restore(state))
    assert restored is not None and restored.step >= last, worker.lines
    pipe.send(seconds)
    time.sleep(PATIENCE_S)


def drop_cached(folder: Path) -> None:
    """Drop the cached pages of these files, so that the next reader waits for the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class SnapshotBench:
    """The measurements of one rank while it trains."""

    def __init__(self, worker: Worker, size: str) -> None:
        self.worker = worker
        self.state = make_state(*SIZES[size])
        self.stall: dict[str, list[float]] = {}
        self.held: list[float] = []

    def run(self, rounds: int) -> dict[str, Any]:
        self.worker.saver.save(self.state, _manifest(1, 2, reason="periodic"))
        self.worker.saver.wait()
        prepared, _ = _slowest_of(lambda: self.worker.prepare(self.state))
        assert self.worker.saver._plan is not None
        share = self.worker.saver._plan.staged_bytes
        source = torch.ones(share, dtype=torch.uint8)
        targets = [torch.zeros(share, dtype=torch.uint8) for _ in range(2)]  # in turn, as snapshots have two places
        for step in range(2, rounds + 3):
            time.sleep(PAUSE_S)
            for name in (COPY, SNAPSHOT) if step % 2 else (SNAPSHOT, COPY):
                target = targets[step % 2]
                act = self._snapshot(step) if name == SNAPSHOT else partial(target.copy_, source)
                self.stall.setdefault(name, []).append(_slowest_of(act)[0])
                if name == SNAPSHOT:
                    began = time.perf_counter()
                    assert self.worker.snapshots.wait(PATIENCE_S), self.worker.lines
                    self.held.append(time.perf_counter() - began)
        steps = self._drag(rounds)
        return {"share_bytes": share, "prepare_s": prepared, "stall_s": self.stall, "held_s": self.held, "drag": steps}

    def _snapshot(self, step: int) -> Callable[[], Any]:
        def act() -> None:
            assert self.worker.snapshots.take(self.state, _manifest(step, 2)), self.worker.lines

        return act

    def _drag(self, rounds: int) -> dict[str, list[float]]:
        """Measure the steps of a training loop during a snapshot, and right before and after it."""
        work = torch.rand(512, 512)
        found: dict[str, list[float]] = {"before": [], "on its way": [], "after": []}
        self._train(work, 30)
        for step in range(rounds + STEPS_APART, 2 * rounds + STEPS_APART):
            found["before"].append(median(self._train(work, 20)))
            self._snapshot(step)()
            found["on its way"].append(median(self._train(work, None)))
            found["after"].append(median(self._train(work, 20)))
        return found

    def _train(self, work: torch.Tensor, steps: int | None) -> list[float]:
        """Return the times of steps, which are arithmetic and one all-reduce, until a snapshot is held or for a number
        of steps."""
        times: list[float] = []
        flag = torch.zeros(1)
        while steps is None or len(times) < steps:
            began = time.perf_counter()
            result = work
            for _ in range(4):
                result = torch.tanh(work @ result)
            flag[0] = float(not self.worker.snapshots.wait(0))
            dist.all_reduce(flag)
            times.append(time.perf_counter() - began)
            if steps is None and not flag.item():
                break
        return times


def _slowest_of(act: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds on the slower rank, and the result on this rank."""
    dist.barrier()
    began = time.perf_counter()
    result = act()
    seconds = torch.tensor(time.perf_counter() - began, dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds), result


def _goals(size: str, measured: Mapping[str, Any]) -> list[RatioGoal]:
    stall, restore = measured["stall_s"], measured["restore_s"]
    ratios = [ours / copy for ours, copy in zip(stall[SNAPSHOT][1:], stall[COPY][1:], strict=True)]
    windows = list(zip(*(measured["drag"][key] for key in ("before", "on its way", "after")), strict=True))
    unrest = median(abs(before - after) / min(before, after) for before, _, after in windows)
    drag = median(2 * during / (before + after) for before, during, after in windows)
    most = 1.25 if measured["share_bytes"] >= LARGE else 1.5
    return [
        RatioGoal(f"{size}: stall / plain copy of the same bytes, median", median(ratios), most),
        RatioGoal(f"{size}: first stall / later ones", stall[SNAPSHOT][0] / median(stall[SNAPSHOT][1:]), 2.0),
        RatioGoal(f"{size}: restore from memory / from disk", restore[MEMORY] / restore[DISK], 1.0),
        RatioGoal(f"{size}: restore after the loss of a node / from disk", restore[NEIGHBOUR] / restore[DISK], 2.0),
        RatioGoal(f"{size}: step while one is on its way / without", drag, 1.25, unrest=unrest),
    ]


def _times(size: str, measured: Mapping[str, Any]) -> Table:
    megabytes = measured["share_bytes"] / 1e6
    table = Table(title=f"{size}: two nodes, {megabytes:.0f} MB a rank")
    for heading in ("", "first ms", "median ms", "worst ms"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, times in {**measured["stall_s"], "until held by all": measured["held_s"]}.items():
        table.add_row(name, *(f"{1e3 * duration:.1f}" for duration in (times[0], median(times[1:]), max(times[1:]))))
    for name, seconds in measured["restore_s"].items():
        table.add_row(f"restore {name}", "", f"{1e3 * seconds:.0f}", "")
    table.caption = f"prepare() took {measured['prepare_s']:.2f} s"
    return table


# ---------------------------------------------------------------------- losses


@dataclass
class LossTally:
    """The results of the losses."""

    outcomes: Counter[str] = field(default_factory=Counter)
    # Each failure, and how to repeat it.
    wrong: list[str] = field(default_factory=list)


def losses(context: Any, times: int, seed: int, tick: Callable[[], None] = lambda: None) -> LossTally:
    """Kill all ranks at random moments, and with them no node, one, or two neighbours; flip bits in some rounds."""
    tally, draw = LossTally(), random.Random(seed)
    nodes = Nodes(context, NODES)
    expected, fate = (0, 0), "at first"
    try:
        for number in range(times):
            name = f"loss {number} of seed {seed}"
            nodes.start(train, draw.randrange(1 << 30))
            restored = _restored(nodes, expected, f"{name}, {fate}", tally)
            snapshot, durable = _reported(nodes, draw.randrange(5), restored)
            time.sleep(draw.random() * LONGEST_PAUSE_S)
            nodes.kill()
            snapshot, durable = _receive_count(nodes.pipes[0], None, (snapshot, durable))
            before = tally.outcomes.copy()
            expected = _struck(nodes, draw, tally, snapshot, durable)
            fate = f"after {', '.join(tally.outcomes - before)}"
            tick()
    finally:
        nodes.close()
    return tally


def _restored(nodes: Nodes, expected: tuple[int, int], name: str, tally: LossTally) -> int:
    """Return the step that all ranks begin with; note an error if it differs between them, is wrong or too old."""
    least, durable = expected
    said = []
    for pipe in nodes.pipes:
        said.append(pipe.recv() if pipe.poll(PATIENCE_S) else ("silent", 0, False))
    source, step, is_right = said[0]
    steps = {message[1] for message in said}
    if len(steps) != 1 or not all(message[2] for message in said) or step < least or step < durable:
        tally.wrong.append(f"{name}: {said}, at least {least} expected, {durable} durable")
    tally.outcomes[f"restored {source}"] += 1
    return int(step)


def _reported(nodes: Nodes, count: int, step: int) -> tuple[int, int]:
    """Wait for a number of complete snapshots; return the newest one's step and the newest durable step."""
    return _receive_count(nodes.pipes[0], count, (step, 0))


def _receive_count(pipe: Connection, count: int | None, known: tuple[int, int]) -> tuple[int, int]:
    """Read rank 0's reports of complete snapshots, up to `count` or to the end; return the newest steps."""
    snapshot, durable = known
    try:
        while count is None or (count > 0 and pipe.poll(PATIENCE_S)):
            kind, step = pipe.recv()
            snapshot, durable = (step, durable) if kind == "held" else (snapshot, step)
            count = None if count is None else count - 1
    except EOFError:
        return snapshot, durable
    return snapshot, durable


def _struck(nodes: Nodes, draw: random.Random, tally: LossTally, snapshot: int, durable: int) -> tuple[int, int]:
    """Lose nodes or bits; return the step that must be restored after it, and the newest durable one."""
    fate = draw.random()
    if fate < 0.35:
        tally.outcomes["ranks killed, all nodes there"] += 1
        return snapshot, durable
    first = draw.randrange(NODES)
    if fate < 0.75:
        tally.outcomes["one node lost"] += 1
        nodes.lose(first)
        return snapshot, durable
    if fate < 0.85:
        tally.outcomes["two nodes lost"] += 1
        nodes.lose(first)
        nodes.lose((first + 1) % NODES)
        return durable, durable
    tally.outcomes["a bit flipped in each share of one node"] += 1
    for keeper in nodes.keepers:
        await_rest(keeper.pid)
    flip(nodes.keepers[first].pid, draw)
    return snapshot, durable


def await_rest(keeper: int) -> None:
    """Return when a keeper serves no rank any more, because a checksum of changing data is useless."""
    for _ in range(int(PATIENCE_S / 0.01)):
        with suppress(FileNotFoundError):
            sockets = [link for link in Path(f"/proc/{keeper}/fd").iterdir() if "socket:" in os.readlink(link)]
            if len(sockets) <= DOORS:
                return
        time.sleep(0.01)


def flip(keeper: int, draw: random.Random) -> None:
    """Change one bit in every memory that a keeper has, within the part that is certainly filled."""
    folder = Path(f"/proc/{keeper}/fd")
    for link in folder.iterdir():
        with suppress(FileNotFoundError):  # a connection that has ended meanwhile
            if "rerail-snapshot" not in os.readlink(link):
                continue
            with open(link, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
                memory[draw.randrange(100_000)] ^= 1 << draw.randrange(8)


def train(pipe: Connection, rank: int, world: int, port: int, place: str, folder: str, seed: int) -> None:
    """Restore, report it, and take one snapshot after another on this rank until the kill."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a process that writes checkpoints complains when its rank is killed
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    worker = Worker(rank, world, store, place, folder)
    state = content(0, rank)
    found = worker.snapshots.restore(state)
    source = "a snapshot" if found else "a checkpoint"
    found = found or worker.saver.restore(state)
    step = found.step if found else 0
    pipe.send((source if found else "nothing", step, equal(state, content(step, rank))))
    worker.prepare(state)
    draw, held = random.Random(seed), step
    while True:
        step += 1
        state = content(step, rank)
        if draw.randrange(DURABLE_EVERY) == 0:
            worker.saver.save(state, _manifest(step, world, reason="periodic"))
            if all(save.error is None for save in worker.saver.wait()) and rank == 0:
                pipe.send(("durable", step))
        elif worker.snapshots.take(state, _manifest(step, world)) and draw.random() < 0.7:
            worker.snapshots.wait()
        if rank == 0 and worker.snapshots.newest_step > held:
            held = worker.snapshots.newest_step
            pipe.send(("held", held))


def content(step: int, rank: int) -> dict[str, Any]:
    """Return a state that depends on its step: most of it the same on every rank, some different on each."""
    draw = torch.Generator().manual_seed(step)
    weights = {f"layer{number}": torch.rand(400, 300, generator=draw) for number in range(3)}
    return {"model": weights, "step": step, "random": {str(rank): torch.arange(5) + step * 10 + rank}}


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Bit for bit."""
    return (
        one["step"] == other["step"]
        and all(torch.equal(one["model"][name], other["model"][name]) for name in other["model"])
        and all(torch.equal(one["random"][name], other["random"][name]) for name in other["random"])
    )


def _losses(tally: LossTally) -> Table:
    table = Table(title=f"{len(tally.wrong)} wrong restores")
    table.add_column("what happened")
    table.add_column("times", justify="right")
    for name, count in sorted(tally.outcomes.items()):
        table.add_row(name, str(count))
    return table


if __name__ == "__main__":
    sys.exit(main())
