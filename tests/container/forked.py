"""Runs jobs of several ranks one after the other with a single import of torch: `python forked.py '[{"base": ...}]'`.

Each job is {"base": folder, "ranks": number, "options": [...], "environment": {...}}. Its output goes to out.txt and
err.txt in its base, as that of a job through launch.py does.
"""

import json
import os
import socket
import sys
from typing import Any, NoReturn

import torch._dynamo  # noqa: F401  (every rank would import it by itself, for AdamW and DDP)

import train


def run(job: dict[str, Any]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    # Truncated before the ranks open them, which then append.
    outputs = [open(os.path.join(job["base"], name), "w") for name in ("out.txt", "err.txt")]  # noqa: SIM115
    ranks = [
        os.fork() or become(rank, job, port, outputs=[output.fileno() for output in outputs])
        for rank in range(job["ranks"])
    ]
    for pid in ranks:
        os.waitpid(pid, 0)


def become(rank: int, job: dict[str, Any], port: str, *, outputs: list[int]) -> NoReturn:
    for target, output in zip((1, 2), outputs, strict=True):
        os.dup2(output, target)
    os.environ.update(job["environment"], SAGEMAKER_BASE_DIR=job["base"], TRAINING_JOB_NAME="night")
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(job["ranks"]), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    sys.argv[1:] = job["options"]
    train.main()
    raise AssertionError("train.main ends the process")


if __name__ == "__main__":
    for each in json.loads(sys.argv[1]):
        run(each)
