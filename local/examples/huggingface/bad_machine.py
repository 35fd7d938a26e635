"""Runs a script that uses the Trainer on a machine with a fault: python bad_machine.py train.py [its arguments]

After step BREAK_AT of a run's first job one weight turns into a NaN, as a bit that flips would have it; the next job of
the run gets a sound machine. Each step takes STEP_SECONDS at least. The script is run as it is.
"""

import os
import runpy
import sys
import time
from typing import Any

import torch
import transformers

BREAK_AT = int(os.environ.get("BREAK_AT", "0")) if os.environ.get("RERAIL_ATTEMPT", "1") == "1" else 0
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))
training_step = transformers.Trainer.training_step


def step(trainer: Any, model: Any, *arguments: Any, **settings: Any) -> Any:
    """One step, and no sooner than its time."""
    begun = time.monotonic()
    if BREAK_AT and trainer.state.global_step == BREAK_AT:
        with torch.no_grad():
            next(model.parameters()).view(-1)[0] = float("nan")
    loss = training_step(trainer, model, *arguments, **settings)
    time.sleep(max(0.0, STEP_SECONDS - (time.monotonic() - begun)))
    return loss


transformers.Trainer.training_step = step
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
