"""Check once, in a few seconds before the first step, whether every machine of the job is fit to train.

A GPU that computes wrongly or a link at a tenth of its speed costs days when it shows in the loss. A sign of a broken
machine raises HardwareError, on all ranks and with the host's name; what is only unusual is logged.
"""

import errno
import itertools
import json
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import distributed as dist

from instances import INSTANCES
from job import TrainingCluster, TrainingJob
from parallel import DistributedWorld
from rerail_agent.gpus import find_gpu, list_gpus
from rerail_agent.machine_probes import (
    HUNG_S,
    ProbeResult,
    ProbeStatus,
    measure_all_reduce,
    probe_compute,
    probe_gpus,
    read_kernel_log,
    run_probes,
)

GIB = 1 << 30
LEAST_FREE = 64 << 20
# Of a file or an object that is written, read back and deleted.
PROBE_BYTES = 1 << 20
# Machines of a job are not ready at the same moment: images are pulled, modules imported.
PATIENCE_S = 120.0
READING_S = 5.0
SLOW = 0.7  # of the median of all ranks
NVLINK = ("V100", "A100", "H100", "H200", "B200")
_calls = itertools.count()


class HardwareError(Exception):
    """A machine is not fit to train on; the same job may run on another one."""


def inspect(
    world: DistributedWorld,
    job: TrainingJob,
    cluster: TrainingCluster,
    *,
    log: Callable[[str], None],
    limit_s: float = 10.0,
    state_bytes: int = 0,
) -> list[ProbeResult]:
    """Return the results of all ranks, on every rank; raise HardwareError or ValueError on all if one is not fit.

    On fit machines it takes no longer than `limit_s`; a minute more before anything counts as hung. `state_bytes` is
    the size of a checkpoint on this machine, for which there must be space.
    """
    started = time.monotonic()
    name = f"rerail/preflight/{next(_calls)}"
    instance = INSTANCES.get(cluster.instance_type)
    expected_gpus = instance.gpus if instance else 0
    probes: dict[str, Callable[[], ProbeResult]] = {"compute": lambda: probe_compute(world.device)}
    if world.local_rank == 0:
        probes |= {
            "gpus": lambda: probe_gpus(expected_gpus, machine=cluster.instance_type),
            "kernel log": read_kernel_log,
            "disk": lambda: probe_disk(job.base, state_bytes),
            "checkpoints": lambda: probe_checkpoints(job.checkpoints, f"{job.run}-{cluster.current_host}-{world.rank}"),
        }

    def mine(result: ProbeResult) -> ProbeResult:
        if (
            result.probe == "compute"
            and result.status is ProbeStatus.BROKEN
            and (gpu := find_gpu(list_gpus(), os.environ))
        ):
            result = replace(result, detail=f"{result.detail}, on {gpu}")
        return replace(result, host=cluster.current_host, rank=world.rank)

    own = [mine(result) for result in run_probes(probes, limit_s=limit_s)]
    # The results go over the ranks' store, by TCP, and so do not depend on a broken GPU or link.
    results = exchange(world, own, name=f"{name}/alone", limit_s=limit_s, hosts={})
    raise_failures(results)
    # In a thread too: NCCL connects within the first call, which does not return before it has.
    (link,) = run_probes({"all-reduce": lambda: probe_all_reduce(world, cluster)}, limit_s=limit_s)
    hosts = {result.rank: result.host for result in results}
    results += exchange(world, [mine(link)], name=f"{name}/together", limit_s=limit_s, hosts=hosts)
    raise_failures(results)
    if world.is_first:
        report(results, seconds=time.monotonic() - started, log=log)
    return results


def raise_failures(results: Iterable[ProbeResult]) -> None:
    """Raise an error for the worst results; the message names the host and the rank of each."""
    # A rank that waited in vain comes after the one it waited for.
    ordered = sorted(results, key=lambda result: result.probe == "all-reduce")
    for status, error in ((ProbeStatus.BROKEN, HardwareError), (ProbeStatus.REFUSED, ValueError)):
        if named := [str(result) for result in ordered if result.status is status]:
            more = f" | and {len(named) - 4} more" if len(named) > 4 else ""
            raise error(" | ".join(named[:4]) + more)


def report(results: list[ProbeResult], *, seconds: float, log: Callable[[str], None]) -> None:
    """Log a line for each unusual result, and one for all."""
    for result in [result for result in results if result.status is ProbeStatus.ODD] + find_slow_ranks(results):
        log(f"preflight: {result}")
    first = [result for result in results if result.rank == 0]
    passed = ", ".join(f"{result.probe} {result.detail}" for result in first if result.status is ProbeStatus.PASSED)
    skipped = ", ".join(f"{result.probe} ({result.detail})" for result in first if result.status is ProbeStatus.SKIPPED)
    ranks = len({result.rank for result in results})
    log(f"preflight: {ranks} rank(s) in {seconds:.1f} s: {passed}" + (f"; skipped {skipped}" if skipped else ""))


def find_slow_ranks(results: list[ProbeResult]) -> list[ProbeResult]:
    """Return ranks that compute much slower than the median: every step waits for the slowest.

    CPUs are not compared, because their ranks share cores.
    """
    speeds = [result for result in results if result.probe == "compute" and result.speed]
    if len(speeds) < 3:
        return []
    median = statistics.median(result.speed for result in speeds)
    return [
        replace(result, status=ProbeStatus.ODD, detail=f"{result.detail}, the median is {median:.1f}")
        for result in speeds
        if result.speed < SLOW * median
    ]


def exchange(
    world: DistributedWorld, own: list[ProbeResult], *, name: str, limit_s: float, hosts: dict[int, str]
) -> list[ProbeResult]:
    """Return every rank's results, in the order of the ranks, on every rank; a rank that sends nothing is broken.

    `hosts` are those of the ranks, as far as they are known.
    """
    if world.size == 1:
        return own
    store = dist.distributed_c10d._get_default_store()
    store.set(f"{name}/{world.rank}", _dump_results(own))
    wait_s = limit_s + HUNG_S + PATIENCE_S
    deadline = time.monotonic() + (wait_s if world.is_first else 2 * wait_s)
    if not world.is_first:
        everything = _receive_results(store, f"{name}/all", deadline)
        store.add(f"{name}/read", 1)
        return everything or [_make_missing_result(0, hosts)]
    received = {rank: _receive_results(store, f"{name}/{rank}", deadline) for rank in range(world.size)}
    everything = [
        result for rank, results in received.items() for result in results or [_make_missing_result(rank, hosts)]
    ]
    store.set(f"{name}/all", _dump_results(everything))
    # The store may be in this process, which ends after a bad result: not before the others have read it.
    readers = sum(bool(results) for results in received.values()) - 1
    while store.add(f"{name}/read", 0) < readers and time.monotonic() < deadline + READING_S:
        time.sleep(1e-3)
    return everything


def _dump_results(results: list[ProbeResult]) -> str:
    return json.dumps([asdict(result) for result in results])


def _receive_results(store: Any, key: str, deadline: float) -> list[ProbeResult]:
    try:
        store.wait([key], timedelta(seconds=max(0.001, deadline - time.monotonic())))
    except RuntimeError:  # torch's DistStoreError: the time is over
        return []
    return [ProbeResult(**result | {"status": ProbeStatus(result["status"])}) for result in json.loads(store.get(key))]


def _make_missing_result(rank: int, hosts: dict[int, str]) -> ProbeResult:
    return ProbeResult("report", ProbeStatus.BROKEN, "no word from it", host=hosts.get(rank, "unknown host"), rank=rank)


def probe_disk(folder: Path, needed: int) -> ProbeResult:
    """Require space for a checkpoint, and report less than two: the old one goes when the new one is complete."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    detail = f"{free / GIB:.1f} GiB free under {folder}"
    if free < max(needed, LEAST_FREE):
        return ProbeResult(
            "disk", ProbeStatus.REFUSED, f"{detail}, a checkpoint takes {needed / GIB:.1f}; raise VolumeSizeInGB"
        )
    if free < 2 * needed:
        return ProbeResult("disk", ProbeStatus.ODD, f"{detail}, two checkpoints take {2 * needed / GIB:.1f}")
    return ProbeResult("disk", ProbeStatus.PASSED, detail)


def probe_checkpoints(place: str, name: str) -> ProbeResult:
    """Write where checkpoints go, read it back and delete it."""
    started = time.monotonic()
    try:
        (write_and_read_in_s3 if place.startswith("s3://") else write_and_read_on_disk)(
            place, f".preflight-{name}", os.urandom(PROBE_BYTES)
        )
    except OSError as error:
        # Of S3's errors none has a number: what is denied here is denied on every machine.
        status = ProbeStatus.BROKEN if error.errno in (errno.EIO, errno.EROFS, errno.EREMOTEIO) else ProbeStatus.REFUSED
        detail = f"cannot keep a file in {place}: {error.strerror or error}; check the path, the role and the bucket"
        return ProbeResult("checkpoints", status, detail)
    except ImportError as error:
        return ProbeResult("checkpoints", ProbeStatus.REFUSED, f"{place} needs s3torchconnector in the image: {error}")
    return ProbeResult(
        "checkpoints", ProbeStatus.PASSED, f"written and read back in {time.monotonic() - started:.2f} s"
    )


def write_and_read_on_disk(place: str, name: str, content: bytes) -> None:
    path = Path(place) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.read_bytes() != content:
            raise OSError(errno.EIO, "gives back other bytes than were written")
    finally:
        path.unlink(missing_ok=True)


def write_and_read_in_s3(place: str, name: str, content: bytes) -> None:
    # With the code that will write checkpoints, so that region, endpoint and credentials are the same.
    from rerail_agent.checkpoints.manifest import DamagedCheckpoint
    from rerail_agent.checkpoints.store import open_store

    beside = open_store(f"{place.rstrip('/')}/{name}")
    entry = beside.write(0, "probe", [memoryview(content)], total=len(content))
    try:
        beside.check(0, entry)
    except DamagedCheckpoint as error:
        raise OSError(errno.EIO, str(error)) from error
    beside.drop(0)


def probe_all_reduce(world: DistributedWorld, cluster: TrainingCluster) -> ProbeResult:
    """Compute sums that are known beforehand, and measure the speed. Collective."""
    if world.size == 1:
        return ProbeResult("all-reduce", ProbeStatus.SKIPPED, "one rank")
    wrong, speed = measure_all_reduce(world.device, rank=world.rank, size=world.size)
    if wrong:
        return ProbeResult("all-reduce", ProbeStatus.BROKEN, f"{wrong} sums are wrong")
    return evaluate_speed(speed, find_least_speed(cluster))


def find_least_speed(cluster: TrainingCluster) -> float:
    """Return the GB/s that any healthy link of these machines exceeds, a quarter of its nominal speed; 0 if unknown."""
    instance = INSTANCES.get(cluster.instance_type)
    if instance is None:
        return 0.0
    if len(cluster.hosts) > 1:
        return instance.network_gbit / 8 / 4
    return 40.0 if instance.gpu in NVLINK else 1.5  # PCIe, at worst by way of the CPU


def evaluate_speed(speed: float, least: float) -> ProbeResult:
    detail = f"{speed:.2f} GB/s"
    if speed < least / 100:
        return ProbeResult(
            "all-reduce", ProbeStatus.BROKEN, f"{detail}, a hundredth of what is the least here", speed=speed
        )
    if speed < least:
        return ProbeResult(
            "all-reduce", ProbeStatus.ODD, f"{detail}, at least {least:.1f} should be; EFA may not be in use", speed
        )
    return ProbeResult("all-reduce", ProbeStatus.PASSED, detail, speed=speed)
