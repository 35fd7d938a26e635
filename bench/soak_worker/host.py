"""The entrypoint of a soaked job: waits until the soak knows of this attempt, then is container/launch.py.

`SOAK_FOLDER` then holds `<job>.json` with the faults that the ranks break, as far as that is decided by then."""

import os
import sys
import time
from pathlib import Path

import launch

PATIENCE_S = 60.0


def wait() -> None:
    """Until the orders are there; raises TimeoutError."""
    file = Path(os.environ["SOAK_FOLDER"]) / f"{os.environ['TRAINING_JOB_NAME']}.json"
    end = time.monotonic() + PATIENCE_S
    while not file.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"{file} has not come within {PATIENCE_S:g} s")
        time.sleep(0.05)


if __name__ == "__main__":
    wait()
    launch.TRAIN = Path(__file__).with_name("rank.py")
    sys.exit(launch.main())
