"""Read what a story needs, within bounds; what cannot be read is missing from the story, and named in it."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from math import inf, isfinite
from typing import Any, TypeVar

from rerail.incident_report.facts import Facts, LogLine, Logs, Timelines
from rerail.model.checkpoints import Checkpoint
from rerail.model.errors import RerailError
from rerail.model.metrics import MetricNames, MetricQuery, Series, Statistic, definitions, resolution
from rerail.model.policy import Policy
from rerail.model.redaction import redact_values
from rerail.model.run import Attempt, Run, parse_step
from rerail.model.sample import Sample
from rerail.ports import Checkpoints, Policies, policy_of

# Curves are read of so many attempts, the newest; of so many rows each.
ATTEMPTS, ROWS = 60, 1_200
# An attempt with fewer rows than this in CloudWatch is looked up in its log, of which so many pages are read in all.
FEW_ROWS, PAGES = 400, 40
# Last words are read of so many incidents, the newest, and so many lines of each.
INCIDENTS, LINES = 8, 120
# How long CloudWatch keeps the values of a minute, and of five.
MINUTES_KEPT, FIVE_MINUTES_KEPT = timedelta(days=15), timedelta(days=63)
MINUTE, FIVE_MINUTES, HOUR = timedelta(minutes=1), timedelta(minutes=5), timedelta(hours=1)
# A job's last words arrive when it has ended, and are stamped when they arrive.
AFTERWARDS = timedelta(seconds=30)
_PATTERNS = {each["Name"]: re.compile(each["Regex"]) for each in definitions(MetricNames())}
T = TypeVar("T")


@dataclass
class FactGatherer:
    """Over its ports: the memory, the metrics, the logs, the saves and the policies."""

    runs: Timelines
    policies: Policies
    series: Series
    logs: Logs
    checkpoints: Checkpoints
    clock: Callable[[], datetime]
    unread: list[str] = field(default_factory=list)

    def gather(self, run_id: str) -> Facts | None:
        """What is known of the run now; None where there is no such run."""
        self.unread = []
        run = self.runs.load(run_id)
        if run is None:
            return None
        at = self.clock()
        policy = self._read("the policy", partial(policy_of, run, self.policies), Policy())
        timeline = self.runs.timeline(run_id)
        saves = self._read("the checkpoints", partial(self._saves, run), tuple[Checkpoint, ...]())
        known = Facts(run, at, policy, tuple(timeline), checkpoints=tuple(saves))
        known = replace(known, series=self._series(run, policy, at), lines=self._last_words(run, at))
        return replace(known, unread=tuple(dict.fromkeys(self.unread)))

    def _read(self, what: str, read: Callable[[], T], instead: T) -> T:
        try:
            return read()
        except RerailError as error:
            self.unread.append(f"{what}: {error}")
            return instead

    def _saves(self, run: Run) -> tuple[Checkpoint, ...]:
        return tuple(self.checkpoints.under(run.checkpoint_uri)) if run.checkpoint_uri else ()

    def _series(self, run: Run, policy: Policy, at: datetime) -> Mapping[int, tuple[Sample, ...]]:
        trained = [attempt for attempt in run.attempts if attempt.training_started_at]
        if len(trained) > ATTEMPTS:
            self.unread.append(f"curves of the oldest {len(trained) - ATTEMPTS} attempts: {ATTEMPTS} are drawn at most")
        pages, found, nothing = PAGES, dict[int, tuple[Sample, ...]](), tuple[Sample, ...]()
        for attempt in reversed(trained[-ATTEMPTS:]):
            name = attempt.job_name
            rows = self._read(f"metrics of {name}", partial(self._metrics, attempt, policy, at), nothing)
            if len(rows) < FEW_ROWS and pages > 0:
                said, read = self._read(f"log of {name}", partial(self._printed, name, pages), (nothing, 0))
                pages -= read
                rows = said if len(said) > len(rows) else rows
            if rows:
                found[attempt.number] = rows
        return dict(sorted(found.items()))

    def _metrics(self, attempt: Attempt, policy: Policy, at: datetime) -> tuple[Sample, ...]:
        names, asked = policy.metrics, _asked(attempt.job_name, policy.metrics)
        begun = attempt.training_started_at or at
        end = (attempt.ended_at or at) + 2 * names.period
        period = _period(end - begun, at - begun, names.period)
        begun = begun - period
        return _rows(self.series.read(list(asked), begun, end, period), asked, period)

    def _printed(self, job: str, most: int) -> tuple[tuple[Sample, ...], int]:
        lines, pages = self.logs.whole(job, pages=most)
        return tuple(parse_metric_lines(lines or ())), pages

    def _last_words(self, run: Run, at: datetime) -> Mapping[int, tuple[LogLine, ...]]:
        found: dict[int, tuple[LogLine, ...]] = {}
        nothing: Sequence[LogLine] = ()
        request: Mapping[str, Any] | None = None
        if run.incidents:
            request = self._read("log lines", partial(self.runs.request, run.id), request)
        if request is None:
            return found  # nobody could say what in them is secret
        for incident in run.incidents[-INCIDENTS:]:
            job = run.attempts[incident.attempt - 1].job_name
            until = max(incident.decided_at, incident.happened_at) + AFTERWARDS
            tail = partial(self.logs.tail, job, until=until, lines=LINES)
            if lines := self._read(f"log of {job}", tail, nothing):
                found[incident.number] = tuple(replace(line, text=redact_values(line.text, request)) for line in lines)
        return found


def _asked(job: str, names: MetricNames) -> dict[MetricQuery, str]:
    """What to ask about a job, and which field of a row it is."""
    columns = (
        (names.step, Statistic.MAXIMUM, "step"),
        (names.loss, Statistic.AVERAGE, "loss"),
        (names.loss, Statistic.MAXIMUM, "loss_max"),
        (names.tokens_per_s, Statistic.AVERAGE, "tokens_per_s"),
        (names.nonfinite, Statistic.MAXIMUM, "nonfinite"),
    )
    return {MetricQuery(job, name, statistic): column for name, statistic, column in columns if name}


def _period(length: timedelta, age: timedelta, shortest: timedelta) -> timedelta:
    """The finest that CloudWatch still keeps of something so old, and that makes no more rows than we want."""
    kept = resolution(shortest) if age < MINUTES_KEPT else FIVE_MINUTES if age < FIVE_MINUTES_KEPT else HOUR
    fitting = length / ROWS
    return kept if fitting <= kept else MINUTE * -(-fitting // MINUTE)


def _rows(
    series: Mapping[MetricQuery, Sequence[tuple[datetime, float]]], asked: Mapping[MetricQuery, str], period: timedelta
) -> tuple[Sample, ...]:
    rows: dict[datetime, dict[str, float]] = {}
    for query, column in asked.items():
        for at, value in series.get(query, ()):
            rows.setdefault(at, {})[column] = value
    return tuple(_sample(at + period, row) for at, row in sorted(rows.items()))


def _sample(at: datetime, row: Mapping[str, float]) -> Sample:
    return Sample(
        step=parse_step(row),
        at=at,
        loss=row.get("loss"),
        loss_max=row.get("loss_max"),
        tokens_per_s=row.get("tokens_per_s"),
        nonfinite=row.get("nonfinite", 0) > 0,
    )


def parse_metric_lines(lines: Sequence[LogLine]) -> Iterator[Sample]:
    """The rows in a log that holds our metric line."""
    for line in lines:
        if "rerail" not in line.text:
            continue
        found = {name: match[1] for name, pattern in _PATTERNS.items() if (match := pattern.search(line.text))}
        numbers = {name: _number(text) for name, text in found.items()}
        if isfinite(numbers.get("step", inf)):
            yield _sample(line.at, {name: value for name, value in numbers.items() if isfinite(value)})


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return inf
