"""A script that knows nothing of Rerail, overwrites one file in place, and tears it once.

TEAR names a file: once it exists, the first attempt leaves half of its checkpoint and waits for its end.
"""

import os
import pickle
import time
from pathlib import Path

from counting_script import ATTEMPT, BASE, SLOWDOWN

CHECKPOINT, TEAR = BASE / "checkpoints" / "ckpt.pt", Path(os.environ["TEAR"])
SAVE_EVERY, SECONDS = 20, 0.05 * SLOWDOWN

step = pickle.loads(CHECKPOINT.read_bytes())["step"] if CHECKPOINT.exists() else 0
print(f"resumed from step {step}", flush=True)
while ATTEMPT == 1 or step < int(os.environ["STEPS"]):
    step += 1
    time.sleep(SECONDS)
    print(f"rerail step={step} loss={2 + 1 / step:.9g}", flush=True)
    if step % SAVE_EVERY == 0:
        whole = pickle.dumps({"weights": os.urandom(1000), "step": step})
        torn = ATTEMPT == 1 and TEAR.exists()
        CHECKPOINT.with_suffix(".tmp").write_bytes(whole[:500] if torn else whole)
        CHECKPOINT.with_suffix(".tmp").rename(CHECKPOINT)
        while torn:
            time.sleep(SECONDS)
