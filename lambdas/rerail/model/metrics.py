"""A run's CloudWatch metrics: what to ask for, at what price, and the samples that the answers make.

SageMaker reads the metrics off the job's log lines and keeps them by the minute under the job's name: a run's series is
the series of its attempts, stitched by step. The price is GetMetricData's, $0.01 per 1,000 metrics: a series that is
read each minute costs 43,200 / 1,000 x $0.01 = $0.43 a month. Five series a run (the default) are at most $2.16 a
job-month; the price list counts up to five statistics of one metric in one request as one, which makes it $1.30, but
bills are reported to count each. The three more of `detailed` make it $3.46, a period of five minutes a fifth of it.
Datapoints cost nothing, so what is asked of a run is cut by series and by how often, not by how far back.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from math import isfinite
from typing import NamedTuple, Protocol

from rerail.model.run import parse_step
from rerail.model.sample import Sample

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# CloudWatch reads younger datapoints from another, narrower quota, and keeps high-resolution ones no longer than this.
LOOK_BACK = timedelta(hours=3)
# Runs that are read to about now are asked for together, apart from the few whose long silence needs a longer look.
FRESH_PERIODS = 5
RESOLUTIONS = (1, 5, 10, 20, 30)  # seconds, below the minutes: what GetMetricData takes
# Minutes in which the log flows and the loss is missing before this reads as NaN.
SILENCE = 2


class Statistic(StrEnum):
    """How a minute's values become one, as CloudWatch spells it."""

    AVERAGE = "Average"
    MINIMUM = "Minimum"
    MAXIMUM = "Maximum"
    COUNT = "SampleCount"


class MetricQuery(NamedTuple):
    """One series: a metric of a job, or of one of its hosts (`algo-1`) where `host` says so."""

    job: str
    metric: str
    statistic: Statistic
    host: str = ""


Points = Sequence[tuple[datetime, float]]


class Series(Protocol):
    """The metrics of training jobs."""

    def read(
        self, asked: Sequence[MetricQuery], start: datetime, end: datetime, period: timedelta
    ) -> Mapping[MetricQuery, Points]:
        """The values of each period from start to before end, oldest first, by the time at which the period begins.

        No values is an empty series; a query that was not fully answered is left out. Raises Throttled or Blind."""


@dataclass(frozen=True, slots=True)
class MetricNames:
    """What the job's metrics are called; an empty name says that this job does not publish it.

    Each name has its regular expression in `definitions`. `period` is how often, and over how long, values are read,
    `heartbeat` how often an agent says where its job is.
    """

    step: str = "step"
    loss: str = "loss"
    grad_norm: str = "grad_norm"
    tokens_per_s: str = "tokens_per_s"
    nonfinite: str = "nonfinite"
    detailed: bool = False
    period: timedelta = timedelta(minutes=1)
    heartbeat: timedelta = timedelta(minutes=1)


def select_names(names: MetricNames, defined: Collection[str]) -> MetricNames | None:
    """The names that a job with these MetricDefinitions can publish; None where neither step nor loss is among them:
    such a job is not watched, costs nothing, and its silence means nothing."""

    def known(name: str) -> str:
        return name if name in defined else ""

    narrowed = replace(
        names,
        step=known(names.step),
        loss=known(names.loss),
        grad_norm=known(names.grad_norm),
        tokens_per_s=known(names.tokens_per_s),
        nonfinite=known(names.nonfinite),
    )
    return narrowed if narrowed.step or narrowed.loss else None


# The line `rerail step=60 loss=2.34567891 grad_norm=1.2 lr=0.0003 tokens_per_s=12345 nonfinite=0`, fields in any order.
# Not anchored: mpirun and torchrun put their prefix before it. No look-around: which engine SageMaker runs is not
# documented. A value ends at a space or with the line, so that `nan`, `inf` and a torn line give no number.
_LINE = r"\brerail (?:[a-z_]+=\S* )*"
_NUMBER = r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"
_VALUES = {"step": "([0-9]+)", "loss": _NUMBER, "grad_norm": _NUMBER, "tokens_per_s": _NUMBER, "nonfinite": "([01])"}


def definitions(names: MetricNames = MetricNames()) -> list[dict[str, str]]:
    """The MetricDefinitions for a job that prints our metric line.

    Several ranks may print it: the greatest step, the mean loss and any rank's non-finite value are what is read.
    """
    named = {key: getattr(names, key) for key in _VALUES}
    return [{"Name": name, "Regex": rf"{_LINE}{key}={_VALUES[key]}(?:\s|$)"} for key, name in named.items() if name]


# Field of MetricNames, statistic, and what it is in a sample's row. The step and the flag are the last and the worst of
# their minute. The least loss tells a run that mends itself from one that does not where steps are slow; the count says
# how many lines the minute stands for.
_ALWAYS = (
    ("step", Statistic.MAXIMUM, "step"),
    ("loss", Statistic.AVERAGE, "loss"),
    ("loss", Statistic.MINIMUM, "loss_min"),
    ("loss", Statistic.COUNT, "count"),
    ("nonfinite", Statistic.MAXIMUM, "nonfinite"),
)
# What steps already tell, or what is only a warning and two minutes old when it arrives.
_DETAILS = (
    ("loss", Statistic.MAXIMUM, "loss_max"),
    ("grad_norm", Statistic.MAXIMUM, "grad_norm"),
    ("tokens_per_s", Statistic.AVERAGE, "tokens_per_s"),
)
_OF_HOSTS = ("GPUUtilization", "CPUUtilization")
FIRST_HOST = "algo-1"


@lru_cache(maxsize=64)
def _columns(names: MetricNames) -> tuple[tuple[str, Statistic, str], ...]:
    wanted = _ALWAYS + (_DETAILS if names.detailed else () if names.step else _DETAILS[-1:])
    named = ((getattr(names, key), statistic, column) for key, statistic, column in wanted)
    return tuple((name, statistic, column) for name, statistic, column in named if name)


def queries(job: str, names: MetricNames, *, stall_suspected: bool = False) -> tuple[MetricQuery, ...]:
    """What to ask about a job in Training; its first host's load only where a stall wants a second witness.

    Without a `step` the speed is read from `tokens_per_s` instead.
    """
    asked = tuple(MetricQuery(job, name, statistic) for name, statistic, _ in _columns(names))
    hosts = tuple(MetricQuery(job, metric, Statistic.AVERAGE, FIRST_HOST) for metric in _OF_HOSTS)
    return asked + hosts if stall_suspected else asked


@dataclass(frozen=True, slots=True)
class LossSilence:
    """Whether the loss was ever heard, for how many minutes it is missing now, and the longest time it came back from.

    `sound_to` is the step before the last minute with a loss: in that minute, too, it may have been missing at times.
    A job that logs its loss more rarely than its steps thereby teaches us not to take the pause for a NaN.
    """

    loss_heard: bool = False
    minutes: int = 0
    longest: int = 0
    sound_to: int | None = None

    @property
    def tells_of_nan(self) -> bool:
        return self.minutes >= max(SILENCE, 2 * self.longest + 1)


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far the series of a run's current job was read, and which of the run's steps were judged.

    `read_to` is the end of the last minute with any value in it, `step` the last one judged in any attempt, `seen_step`
    and `seen_at` this job's last step and the end of its minute. `behind`: the job repeats steps that were judged.
    """

    job: str
    read_to: datetime | None = None
    step: int | None = None
    seen_step: int | None = None
    seen_at: datetime | None = None
    behind: bool = False
    silence: LossSilence = field(default_factory=LossSilence)


def with_next_attempt(cursor: Cursor, job: str, *, judged_to: int | None = None) -> Cursor:
    """The cursor for the run's next attempt.

    Steps up to the last judged one are replays. Where we rolled back because of them they are new steps with the same
    numbers: then `judged_to` names the step that the watch was set back to, and all after it is judged again.
    """
    step = cursor.step if judged_to is None or cursor.step is None else min(cursor.step, judged_to)
    longest = cursor.silence.longest
    return Cursor(job, step=step, behind=step is not None, silence=LossSilence(longest=longest))


def with_agent_progress(
    cursor: Cursor, *, step: int | None, moved_at: datetime, at: datetime, period: timedelta
) -> Cursor:
    """The cursor after somebody else, at `at`, has judged the run up to `step`, which was completed at `moved_at`.

    The minute in which that was is read again: it may hold more steps, and without any it makes no sample.
    """
    read_to = _floor(at, resolution(period))
    cursor = replace(cursor, read_to=max(read_to, cursor.read_to or read_to))
    if step is None or step == cursor.seen_step:
        return cursor
    behind = cursor.behind and step <= (cursor.step or 0)
    return replace(cursor, step=max(step, cursor.step or 0), seen_step=step, seen_at=moved_at, behind=behind)


@dataclass(frozen=True, slots=True)
class MetricsReading:
    """A run whose job is in Training, as the reading of all runs sees it."""

    cursor: Cursor
    names: MetricNames
    stall_suspected: bool = False


def fetch(series: Series, watched: Iterable[MetricsReading], *, now: datetime) -> dict[MetricQuery, Points]:
    """What is new for all runs, in as few requests as may be; a run without a settled minute costs nothing."""
    alike: dict[tuple[timedelta, bool], list[tuple[datetime, MetricsReading]]] = defaultdict(list)
    for each in watched:
        period = resolution(each.names.period)
        start, end = window(each.cursor, period, now=now)
        if start < end:
            alike[period, end - start <= FRESH_PERIODS * period].append((start, each))
    answers: dict[MetricQuery, Points] = {}
    for (period, _), group in alike.items():
        asked = [
            query
            for _, each in group
            for query in queries(each.cursor.job, each.names, stall_suspected=each.stall_suspected)
        ]
        answers |= series.read(asked, min(start for start, _ in group), _floor(now - period, period), period)
    return answers


def window(cursor: Cursor, period: timedelta, *, now: datetime) -> tuple[datetime, datetime]:
    """From the end of what was read to the end of what has settled: a minute is left alone for a minute after its end,
    because it is still filling."""
    oldest = _floor(now - LOOK_BACK, period)
    start = oldest if cursor.read_to is None else max(oldest, _floor(cursor.read_to, period))
    return start, _floor(now - period, period)


def samples(
    series: Mapping[MetricQuery, Points], cursor: Cursor, names: MetricNames, *, now: datetime
) -> tuple[Cursor, tuple[Sample, ...]]:
    """The settled minutes since the cursor that bring new steps, oldest first, and the cursor behind them.

    Each minute is judged once, in order, however often and in whatever order its values arrive; what arrives after a
    later minute was judged is lost. Each step is judged once: after a resume at step R the minutes that end at or
    before the last judged step move the cursor and make no sample. A minute that lacks its step counts as the one
    before. Without step names every minute is new. Where a series could not be read, nothing is judged until it can.
    """
    period = resolution(names.period)
    settled = now - period
    rows: dict[datetime, dict[str, float]] = {}
    for metric, statistic, column in _columns(names):
        points = series.get(MetricQuery(cursor.job, metric, statistic))
        if points is None:
            return cursor, ()
        for at, value in points:
            if isfinite(value):
                rows.setdefault(at, {})[column] = value
    found = []
    for at in sorted(rows):
        end = at + period
        if end <= settled and (cursor.read_to is None or at >= cursor.read_to):
            cursor, sample = _judge(cursor, end, rows[at], names)
            found += [sample] if sample else []
    return cursor, tuple(found)


def _judge(cursor: Cursor, end: datetime, row: Mapping[str, float], names: MetricNames) -> tuple[Cursor, Sample | None]:
    step = parse_step(row)
    behind = cursor.behind if step is None else cursor.step is not None and step <= cursor.step
    silence = _listen(cursor, row) if names.loss else cursor.silence
    silent = "nonfinite" not in row and silence.tells_of_nan
    after = Cursor(
        job=cursor.job,
        read_to=end,
        step=cursor.step if behind or step is None else step,
        seen_step=cursor.seen_step if step is None else step,
        seen_at=cursor.seen_at if step is None else end,
        behind=behind,
        silence=silence,
    )
    if behind:
        return after, None
    sample = Sample(
        step=step,
        at=end,
        loss=row.get("loss"),
        grad_norm=row.get("grad_norm"),
        step_time_s=_step_time(cursor, end, step, row, names),
        tokens_per_s=row.get("tokens_per_s"),
        nonfinite=silent or row.get("nonfinite", 0) > 0,
        count=max(1, int(row.get("count", 1))),
        loss_min=row.get("loss_min"),
        loss_max=row.get("loss_max"),
        sound_to=silence.sound_to if silent else None,
    )
    return after, sample


def _listen(cursor: Cursor, row: Mapping[str, float]) -> LossSilence:
    """CloudWatch takes no NaN and no number's expression reads one: the loss then falls silent while the log flows.

    A job that publishes the flag says so itself, and its word is taken."""
    silence = cursor.silence
    if "loss" in row:
        before = cursor.seen_step if cursor.seen_step is not None else cursor.step or 0
        return LossSilence(loss_heard=True, longest=max(silence.longest, silence.minutes), sound_to=before)
    if "nonfinite" in row or not silence.loss_heard:
        return silence
    return replace(silence, minutes=silence.minutes + 1)


def _step_time(
    cursor: Cursor, end: datetime, step: int | None, row: Mapping[str, float], names: MetricNames
) -> float | None:
    """Seconds a step since this job's last one, pauses included; seconds a logged line for a job without steps."""
    if not names.step and "count" in row:
        return resolution(names.period).total_seconds() / max(1, int(row["count"]))
    if step is None or cursor.seen_step is None or cursor.seen_at is None or step <= cursor.seen_step:
        return None
    return (end - cursor.seen_at).total_seconds() / (step - cursor.seen_step)


class Load(NamedTuple):
    """How busy a job's first host is, in percent of one device each; None: not known."""

    gpu: float | None
    cpu: float | None


def load(series: Mapping[MetricQuery, Points], job: str) -> Load:
    """The newest load. Near nothing confirms a hang; full GPUs do not deny one, for a collective that waits spins."""
    last = [series.get(MetricQuery(job, metric, Statistic.AVERAGE, FIRST_HOST)) for metric in _OF_HOSTS]
    gpu, cpu = (max(points)[1] if points else None for points in last)
    return Load(gpu, cpu)


@lru_cache(maxsize=64)
def resolution(period: timedelta) -> timedelta:
    """The shortest period that GetMetricData takes and that is no shorter than this."""
    seconds = period.total_seconds()
    short = next((each for each in RESOLUTIONS if seconds <= each), None)
    return timedelta(seconds=short) if short else timedelta(minutes=-(-seconds // 60))


def _floor(at: datetime, period: timedelta) -> datetime:
    return at - (at - EPOCH) % period
