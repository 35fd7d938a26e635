"""Which faults happen when: rates from published training runs, the same for every way of supervising a run."""

import csv
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

CORPUS = Path(__file__).resolve().parents[2] / "bench" / "corpus"
DAY_MS = 86_400_000
RATES_OF = "Llama3-405B"
PLANNED = "planned"


class SimulatedFault(StrEnum):
    """The kinds of faults of a simulated run."""

    GPU = "GPU"
    HOST = "host"
    NETWORK = "network or hang"
    SOFTWARE = "software"
    SLOW = "slow machine"
    DIVERGENCE = "divergence"
    SPIKE = "spike that mends"
    FALSE_ALARM = "false alarm"


# Categories of the interruptions that Llama 3 counts. Where the machine lives on, its container does, too.
CATEGORIES: Mapping[SimulatedFault, tuple[str, ...]] = {
    SimulatedFault.GPU: (
        *("Faulty GPU", "GPU HBM3 Memory", "GPU SRAM Memory", "GPU System Processor"),
        *("Silent Data Corruption", "GPU Thermal Interface + Sensor"),
    ),
    SimulatedFault.HOST: (
        *("Host Maintenance", "NIC", "SSD", "Power Supply", "Server Chassis"),
        *("IO Expansion Board", "CPU", "System Memory"),
    ),
    SimulatedFault.NETWORK: ("Network Switch/Cable", "NCCL Watchdog Timeouts"),
    SimulatedFault.SOFTWARE: ("Software Bug", "Dependency"),
}
# BLOOM-176B: one on 384 GPUs in 117 days. What becomes of a loss does not depend on the number of machines.
SLOW_PER_GPU_DAY = 1 / (384 * 117)
DIVERGENCES_A_DAY = 10 / 54  # between GLM-130B (4 in 54 days) and IDEFICS-80B (11 in 17)
ROWS_LOGGED, RECOVERED_SPIKES = 494_166, 79  # of bench/corpus
# docs/proof.md: no wrong intervention in as many rows, so with 95 % confidence fewer than three.
WRONG_AT_MOST = 3
TEXTS = {SimulatedFault.GPU: "hardware", SimulatedFault.NETWORK: "hang_timeout", SimulatedFault.SOFTWARE: "user_code"}
START_TEXT = "infra_retryable"


SOURCES: Mapping[SimulatedFault, str] = {
    **dict.fromkeys(CATEGORIES, "Llama 3: 419 interruptions in 54 days on 16,384 GPUs, by its categories"),
    SimulatedFault.SLOW: "BLOOM-176B: one in 117 days on 384 GPUs",
    SimulatedFault.DIVERGENCE: "10 in 54 days, whatever the size: GLM-130B had 4 in 54, IDEFICS-80B 11 in 17",
    SimulatedFault.SPIKE: "bench/corpus: 79 in 494,166 rows",
    SimulatedFault.FALSE_ALARM: "an intervention for nothing; docs/proof.md: none in 494,166 rows: below 3 (95 %)",
}


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """One fault; `chance` is a number from 0 to 1 that decides its variant."""

    at: int
    fault: SimulatedFault
    chance: float
    text: str = ""


@cache
def read_rates() -> Mapping[SimulatedFault, float]:
    """Return the fatal faults in one GPU-day, by kind."""
    counts = dict.fromkeys(CATEGORIES, 0)
    hours = 0.0
    with (CORPUS / "rates.csv").open(newline="", encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["system"] == RATES_OF and row["class"] != PLANNED]
    for row in rows:
        (fault,) = (fault for fault, categories in CATEGORIES.items() if row["category"] in categories)
        counts[fault] += int(row["count"])
        hours = float(row["exposure"])
    return {fault: count / (hours / 24) for fault, count in counts.items()}


def compute_daily_rates(gpus: int, *, step_s: float) -> dict[SimulatedFault, float]:
    """Return the faults per day of a run on this many GPUs, by kind."""
    rows = 86_400 / step_s
    return {
        **{fault: rate * gpus for fault, rate in read_rates().items()},
        SimulatedFault.SLOW: SLOW_PER_GPU_DAY * gpus,
        SimulatedFault.DIVERGENCE: DIVERGENCES_A_DAY,
        SimulatedFault.SPIKE: RECOVERED_SPIKES / ROWS_LOGGED * rows,
        SimulatedFault.FALSE_ALARM: WRONG_AT_MOST / ROWS_LOGGED * rows,
    }


def compute_mtbf(gpus: int, factor: float = 1.0) -> float:
    """Return the mean time between fatal faults, in seconds."""
    rate = sum(read_rates().values()) * gpus * factor
    return 86_400 / rate if rate else math.inf


def draw_faults(gpus: int, days: float, seed: int, *, step_s: float, factor: float = 1.0) -> list[FaultEvent]:
    """Return the faults of one run in order; a greater `factor` keeps all faults of a smaller one and adds others."""
    strikes = []
    for fault, rate in compute_daily_rates(gpus, step_s=step_s).items():
        for layer in range(math.ceil(factor)):
            strikes += _layer(fault, rate, days, f"{seed}:{fault}:{layer}", share=min(1.0, factor - layer))
    return sorted(strikes, key=lambda event: event.at)


def _layer(fault: SimulatedFault, rate: float, days: float, seed: str, *, share: float) -> list[FaultEvent]:
    chance, strikes, day = random.Random(seed), [], 0.0
    while rate and (day := day + chance.expovariate(rate)) < days:
        kept, like, text = chance.random() < share, chance.random(), draw_text(fault, chance)
        if kept:
            strikes.append(FaultEvent(int(day * DAY_MS), fault, like, text))
    return strikes


def draw_text(fault: SimulatedFault, chance: random.Random) -> str:
    """Return the text of a real failure of this kind, in SageMaker's format."""
    if fault not in TEXTS:
        return ""
    return f"AlgorithmError: {chance.choice(read_texts(TEXTS[fault]))}"[:1024]


@cache
def read_texts(kind: str) -> Sequence[str]:
    """Return the real failure texts of a class."""
    lines = [line for name in ("failures", "failures_collected") for line in (CORPUS / f"{name}.jsonl").open()]
    return [failure["text"] for failure in map(json.loads, lines) if failure["class"] == kind]
