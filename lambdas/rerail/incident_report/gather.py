"""Read the facts for a report, within limits; whatever cannot be read is listed in the report as unread."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from math import inf, isfinite
from typing import Any, TypeVar

from rerail.decisions.decision import find_manifest_key
from rerail.incident_report.facts import Facts, LogLine, Logs, Timelines
from rerail.model.checkpoints import Checkpoint
from rerail.model.errors import RerailError
from rerail.model.metrics import MetricNames, MetricQuery, Series, Statistic, find_resolution, make_definitions
from rerail.model.policy import Policy
from rerail.model.redaction import find_secrets, redact_secrets
from rerail.model.run import Attempt, Run
from rerail.model.sample import Sample, parse_step
from rerail.ports import Checkpoints, PausedPolicies, policy_of

# Curves are read for the newest attempts, up to this number, and up to this number of rows each.
ATTEMPT_LIMIT, ROW_LIMIT = 60, 1_200
# An attempt with fewer rows than this in CloudWatch is read from its log; the page limit is for all attempts.
FEW_ROWS, PAGE_LIMIT = 400, 40
# Log lines are read for the newest incidents, up to this number, and up to this number of lines each.
INCIDENT_LIMIT, LINE_LIMIT = 8, 120
LINE_CHARS = 1_000  # the page shows fewer
# How long CloudWatch keeps values of one-minute periods, and of five-minute periods.
ONE_MINUTE_RETENTION, FIVE_MINUTE_RETENTION = timedelta(days=15), timedelta(days=63)
MINUTE, FIVE_MINUTES, HOUR = timedelta(minutes=1), timedelta(minutes=5), timedelta(hours=1)
# The last log lines of a job arrive after it has ended, and are timestamped on arrival.
LOG_DELAY = timedelta(seconds=30)
METRIC_LINE = 2_000  # characters of a line that are searched, which takes time with their square
_PATTERNS = {metric["Name"]: re.compile(metric["Regex"]) for metric in make_definitions(MetricNames())}
T = TypeVar("T")


@dataclass
class FactGatherer:
    """Reads the facts of a run through its ports."""

    runs: Timelines
    policies: PausedPolicies
    series: Series
    logs: Logs
    checkpoints: Checkpoints
    clock: Callable[[], datetime]
    unread: list[str] = field(default_factory=list)  # what the current call could not read, with the error

    def gather(self, run_id: str) -> Facts | None:
        """Return the facts of the run as of now, or None if there is no such run."""
        self.unread = []
        run = self.runs.load(run_id)
        if run is None:
            return None
        at = self.clock()
        policy = self._read("the policy", partial(policy_of, run, self.policies), Policy())
        timeline = self.runs.timeline(run_id)
        checkpoints = self._read("the checkpoints", partial(self._list_checkpoints, run), tuple[Checkpoint, ...]())
        known = Facts(run, at, policy, tuple(timeline), checkpoints=tuple(checkpoints))
        known = replace(known, series=self._read_series(run, policy, at), lines=self._read_last_lines(run, at))
        return replace(known, unread=tuple(dict.fromkeys(self.unread)))

    def _read(self, what: str, read: Callable[[], T], default: T) -> T:
        """Return what `read` returns; on a RerailError, record the error and return the default."""
        try:
            return read()
        except RerailError as error:
            self.unread.append(f"{what}: {error}")
            return default

    def _list_checkpoints(self, run: Run) -> tuple[Checkpoint, ...]:
        if not run.checkpoint_uri:
            return ()
        return tuple(self.checkpoints.list_checkpoints(run.checkpoint_uri, signing_key=find_manifest_key(run)))

    def _read_series(self, run: Run, policy: Policy, at: datetime) -> Mapping[int, tuple[Sample, ...]]:
        trained = [attempt for attempt in run.attempts if attempt.training_started_at]
        if len(trained) > ATTEMPT_LIMIT:
            omitted = len(trained) - ATTEMPT_LIMIT
            self.unread.append(f"curves of the oldest {omitted} attempts: {ATTEMPT_LIMIT} are drawn at most")
        pages_left, series, empty = PAGE_LIMIT, dict[int, tuple[Sample, ...]](), tuple[Sample, ...]()
        for attempt in reversed(trained[-ATTEMPT_LIMIT:]):
            name = attempt.job_name
            rows = self._read(f"metrics of {name}", partial(self._read_metrics, attempt, policy, at), empty)
            if len(rows) < FEW_ROWS and pages_left > 0:
                logged, pages = self._read(f"log of {name}", partial(self._read_log, name, pages_left), (empty, 0))
                pages_left -= pages
                rows = logged if len(logged) > len(rows) else rows
            if rows:
                series[attempt.number] = rows
        return dict(sorted(series.items()))

    def _read_metrics(self, attempt: Attempt, policy: Policy, at: datetime) -> tuple[Sample, ...]:
        names, columns = policy.metrics, _make_queries(attempt.job_name, policy.metrics)
        start = attempt.training_started_at or at
        end = (attempt.ended_at or at) + 2 * names.period
        period = _choose_period(end - start, at - start, names.period)
        start = start - period
        return _make_rows(self.series.read(list(columns), start, end, period), columns, period)

    def _read_log(self, job: str, most: int) -> tuple[tuple[Sample, ...], int]:
        lines, pages = self.logs.whole(job, pages=most)
        return tuple(parse_metric_lines(lines or ())), pages

    def _read_last_lines(self, run: Run, at: datetime) -> Mapping[int, tuple[LogLine, ...]]:
        lines_of: dict[int, tuple[LogLine, ...]] = {}
        empty: Sequence[LogLine] = ()
        request: Mapping[str, Any] | None = None
        if run.incidents:
            request = self._read("log lines", partial(self.runs.request, run.id), request)
        if request is None:
            return lines_of  # without the request, secrets in the lines could not be redacted
        secrets = find_secrets(request)
        for incident in run.incidents[-INCIDENT_LIMIT:]:
            job = run.attempts[incident.attempt - 1].job_name
            until = max(incident.decided_at, incident.happened_at) + LOG_DELAY
            tail = partial(self.logs.tail, job, until=until, lines=LINE_LIMIT)
            if lines := self._read(f"log of {job}", tail, empty):
                lines_of[incident.number] = tuple(_redact(line, secrets) for line in lines)
        return lines_of


def _redact(line: LogLine, secrets: Sequence[str]) -> LogLine:
    """Return the beginning of the line without secrets, and blanks for the rest: the page states its length."""
    return replace(line, text=redact_secrets(line.text[:LINE_CHARS], secrets).ljust(len(line.text)))


def _make_queries(job: str, names: MetricNames) -> dict[MetricQuery, str]:
    """Return the metric queries for a job, each with the field of a row that it fills."""
    columns = (
        (names.step, Statistic.MAXIMUM, "step"),
        (names.loss, Statistic.AVERAGE, "loss"),
        (names.loss, Statistic.MAXIMUM, "loss_max"),
        (names.tokens_per_s, Statistic.AVERAGE, "tokens_per_s"),
        (names.nonfinite, Statistic.MAXIMUM, "nonfinite"),
    )
    return {MetricQuery(job, name, statistic): column for name, statistic, column in columns if name}


def _choose_period(length: timedelta, age: timedelta, shortest: timedelta) -> timedelta:
    """Return the finest period that CloudWatch still keeps at that age and that yields at most ROW_LIMIT rows."""
    kept = (
        find_resolution(shortest)
        if age < ONE_MINUTE_RETENTION
        else FIVE_MINUTES
        if age < FIVE_MINUTE_RETENTION
        else HOUR
    )
    needed = length / ROW_LIMIT
    return kept if needed <= kept else MINUTE * -(-needed // MINUTE)


def _make_rows(
    series: Mapping[MetricQuery, Sequence[tuple[datetime, float]]],
    columns: Mapping[MetricQuery, str],
    period: timedelta,
) -> tuple[Sample, ...]:
    rows: dict[datetime, dict[str, float]] = {}
    for query, column in columns.items():
        for at, value in series.get(query, ()):
            rows.setdefault(at, {})[column] = value
    return tuple(_make_sample(at + period, row) for at, row in sorted(rows.items()))


def _make_sample(at: datetime, row: Mapping[str, float]) -> Sample:
    return Sample(
        step=parse_step(row),
        at=at,
        loss=row.get("loss"),
        loss_max=row.get("loss_max"),
        tokens_per_s=row.get("tokens_per_s"),
        nonfinite=row.get("nonfinite", 0) > 0,
    )


def parse_metric_lines(lines: Sequence[LogLine]) -> Iterator[Sample]:
    """Yield the rows of the log lines that have the metric line of Rerail's agent."""
    for line in lines:
        # Progress bars end with a carriage return, so that the metric line comes last in one event.
        text = next((part for part in line.text.split("\r") if "rerail" in part), "")[:METRIC_LINE]
        texts = {name: match[1] for name, pattern in _PATTERNS.items() if (match := pattern.search(text))}
        numbers = {name: _parse_number(text) for name, text in texts.items()}
        if isfinite(numbers.get("step", inf)):
            yield _make_sample(line.at, {name: value for name, value in numbers.items() if isfinite(value)})


def _parse_number(text: str) -> float:
    """Return the number, or infinity if the text is not a number."""
    try:
        return float(text)
    except ValueError:
        return inf
