"""Kill runs while they save, and damage what they saved: `python -m bench.killing`.

Counts wrong restores: a state that is not what was saved at its step, a checkpoint lost that had been reported as
committed, or anything that does not load. Exit status 1 when there is one.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import distributed as dist

sys.path.append(str(Path(__file__).resolve().parent.parent / "agent"))

from rerail_agent.checkpoints import Manifest, Saver, open_store
from rerail_agent.checkpoints.manifest import DamagedCheckpoint

EVERY = 10  # steps between two saves
KEPT = 2
LONGEST_WAIT_S = 300.0  # only ends a hang
LONGEST_PAUSE_S = 0.03  # before a kill, so that it comes at any point of the next save or two


@dataclass
class KillTally:
    """The results of the kills or the damages."""

    outcomes: Counter[str] = field(default_factory=Counter)
    # Each failure, and how to repeat it.
    wrong: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(self.outcomes.values())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    options = _options(argv)
    console = Console() if sys.stdout.isatty() else Console(width=120)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        killed = _counted(progress, "kills", options.kills, lambda tick: kill(options.kills, options.seed, tick))
        damaged = _counted(
            progress, "damages", options.damages, lambda tick: damage(options.damages, options.seed, tick)
        )
    console.print(_table(killed, damaged))
    for line in [*killed.wrong, *damaged.wrong][:20]:
        console.print(line, style="red", highlight=False)
    if options.json:
        tallies = {"kills": killed, "damages": damaged}
        options.json.write_text(json.dumps({name: vars(tally) for name, tally in tallies.items()}, indent=1))
    return 1 if killed.wrong or damaged.wrong else 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.killing", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--damages", type=int, default=1000, help="flipped bits, truncated and missing files")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="writes the figures there too")
    return parser.parse_args(argv)


def _counted(progress: Progress, name: str, total: int, act: Callable[[Callable[[], None]], KillTally]) -> KillTally:
    task = progress.add_task(name, total=total)
    return act(lambda: progress.advance(task))


def kill(times: int, seed: int, tick: Callable[[], None] = lambda: None) -> KillTally:
    """Send SIGKILL to runs of one and two ranks at random moments; each time a successor restores and continues.

    Attempts follow one another in the same folder, as those of a real run do, so that each must handle what the last
    left.
    """
    tally = KillTally()
    draw = random.Random(seed)
    context = get_context("forkserver")
    context.set_forkserver_preload(["bench.killing"])
    root = Path(tempfile.mkdtemp(prefix="rerail-killing-"))
    try:
        reported = 0
        for number in range(times):
            if number % 25 == 0:
                shutil.rmtree(root)
                root.mkdir()
                reported = 0
            ranks = 1 + number % 2
            reported = _run_and_kill(context, root, ranks, reported, draw, tally, f"kill {number} of seed {seed}")
            tick()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return tally


def _run_and_kill(
    context: Any, root: Path, ranks: int, reported: int, draw: random.Random, tally: KillTally, name: str
) -> int:
    """Run and kill one attempt. The attempt checks what it restores; this process checks what the attempt leaves."""
    ours, theirs = context.Pipe()
    victim = context.Process(target=train, args=(str(root), ranks, draw.randrange(1 << 30), theirs))
    victim.start()
    theirs.close()
    said = ours.recv() if ours.poll(LONGEST_WAIT_S) else "silent"
    writers: list[int] = said if isinstance(said, list) else []
    reported = max(reported, _commits(ours, draw.randrange(4)))
    time.sleep(draw.random() * LONGEST_PAUSE_S)
    _kill_rank(victim.pid, writers, draw)
    victim.join()
    reported = max(reported, _commits(ours, None))
    _await_death(writers)
    if not writers:
        tally.wrong.append(f"{name}: the attempt did not start: {said}")
    kind = _state_left(root)
    found, problem = check(root)
    if problem or found < reported:
        tally.wrong.append(f"{name}: step {found} restored, {reported} committed; {problem}")
    tally.outcomes["wrong" if problem or found < reported else kind] += 1
    return found


def _commits(pipe: Connection, count: int | None) -> int:
    """Return the step of the last commit, after `count` commits or all that were reported; 0 for none."""
    step = 0
    try:
        while count is None or (count > 0 and pipe.poll(LONGEST_WAIT_S)):
            step = int(pipe.recv())
            count = None if count is None else count - 1
    except EOFError:
        return step
    return step


def _state_left(root: Path) -> str:
    """Return the phase of the checkpoint in which the kill came, as far as the disk shows."""
    names = [path.name for path in root.iterdir()]
    if any(name.startswith(".saving") for name in names):
        return "in a file"
    if any(name.startswith("step") and not (root / name / "manifest.json").exists() for name in names):
        return "before the manifest, or in a deletion"
    return "between two saves"


def _kill_rank(pid: int, writers: Sequence[int], draw: random.Random) -> None:
    """Kill the run; in some cases kill the process that writes first, so that the run continues without it for a
    moment."""
    if draw.random() < 0.2:
        for writer in writers:
            _kill(writer)
        time.sleep(draw.random() * 0.02)
    _kill(pid)


def _kill(pid: int) -> None:
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
        savers = [
            Saver(open_store(root), rank=rank, world_size=ranks, store=store, log=_silence) for rank in range(ranks)
        ]
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


def _silence(line: str) -> None:
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


def check(root: Path) -> tuple[int, str]:
    """Return the step that a successor would start from, and the error in its state, "" if there is none."""
    saver = Saver(open_store(root), log=_silence)
    state = make(0, 0)
    try:
        step = saver.newest()
        # Not by way of the Saver's own reader alone: the manifest has to be that of the state.
        found = saver.load(state, step) if step else None
    except (DamagedCheckpoint, OSError, ValueError) as error:
        return 0, f"{type(error).__name__}: {error}"
    finally:
        saver.close()
    if found is not None and (found.step, found.consumed_samples) != (step, 3 * step):
        return step, f"the manifest says {found}"
    return step, difference(state, make(step, 0))


def damage(times: int, seed: int, tick: Callable[[], None] = lambda: None) -> KillTally:
    """Damage the newer of two checkpoints in one file: the older one must be restored, or the newer one undamaged."""
    tally = KillTally()
    draw = random.Random(seed)
    whole = Path(tempfile.mkdtemp(prefix="rerail-damage-"))
    try:
        saver = Saver(open_store(whole / "whole"), log=_silence)
        for step in (EVERY, 2 * EVERY):
            saver.save(make(step, 0), manifest(step))
        assert all(ended.error is None for ended in saver.wait(LONGEST_WAIT_S))
        saver.close()
        for number in range(times):
            root = whole / "damaged"
            shutil.copytree(whole / "whole", root)
            kind, name = _damage_one(root / f"step-{2 * EVERY:09d}", draw)
            found, problem = check(root)
            if problem or found not in (EVERY, 2 * EVERY):
                tally.wrong.append(f"damage {number} of seed {seed}, {kind} in {name}: step {found}; {problem}")
                tally.outcomes["wrong"] += 1
            else:
                tally.outcomes[f"{kind}: {'fell back' if found == EVERY else 'harmless'}"] += 1
            shutil.rmtree(root)
            tick()
    finally:
        shutil.rmtree(whole, ignore_errors=True)
    return tally


def _damage_one(folder: Path, draw: random.Random) -> tuple[str, str]:
    path = draw.choice(sorted(folder.iterdir()))
    kind = draw.choice(["flipped bit", "flipped bit", "truncated", "missing", "zeroed block"])
    content = bytearray(path.read_bytes())
    at = draw.randrange(len(content))
    match kind:
        case "flipped bit":
            content[at] ^= 1 << draw.randrange(8)
        case "truncated":
            del content[at:]
        case "zeroed block":
            content[at : at + 512] = bytes(len(content[at : at + 512]))
    if kind == "missing":
        path.unlink()
    else:
        path.write_bytes(content)
    return kind, path.name


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


def manifest(step: int, ranks: int = 1) -> Manifest:
    return Manifest("bench", 1, step, 3 * step, ranks, 1.0 / (1 + step), "emergency")


def _table(killed: KillTally, damaged: KillTally) -> Table:
    table = Table(title=f"wrong restores: {len(killed.wrong) + len(damaged.wrong)}, goal 0")
    for heading in ("", "outcome", "times"):
        table.add_column(heading, justify="right" if heading == "times" else "left")
    for name, tally in (("SIGKILL while saving", killed), ("damage to a file", damaged)):
        for outcome, count in sorted(tally.outcomes.items()):
            table.add_row(f"{name} ({tally.count})", outcome, str(count))
    return table


if __name__ == "__main__":
    __spec__ = None  # type: ignore[assignment]  # or each victim would be warned that it has this module twice
    sys.exit(main())
