"""Train the reference run of a run whose remedies changed its data.

It has no faults, but skips the same samples and has the same learning rates from the same steps on.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.soaking.notes import Notes, Start, Step, lineage
from cli.demo.scripts import OURS
from local.sagemaker.images import REPOSITORY_ROOT

RANK = Path(__file__).resolve().parents[1] / "soak_worker" / "rank.py"
LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps that are trained under one remedy."""

    # The last step, included.
    last: int
    # Ranges of samples.
    skipped: tuple[tuple[int, int], ...]
    # The factor on the learning rate.
    rate: float


def stretches(final: Mapping[int, tuple[Start, Step]]) -> list[Stretch]:
    """Return the final lineage, cut where its remedy changes."""
    found: list[Stretch] = []
    for number in sorted(final):
        start = final[number][0]
        here = Stretch(number, start.skipped, start.rate)
        if found and (found[-1].skipped, found[-1].rate) == (here.skipped, here.rate):
            found.pop()
        found.append(here)
    return found


def train(
    parts: Sequence[Stretch], *, steps: int, folder: Path, log: Callable[[str], None], bad: Sequence[str] = ()
) -> Notes:
    """Train it, as fast as it goes, with the drills of batches that were bad; raises RuntimeError where a stretch does
    not come to its end."""
    folder.mkdir(parents=True, exist_ok=True)
    notes, before = Notes(folder), 0
    for number, part in enumerate(parts, 1):
        log(f"its reference run with the same remedies, steps {before + 1} to {part.last}")
        is_last = number == len(parts)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("RERAIL_", "SOAK_", "AWS_"))},
            "PYTHONPATH": os.pathsep.join(str(REPOSITORY_ROOT / name) for name in ("agent", "container", "lambdas")),
            "SAGEMAKER_BASE_DIR": str(folder / "files"),
            "TRAINING_JOB_NAME": f"part-{number}",
            "SOAK_FOLDER": str(folder),
            "OMP_NUM_THREADS": "1",
            "RERAIL_RUN": "remedied",
            "RERAIL_ATTEMPT": str(number),
            "RERAIL_RESUME_STEP": str(before),
            "RERAIL_SKIP_SAMPLES": ",".join(f"{first}-{last}" for first, last in part.skipped),
            "RERAIL_LR_SCALE": str(part.rate),
            "RERAIL_MAILBOX": "off",
            "RERAIL_DRILL": ";".join((*bad, *(() if is_last else (f"bug:step={part.last + 1}",)))),
        }
        request = OURS.make_request(steps=steps, save_every=part.last, keep=len(parts) + 1, step_seconds=0.0)
        process = subprocess.run(
            [sys.executable, str(RANK), *(f"--{name}={value}" for name, value in request["HyperParameters"].items())],
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        if (process.returncode == 0) != is_last:
            raise RuntimeError(f"the reference run ended with {process.returncode}: {process.stderr[-2000:]}")
        before = part.last
    notes.read([f"part-{number}" for number in range(1, len(parts) + 1)])
    return notes


def losses(notes: Notes) -> dict[int, str]:
    """Return its losses by step, exact to the last bit."""
    return {number: step.loss for number, (_, step) in lineage(notes.starts).items()}
