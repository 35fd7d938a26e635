"""A job under the agent's init whose script, without an agent, has a bug that strikes once: a restart gets past it."""

import os
import sys
import time

from counting_script import SECONDS_A_SAVE, STEPS_A_SAVE, fail, find_last_save, save

from rerail_agent import init

BUG_AT = 50


def train() -> None:
    """From the newest save that lies on this machine."""
    step = find_last_save()
    while step < int(os.environ["STEPS"]):
        time.sleep(SECONDS_A_SAVE)
        step += STEPS_A_SAVE
        print(f"rerail step={step} loss={1 / step:.9g}", flush=True)
        if step == BUG_AT and "RERAIL_RESTART" not in os.environ:
            fail(step)
        save(step)


if __name__ == "__main__":
    if sys.argv[1:] == ["train"]:
        train()
    else:
        sys.exit(init.run([sys.executable, __file__, "train"]))
