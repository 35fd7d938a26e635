"""A training script without training, for the picture of a fleet: counts, saves by the book, may run out of memory."""

import json
import os
import time
from itertools import count
from pathlib import Path

BASE, SECONDS, SAVE_EVERY = Path(os.environ["SAGEMAKER_BASE_DIR"]), 0.05, 50


def save(step: int) -> None:
    """Files first, manifest last."""
    folder = BASE / "checkpoints" / f"step-{step:09d}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.pt").write_bytes(b"x" * 100)
    manifest = {"schema": 1, "attempt": int(os.environ.get("RERAIL_ATTEMPT", "1")), "step": step, "reason": "periodic"}
    manifest |= {"saved_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    partial = folder / "manifest.json.tmp"
    partial.write_text(json.dumps({**manifest, "files": [{"name": "model.pt", "bytes": 100}]}))
    partial.rename(folder / "manifest.json")


for step in count(int(os.environ.get("RERAIL_RESUME_STEP", "0")) + 1):
    time.sleep(SECONDS)
    print(f"rerail step={step} loss={2 + 100 / (step + 100):.9g}", flush=True)
    if step % SAVE_EVERY == 0:
        save(step)
    if step == int(os.environ.get("OUT_OF_MEMORY_AT", "-1")):
        (BASE / "output").mkdir(exist_ok=True)
        (BASE / "output" / "failure").write_text(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB"
        )
        raise SystemExit(1)
    if step == int(os.environ.get("STEPS", "-1")):
        break
