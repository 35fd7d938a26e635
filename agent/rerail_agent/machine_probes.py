"""Probe this machine's GPUs: whether they compute correctly, and what the driver reports of their memory.

The probes return a result and raise nothing; the caller decides what a bad one means.
"""

import re
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import distributed as dist

ROUNDS = 5
HANGING_PROBES = ("compute", "gpus", "all-reduce")
# On a cold machine loading CUDA, or connecting a thousand ranks, takes a while.
HUNG_S = 60.0
# https://docs.nvidia.com/deploy/xid-errors/ names them; these three say that the GPU has to be replaced or reset.
FATAL_XIDS = {
    64: "a row of its memory could not be remapped",
    79: "fell off the bus",
    95: "an uncontained memory error",
}
# By the same catalogue these are faults of a program (45: of one that was ended), perhaps of an earlier job.
PROGRAM_XIDS = frozenset((13, 31, 43, 45, 68))


class ProbeStatus(StrEnum):
    """The result of a probe, from good to bad."""

    PASSED = "passed"
    SKIPPED = "skipped"
    ODD = "odd"
    REFUSED = "refused"  # another machine would not help: a role, a path, a volume's size
    BROKEN = "broken"


@dataclass(frozen=True)
class ProbeResult:
    """One probe on one rank."""

    probe: str
    status: ProbeStatus
    detail: str
    # A speed that can be compared between ranks, or 0.
    speed: float = 0.0
    host: str = ""
    rank: int = 0

    def __str__(self) -> str:
        return f"{self.host} (rank {self.rank}): {self.probe}: {self.detail}"


def run_probes(probes: dict[str, Callable[[], ProbeResult]], *, limit_s: float) -> list[ProbeResult]:
    """Run all probes in parallel. One that does not end is abandoned: a hung driver call cannot be interrupted.

    What hangs when a GPU does gets more time than the others, because it counts as broken.
    """
    results: dict[str, ProbeResult] = {}

    def run(name: str, probe: Callable[[], ProbeResult]) -> None:
        try:
            results[name] = probe()
        except Exception as error:  # a probe must not be what ends a healthy job
            status = ProbeStatus.BROKEN if name in HANGING_PROBES else ProbeStatus.ODD
            results[name] = ProbeResult(name, status, f"{type(error).__name__}: {error}")

    started = time.monotonic()
    threads = {
        name: threading.Thread(target=run, args=(name, probe), daemon=True, name=f"preflight {name}")
        for name, probe in probes.items()
    }
    for thread in threads.values():
        thread.start()
    late: dict[str, ProbeResult] = {}
    for name, thread in threads.items():
        patience_s = limit_s + HUNG_S if name in HANGING_PROBES else limit_s
        thread.join(max(0.0, started + patience_s - time.monotonic()))
        status = ProbeStatus.BROKEN if name in HANGING_PROBES else ProbeStatus.ODD
        late[name] = ProbeResult(name, status, f"no answer within {patience_s:g} s")
    return [results.get(name, late[name]) for name in probes]


def probe_compute(device: torch.device) -> ProbeResult:
    """Multiply small whole numbers, which float32 must get right to the last bit in any order of summation."""
    length = 4096 if device.type == "cuda" else 256
    index = torch.arange(length)
    left = (index[:, None] * 7 + index * 3) % 5 - 2
    right = (index[:, None] * 2 + index * 11) % 7 - 3
    # The rows repeat after 5 and the columns after 7, so that a corner is the whole answer.
    expected = (left[:5] @ right[:, :7])[index % 5][:, index % 7].to(device, torch.float32)
    kinds = (torch.float32, torch.bfloat16) if device.type == "cuda" else (torch.float32,)
    speeds = {}
    for kind in kinds:
        one, other = left.to(device, kind), right.to(device, kind)
        # bfloat16 rounds the result, and cuBLAS may round partial sums too.
        allowed = 0.02 * expected.abs() + 2 if kind is torch.bfloat16 else 0 * expected
        product = one @ other  # loads the kernel
        synchronize(device)
        started = time.perf_counter()
        for _ in range(ROUNDS):
            product = one @ other
        synchronize(device)
        speeds[kind] = ROUNDS * 2 * length**3 / (time.perf_counter() - started) / 1e12
        # Written so that NaN is wrong.
        if wrong := int((~((product.float() - expected).abs() <= allowed)).sum()):
            detail = f"{device} gets {wrong} of {length**2} numbers of a {kind} product wrong"
            return ProbeResult("compute", ProbeStatus.BROKEN, detail)
    detail = ", ".join(f"{str(kind).removeprefix('torch.')} {speed:.2f} TFLOP/s" for kind, speed in speeds.items())
    return ProbeResult("compute", ProbeStatus.PASSED, detail, speed=speeds[kinds[-1]] if device.type == "cuda" else 0.0)


def measure_all_reduce(device: torch.device, *, rank: int, size: int) -> tuple[int, float]:
    """Compute sums that are known beforehand; return how many are wrong, and the GB/s of each link. Collective."""
    numbers = torch.empty((64 << 20) if device.type == "cuda" else (1 << 18), device=device)
    seconds = 0.0
    for attempt in range(1 + ROUNDS):  # the first one makes the connections
        numbers.fill_(rank + 1)
        synchronize(device)
        started = time.perf_counter()
        dist.all_reduce(numbers)
        synchronize(device)
        seconds += (time.perf_counter() - started) * (attempt > 0)
    wrong = int((numbers != size * (size + 1) // 2).sum())
    # The rate at which a ring's links are used, as nccl-tests reports it.
    return wrong, 2 * (size - 1) / size * numbers.nbytes * ROUNDS / seconds / 1e9


def synchronize(device: torch.device) -> None:
    """Wait for all work that was queued on a GPU; nothing to do on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def probe_gpus(expected: int = 0, *, machine: str = "machine") -> ProbeResult:
    """Look for uncorrectable memory errors, rows that could not be remapped, and missing GPUs.

    `expected` is the number of GPUs that a `machine`, such as an instance type, has; 0 if it is not known.
    """
    received = run_tool(
        "nvidia-smi", "--query-gpu=index,ecc.errors.uncorrected.volatile.total", "--format=csv,noheader,nounits"
    )
    if received.status is not ProbeStatus.PASSED:
        lost = "lost" in received.detail or "Unable to determine the device handle" in received.detail
        return replace(received, probe="gpus", status=ProbeStatus.BROKEN if lost else received.status)
    # Rows are remapped from the A100 on; on others this query has no answer.
    fields = "--query-remapped-rows=gpu_uuid,remapped_rows.pending,remapped_rows.failure"
    remapped = run_tool("nvidia-smi", fields, "--format=csv,noheader")
    rows = remapped.detail if remapped.status is ProbeStatus.PASSED else ""
    return evaluate_gpus(received.detail, rows, expected, machine=machine)


def evaluate_gpus(errors: str, remapped: str, expected: int = 0, *, machine: str = "machine") -> ProbeResult:
    """Evaluate nvidia-smi's two tables."""
    gpus = [[cell.strip() for cell in line.split(",")] for line in errors.splitlines() if line.strip()]
    rows = [[cell.strip() for cell in line.split(",")] for line in remapped.splitlines() if line.strip()]
    if len(gpus) < expected:
        detail = f"{len(gpus)} of the {expected} GPUs of a {machine} are there"
        return ProbeResult("gpus", ProbeStatus.BROKEN, detail)
    failed = [uuid for uuid, _, failure in rows if failure in ("Yes", "1")]
    if failed:
        detail = f"{', '.join(failed)}: a row of memory could not be remapped, the GPU has to be replaced"
        return ProbeResult("gpus", ProbeStatus.BROKEN, detail)
    counted = [f"GPU {index} has {count} uncorrectable memory errors" for index, count in gpus if count.strip("0[]N/A")]
    pending = [
        f"{uuid} has a row to be remapped at its next reset" for uuid, waiting, _ in rows if waiting in ("Yes", "1")
    ]
    if counted or pending:
        return ProbeResult("gpus", ProbeStatus.ODD, ", ".join(counted + pending))
    return ProbeResult("gpus", ProbeStatus.PASSED, f"{len(gpus)} without memory errors")


def read_kernel_log() -> ProbeResult:
    """Look for the driver's Xid messages; most containers may not read them."""
    received = run_tool("dmesg")
    return (
        evaluate_kernel_log(received.detail)
        if received.status is ProbeStatus.PASSED
        else replace(received, probe="kernel log")
    )


def evaluate_kernel_log(text: str) -> ProbeResult:
    found = [
        (place, xid)
        for place, xid in re.findall(r"NVRM: Xid \((?:PCI:)?([^)]*)\): (\d+)", text)
        if int(xid) not in PROGRAM_XIDS
    ]
    fatal = [f"GPU {place}: Xid {xid}, {FATAL_XIDS[int(xid)]}" for place, xid in found if int(xid) in FATAL_XIDS]
    if fatal:
        return ProbeResult("kernel log", ProbeStatus.BROKEN, "; ".join(dict.fromkeys(fatal)))
    if found:
        detail = ", ".join(dict.fromkeys(f"Xid {xid} of GPU {place}" for place, xid in found))
        return ProbeResult("kernel log", ProbeStatus.ODD, detail)
    return ProbeResult("kernel log", ProbeStatus.PASSED, "without an Xid of the machine")


def run_tool(*command: str) -> ProbeResult:
    """Return a tool's output, SKIPPED with its error message when it is absent or may not run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60)
    except OSError as error:
        return ProbeResult(command[0], ProbeStatus.SKIPPED, f"{command[0]}: {error.strerror}")
    if done.returncode:
        complaint = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
        return ProbeResult(command[0], ProbeStatus.SKIPPED, complaint)
    return ProbeResult(command[0], ProbeStatus.PASSED, done.stdout)
