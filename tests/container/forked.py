"""Runs jobs of several ranks, one line of JSON from stdin after the other, with a single import of torch.

Each job is {"base": folder, "ranks": number, "options": [...], "environment": {...}, "grace_s": seconds}. Its output
goes to out.txt and err.txt in its base, as that of a job through launch.py does, and the ranks' pids to pids.json. When
rank 0 has ended, the others have the grace to do so too, and then they are killed. A line on stdout has the exit codes,
negative ones for signals.
"""

import json
import os
import signal
import socket
import sys
import threading
from typing import Any, NoReturn

import torch._dynamo  # noqa: F401  (every rank would import it by itself, for AdamW and DDP)

import train


def run(job: dict[str, Any]) -> list[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    # Truncated before the ranks open them, which then append.
    outputs = [open(os.path.join(job["base"], name), "w") for name in ("out.txt", "err.txt")]  # noqa: SIM115
    ranks = [
        os.fork() or become(rank, job, port, outputs=[output.fileno() for output in outputs])
        for rank in range(job["ranks"])
    ]
    for output in outputs:
        output.close()
    with open(os.path.join(job["base"], "pids.json"), "w") as file:  # for a test that signals them
        json.dump(ranks, file)
    codes = [exit_code(ranks[0])]
    timers = [threading.Timer(job["grace_s"], os.kill, (pid, signal.SIGKILL)) for pid in ranks[1:]]
    for timer in timers:
        timer.start()
    for pid, timer in zip(ranks[1:], timers, strict=True):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # not yet reaped, so the timer cannot hit another process
        timer.cancel()
        timer.join()
        codes.append(exit_code(pid))
    return codes


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def become(rank: int, job: dict[str, Any], port: str, *, outputs: list[int]) -> NoReturn:
    for target, output in zip((1, 2), outputs, strict=True):
        os.dup2(output, target)
    os.environ.update(job["environment"], SAGEMAKER_BASE_DIR=job["base"], TRAINING_JOB_NAME="night")
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(job["ranks"]), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    sys.argv[1:] = job["options"]
    train.main()
    raise AssertionError("train.main ends the process")


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)
