"""The findings of each detector on one log: Rerail per step and per minute, and the published rules."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.rules import RULES
from cli.backtest.corpus import read_log
from cli.backtest.minutes import clock, minutes
from cli.backtest.scoring import Call, Labelled, as_calls
from rerail.detection.detectors import evaluate_series
from rerail.model.thresholds import Thresholds

PER_STEP, PER_MINUTE = "Rerail", "Rerail, 1 minute"
CONTENDERS = (PER_STEP, PER_MINUTE, *(rule.name for rule in RULES))


@dataclass(frozen=True, slots=True)
class Task:
    """One log to be judged."""

    file: Path
    run: Labelled
    detection: Thresholds


@dataclass(slots=True)
class Judged:
    """What was said about one log, and how much CPU each contender took. `by_minute` is the run with labels in minutes;
    the clocks say at which second a row or a minute was over, where the log tells the time."""

    run: Labelled
    by_minute: Labelled
    last_rows: tuple[int, ...]
    step_clock: Sequence[float] | None
    minute_clock: Sequence[float] | None
    calls: dict[str, list[Call]] = field(default_factory=dict)
    cpu_s: dict[str, float] = field(default_factory=dict)
    unscored: Counter[str] = field(default_factory=Counter)


def judge(task: Task) -> Judged:
    """Read one log and ask every contender."""
    samples = read_log(task.file)
    by_minute = minutes(samples)
    timed = bool(task.run.labels and by_minute.ends_s)
    judged = Judged(
        run=task.run,
        by_minute=by_minute.labelled(task.run),
        last_rows=by_minute.last_rows,
        step_clock=clock(samples) if timed else None,
        minute_clock=by_minute.ends_s if timed else None,
    )
    detection = task.detection
    _ask(judged, PER_STEP, lambda: as_calls(evaluate_series(samples, detection), unscored=judged.unscored))
    _ask(judged, PER_MINUTE, lambda: as_calls(evaluate_series(by_minute.samples, detection), unscored=Counter()))
    for rule in RULES:
        _ask(judged, rule.name, partial(rule.calls, samples))
    return judged


def _ask(judged: Judged, name: str, answer: Callable[[], Iterable[Call]]) -> None:
    began = time.process_time()
    judged.calls[name] = list(answer())
    judged.cpu_s[name] = time.process_time() - began
