"""Compare a resumed training with an undisturbed one, bit by bit: `python -m bench.exactness [--json FILE]`.

Trains 200 steps on two ranks with DDP and with FSDP2: once undisturbed, and once with repeated SIGKILLs, each
resumed by new processes. Every loss of every attempt must be the undisturbed one, to the last bit. Then each piece of
state is left out of a resume once, and the check of the first three losses has to detect it.
"""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

STEPS, EVERY, RANKS = 200, 20, 2
KILLS = (33, 78, 119, 161)  # none of them next to a checkpoint
FORGOT_AT = 60
LAYOUTS = {"DDP": "ddp", "FSDP2": "fsdp"}
FORGETFUL = ("random numbers", "data position", "optimizer", "schedule")
OPTIONS = {
    "steps": STEPS,
    "checkpoint-every": EVERY,
    "keep": STEPS,
    "batch-size": 12,
    "model-size": "tiny",
    "warmup-steps": 20,
    "step-seconds": 0.02,  # so that a save is whole before the next kill
    "collective-timeout-seconds": 60,
}
LOSS = re.compile(r"^rerail step=(\d+) loss=(\S+) ", re.MULTILINE)
FORGOTTEN = re.compile(r"the resume has forgotten something: loss \S+ at step (\d+)")
LIMIT_S = 300.0
CODES = {"": 0, "kill": -signal.SIGKILL, "bug": 1}  # how a rank ends with each drill
ROOT = Path(__file__).parents[1]
IMPORTS = [str(ROOT), *(str(ROOT / folder) for folder in ("agent", "container", "lambdas"))]


def forget(piece: str, replace: Callable[[str, Callable[..., Any]], None]) -> None:
    """Have train.py leave a piece of state out of every resume; `replace` replaces one of its functions."""
    import random_state
    import train

    resume, schedule = train.resume, train.compute_learning_rate

    def forgetful(run: train.TrainingRun) -> None:
        resume(run)
        if not run.step:
            return
        match piece:
            case "random numbers":
                random_state.seed_everything(run.options.seed + 1 + run.layout.data_rank)
            case "data position":
                run.consumed_samples = 0
            case "optimizer":
                for moments in run.optimizer.state.values():
                    for tensor in moments.values():
                        tensor.zero_()
            case "schedule":
                resumed = run.step
                replace("compute_learning_rate", lambda step, options: schedule(step - resumed, options))
            case _:
                raise ValueError(f"{piece!r}: one of {', '.join(FORGETFUL)}")

    replace("resume", forgetful)


@dataclass(frozen=True)
class Exactness:
    """The losses of one layout: compared with the undisturbed run's, and how many had other bits."""

    layout: str
    resumes: int
    compared: int
    different: int
    same_weights: bool


@dataclass(frozen=True)
class Omission:
    """A piece of state that a resume went without."""

    layout: str
    piece: str
    # The steps from the resume until the check detected it; 0 if it never did.
    found_at: int


class TrainedRun:
    """A run of several attempts, each with its own processes."""

    def __init__(self, base: Path, layout: str) -> None:
        self.base, self.layout = base, layout
        self.attempt = 0

    def train(self, *, drill: str = "", forgetting: str = "") -> tuple[dict[int, str], str]:
        """Run one attempt on two ranks; return the losses that it printed, and its output."""
        self.attempt += 1
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        common = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RERAIL_DRILL": drill}
        ranks = [self._start(str(rank), common, forgetting) for rank in range(RANKS)]
        try:
            out, err = ranks[0].communicate(timeout=LIMIT_S)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        if ranks[0].returncode != CODES[drill.partition(":")[0]]:
            raise RuntimeError(f"{self.layout}, attempt {self.attempt}: exit code {ranks[0].returncode}\n{err}")
        return {int(step): loss for step, loss in LOSS.findall(out)}, err

    def _start(self, rank: str, common: dict[str, str], forgetting: str) -> subprocess.Popen[str]:
        options = [f"--{name}={value}" for name, value in {**OPTIONS, "parallel": self.layout}.items()]
        own = {"RANK": rank, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": str(RANKS), "SAGEMAKER_BASE_DIR": str(self.base)}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RERAIL_", "TRAINING_"))}
        quiet = subprocess.DEVNULL if rank != "0" else subprocess.PIPE
        return subprocess.Popen(
            [sys.executable, "-m", "bench.exactness", "--rank", forgetting, *options],
            env={**kept, **common, **own, "PYTHONPATH": os.pathsep.join(IMPORTS)},
            stdout=quiet,
            stderr=quiet,
            text=True,
        )


def be_a_rank(forgetting: str, options: list[str]) -> None:
    """Run train.py in this process, without the named piece of state if there is one."""
    import train

    if forgetting:
        forget(forgetting, lambda name, changed: setattr(train, name, changed))
    sys.argv[1:] = options
    train.main()


def weights(err: str) -> str:
    found = re.search(r"finished after step \d+, weights (\S+)", err)
    return found[1] if found else ""


def exactness(name: str, folder: Path, progress: Callable[[str], None]) -> Exactness:
    """Compare an undisturbed run with one that is killed repeatedly."""
    progress(f"{name}: {STEPS} undisturbed steps")
    whole, output = TrainedRun(folder / f"{name}-whole", LAYOUTS[name]).train()
    expected = weights(output)
    job = TrainedRun(folder / f"{name}-killed", LAYOUTS[name])
    pairs: list[tuple[str, str | None]] = []
    for kill in (*KILLS, 0):
        progress(f"{name}: " + (f"until a kill at step {kill}" if kill else "to the end"))
        losses, output = job.train(drill=f"kill:step={kill}" if kill else "")
        pairs += [(loss, whole.get(step)) for step, loss in losses.items()]
    different = sum(first != other for first, other in pairs)
    return Exactness(name, len(KILLS), len(pairs), different, weights(output) == expected != "")


def omission(name: str, piece: str, folder: Path, progress: Callable[[str], None]) -> Omission:
    """Resume a run without the piece, after a failure shortly after a checkpoint."""
    progress(f"{name}: a resume without its {piece}")
    job = TrainedRun(folder / f"{name}-{piece}", LAYOUTS[name])
    job.train(drill=f"bug:step={FORGOT_AT + 5}")
    _, output = job.train(drill=f"bug:step={FORGOT_AT + 6}", forgetting=piece)
    found = FORGOTTEN.search(output)
    return Omission(name, piece, int(found[1]) - FORGOT_AT if found else 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="a file for the figures")
    chosen = parser.parse_args()
    started = time.monotonic()

    def progress(what: str) -> None:
        print(f"[{time.monotonic() - started:5.0f} s] {what}", flush=True)

    with tempfile.TemporaryDirectory(prefix="rerail-exactness-") as scratch:
        folder = Path(scratch)
        exact = [exactness(name, folder, progress) for name in LAYOUTS]
        omitted = [omission(name, piece, folder, progress) for name in LAYOUTS for piece in FORGETFUL]
    for row in exact:
        same = "the same" if row.same_weights else "OTHER"
        print(f"{row.layout}: {row.compared} losses over {row.resumes} resumes, {row.different} differ; {same} weights")
    for omission in omitted:
        output = f"found at step {omission.found_at} after it" if omission.found_at else "NOT FOUND"
        print(f"{omission.layout}, a resume without its {omission.piece}: {output}")
    good = not any(row.different or not row.same_weights for row in exact) and all(
        omission.found_at for omission in omitted
    )
    if chosen.json:
        figures = {"exactness": [asdict(row) for row in exact], "omissions": [asdict(omission) for omission in omitted]}
        chosen.json.write_text(json.dumps({"steps": STEPS, "ranks": RANKS, "good": good, **figures}, indent=1) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        be_a_rank(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main())
