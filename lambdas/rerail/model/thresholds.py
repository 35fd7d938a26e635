"""The thresholds of the detectors, with their defaults and where they were measured.

"Corpus" means the labelled real training logs of the benchmark. A row is one logged line: a step, or a minute of steps.
Losses are compared as logarithms: 0.093 is a factor of 1.10.
"""

from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, ClassVar

PLANNED_LIMIT, WHAT_LIMIT = 20, 100


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """A planned change of loss or speed, such as longer sequences: rows from `step` on are compared with each other."""

    step: int
    what: str = ""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The thresholds of one run; names that end in `_rows` count rows. Constants are no fields: policies lack them."""

    planned: tuple[PlannedChange, ...] = ()

    # Non-finite: intervene after this many bad rows in a row; after this many good ones a bad row is reported again.
    non_finite_patience: int = 3
    non_finite_quiet_rows: ClassVar[int] = 100

    # The minimum noise: logs are rounded, and a loss may be constant for some rows. 0.4 % of the loss.
    noise_floor: ClassVar[float] = 0.004

    # Loss spike: one row above the noise, a relevant effect, and about twice the run's normal deviations up and down.
    # The gate on the effect brings the largest single gain on the corpus (false alarms by five at equal recall).
    spike_noise: ClassVar[float] = 5.5
    spike_gate: ClassVar[float] = 0.093
    # Small jumps must be more certain: effect squared over noise, so that 15 % needs thirteen standard deviations.
    spike_sure: float = 1.8
    # The quantiles of the last 512 rows that count as normal, upwards (frequent outliers, two modes, saw-teeth) and
    # downwards. Jumps down are never spikes, so they measure normal deviations without the accidents.
    history_up: ClassVar[float] = 0.975
    history_up_factor: ClassVar[float] = 2.2
    history_down: ClassVar[float] = 0.005
    history_down_factor: ClassVar[float] = 1.9
    # Or this many rows in a row, each above this share of the limit for a single row. On the corpus, 7 rows miss one
    # group's spikes (recall .81 instead of .90) for two false alarms fewer in 494,000 rows.
    run_rows: int = 6
    run_share: ClassVar[float] = 0.4
    # A spike has recovered below this share of the limit.
    spike_recovered: ClassVar[float] = 0.5
    # Noise is not learnt for this many rows after a spike.
    spike_aftermath_rows: ClassVar[int] = 12
    # Warn again if the loss has not recovered by then; the median spike is 5 rows wide.
    spike_again_rows: ClassVar[int] = 8
    # The level is accepted as normal after this many rows.
    spike_cap_rows: ClassVar[int] = 64

    # Divergence: the median of 8 rows against the best level of the last 200.
    rise_gate: ClassVar[float] = 0.095
    rise_noise: ClassVar[float] = 3.7
    rise_tail: ClassVar[float] = 0.61  # of the 90th percentile: the standard deviation of a normal distribution
    rise_history: ClassVar[float] = 4.6
    rise_quantile: ClassVar[float] = 0.9
    rise_history_cap: ClassVar[float] = 0.5
    rise_tolerated: ClassVar[float] = 1.5
    rise_recovered: ClassVar[float] = 0.5
    rise_cap_rows: ClassVar[int] = 128
    # With 64 rows, none of 240 spikes that recover by themselves was interrupted in a simulation. On the corpus 56 rows
    # interrupt one, 48 two, 32 five, and 64 to 96 none: the default keeps a distance to that limit. The other two apply
    # if rows follow each other quickly.
    patience_rows: int = 80
    patience_steps: int = 64
    patience: timedelta = timedelta(0)

    # Frozen: this many repetitions of a value, or of exactly 0.0, and a multiple of the longest repetition before.
    frozen_rows: ClassVar[int] = 50
    frozen_zero_rows: ClassVar[int] = 20
    frozen_factor: ClassVar[int] = 3
    frozen_patience: ClassVar[int] = 2

    # Loss drop: a fall to a quarter within a few rows. Planned decays of the learning rate halve or third the loss.
    loss_drop: float = 1.39

    # Plateau: it only warns, once.
    plateau: bool = True
    plateau_rows: ClassVar[int] = 200
    plateau_gain: ClassVar[float] = 0.03

    # Gradient norm: off by default. On the corpus 23 % of its findings were near an event, and it announced 21 % of
    # the events, by 8 rows in the median.
    grad_norm: bool = False
    grad_norm_noise: ClassVar[float] = 6.0
    grad_norm_factor: ClassVar[float] = 2.0
    # A jump to less than this is not reported: gradients are commonly clipped at 1, so it has hardly any effect.
    grad_norm_floor: ClassVar[float] = 3.0

    # Throughput: warn at 10 % for 50 rows. If a slow rank or an idle machine shows a fault, intervene at 20 % for 200,
    # so that the relaunch pays off; without one at 150 %.
    throughput_window_rows: int = (
        50  # the rows of the current median; at least as many earlier rows are needed to compare with
    )
    throughput_drop: float = 0.10
    throughput_rows: int = 50
    throughput_creep: ClassVar[float] = 0.4
    throughput_grave: float = 0.20
    throughput_patience_rows: int = 200
    throughput_cap_rows: ClassVar[int] = 1000
    # Steps that take this share less than usual: work may be skipped.
    throughput_rise: float = 0.4
    # Slow steps are reported once they have lost this much time. The default is 0, because some of the labelled drops
    # are of steps that take milliseconds. Local runs, whose machine has other work, use seconds.
    throughput_floor: timedelta = timedelta(0)

    # Stalls: five times the longest known gap, as in NVIDIA's resiliency extension, and at least the floor.
    stall_factor: float = 5.0
    stall_floor: timedelta = timedelta(minutes=5)
    save_factor: ClassVar[float] = (
        3.0  # warn if no checkpoint arrives for this many times the longest interval between two
    )
    save_floor: timedelta = timedelta(minutes=10)
    startup_limit: timedelta = timedelta(minutes=30)
    blind_after: timedelta = timedelta(minutes=10)
    capacity_wait_after: timedelta = timedelta(hours=2)


# Fields of earlier versions: a policy, or a job that was launched by an earlier version, may still set them.
RETIRED_THRESHOLDS = frozenset(Thresholds.__annotations__) - {f.name for f in fields(Thresholds)}


def find_zero(thresholds: Thresholds) -> str:
    """Return a number that is 0 though its default is not, or "": healthy runs would exceed it at once."""
    numbers = {f.name: getattr(thresholds, f.name) for f in fields(Thresholds) if f.default and f.type is not bool}
    return next((name for name, value in numbers.items() if not value), "")


def read_planned(value: Any) -> tuple[PlannedChange, ...]:
    """Return the planned changes in a list of tables; raise ValueError with what it must be."""
    if not isinstance(value, list) or len(value) > PLANNED_LIMIT or not all(map(_is_planned, value)):
        example = '[{step = 20000, what = "sequence length 8192"}]'
        raise ValueError(f"it must be a list of at most {PLANNED_LIMIT} changes with a step above 0, such as {example}")
    return tuple(PlannedChange(**change) for change in value)


def _is_planned(change: Any) -> bool:
    if not isinstance(change, dict) or not {"step"} <= change.keys() <= {"step", "what"}:
        return False
    step, what = change["step"], change.get("what", "")
    return type(step) is int and 0 < step < 10**12 and isinstance(what, str) and len(what) <= WHAT_LIMIT
