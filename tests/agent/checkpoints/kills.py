"""Runs of one and two ranks that are killed while they save, and what a successor finds in their folder."""

import os
import random
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from rerail_agent.checkpoints import Manifest, Saver, open_store

EVERY = 10  # steps between two saves
KEPT = 2
LONGEST_WAIT_S = 100.0  # only ends a hang
LONGEST_PAUSE_S = 0.03  # before a kill, so that it comes at any point of the next save or two


def kill_runs(root: Path, times: int, seed: int) -> list[str]:
    """Send SIGKILL to runs at random moments; return what a successor could not restore.

    Attempts follow one another in the same folder, as those of a real run do, so that each must handle what the last
    left. Each restores first, and compares.
    """
    draw, wrong, reported = random.Random(seed), [], 0
    for number in range(times):
        step, problem = _run_and_kill(root, 1 + number % 2, draw)
        found, damage = restore(root)
        reported = max(reported, step)
        if problem or damage or found < reported:
            wrong.append(f"kill {number} of seed {seed}: {problem}{damage} step {found} of {reported} restored")
        reported = found
    return wrong


def _run_and_kill(root: Path, ranks: int, draw: random.Random) -> tuple[int, str]:
    """Run and kill one attempt; return the last step it reported as committed, and its error."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    ours, theirs = context.Pipe()
    victim = context.Process(target=train, args=(str(root), ranks, draw.randrange(1 << 30), theirs))
    victim.start()
    theirs.close()
    started = ours.recv() if ours.poll(LONGEST_WAIT_S) else "silent"
    writers: list[int] = started if isinstance(started, list) else []
    step = _read_commits(ours, draw.randrange(4))
    time.sleep(draw.random() * LONGEST_PAUSE_S)
    if draw.random() < 0.2:  # the run goes on without its writers for a moment
        for writer in writers:
            _kill(writer)
        time.sleep(draw.random() * 0.02)
    _kill(victim.pid)
    victim.join()
    step = max(step, _read_commits(ours, None))
    _await_death(writers)
    return step, "" if writers else f"the attempt did not start: {started};"


def _read_commits(pipe: Connection, count: int | None) -> int:
    """Return the step of the last commit, after `count` commits or all that were reported; 0 for none."""
    step = 0
    try:
        while count is None or (count > 0 and pipe.poll(LONGEST_WAIT_S)):
            step = int(pipe.recv())
            count = None if count is None else count - 1
    except EOFError:
        return step
    return step


def _kill(pid: int | None) -> None:
    assert pid is not None
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _await_death(pids: Sequence[int]) -> None:
    deadline = time.monotonic() + LONGEST_WAIT_S
    while any(map(_is_alive, pids)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the writers {pids} have outlived their run")
        time.sleep(0.002)


def _is_alive(pid: int) -> bool:
    """Return whether a process runs; a dead one is listed until its parent has waited for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def train(root: str, ranks: int, seed: int, pipe: Connection) -> None:
    """Restore, report which processes write, and save until the kill, with a report of each commit."""
    torch.set_num_threads(1)
    draw = random.Random(seed)
    store = dist.HashStore()
    with ThreadPoolExecutor(ranks) as threads:
        savers = [Saver(open_store(root), rank=n, world_size=ranks, store=store, log=_discard) for n in range(ranks)]
        step = list(threads.map(lambda saver: _start(saver, pipe), savers))[0]
        pipe.send([saver._writer.pid for saver in savers if saver._writer])
        while True:
            step += EVERY
            list(threads.map(partial(_save, manifest(step, ranks)), savers))
            if draw.random() < 0.5:
                time.sleep(draw.random() * 0.01)
            for ended in savers[0].wait(LONGEST_WAIT_S) if draw.random() < 0.7 else savers[0].finished():
                if ended.error is None:
                    pipe.send(ended.step)


def _discard(line: str) -> None:
    """Discard what the savers print."""


def _save(manifest: Manifest, saver: Saver) -> None:
    saver.save(make(manifest.step, saver.rank), manifest)


def _start(saver: Saver, pipe: Connection) -> int:
    """Restore as an attempt does first; end the process with a message if the restored state is wrong."""
    state = make(0, saver.rank)
    found = saver.restore(state)
    step = found.step if found else 0
    expected = make(step, saver.rank)
    if found is not None and found.world_size <= saver.rank:
        expected["random"] = make(0, saver.rank)["random"]  # no such rank had one to save
    if wrong := difference(state, expected):
        pipe.send(f"rank {saver.rank} restored something else at step {step}: {wrong}")
        os._exit(1)
    saver.prune(keep=KEPT, doublings=1)
    saver.prepare(state)
    return step


def restore(root: Path) -> tuple[int, str]:
    """Return the step that a successor would start from, and what is wrong with its state."""
    saver = Saver(open_store(root), log=_discard)
    state = make(0, 0)
    step = saver.newest()
    # Not by way of the Saver's own choice alone: the manifest has to be that of the state.
    found = saver.load(state, step) if step else None
    saver.close()
    if found is not None and (found.step, found.consumed_samples) != (step, 3 * step):
        return step, f"the manifest says {found};"
    return step, difference(state, make(step, 0))


def make(step: int, rank: int) -> dict[str, Any]:
    """Return a state that depends only on its step."""
    draw = torch.Generator().manual_seed(step)
    return {
        "model": {f"{layer}": torch.randn(200, 100, generator=draw) for layer in range(4)},
        "optimizer": {0: {"step": torch.tensor(float(step)), "rate": 1.0 / (1 + step)}},
        "step": step,
        "random": {str(rank): torch.arange(3) + step},
    }


def difference(one: Any, other: Any, path: str = "state") -> str:
    """Return where two states first differ, "" if they are equal."""
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return path
        return next(filter(None, (difference(one[key], other[key], f"{path}.{key}") for key in one)), "")
    is_same = torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    return "" if is_same else path


def manifest(step: int, ranks: int) -> Manifest:
    return Manifest("kills", 1, step, 3 * step, ranks, 1.0 / (1 + step), "emergency")
