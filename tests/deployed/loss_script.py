"""A training script without training: prints a plausible loss ten times a second, has one fault, saves by the book.

With a fault that lasts, the first attempt never ends by itself. With UNTIL no attempt does before that file exists.
"""

import math
import os
import random
import time
from itertools import count
from pathlib import Path

from counting_script import SLOWDOWN, save

FAULT, FAULT_STEP = os.environ.get("FAULT", ""), int(os.environ.get("FAULT_STEP", "520"))
ATTEMPT = int(os.environ.get("RERAIL_ATTEMPT", "1"))
STEPS, SAVE_EVERY = int(os.environ["STEPS"]), 25
# Rows of metrics are real seconds on any clock; the load of a machine is measured each minute of the scaled clock.
SECONDS = 0.1 * (SLOWDOWN if FAULT == "idle" else 1)
UNTIL = Path(os.environ.get("UNTIL", "/"))
# By the clock, as the rows of metrics are: on a slow machine fewer steps mend it.
HEALS_WITHIN_S = 4.0
LASTS = FAULT in ("spike", "nan", "stall", "idle") and ATTEMPT == 1
noise = random.Random(7)
faulty_since = math.inf

for step in count(int(os.environ.get("RERAIL_RESUME_STEP", "0")) + 1):
    is_faulty = step >= FAULT_STEP and (ATTEMPT == 1 or FAULT == "blind")
    if is_faulty:
        faulty_since = min(faulty_since, time.monotonic())
    time.sleep(SECONDS * (4 if FAULT == "slow" and is_faulty else 1))
    while FAULT in ("stall", "idle") and is_faulty:
        time.sleep(SECONDS)
    end = time.monotonic() + SECONDS
    while FAULT == "idle" and time.monotonic() < end:
        pass
    loss = (2 + 3 * math.exp(-step / 300)) * (1 + noise.gauss(0, 0.01))
    if FAULT == "spike" and is_faulty:
        loss *= 4
    if FAULT == "heal" and is_faulty:
        loss *= 1 + 3 * max(0.0, 1 - (time.monotonic() - faulty_since) / HEALS_WITHIN_S)
    bad = FAULT == "nan" and is_faulty
    if not (FAULT == "blind" and is_faulty):
        print(f"rerail step={step} loss={'nan' if bad else f'{loss:.9g}'} nonfinite={int(bad)}", flush=True)
    if step % SAVE_EVERY == 0:
        save(step)
    if step >= STEPS and not LASTS and UNTIL.exists():
        break
