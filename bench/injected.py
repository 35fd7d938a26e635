"""Faults of a known size, put into healthy training logs at a known row."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cli.backtest.scoring import Label
from rerail.model.sample import Sample

RECOVERY_ROWS = 12.0  # the e-folding time of a spike that recovers
RAMP_ROWS = 100
CREEP_ROWS = 400
STALL_STEPS = 200
BURST_ROWS = 12


@dataclass(frozen=True, slots=True)
class Fault:
    """A change of a log from one row on."""

    name: str
    # The kind of its label; None: nothing happens that has to be found.
    kind: str | None
    # The loss and the seconds of a step, as factors, this many rows after the onset.
    change: Callable[[int], tuple[float, float]]
    # How many rows it lasts; None: to the end.
    rows: int | None = None
    # It is expected to be acted on.
    must_stop: bool = False
    # It needs at least this many rows after its onset to be judged.
    needs_rows: int = 0


@dataclass(frozen=True, slots=True)
class InjectedLog:
    """A log with one fault."""

    samples: tuple[Sample, ...]
    labels: tuple[Label, ...]


def _raise_loss(factor: float) -> Callable[[int], tuple[float, float]]:
    return lambda _: (factor, 1.0)


def _raise_loss_and_recover(factor: float) -> Callable[[int], tuple[float, float]]:
    return lambda rows: (1 + (factor - 1) * math.exp(-rows / RECOVERY_ROWS), 1.0)


def _slow_down(factor: float) -> Callable[[int], tuple[float, float]]:
    return lambda _: (1.0, factor)


HEALTHY = Fault("none", None, _raise_loss(1))
FROZEN = "frozen"
FAULTS = (
    HEALTHY,
    *(Fault(f"lasting x{f:g}", "divergence", _raise_loss(f), must_stop=f >= 2) for f in (1.1, 1.3, 2, 5, 10)),
    *(Fault(f"recovers x{f:g}", "loss_spike", _raise_loss_and_recover(f), rows=40) for f in (1.3, 2, 5)),
    Fault("ramp to x3", "divergence", lambda rows: (1 + 2 * min(1.0, rows / RAMP_ROWS), 1.0), must_stop=True),
    Fault("NaN", "nan", _raise_loss(math.nan), must_stop=True),
    Fault(FROZEN, "frozen_loss", _raise_loss(1), must_stop=True),
    *(Fault(f"slower x{f:g}", "throughput_drop", _slow_down(f), must_stop=True) for f in (1.3, 2)),
    Fault(
        "creeping x1.5",
        "throughput_drop",
        lambda rows: (1.0, 1 + 0.5 * min(1.0, rows / CREEP_ROWS)),
        must_stop=True,
        needs_rows=2 * CREEP_ROWS,
    ),
    Fault("burst of slow rows", "ignored", _slow_down(3), rows=BURST_ROWS),
    Fault("stall", "stall", _slow_down(STALL_STEPS), rows=1),
)


def inject(fault: Fault, healthy: Sequence[Sample], rng: random.Random) -> InjectedLog:
    """Return the log with the fault, which begins between 50 and 60 % of the log."""
    if fault is HEALTHY:
        return InjectedLog(tuple(healthy), ())
    onset = int(len(healthy) * rng.uniform(0.5, 0.6))
    end = len(healthy) - 1 if fault.rows is None else min(len(healthy), onset + fault.rows) - 1
    frozen_at = healthy[onset].loss
    samples = list(healthy[:onset])
    for row in range(onset, len(healthy)):
        sample = healthy[row]
        factor, slower = fault.change(row - onset) if row <= end else (1.0, 1.0)
        loss = frozen_at if fault.name == FROZEN else None if sample.loss is None else sample.loss * factor
        seconds = None if sample.step_time_s is None else sample.step_time_s * slower
        # A fault that slows steps down is one of a machine: it shows as a slow rank.
        suspect = "rank 3 is slow" if slower > 1 and fault.kind == "throughput_drop" else ""
        samples.append(replace(sample, loss=loss, step_time_s=seconds, suspect=suspect))
    score = "ignore" if fault.kind == "ignored" else "count"
    recovered = "no" if fault.must_stop or fault.rows is None else "yes"
    kind = "stall" if fault.kind == "ignored" or fault.kind is None else fault.kind
    return InjectedLog(tuple(samples), (Label(kind, onset, end, score, recovered),))
