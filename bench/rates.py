"""How many points a second the detectors judge, beside the published rules in plain Python and in numpy.

Two ways to ask: a whole history at once, as a backtest does, and one new value of each of many runs, as the sweep does
each minute. Every figure is the CPU time of the quickest of some rounds, in which all of them take turns."""

import gc
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from bench.logs import Corpus, read_log
from bench.rules import RULES, Rule
from bench.vectors import FAST, Calls, Fast, Floats
from rerail.detection.detectors import DetectorState, evaluate_sample, evaluate_series
from rerail.detection.loss_spike import LossSpike
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds

JOBS, HISTORY = 1_000, 180
ALONE = 100  # runs that numpy is asked about one by one
# Their memory hangs on what they said: numpy can only take many histories abreast, a step at a time.
STEPWISE = ("ZClip on loss", "metaseq")
EVEN_ROWS = 500
LOSS_RULES = tuple(fast.name for fast in FAST)
OURS, SPIKE = "Rerail, all eight detectors", "Rerail, its loss spikes alone"
DELTA, REPLY, WHOLE = (
    "json.loads, the new values",
    "json.loads, three hours of values",
    "Rerail, three hours of each run",
)


@dataclass(frozen=True, slots=True)
class Rate:
    """What judged how many points in how many seconds of CPU."""

    name: str
    points: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.points / self.seconds

    @property
    def us(self) -> float:
        """Microseconds a point."""
        return 1e6 * self.seconds / self.points


Work = tuple[int, Callable[[], object]]


def raced(work: Mapping[str, Work], rounds: int, tick: Callable[[], None] = lambda: None) -> dict[str, Rate]:
    """Each piece of work once a round; `work` gives how many points it judges, and does it."""
    best = dict.fromkeys(work, float("inf"))
    gc.collect()
    gc.freeze()  # as in the functions: what is there already is not searched for garbage again
    try:
        for _ in range(rounds):
            for name, (_, act) in work.items():
                began = time.process_time()
                act()
                best[name] = min(best[name], time.process_time() - began)
            tick()
    finally:
        gc.unfreeze()
    return {name: Rate(name, points, max(best[name], 1e-9)) for name, (points, _) in work.items()}


def losses_of(corpus: Corpus, *, least: int, most: int) -> list[list[Sample]]:
    """The corpus's logs with at least so many finite losses, each cut to so many rows that hold one."""
    logs = ([row for row in read_log(corpus.file(run)) if _told(row.loss)] for run in corpus.runs)
    return [log[:most] for log in logs if len(log) >= least]


def _told(loss: float | None) -> bool:
    return loss is not None and bool(np.isfinite(loss)) and loss > 0


def of_histories(
    logs: Sequence[Sequence[Sample]], rounds: int, tick: Callable[[], None] = lambda: None
) -> dict[str, Rate]:
    """Whole histories, a log after the other; what numpy can only do a step at a time has them side by side."""
    rows, detection = sum(map(len, logs)), Thresholds()
    arrays = [_losses([log]) for log in logs]
    abreast = [np.concatenate([_even(array) for array in arrays])]
    work: dict[str, Work] = {
        OURS: (rows, lambda: [_drained(evaluate_series(log, detection)) for log in logs]),
        SPIKE: (rows, lambda: [_spikes(log, detection) for log in logs]),
    }
    for rule in (rule for rule in RULES if rule.name in LOSS_RULES):
        work[rule.name] = (rows, partial(_ruled, rule, logs))
    for fast in FAST:
        given = abreast if fast.name in STEPWISE else arrays
        work[f"{fast.name}, numpy"] = (sum(array.size for array in given), partial(_judged, fast, given))
    return raced(work, rounds, tick)


def of_a_fleet(
    logs: Sequence[Sequence[Sample]], rounds: int, *, jobs: int = JOBS, tick: Callable[[], None] = lambda: None
) -> dict[str, Rate]:
    """One new minute of so many runs, each with a past of three hours; and, to compare with, that past all anew."""
    detection = Thresholds()
    pasts = [log[:HISTORY] for log in logs]
    seen = [_seen(past, detection) for past in pasts]
    fleet = [(seen[number % len(logs)], logs[number % len(logs)][HISTORY]) for number in range(jobs)]
    past_of = [pasts[number % len(logs)] for number in range(jobs)]
    reply = json.dumps([_answer(number, past) for number, past in enumerate(past_of)])
    delta = json.dumps([_answer(number, [new]) for number, (_, new) in enumerate(fleet)])
    work: dict[str, Work] = {
        OURS: (jobs, lambda: [evaluate_sample(watch, new, detection) for watch, new in fleet]),
        WHOLE: (jobs, lambda: [_drained(evaluate_series(past, detection)) for past in past_of]),
        DELTA: (jobs, lambda: json.loads(delta)),
        REPLY: (jobs, lambda: json.loads(reply)),
    }
    values = _losses([[new for _, new in fleet]])[0]
    for fast in FAST:
        work[f"{fast.name}, numpy, all runs at once"] = (jobs, partial(_ready(fast, past_of), values))
        alone = [(_ready(fast, [past]), values[number : number + 1]) for number, past in enumerate(past_of[:ALONE])]
        work[f"{fast.name}, numpy, run by run"] = (len(alone), partial(_one_by_one, alone))
    return raced(work, rounds, tick)


def _even(array: Floats) -> Floats:
    """A history as rows of one length, so that histories can stand side by side."""
    rows = array.shape[1] // EVEN_ROWS
    return array[0, : rows * EVEN_ROWS].reshape(rows, EVEN_ROWS)


def _losses(logs: Sequence[Sequence[Sample]]) -> Floats:
    return np.array([[row.loss for row in log] for log in logs], dtype=np.float64)


def _ruled(rule: Rule, logs: Sequence[Sequence[Sample]]) -> list[int]:
    return [_drained(rule.calls(log)) for log in logs]


def _judged(fast: Fast, arrays: Sequence[Floats]) -> list[Calls]:
    return [fast.whole(array) for array in arrays]


def _one_by_one(alone: Sequence[tuple[Callable[[Floats], Calls], Floats]]) -> list[Calls]:
    return [judge(new) for judge, new in alone]


def _ready(fast: Fast, pasts: Sequence[Sequence[Sample]]) -> Callable[[Floats], Calls]:
    judge = fast.fresh(len(pasts))
    for column in _losses(pasts).T:
        judge(column)
    return judge


def _seen(past: Iterable[Sample], detection: Thresholds) -> DetectorState:
    watch = DetectorState()
    for sample in past:
        watch, _ = evaluate_sample(watch, sample, detection)
    return watch


def _answer(number: int, past: Sequence[Sample]) -> list[dict[str, object]]:
    """As GetMetricData answers: a loss and a step for each minute."""
    times = [1_769_821_200 + 60 * row for row in range(len(past))]
    found = {"loss": [row.loss for row in past], "step": [row.step for row in past]}
    return [{"Id": f"q{number}{name}", "Timestamps": times, "Values": values} for name, values in found.items()]


def _drained(found: Iterable[object]) -> int:
    return sum(1 for _ in found)


def _spikes(log: Sequence[Sample], detection: Thresholds) -> int:
    spike = LossSpike()
    return sum(spike.see(row, detection) is not None for row in log)
