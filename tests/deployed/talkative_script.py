"""A job that tells its secrets: it prints them, and dies once with a failure text that quotes its command line."""

import os
import time
from pathlib import Path

from counting_script import BASE, SECONDS_A_SAVE, STEPS_A_SAVE, find_last_save, save

SECRET = ("WANDB_API_KEY", "DATABASE_URL", "DEPLOY_PASSWORD", "RERAIL_SEAL_KEY")
DIES_AT = 40


def train() -> None:
    """From the newest save; the first attempt dies."""
    step = find_last_save()
    while step < int(os.environ["STEPS"]):
        time.sleep(SECONDS_A_SAVE)
        step += STEPS_A_SAVE
        print(f"rerail step={step} loss={1 / step:.9g}", flush=True)
        save(step)
        if step == DIES_AT and "RERAIL_ATTEMPT" not in os.environ:
            options = " ".join(f"--{name.lower()} {os.environ.get(name, '')}" for name in SECRET)
            print(f"starting with {options}", flush=True)
            words = (
                'ExecuteUserScriptError:\nExitCode 1\nErrorMessage "RuntimeError: NCCL error: unhandled system error"\n'
            )
            Path(BASE / "output" / "failure").write_text(f'{words}Command "python train.py {options}"')
            raise SystemExit(1)


if __name__ == "__main__":
    train()
