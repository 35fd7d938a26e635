"""What a job says of itself in a folder that outlives it, and what it is told there: no AWS is asked for either.

`log.jsonl` gets a line for what it does. `alive` is locked by each of its processes for as long as they live, so that
one which finds it locked has seen another one alive, in whatever moment that was."""

import fcntl
import json
import os
import time
from pathlib import Path

BASE = Path(os.environ["SAGEMAKER_BASE_DIR"])
RUN = os.environ.get("RERAIL_RUN") or os.environ["TRAINING_JOB_NAME"]
ATTEMPT = int(os.environ.get("RERAIL_ATTEMPT", "1"))
FOLDER = Path(os.environ["MARKS"]) / RUN
SECONDS, STEPS_A_SAVE = 0.02, 10


def mark(word: str, step: int = 0) -> None:
    """One line, which nobody else's can be mixed with."""
    line = json.dumps({"attempt": ATTEMPT, "word": word, "step": step, "at": time.time()}) + "\n"
    log = os.open(FOLDER / "log.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, line.encode())
    os.close(log)


def live() -> None:
    """From now on to the end of this process it is the run's only one; if there is another, that is marked."""
    alive = os.open(FOLDER / "alive", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        mark("beside another")


def is_requested(word: str) -> bool:
    """The bench has asked for it, of this attempt or of whichever it is."""
    return (FOLDER / f"{word}-{ATTEMPT}").exists() or (FOLDER / word).exists()
