"""Has three ranks, one on each of three hosts, look at their machines; run: `python fitness.py <folder>`.

A line of JSON for each rank and case goes to stdout: what was raised, and what was logged.
"""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch

import parallel
import preflight
from job import TrainingCluster, TrainingJob
from rerail_agent import machine_probes
from rerail_agent.machine_probes import ProbeResult

RANKS = 3


def fit(rank: int, job: TrainingJob) -> TrainingJob:
    return job


def miscalculating(rank: int, job: TrainingJob) -> TrainingJob:
    """Rank 1 gets one number of a product wrong."""
    product = torch.Tensor.__matmul__

    def wrong(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        result = product(one, other)
        if result.is_floating_point():
            result[17, 4] += 1
        return result

    if rank == 1:
        torch.Tensor.__matmul__ = wrong
    return job


def absent(rank: int, job: TrainingJob) -> TrainingJob:
    """Rank 2 never comes to the all-reduce, and says nothing either."""
    honest = preflight.run_probes

    def at_once(probes: dict[str, Callable[[], ProbeResult]], *, limit_s: float) -> list[ProbeResult]:
        return time.sleep(3600) or [] if "all-reduce" in probes else honest(probes, limit_s=limit_s)

    if rank == 2:
        preflight.run_probes = at_once
    return job


def without_a_place(rank: int, job: TrainingJob) -> TrainingJob:
    """Rank 1 may not write where its checkpoints go."""
    return replace(job, checkpoint_location="/proc/version/checkpoints") if rank == 1 else job


def hung_driver(rank: int, job: TrainingJob) -> TrainingJob:
    """Rank 0 waits for its GPU for ever."""
    if rank == 0:
        preflight.probe_compute = lambda device: time.sleep(3600)
    return job


CASES = (fit, miscalculating, absent, without_a_place, hung_driver)


def become(rank: int, port: str, folder: Path, case: Callable[[int, TrainingJob], TrainingJob]) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.set_num_threads(1)
    limit_s = 1.0 if case in (absent, hung_driver) else 30.0
    preflight.HUNG_S = preflight.PATIENCE_S = machine_probes.HUNG_S = limit_s
    world = parallel.join(timeout=timedelta(seconds=120))
    hosts = tuple(f"algo-{number + 1}" for number in range(RANKS))
    cluster = TrainingCluster(hosts=hosts, current_host=hosts[rank], instance_type="", network_interface="")
    job = case(rank, TrainingJob(base=folder / hosts[rank], run="night", attempt=1, resume_at_most=None))
    logged: list[str] = []
    raised = ["", ""]
    try:
        preflight.inspect(
            world, job, cluster, log=logged.append, limit_s=1.0 if case in (absent, hung_driver) else 30.0
        )
    except (preflight.HardwareError, ValueError) as error:
        raised = [type(error).__name__, str(error)]
    line = json.dumps({"case": case.__name__, "rank": rank, "raised": raised, "logged": logged})
    os.write(1, f"{line}\n".encode())
    parallel.leave(0)


def main() -> int:
    codes = []
    for case in CASES:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        pids = []
        for rank in range(RANKS):
            pid = os.fork()
            if not pid:
                become(rank, port, Path(sys.argv[1]), case)
            pids.append(pid)
        here = pids[: 2 if case is absent else RANKS]
        codes += [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in here]
        for pid in pids[len(here) :]:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return int(any(codes))


if __name__ == "__main__":
    import torch._dynamo  # every rank would import it by itself

    raise SystemExit(main())
