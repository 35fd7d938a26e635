"""Read a run's CloudWatch metrics: the queries, their cost, and the conversion of results to samples.

SageMaker extracts the metrics from the job's log lines and stores them by the minute under the job's name. A run's
series consists of the series of its attempts, joined by step.

The cost is GetMetricData's, $0.01 per 1,000 metrics: a series that is read each minute costs
43,200 / 1,000 x $0.01 = $0.43 a month. Five series a run (the default) are at most $2.16 a job-month. By the price
list, up to five statistics of one metric in one request count as one, which makes it $1.30, but bills are reported to
count each. The two further series of `detailed` make it $3.02; a period of five minutes costs a fifth.
Datapoints are free, so the queries are limited by the number of series and the frequency, not by the time range.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from math import isfinite
from typing import Any, NamedTuple, Protocol

from rerail.model.sample import Sample, parse_step

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Younger datapoints are subject to a separate, narrower quota; high-resolution ones are not kept longer than this.
LOOK_BACK = timedelta(hours=3)
# Runs that were read recently are queried together, separately from the few that need a longer time range.
FRESH_PERIODS = 5
RESOLUTIONS = (1, 5, 10, 20, 30)  # the periods below a minute that GetMetricData accepts, in seconds
# A loss counts as NaN once it has been missing for this many minutes while other metrics arrived.
MIN_SILENT_MINUTES = 2
# So many minutes must have had a loss before: more of them if the gaps between these vary.
REGULAR_LOSSES, IRREGULAR_LOSSES = 3, 20
# The loss must be missing for longer than its longest gap, by this factor. The second is for a loss that is missing
# most of the time and irregularly, as between the updates of reinforcement learning, whose gaps may grow.
GAP_FACTOR, RARE_GAP_FACTOR = 2, 10
# A loss that is missing now went wrong in the minute of its last value, or at most in the minute before that.
LATEST_MINUTES = 2
# Steps that fell belong to another epoch once they have stayed low for half the time that they had grown, at least 3
# and at most 30 minutes; a fall to about zero counts as two. The steps of an evaluation stay low for less time.
EPOCH_MINUTES, FALL_TO_ZERO = (3, 30), 2
# With a period of a minute, the newest values read are at most this old.
OLDEST_READ = timedelta(minutes=2)


class Statistic(StrEnum):
    """The CloudWatch statistics that aggregate the values of a period."""

    AVERAGE = "Average"
    MINIMUM = "Minimum"
    MAXIMUM = "Maximum"
    COUNT = "SampleCount"


class MetricQuery(NamedTuple):
    """A query for one series: a metric of a job, or of one of its hosts (such as `algo-1`)."""

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
        """Return the values of each period from `start` to before `end`, oldest first, by the start of the period.

        A series without values is empty; a query that was not fully answered is missing. Raise Throttled or
        StateUnknown.
        """


@dataclass(frozen=True, slots=True)
class MetricNames:
    """The names of the job's metrics; an empty name is a metric that the job does not publish.

    `definitions` gives the regular expression for each.
    """

    step: str = "step"
    loss: str = "loss"
    grad_norm: str = "grad_norm"
    tokens_per_s: str = "tokens_per_s"
    nonfinite: str = "nonfinite"
    # Also read the gradient norm and the throughput.
    detailed: bool = False
    # How often values are read, and the interval that they are aggregated over.
    period: timedelta = timedelta(minutes=1)
    # How often the agent writes a heartbeat.
    heartbeat: timedelta = timedelta(minutes=1)


def select_names(names: MetricNames, defined: Collection[str]) -> MetricNames | None:
    """Return the names that a job with these MetricDefinitions can publish, or None without a step and a loss.

    A job without both is not monitored: it causes no cost, and missing metrics mean nothing.
    """
    unknown: dict[str, Any] = {key: "" for key in _VALUES if getattr(names, key) not in defined}
    narrowed = replace(names, **unknown)
    return narrowed if narrowed.step or narrowed.loss else None


# The line `rerail step=60 loss=2.34567891 grad_norm=1.2 lr=0.0003 tokens_per_s=12345 nonfinite=0`, fields in any order.
# Not anchored, because mpirun and torchrun add prefixes. No look-around, because it is not documented which engine
# SageMaker uses. A value ends at a space or the end of the line, so that `nan`, `inf` and truncated lines do not match.
_LINE = r"\brerail (?:[a-z_]+=\S* )*"
_NUMBER = r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"
_VALUES = {"step": "([0-9]+)", "loss": _NUMBER, "grad_norm": _NUMBER, "tokens_per_s": _NUMBER, "nonfinite": "([01])"}


def make_definitions(names: MetricNames = MetricNames()) -> list[dict[str, str]]:
    """Return the MetricDefinitions for a job that prints Rerail's metric line.

    Several ranks may print it: the queries read the maximum step, the mean loss and any rank's non-finite flag.
    """
    named = {key: getattr(names, key) for key in _VALUES}
    return [{"Name": name, "Regex": rf"{_LINE}{key}={_VALUES[key]}(?:\s|$)"} for key, name in named.items() if name]


# Field of MetricNames, statistic, and column of a sample's row. The maxima give the last step of the minute and whether
# any flag was set. In the mean of a minute a short spike disappears; the maximum loss shows it. The count is the number
# of lines in the minute.
_DEFAULT_COLUMNS = (
    ("step", Statistic.MAXIMUM, "step"),
    ("loss", Statistic.AVERAGE, "loss"),
    ("loss", Statistic.MAXIMUM, "loss_max"),
    ("loss", Statistic.COUNT, "count"),
    ("nonfinite", Statistic.MAXIMUM, "nonfinite"),
)
# Not needed by default: implied by the steps, or used only for warnings that arrive two minutes late.
_DETAILED_COLUMNS = (("grad_norm", Statistic.MAXIMUM, "grad_norm"), ("tokens_per_s", Statistic.AVERAGE, "tokens_per_s"))
_HOST_METRICS = ("GPUUtilization", "CPUUtilization")
# Of a larger job, the load of so many machines is read, evenly spread: its groups may do different work.
MOST_HOSTS = 16
# The names of a job that publishes no metric of its own.
NO_NAMES = MetricNames("", "", "", "", "")


@lru_cache(maxsize=64)
def _columns(names: MetricNames) -> tuple[tuple[str, Statistic, str], ...]:
    wanted = _DEFAULT_COLUMNS + (_DETAILED_COLUMNS if names.detailed else () if names.step else _DETAILED_COLUMNS[-1:])
    named = ((getattr(names, key), statistic, column) for key, statistic, column in wanted)
    return tuple((name, statistic, column) for name, statistic, column in named if name)


def make_queries(job: str, names: MetricNames, *, hosts: int = 0) -> tuple[MetricQuery, ...]:
    """Return the queries for a job in Training, and for the load of so many of its hosts.

    Without a `step` metric the speed is read from `tokens_per_s` instead.
    """
    asked = tuple(MetricQuery(job, name, statistic) for name, statistic, _ in _columns(names))
    return asked + tuple(query for host in name_hosts(hosts) for query in _make_host_queries(job, host))


def name_hosts(count: int) -> tuple[str, ...]:
    """Return SageMaker's names of the hosts of a job with so many, the first and the last among them."""
    read = min(count, MOST_HOSTS)
    return tuple(f"algo-{1 + (count - 1) * place // max(1, read - 1)}" for place in range(read))


def _make_host_queries(job: str, host: str) -> tuple[MetricQuery, ...]:
    return tuple(MetricQuery(job, metric, Statistic.AVERAGE, host) for metric in _HOST_METRICS)


@dataclass(frozen=True, slots=True)
class LossSilence:
    """The time for which the loss has been missing while other metrics arrive.

    A job that logs its loss less often than its steps raises `longest`, so that its normal gaps do not count as NaN.
    """

    # Whether a loss was ever received.
    loss_received: bool = False
    # Minutes without a loss until now.
    minutes: int = 0
    # The longest gap in minutes after which the loss came back.
    longest: int = 0
    # The longest time in minutes until a loss came, also before the first one.
    longest_wait: int = field(default=0, compare=False)
    # Minutes with a loss, and minutes in all gaps, of all attempts.
    loss_minutes: int = field(default=0, compare=False)
    gap_minutes: int = field(default=0, compare=False)
    # The step before the last minute with a loss; during that minute the loss may already have been missing.
    complete_to: int | None = None
    # The last step of the minute with the newest loss.
    loss_step: int | None = field(default=None, compare=False)
    # The most steps that the job has made within a minute.
    fastest: int = field(default=0, compare=False)

    @property
    def tells_of_nan(self) -> bool:
        """Return whether the gap is long enough to count as NaN, for a loss that came often enough to expect it."""
        is_regular = (self.longest - 1) * self.loss_minutes <= self.gap_minutes
        is_expected = self.loss_minutes >= (REGULAR_LOSSES if is_regular else IRREGULAR_LOSSES)
        factor = GAP_FACTOR if is_regular or self.gap_minutes <= self.loss_minutes else RARE_GAP_FACTOR
        is_long = self.minutes >= max(MIN_SILENT_MINUTES, factor * self.longest + 1)
        return self.loss_received and is_expected and is_long

    def without_loss(self, *, begins_again: bool) -> "LossSilence":
        """Return the state after a minute without a loss.

        If steps begin again, another phase may print none; a loss that was missing before is still expected.
        """
        if begins_again and self.minutes <= self.longest:
            return replace(self, loss_received=False, minutes=0)
        return replace(self, minutes=self.minutes + 1)

    def with_loss(self, *, complete_to: int | None = None, loss_step: int | None = None) -> "LossSilence":
        """Return the state after a minute with a loss."""
        gap = self.minutes if self.loss_received else 0
        return replace(
            self,
            loss_received=True,
            minutes=0,
            longest=max(self.longest, gap),
            longest_wait=max(self.longest_wait, self.minutes),
            loss_minutes=self.loss_minutes + 1,
            gap_minutes=self.gap_minutes + gap,
            complete_to=complete_to,
            loss_step=loss_step,
        )


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position up to which the series of a run's current job was read and evaluated."""

    job: str
    # The end of the last minute with any value.
    read_to: datetime | None = None
    # The last step evaluated in any attempt.
    step: int | None = None
    # The last step of this job, and the end of its minute; without a step metric, of its last minute with any value.
    seen_step: int | None = None
    seen_at: datetime | None = None
    # The job repeats steps that were already evaluated.
    behind: bool = False
    silence: LossSilence = field(default_factory=LossSilence)
    # For how many minutes steps have been low since they fell within the job.
    low_minutes: int = 0

    @property
    def counts_epochs(self) -> bool:
        """Return whether the steps begin again with each epoch, so that they tell nothing about progress."""
        shortest, longest = EPOCH_MINUTES
        half = (self.step or 0) // (2 * self.silence.fastest) if self.silence.fastest else longest
        return self.low_minutes >= max(shortest, min(longest, half))


def with_next_attempt(cursor: Cursor, job: str, *, judged_to: int | None = None) -> Cursor:
    """Return the cursor for the run's next attempt.

    Steps up to the last evaluated one are replays and are skipped. After a rollback they are new steps with the same
    numbers: then `judged_to` is the step to go back to, and all later steps are evaluated again.
    """
    step = cursor.step if judged_to is None or cursor.step is None else min(cursor.step, judged_to)
    silence = replace(cursor.silence, loss_received=False, minutes=0, complete_to=None, loss_step=None)
    return Cursor(job, step=step, behind=step is not None, silence=silence, low_minutes=cursor.low_minutes)


def with_agent_progress(
    cursor: Cursor, *, step: int | None, moved_at: datetime, at: datetime, period: timedelta
) -> Cursor:
    """Return the cursor after the agent evaluated the run up to `step`, which was completed at `moved_at`.

    `at` is the time of the report. Its minute is read again, because it may contain further steps.
    """
    read_to = _floor(at, find_resolution(period))
    cursor = replace(cursor, read_to=max(read_to, cursor.read_to or read_to))
    if step is None or step == cursor.seen_step:
        return cursor
    behind = cursor.behind and step <= (cursor.step or 0)
    return replace(cursor, step=max(step, cursor.step or 0), seen_step=step, seen_at=moved_at, behind=behind)


@dataclass(frozen=True, slots=True)
class MetricsReading:
    """A run whose job is in Training, and the metrics to read for it."""

    cursor: Cursor
    names: MetricNames
    # The number of hosts whose load is read.
    hosts: int = 0
    # Where the job resumed is unknown: its first step is read.
    start_unknown: bool = False


def fetch(series: Series, watched: Iterable[MetricsReading], *, now: datetime) -> dict[MetricQuery, Points]:
    """Read the new values of all runs in as few requests as possible; a run without a complete minute costs nothing."""
    groups: dict[tuple[timedelta, bool], list[tuple[datetime, MetricsReading]]] = defaultdict(list)
    for reading in watched:
        period = find_resolution(reading.names.period)
        start, end = find_window(reading.cursor, period, now=now)
        if start < end:
            groups[period, end - start <= FRESH_PERIODS * period].append((start, reading))
    answers: dict[MetricQuery, Points] = {}
    for (period, _), group in groups.items():
        asked = [
            query
            for _, reading in group
            for query in (
                *make_queries(reading.cursor.job, reading.names, hosts=reading.hosts),
                *([_make_first_query(reading.cursor.job, reading.names)] if reading.start_unknown else ()),
            )
        ]
        answers |= series.read(asked, min(start for start, _ in group), _find_last_end(period, now), period)
    return answers


def _make_first_query(job: str, names: MetricNames) -> MetricQuery:
    return MetricQuery(job, names.step, Statistic.MINIMUM)


def find_first_step(series: Mapping[MetricQuery, Points], job: str, names: MetricNames) -> int | None:
    """Return the lowest step of the earliest period that has one, or None."""
    points = sorted(series.get(_make_first_query(job, names), ()))
    return next((step for _, value in points if (step := parse_step({"step": value})) is not None), None)


def find_known_to(names: MetricNames, *, now: datetime) -> datetime:
    """Return until when missing values count as missing: those of a long period cannot be read before it is over."""
    period = find_resolution(names.period)
    return min(now, _find_last_end(period, now) + OLDEST_READ)


def _find_last_end(period: timedelta, now: datetime) -> datetime:
    """Return the end of the last complete period: one counts as complete a period after its end, as values are late."""
    return _floor(now - period, period)


def find_window(cursor: Cursor, period: timedelta, *, now: datetime) -> tuple[datetime, datetime]:
    """Return the time range to read: from the end of the last reading to the last complete period."""
    oldest = _floor(now - LOOK_BACK, period)
    start = oldest if cursor.read_to is None else max(oldest, _floor(cursor.read_to, period))
    return start, _find_last_end(period, now)


def make_samples(
    series: Mapping[MetricQuery, Points],
    cursor: Cursor,
    names: MetricNames,
    *,
    now: datetime,
    may_have_resumed: bool = False,
) -> tuple[Cursor, tuple[Sample, ...]]:
    """Return the cursor after the complete minutes, and the samples of those with new steps, oldest first.

    Each minute is evaluated once and in order; values that arrive after a later minute was evaluated are lost. Each
    step is evaluated once: after a resume, minutes up to the last evaluated step move the cursor without a sample.
    A minute without a step is treated like the one before. Without a step metric every minute is new, as it is once the
    steps begin again within a job, unless it `may_have_resumed` by itself. If a series could not be read, nothing is
    evaluated until it can be.
    """
    period = find_resolution(names.period)
    settled = now - period
    rows: dict[datetime, dict[str, float]] = {}
    for metric, statistic, column in _columns(names):
        points = series.get(MetricQuery(cursor.job, metric, statistic))
        if points is None:
            return cursor, ()
        for at, value in points:
            if isfinite(value):
                rows.setdefault(at, {})[column] = value
    new_samples = []
    for at in sorted(rows):
        end = at + period
        if end <= settled and (cursor.read_to is None or at >= cursor.read_to):
            before = cursor
            step = parse_step(rows[at])
            if not may_have_resumed:
                cursor = _with_low_minutes(cursor, step, evaluates="loss" not in rows[at] and bool(names.loss))
            begins_again = cursor.counts_epochs and (not before.counts_epochs or _has_fallen(before, step))
            cursor, sample = _evaluate_minute(cursor, end, rows[at], names, begins_again=begins_again)
            new_samples += [sample] if sample else []
    return cursor, tuple(new_samples)


def _with_low_minutes(cursor: Cursor, step: int | None, *, evaluates: bool) -> Cursor:
    """Return the cursor before a minute that ended at this step, with the minutes counted in which steps were low.

    A minute without a loss may be one of an evaluation, which prints the last step again.
    """
    if step is None or cursor.seen_step is None or cursor.step is None:
        return cursor
    low_minutes = 0
    if _has_fallen(cursor, step):
        low_minutes = cursor.low_minutes + (FALL_TO_ZERO if step < 2 * cursor.silence.fastest else 1)
    elif step <= cursor.step:
        # Epochs shorter than a minute show the same last step in every minute.
        is_low = cursor.low_minutes >= FALL_TO_ZERO or (step == cursor.step and not evaluates)
        low_minutes = cursor.low_minutes + is_low
    return replace(cursor, low_minutes=low_minutes)


def _has_fallen(cursor: Cursor, step: int | None) -> bool:
    return step is not None and cursor.seen_step is not None and step < cursor.seen_step


def _evaluate_minute(
    cursor: Cursor, end: datetime, row: Mapping[str, float], names: MetricNames, *, begins_again: bool
) -> tuple[Cursor, Sample | None]:
    step = parse_step(row)
    behind = cursor.behind if step is None else cursor.step is not None and step <= cursor.step
    behind = behind and not cursor.counts_epochs
    silence = _update_silence(cursor, row, end, find_resolution(names.period)) if names.loss else cursor.silence
    silent = "nonfinite" not in row and silence.tells_of_nan
    after = Cursor(
        job=cursor.job,
        read_to=end,
        step=cursor.step if step is None else max(step, cursor.step or 0),
        seen_step=cursor.seen_step if step is None else step,
        seen_at=cursor.seen_at if step is None and names.step else end,
        behind=behind,
        silence=silence,
        low_minutes=cursor.low_minutes,
    )
    if behind:
        return after, None
    sample = Sample(
        step=None if cursor.counts_epochs else step,
        at=end,
        loss=row.get("loss"),
        grad_norm=row.get("grad_norm"),
        step_time_s=_step_time(cursor, end, step, row, names),
        tokens_per_s=row.get("tokens_per_s"),
        nonfinite=silent or row.get("nonfinite", 0) > 0,
        count=max(1, int(row.get("count", 1))),
        loss_max=row.get("loss_max"),
        complete_to=silence.complete_to if silent and not cursor.counts_epochs else None,
        begins_again=begins_again,
    )
    return after, sample


def _update_silence(cursor: Cursor, row: Mapping[str, float], end: datetime, period: timedelta) -> LossSilence:
    """Return the state of missing losses after one more row.

    CloudWatch stores no NaN and the metric definitions do not match one, so a NaN loss shows as a missing loss while
    other metrics continue. For a job that publishes the `nonfinite` flag, only the flag counts.
    """
    silence = cursor.silence
    step, fastest = parse_step(row), silence.fastest
    if step is not None and cursor.seen_step is not None and cursor.seen_at == end - period and not cursor.behind:
        fastest = max(fastest, step - cursor.seen_step)
    if "loss" in row:
        before = cursor.seen_step if cursor.seen_step is not None else cursor.step or 0
        silence = silence.with_loss(complete_to=before, loss_step=step)
    elif "nonfinite" not in row and (step is None or step != cursor.seen_step or cursor.counts_epochs):
        # Only where steps are made is a loss expected: an evaluation may print the last one again.
        silence = silence.without_loss(begins_again=_has_fallen(cursor, step))
    silence = replace(silence, fastest=fastest)
    if silence.loss_step is None or silence.complete_to is None or not fastest:
        return silence
    # The minute before may not have been read, such as of a job that trained before it was supervised.
    return replace(silence, complete_to=max(silence.complete_to, silence.loss_step - LATEST_MINUTES * fastest))


def _step_time(
    cursor: Cursor, end: datetime, step: int | None, row: Mapping[str, float], names: MetricNames
) -> float | None:
    """Return the mean seconds per step since the job's last one, pauses included; per logged line without steps."""
    if not names.step and "count" in row:
        return find_resolution(names.period).total_seconds() / max(1, int(row["count"]))
    if step is None or cursor.seen_step is None or cursor.seen_at is None or step <= cursor.seen_step:
        return None
    return (end - cursor.seen_at).total_seconds() / (step - cursor.seen_step)


class HostLoad(NamedTuple):
    """The utilization of a host in the period that ended then, in percent of one device; None: unknown."""

    at: datetime
    gpu: float | None
    cpu: float | None


def list_loads(
    series: Mapping[MetricQuery, Points], job: str, *, hosts: int, period: timedelta
) -> dict[str, tuple[HostLoad, ...]]:
    """Return what was read of the load of each of the job's hosts, oldest first.

    Of a host that publishes both, only times with both tell its load; of one that was not fully read, nothing is known.
    """
    loads = {}
    for host in name_hosts(hosts):
        read = [series.get(query) for query in _make_host_queries(job, host)]
        gpu, cpu = (dict(points or ()) for points in read)
        known = set() if None in read else gpu.keys() & cpu.keys() if gpu and cpu else gpu.keys() | cpu.keys()
        loads[host] = tuple(HostLoad(at + period, gpu.get(at), cpu.get(at)) for at in sorted(known))
    return loads


def find_newest_load(series: Mapping[MetricQuery, Points], job: str) -> tuple[float | None, ...]:
    """Return the newest utilization of the first host's GPUs and CPUs, in percent of one device; None: unknown.

    An idle host confirms a hang, but busy GPUs do not exclude one, since waiting spins.
    """
    last = [series.get(query) for query in _make_host_queries(job, *name_hosts(1))]
    return tuple(max(points)[1] if points else None for points in last)


@lru_cache(maxsize=64)
def find_resolution(period: timedelta) -> timedelta:
    """Return the shortest period accepted by GetMetricData that is at least this long."""
    seconds = period.total_seconds()
    short = next((allowed for allowed in RESOLUTIONS if seconds <= allowed), None)
    return timedelta(seconds=short) if short else timedelta(minutes=-(-seconds // 60))


def _floor(at: datetime, period: timedelta) -> datetime:
    return at - (at - EPOCH) % period
