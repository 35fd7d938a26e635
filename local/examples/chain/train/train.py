"""Fit a logistic regression by gradient descent, from scratch or from the model of another task; resumes by itself."""

import argparse
import json
import math
import os
import tarfile
import time
from pathlib import Path

CHECKPOINT = Path("/opt/ml/checkpoints/checkpoint.json")


def read_packed(folder: str, name: str) -> list:
    """Return the JSON of a file in the archive that another task has left."""
    (archive,) = Path(folder).glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        return json.load(packed.extractfile(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--part", default="common")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="slows training down, to look at it")
    given = parser.parse_args()
    rows = read_packed(os.environ["SM_CHANNEL_DATA"], f"{given.part}.json")
    base = os.environ.get("SM_CHANNEL_BASE")
    first, weights = 0, read_packed(base, "model.json") if base else [0.0, 0.0, 0.0]
    if CHECKPOINT.exists():
        first, weights = json.loads(CHECKPOINT.read_text())
        print(f"resumed from step {first}", flush=True)
    for step in range(first + 1, given.steps + 1):
        slopes, loss = [0.0, 0.0, 0.0], 0.0
        for x, y, label in rows:
            inputs = (1.0, x, y)
            chance = 1 / (1 + math.exp(-sum(w * value for w, value in zip(weights, inputs, strict=True))))
            loss -= math.log(chance if label else 1 - chance) / len(rows)
            slopes = [slope + (chance - label) * value / len(rows) for slope, value in zip(slopes, inputs, strict=True)]
        weights = [weight - given.lr * slope for weight, slope in zip(weights, slopes, strict=True)]
        print(f"Step: {step} Loss: {loss:.4f}", flush=True)
        if step % 5 == 0:
            CHECKPOINT.parent.mkdir(parents=True, exist_ok=True)
            saved = CHECKPOINT.with_suffix(".new")
            saved.write_text(json.dumps([step, weights]))
            saved.replace(CHECKPOINT)
        time.sleep(given.step_seconds)
    Path(os.environ["SM_MODEL_DIR"], "model.json").write_text(json.dumps(weights))


main()
