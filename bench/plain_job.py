"""A training script that knows nothing of Rerail and saves nothing: counts its steps, and may break like a machine.

`BREAKS_AT`: the first attempt writes a failure file at that step and ends, as a job does whose GPU has an ECC error."""

import os
import sys
import time
from itertools import count
from pathlib import Path

STEPS, BREAKS_AT = int(os.environ["STEPS"]), int(os.environ.get("BREAKS_AT", "0"))
FIRST = os.environ.get("RERAIL_ATTEMPT", "1") == "1"
ERROR = "RuntimeError: CUDA error: uncorrectable ECC error encountered"

if __name__ == "__main__":
    for step in count(1):
        time.sleep(0.1)
        print(f"rerail step={step} loss={1 / step:.9g}", flush=True)
        if FIRST and step == BREAKS_AT:
            failure = Path(os.environ["SAGEMAKER_BASE_DIR"]) / "output" / "failure"
            failure.parent.mkdir(exist_ok=True)
            failure.write_text(ERROR)
            sys.exit(ERROR)
        if step >= STEPS:
            break
