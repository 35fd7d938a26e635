"""A training script without training: counts steps, saves some of them by the book, and resumes where it is told to.

HALT_AT is a step at which the first attempt waits for ever: whatever is to hit it there cannot come too late. With
HALTS the first so many attempts do, also one that resumes from that step.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

BASE = Path(os.environ["SAGEMAKER_BASE_DIR"])
ATTEMPT = int(os.environ.get("RERAIL_ATTEMPT", "1"))
SLOWDOWN = float(os.environ.get("SLOWDOWN", "1"))
STEPS_A_SAVE, SECONDS_A_SAVE = 10, 0.2 * SLOWDOWN
HALT_AT = int(os.environ.get("HALT_AT", "0")) if int(os.environ.get("HALTS", "1")) >= ATTEMPT else 0


def save(step: int, *, reason: str = "periodic", sign: Callable[[dict], str] = lambda manifest: "") -> None:
    """Files first, manifest last; a script with an agent signs it."""
    folder = BASE / "checkpoints" / f"step-{step:09d}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.pt").write_bytes(b"x" * 100)
    saved_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    files = [{"name": "model.pt", "bytes": 100}]
    manifest = {"schema": 1, "attempt": ATTEMPT, "step": step, "saved_at": saved_at, "reason": reason, "files": files}
    partial = folder / "manifest.json.tmp"
    partial.write_text(json.dumps({**manifest, "signature": sign(manifest)}))
    partial.rename(folder / "manifest.json")


def find_last_save() -> int:
    """Return the step of the newest save that lies on this machine; 0 without one."""
    saved = sorted((BASE / "checkpoints").glob("step-*"))
    return int(saved[-1].name.removeprefix("step-")) if saved else 0


def fail(step: int) -> None:
    """The structured failure file, and a non-zero exit."""
    report = {"rerail": 1, "cause": "user_code", "error": "ValueError: bad shape", "step": step, "rank": 0}
    (BASE / "output").mkdir(exist_ok=True)
    (BASE / "output" / "failure").write_text(json.dumps(report))
    raise SystemExit(1)


def halt(step: int) -> None:
    """Wait for ever at the halt."""
    while HALT_AT and step == HALT_AT:
        time.sleep(SECONDS_A_SAVE)


def main() -> None:
    step = int(os.environ.get("RERAIL_RESUME_STEP", "0"))
    halt(step)
    while step < int(os.environ["STEPS"]):
        time.sleep(SECONDS_A_SAVE)
        step += STEPS_A_SAVE
        if os.environ.get("BUG_AT") == str(step):
            print(f"rerail step={step} loss={1 / step:.9g}", flush=True)
            fail(step)
        save(step)
        # The step is printed when its save is complete: a fault that waits for the step finds both.
        print(f"rerail step={step} loss={1 / step:.9g}", flush=True)
        halt(step)


if __name__ == "__main__":
    main()
