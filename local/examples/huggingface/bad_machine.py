"""Run a script that uses the Trainer on a machine with a fault: `python bad_machine.py train.py [its arguments]`

After step BREAK_AT of the first job one weight becomes NaN, as after a bit flip; the next job gets a healthy machine.
Each step takes at least STEP_SECONDS. The script is run unchanged.
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
    """Do one step that takes at least its minimum time."""
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
