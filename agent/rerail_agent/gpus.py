"""Identify this machine's GPUs, and recognize one that failed in an earlier attempt of the run.

Standard library only: `rerail_agent.init` looks before it starts the command, in any image.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rerail_agent.processes import LOCAL_MARKS

# The attempts of the run that failed on a GPU, each with that GPU's UUID: `2:GPU-...,3:GPU-...`.
VARIABLE = "RERAIL_FAILED_GPUS"
FAILED = re.compile(r"(\d{1,9}):(GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
QUERY = ("nvidia-smi", "--query-gpu=index,uuid,serial,driver_version", "--format=csv,noheader")
# Seconds; with a broken GPU, nvidia-smi may never end.
LIMIT_S = 20.0
CONCERNS_GPU = re.compile(r"cuda|nccl|nvlink|\bgpu|\bxid\b|\becc\b", re.IGNORECASE)


class Gpu(NamedTuple):
    """A GPU as the driver names it; the serial number is empty where it is hidden."""

    number: int
    uuid: str
    serial: str
    driver: str

    def __str__(self) -> str:
        serial = f"serial {self.serial}, " if self.serial else ""
        return f"{self.uuid} ({serial}driver {self.driver})"


def list_gpus() -> list[Gpu]:
    """Return the GPUs of this machine; empty without a driver, or if nvidia-smi runs longer than LIMIT_S."""
    try:
        process = subprocess.Popen(
            QUERY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace"
        )
    except OSError:
        return []
    try:
        return parse_gpus(process.communicate(timeout=LIMIT_S)[0])
    except subprocess.TimeoutExpired:
        process.kill()  # and not awaited: a process that is blocked in the driver outlives SIGKILL
        return []


def parse_gpus(table: str) -> list[Gpu]:
    """Return the GPUs in the output of nvidia-smi; skip its other lines, such as errors."""
    rows = [[cell.strip() for cell in line.split(",")] for line in table.splitlines()]
    return [
        Gpu(int(row[0]), row[1], row[2] if row[2].strip("0").isdecimal() else "", row[3])
        for row in rows
        if len(row) == 4 and row[0].isdecimal() and row[1].startswith("GPU-")
    ]


def find_gpu(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> Gpu | None:
    """Return the GPU of the rank with this environment; None where that is not certain."""
    visible = select_visible(gpus, environment)
    local_rank = next((value for name in LOCAL_MARKS if (value := environment.get(name))), "")
    if len(visible) == 1:
        return visible[0]
    return visible[int(local_rank)] if local_rank.isdecimal() and int(local_rank) < len(visible) else None


def select_visible(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> list[Gpu]:
    """Return the GPUs in the order of CUDA_VISIBLE_DEVICES, which holds indexes or beginnings of UUIDs."""
    names = environment.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        return list(gpus)
    found = []
    for name in (name.strip() for name in names.split(",")):
        matching = [
            gpu for gpu in gpus if str(gpu.number) == name or (name[:4] == "GPU-" and gpu.uuid.startswith(name))
        ]
        if len(matching) != 1:
            break  # CUDA ignores what follows an invalid one
        found += matching
    return found


def describe_own_gpu(error: str, environment: Mapping[str, str]) -> str:
    """Return the GPU of the rank that raised an error; "" if the error concerns no GPU, or may concern another rank's.

    It may if it names a GPU by its UUID, or is a HardwareError, which all ranks raise for the one that is not fit.
    """
    if not CONCERNS_GPU.search(error) or "GPU-" in error or "HardwareError" in error:
        return ""
    gpu = find_gpu(list_gpus(), environment)
    return str(gpu) if gpu else ""


def find_returned(environment: Mapping[str, str]) -> str:
    """Return which GPU of this machine failed in an earlier attempt, in words; "" if none did.

    The driver is asked only where a GPU of the run has failed.
    """
    attempts: dict[str, list[str]] = {}
    for attempt, uuid in FAILED.findall(environment.get(VARIABLE, "")):
        attempts.setdefault(uuid, []).append(attempt)
    back = [gpu for gpu in list_gpus() if gpu.uuid in attempts] if attempts else []
    if not back:
        return ""
    numbers = attempts[back[0].uuid]
    which = f"attempt{'s' if len(numbers) > 1 else ''} {' and '.join(numbers)}"
    return f"the GPU that failed in {which} is back: {back[0]}"
