"""A training script without training and without an agent: its loss says only how far it has come."""

import os
import time
from itertools import count

from counting_script import SLOWDOWN, save

SAVE_EVERY, SECONDS = 40, 0.05 * SLOWDOWN

for step in count(int(os.environ.get("RERAIL_RESUME_STEP", "0")) + 1):
    time.sleep(SECONDS)
    print(f"rerail step={step} loss={2 + 1 / step:.9g}", flush=True)
    if step % SAVE_EVERY == 0:
        save(step)
