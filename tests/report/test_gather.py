"""What is read for a report: whichever source knows more, within bounds, and what could not be read by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from rerail.incident_report import gather
from rerail.incident_report.facts import LogLine
from rerail.incident_report.gather import FactGatherer, parse_metric_lines
from rerail.model.errors import StateUnknown, Throttled
from rerail.model.metrics import MetricQuery, Points
from rerail.model.run import Run, TimelineEntry
from tests.fakes import Clock, FakeCheckpoints, FakePolicies, FakeSeries
from tests.report.conftest import BEGAN, attempt, held

LINE = "rerail step={step} loss={loss} grad_norm=1.2 lr=0.0003 tokens_per_s=4000 nonfinite=0"


@dataclass
class FakeLogs:
    """What jobs have printed, and how many pages of it were read; a page holds a thousand lines."""

    printed: dict[str, list[LogLine]] = field(default_factory=dict)
    pages: int = 0
    error: Exception | None = None

    def tail(self, job: str, *, until: datetime, lines: int) -> Sequence[LogLine]:
        if self.error:
            raise self.error
        return [line for line in self.printed.get(job, []) if line.at <= until][-lines:]

    def whole(self, job: str, *, pages: int) -> tuple[Sequence[LogLine] | None, int]:
        if self.error:
            raise self.error
        needed = -(-len(self.printed.get(job, [])) // 1000)
        self.pages += min(needed, pages)
        return (self.printed.get(job, []) if needed <= pages else None), min(needed, pages)


@dataclass
class Records:
    """One run and its timeline."""

    run: Run
    entries: Sequence[TimelineEntry] = ()

    def load(self, run_id: str) -> Run | None:
        return self.run if run_id == self.run.id else None

    def timeline(self, run_id: str) -> Sequence[TimelineEntry]:
        return self.entries

    def request(self, run_id: str) -> Mapping[str, Any]:
        return {"Environment": {"WANDB_API_KEY": "wandb-5ecret"}}


@dataclass
class BrokenSeries:
    """A CloudWatch that cannot be asked."""

    error: Exception

    def read(
        self, asked: Sequence[MetricQuery], start: datetime, end: datetime, period: timedelta
    ) -> Mapping[MetricQuery, Points]:
        raise self.error


def gathering(run: Run, **ports: object) -> FactGatherer:
    clock = Clock(BEGAN + timedelta(days=1))
    made = {
        "series": FakeSeries(),
        "logs": FakeLogs(),
        "checkpoints": FakeCheckpoints(clock),
        "policies": FakePolicies(),
    }
    return FactGatherer(runs=Records(run), clock=clock, **(made | ports))  # type: ignore[arg-type]


def lines(job: str, count: int) -> dict[str, list[LogLine]]:
    at = BEGAN + timedelta(minutes=2)
    texts = (LINE.format(step=step, loss=2.5) for step in range(1, count + 1))
    return {job: [LogLine(at + timedelta(seconds=n), "algo-1-1", text) for n, text in enumerate(texts)]}


def metrics(job: str, minutes: int) -> FakeSeries:
    series = FakeSeries()
    for minute in range(minutes):
        series.print(job, BEGAN + timedelta(minutes=2 + minute), step=10.0 * minute, loss=2.0, nonfinite=0.0)
    return series


def test_the_log_is_read_where_it_knows_more_than_the_minutes():
    """A short attempt has few minutes and many lines: each step is a row."""
    known = gathering(held().run, series=metrics("gpt", 5), logs=FakeLogs(lines("gpt", 300))).gather("gpt")
    assert known is not None
    assert [row.step for row in known.series[1]] == list(range(1, 301))
    assert known.series[1][0].tokens_per_s == 4000.0
    assert known.unread == ()


def test_the_metrics_are_kept_where_the_log_has_less():
    """A script that prints no metric line of ours has its curve in CloudWatch all the same."""
    other = {"gpt": [LogLine(BEGAN + timedelta(minutes=5), "algo-1-1", "{'loss': 2.5}")]}
    known = gathering(held().run, series=metrics("gpt", 45), logs=FakeLogs(other)).gather("gpt")
    assert known is not None
    assert len(known.series[1]) == 45
    assert known.series[1][1].step == 10


def test_what_cannot_be_read_is_named_and_the_rest_is_there():
    """Without metrics and logs, and with the policy gone, the record and its timeline still make a report."""
    broken = {
        "series": BrokenSeries(StateUnknown("GetMetricData: AccessDenied")),
        "logs": FakeLogs(error=Throttled("get_log_events: slow down")),
    }
    known = gathering(held().run, **broken).gather("gpt")
    assert known is not None
    assert known.unread == ("metrics of gpt: GetMetricData: AccessDenied", "log of gpt: get_log_events: slow down")
    assert known.run == held().run


def test_a_missing_run_has_no_report():
    """A notice may be about a job that belongs to no run."""
    assert gathering(held().run).gather("other") is None


def test_the_last_log_lines_are_those_before_the_decision():
    """Not what was printed afterwards, by another attempt or a later start."""
    at = held().at
    said = [LogLine(at + timedelta(seconds=s), "algo-1-1", f"{s} s") for s in (-5, 0, 20, 300)]
    known = gathering(held().run, logs=FakeLogs({"gpt": said})).gather("gpt")
    assert known is not None
    assert [line.text for line in known.lines[1]] == ["-5 s", "0 s", "20 s"]


def test_pages_of_logs_are_bounded_over_all_attempts_the_newest_first():
    """Sixty attempts with a hundred pages each cost no more than one's share."""
    attempts = tuple(attempt(n, last=n) for n in range(1, 71))
    printed_by = {attempt.job_name: lines(attempt.job_name, 15_000)[attempt.job_name] for attempt in attempts[-3:]}
    logs = FakeLogs(printed_by)
    known = gathering(replace(held().run, attempts=attempts), logs=logs).gather("gpt")
    assert known is not None
    assert logs.pages == gather.PAGE_LIMIT
    assert sorted(known.series) == [69, 70]
    assert known.unread == (f"curves of the oldest 10 attempts: {gather.ATTEMPT_LIMIT} are drawn at most",)


@pytest.mark.parametrize(
    ("hours", "age_days", "period"),
    [
        (1, 1, timedelta(minutes=1)),
        (19, 1, timedelta(minutes=1)),
        (200, 9, timedelta(minutes=10)),
        (1, 20, timedelta(minutes=5)),
        (1, 70, timedelta(hours=1)),
        (24 * 28, 29, timedelta(minutes=34)),
    ],
)
def test_the_finest_period_that_is_kept_and_makes_few_enough_rows(hours, age_days, period):
    """CloudWatch keeps minutes for 15 days, five minutes for 63, hours for 15 months."""
    found = gather._choose_period(timedelta(hours=hours), timedelta(days=age_days), timedelta(minutes=1))
    assert found == period
    assert timedelta(hours=hours) / found <= gather.ROW_LIMIT


def test_a_metric_line_is_read_and_nothing_else():
    """Ranks' prefixes, a loss that is nan and torn lines are what logs really hold."""
    texts = (
        "rerail step=5 loss=2.5 nonfinite=0",
        "[1,0]<stdout>:rerail step=6 loss=nan nonfinite=1",
        "rerail step=7 loss=9.1e-05 nonfinite=0",
        "rerail: warn: loss_spike at step 640: loss 22.06 is 18.43 times",
        "step=8 loss=1.0",
        "rerail step=",
        "rerail step=" + "9" * 5000,
    )
    found = list(parse_metric_lines([LogLine(BEGAN, "algo-1-1", text) for text in texts]))
    assert [(row.step, row.loss, row.nonfinite) for row in found] == [
        (5, 2.5, False),
        (6, None, True),
        (7, 9.1e-05, False),
    ]


def test_of_a_log_line_without_end_the_beginning_is_read() -> None:
    """CloudWatch takes a quarter of a million characters, and a search of them all takes a minute."""
    row = "rerail step=5 loss=2.0"
    texts = (f"{' ' * 1_000}{row}", f"{' ' * 250_000}{row}", 60 * f"{' ' * 50}\r" + row.replace("5", "6"))
    lines = [LogLine(BEGAN, "algo-1", text) for text in texts]
    assert [sample.step for sample in parse_metric_lines(lines)] == [5, 6], "progress bars come before the last"
