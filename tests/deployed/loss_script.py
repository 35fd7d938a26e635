"""A training script without training: prints a plausible loss ten times a second, has one fault, saves by the book."""

import math
import os
import random
import time
from itertools import count

from counting_script import save

FAULT, FAULT_STEP = os.environ.get("FAULT", ""), int(os.environ.get("FAULT_STEP", "520"))
ATTEMPT = int(os.environ.get("RERAIL_ATTEMPT", "1"))
STEPS, SECONDS, SAVE_EVERY = int(os.environ["STEPS"]), 0.1, 25
noise = random.Random(7)

for step in count(int(os.environ.get("RERAIL_RESUME_STEP", "0")) + 1):
    past = step - FAULT_STEP if ATTEMPT == 1 or FAULT == "blind" else -1
    time.sleep(SECONDS * (4 if FAULT == "slow" and past >= 0 else 1))
    if FAULT == "stall" and past >= 0:
        time.sleep(3600)
    loss = (2 + 3 * math.exp(-step / 300)) * (1 + noise.gauss(0, 0.01))
    if FAULT == "spike" and past >= 0:
        loss *= 4
    if FAULT == "heal" and 0 <= past < 40:
        loss *= 1 + 3 * (1 - past / 40)
    bad = FAULT == "nan" and past >= 0
    if not (FAULT == "blind" and past >= 0):
        print(f"rerail step={step} loss={'nan' if bad else f'{loss:.9g}'} nonfinite={int(bad)}", flush=True)
    if step % SAVE_EVERY == 0:
        save(step)
    if step >= STEPS:
        break
