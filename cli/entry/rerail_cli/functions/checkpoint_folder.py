"""The folder in which a remote function saves what its next attempt resumes from."""

from __future__ import annotations

import os
from pathlib import Path

# Set outside of a job to try a resumable function in the own process.
VARIABLE = "RERAIL_CHECKPOINT_FOLDER"
# The call that a job runs, as RUN/ID; set in jobs only.
CALL_VARIABLE = "RERAIL_REMOTE_CALL"


def checkpoint_folder() -> Path:
    """Return the job's checkpoint folder, which SageMaker copies to S3 and restores in each attempt of the run.

    Outside of a job it is the folder that RERAIL_CHECKPOINT_FOLDER names; raise RuntimeError without one.
    """
    named = os.environ.get(VARIABLE, "")
    if not named and not is_in_job():
        raise RuntimeError(
            f"checkpoint_folder() was called outside of a job: set {VARIABLE} to a folder to try the function here"
        )
    folder = Path(named or os.path.join(os.environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml", "checkpoints"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def is_in_job() -> bool:
    """Return whether this process runs a remote call."""
    return bool(os.environ.get(CALL_VARIABLE))
