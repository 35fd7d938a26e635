"""Metrics in: what the expressions read off a line, what is asked for, and each step judged once, in order."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.model import metrics
from rerail.model.codec import dumps, loads
from rerail.model.metrics import (
    Cursor,
    LossSilence,
    MetricNames,
    MetricQuery,
    MetricsReading,
    Points,
    Statistic,
    fetch,
    find_newest_load,
    find_resolution,
    make_definitions,
    make_queries,
    make_samples,
    name_hosts,
    with_next_attempt,
)
from rerail.model.sample import Sample
from tests.timing import growth

NAMES = MetricNames()
MINUTE = timedelta(minutes=1)
START = datetime(2026, 1, 31, tzinfo=UTC)
LATER = START + timedelta(days=1)
LINE = "rerail step=60 loss=2.34567891 grad_norm=1.2 lr=0.0003 tokens_per_s=12345 nonfinite=0"
VALUES = {"step": "60", "loss": "2.34567891", "grad_norm": "1.2", "tokens_per_s": "12345", "nonfinite": "0"}


def read(line: str) -> dict[str, str]:
    """What SageMaker takes from a log line: the first group of each expression that is found in it."""
    found = {d["Name"]: re.search(d["Regex"], line) for d in make_definitions()}
    return {name: match[1] for name, match in found.items() if match}


@pytest.mark.parametrize(
    "line",
    [
        LINE,
        f"{LINE}\n",
        f"{LINE}\r",
        f"[1,mpirank:0,algo-1]<stdout>:{LINE}",
        f"[1,mpirank:12,algo-2]<stderr>:{LINE}\r\n",
        f"[1,0]<stdout>:{LINE}",
        f"[default0]:{LINE}",
        f"[rank3]: {LINE}",
        f"2026-01-31 01:02:03,456 INFO train.py:117 {LINE}",
        f"{LINE} epoch=3 note=later_fields",
        "rerail nonfinite=0 tokens_per_s=12345 lr=0.0003 val_loss=9 grad_norm=1.2 loss=2.34567891 step=60",
        f"[1,mpirank:0,algo-1]<stdout>:{LINE}[1,mpirank:1,algo-1]<stdout>:{LINE}".replace("=0[1,", "=0 [1,"),
        f"rerail step=59 loss=2.1[1,mpirank:1,algo-1]<stdout>:{LINE}",
    ],
)  # fmt: skip
def test_the_line_is_read_whatever_stands_around_it(line):
    """Prefixes of mpirun and torchrun, loggers, other orders, more fields, and a line torn by another rank's."""
    assert read(line) == VALUES


@pytest.mark.parametrize("number", ["9.1e-05", "1e+10", "-3.2", "0", "0.0", "12", "5.", ".5", "1E6", "+1.5", "3e08"])
def test_a_number_is_read_whole(number):
    """An exponent or a sign that is cut off would be another number."""
    assert read(LINE.replace("2.34567891", number))["loss"] == number
    assert read(LINE.replace("=1.2 ", f"={number} "))["grad_norm"] == number


@pytest.mark.parametrize(
    "word", ["nan", "NaN", "inf", "-inf", "Infinity", "None", "", "-", "1e", "2.3[1,mpirank:1", "2,3"]
)
def test_what_is_no_number_is_not_read(word):
    """CloudWatch takes no NaN; the flag carries it, and the rest of the line is read as ever."""
    line = LINE.replace("2.34567891", word).replace("nonfinite=0", "nonfinite=1")
    assert read(line) == {name: value for name, value in VALUES.items() if name != "loss"} | {"nonfinite": "1"}


@pytest.mark.parametrize(
    "line", ["", "step=60 loss=2.3", "derail step=60 loss=2", "rerail_agent step=60 loss=2", "rerail: 3"]
)
def test_other_lines_are_left_alone(line):
    assert not read(line)


def test_definitions_fit_the_api_and_the_policy():
    """At most 40, names up to 255 and expressions up to 500 characters; a metric has the policy's name, or none."""
    assert [d["Name"] for d in make_definitions()] == ["step", "loss", "grad_norm", "tokens_per_s", "nonfinite"]
    assert all(len(d["Regex"]) <= 500 and d.keys() == {"Name", "Regex"} for d in make_definitions())
    renamed = make_definitions(MetricNames(loss="train:loss", grad_norm=""))
    assert [d["Name"] for d in renamed] == ["step", "train:loss", "tokens_per_s", "nonfinite"]
    assert [d["Regex"] for d in renamed] == [d["Regex"] for d in make_definitions() if d["Name"] != "grad_norm"]


def test_a_run_is_asked_five_things():
    """At $0.01 per 1,000 a metric each minute is $0.43 a month; five are $2.16, and are enough to judge a run."""
    assert make_queries("gpt", NAMES) == (
        MetricQuery("gpt", "step", Statistic.MAXIMUM),
        MetricQuery("gpt", "loss", Statistic.AVERAGE),
        MetricQuery("gpt", "loss", Statistic.MAXIMUM),
        MetricQuery("gpt", "loss", Statistic.COUNT),
        MetricQuery("gpt", "nonfinite", Statistic.MAXIMUM),
    )


def test_names_decide_what_is_asked():
    """What is not published is not paid for; without steps the tokens tell the speed; details are extra."""
    stepless = MetricNames(step="", nonfinite="")
    assert [q.metric for q in make_queries("gpt", stepless)] == ["loss", "loss", "loss", "tokens_per_s"]
    assert len(make_queries("gpt", replace(NAMES, detailed=True))) == 7
    assert make_queries("gpt", MetricNames("", "", "", "", "")) == ()


@pytest.mark.parametrize(("hosts", "read"), [(0, []), (1, [1]), (16, list(range(1, 17))), (61, list(range(1, 62, 4)))])
def test_of_a_large_job_machines_of_every_part_are_read(hosts, read):
    """The first ones may serve data, and have nothing left to do while the others train."""
    assert name_hosts(hosts) == tuple(f"algo-{number}" for number in read)


def test_the_load_of_a_host_is_asked_where_a_stall_is_suspected():
    """A second witness, paid for only when it is needed."""
    extra = set(make_queries("gpt", NAMES, hosts=1)) - set(make_queries("gpt", NAMES))
    gpu, cpu = sorted(extra, key=lambda query: query.metric, reverse=True)
    assert (gpu, cpu) == (
        MetricQuery("gpt", "GPUUtilization", Statistic.AVERAGE, "algo-1"),
        MetricQuery("gpt", "CPUUtilization", Statistic.AVERAGE, "algo-1"),
    )
    assert find_newest_load({gpu: [(START, 99.0), (START + MINUTE, 1.5)], cpu: []}, "gpt") == (1.5, None)


@dataclass
class PublishedSeries:
    """The series of jobs as they were published, and how often someone asked."""

    values: dict[MetricQuery, dict[datetime, float]] = field(default_factory=dict)
    readings: list[tuple[int, timedelta]] = field(default_factory=list)

    def minute(self, number: int, job: str = "gpt", **row: float) -> None:
        """One minute's aggregates, by the column that they become."""
        if "loss" in row:
            row = {"loss_max": row["loss"], "count": 6.0} | row
        for metric, statistic, column in metrics._columns(replace(NAMES, detailed=True)):
            if column in row:
                self.values.setdefault(MetricQuery(job, metric, statistic), {})[START + number * MINUTE] = row[column]

    def minutes(self, numbers: Sequence[int], job: str = "gpt", *, first_step: int = 10, pace: int = 10) -> None:
        for count, number in enumerate(numbers):
            self.minute(number, job, step=first_step + pace * count, loss=3.0, nonfinite=0.0)

    def read(
        self, asked: Sequence[MetricQuery], start: datetime, end: datetime, period: timedelta
    ) -> Mapping[MetricQuery, Points]:
        self.readings.append((len(asked), end - start))
        values = {query: self.values.get(query, {}) for query in asked}
        return {query: [(at, v) for at, v in points.items() if start <= at < end] for query, points in values.items()}


def see(
    series: PublishedSeries, cursor: Cursor, *, now: datetime = LATER, names: MetricNames = NAMES
) -> tuple[Cursor, tuple[Sample, ...]]:
    """One reading of one run, from as far back as the test needs."""
    everything = series.read(make_queries(cursor.job, names), START, LATER, MINUTE)
    return make_samples(everything, cursor, names, now=now)


def test_a_minute_becomes_a_sample():
    series = PublishedSeries()
    series.minute(0, step=10.0, loss=3.0, loss_max=3.1, count=5.0, nonfinite=0.0)
    series.minute(1, step=22.0, loss=2.8, loss_max=3.1, count=12.0, nonfinite=0.0, grad_norm=1.5)
    cursor, (first, second) = see(series, Cursor("gpt"), names=replace(NAMES, detailed=True))
    assert first == Sample(step=10, at=START + MINUTE, loss=3.0, loss_max=3.1, count=5)
    assert second == Sample(
        step=22, at=START + 2 * MINUTE, loss=2.8, grad_norm=1.5, step_time_s=5.0, count=12, loss_max=3.1
    )
    silence = LossSilence(loss_received=True, complete_to=10)
    assert cursor == Cursor(
        "gpt", START + 2 * MINUTE, step=22, seen_step=22, seen_at=START + 2 * MINUTE, silence=silence
    )


def test_a_minute_that_is_still_filling_waits():
    """It is judged a minute after its end, and then once."""
    series = PublishedSeries()
    series.minutes(range(3))
    cursor, found = see(series, Cursor("gpt"), now=START + timedelta(seconds=179))
    assert [s.step for s in found] == [10]
    cursor, found = see(series, cursor, now=START + timedelta(seconds=180))
    assert [s.step for s in found] == [20]
    assert see(series, cursor, now=START + timedelta(seconds=239)) == (cursor, ())


def test_a_pause_is_part_of_the_step_time():
    """An evaluation of two minutes without a line shows in the first step after it."""
    series = PublishedSeries()
    series.minutes([0, 1, 4])
    _, found = see(series, Cursor("gpt"))
    assert [s.step_time_s for s in found] == [None, 6.0, 18.0]


def test_what_arrives_late_is_read_unless_a_later_minute_was_judged():
    """Order is kept: a late minute at the end of the series is found, one in its middle is lost."""
    series = PublishedSeries()
    series.minutes([0, 2])
    cursor, _ = see(series, Cursor("gpt"), now=START + 6 * MINUTE)
    series.minute(1, step=15.0, loss=9.0)
    series.minute(3, step=40.0, loss=2.0)
    assert [s.step for s in see(series, cursor)[1]] == [40]


def test_a_relaunch_repeats_steps_that_are_not_judged_again():
    """Attempt 1 was judged to step 50; attempt 2 resumes at 20 and is heard again from the first new step on."""
    series = PublishedSeries()
    series.minutes(range(5))
    cursor, _ = see(series, Cursor("gpt"))
    cursor = with_next_attempt(cursor, "gpt-a002")
    series.minutes(range(10, 13), "gpt-a002", first_step=30)
    cursor, found = see(series, cursor, now=START + 14 * MINUTE)
    assert (found, cursor.behind, cursor.read_to) == ((), True, START + 13 * MINUTE)
    series.minutes(range(13, 15), "gpt-a002", first_step=60)
    cursor, found = see(series, cursor)
    assert [(s.step, s.step_time_s) for s in found] == [(60, 6.0), (70, 6.0)]
    assert not cursor.behind


def test_steps_that_we_threw_away_are_new_when_they_come_again():
    series = PublishedSeries()
    series.minutes(range(5))
    cursor, _ = see(series, Cursor("gpt"))
    series.minutes(range(10, 14), "gpt-a002", first_step=20)
    _, found = see(series, with_next_attempt(cursor, "gpt-a002", judged_to=30))
    assert [s.step for s in found] == [40, 50]


def test_a_job_that_restarts_inside_itself_repeats_steps_too():
    series = PublishedSeries()
    series.minutes(range(3))
    series.minutes(range(3, 6), first_step=20)
    _, found = see(series, Cursor("gpt"))
    assert [(s.step, s.step_time_s) for s in found] == [(10, None), (20, 6.0), (30, 6.0), (40, 6.0)]


@pytest.mark.parametrize(
    ("epoch", "unseen", "falls"),
    [(0.2, 29, 1), (0.7, 29, 1), (1, 29, 1), (1.3, 2, 13), (2, 1, 29), (2.5, 1, 23), (10, 2, 5), (37, 16, 1)],
)
def test_steps_that_begin_again_with_each_epoch_are_no_progress(epoch, unseen, falls):
    """Every minute is judged once they are known, without a step; in a job that resumed they may be replays."""
    series = PublishedSeries()
    for minute in range(60):
        newest = max((tick / 100) % epoch for tick in range(100 * minute + 1, 100 * minute + 101))
        series.minute(minute, step=60 * newest, loss=3.0)
    cursor, found = see(series, Cursor("gpt"), now=START + timedelta(minutes=61))
    assert (len(found), cursor.counts_epochs, found[-1].step) == (60 - unseen, True, None)
    assert with_next_attempt(cursor, "gpt-a002", judged_to=30).counts_epochs
    assert sum(sample.begins_again for sample in found) == falls
    everything = series.read(make_queries("gpt", NAMES), START, LATER, MINUTE)
    cursor, found = make_samples(everything, Cursor("gpt"), NAMES, now=LATER, may_have_resumed=True)
    assert not cursor.counts_epochs and len(found) <= epoch + 1


def test_what_an_evaluation_counts_is_no_epoch():
    """Its lines look the same for eight minutes each half an hour: they are not judged, and the steps go on."""
    series = PublishedSeries()
    for minute in range(150):
        trained, evaluated = divmod(minute, 30)
        step = 10 * (evaluated - 21) if evaluated > 21 else 22 * 60 * trained + 60 * (evaluated + 1)
        series.minute(minute, step=float(step), loss=3.0)
    cursor, found = see(series, Cursor("gpt"), now=START + timedelta(minutes=151))
    assert (len(found), cursor.counts_epochs, cursor.step) == (5 * 22, False, 5 * 22 * 60)


def test_a_minute_without_its_step_counts_as_the_one_before():
    """New where the run makes progress, a replay where it repeats."""
    series = PublishedSeries()
    series.minute(0, step=10.0, loss=3.0)
    series.minute(1, loss=3.1)
    cursor, found = see(series, Cursor("gpt"))
    assert [(s.step, s.loss) for s in found] == [(10, 3.0), (None, 3.1)]
    series.minute(10, "gpt-a002", loss=3.0)
    assert not see(series, with_next_attempt(cursor, "gpt-a002"))[1]


def test_a_job_without_steps_is_judged_by_its_lines():
    """Seconds a line stand for seconds a step, and every minute is new, also after a relaunch."""
    names = MetricNames(step="", nonfinite="")
    series = PublishedSeries()
    series.minute(0, loss=3.0, count=12.0, tokens_per_s=900.0)
    cursor, (first,) = see(series, Cursor("gpt"), names=names)
    assert (first.step, first.step_time_s, first.tokens_per_s) == (None, 5.0, 900.0)
    series.minute(9, "gpt-a002", loss=3.0)
    assert len(see(series, with_next_attempt(cursor, "gpt-a002"), names=names)[1]) == 1


def test_the_flag_reports_a_nan():
    series = PublishedSeries()
    series.minute(0, step=10.0, loss=3.0, nonfinite=1.0)
    series.minute(1, step=20.0, nonfinite=1.0)
    _, found = see(series, Cursor("gpt"))
    assert [(s.loss, s.nonfinite) for s in found] == [(3.0, True), (None, True)]


def test_without_a_flag_a_missing_loss_is_a_nan():
    """The log flows and the loss is missing for the second minute: a number would have been read."""
    series = PublishedSeries()
    for number in range(6):
        series.minute(number, step=10.0 * number + 10, **({"loss": 3.0} if number < 3 else {}))
    _, found = see(series, Cursor("gpt"), names=MetricNames(nonfinite=""))
    assert [s.nonfinite for s in found] == [False] * 4 + [True] * 2
    assert [s.complete_to for s in found] == [None] * 4 + [20] * 2


def test_a_missing_loss_is_dated_to_before_the_last_minute_with_one():
    """Some of that minute's values may have been missing already; a later attempt has no minute before its first."""
    series, names = PublishedSeries(), MetricNames(nonfinite="")
    for number in range(3):
        series.minute(number, step=10.0 * number + 10, loss=3.0)
    series.minute(3, step=40.0)
    series.minute(4, step=50.0)
    cursor, found = see(series, Cursor("gpt"), names=names)
    assert [s.complete_to for s in found] == [None, None, None, None, 20]
    series.minute(5, "gpt-a002", step=45.0, loss=3.0)
    for number in (6, 7):
        series.minute(number, "gpt-a002", step=45.0 + number)
    _, found = see(series, with_next_attempt(cursor, "gpt-a002", judged_to=40), names=names)
    assert [s.complete_to for s in found] == [None, None, 40]


@pytest.mark.parametrize(
    ("minutes", "complete_to"),
    [
        ({0: 49_980, 4: 50_000, 8: 50_020, **dict.fromkeys(range(9, 16))}, 50_020 - 20),  # every fourth minute
        ({0: 10, 1: 20, 5: 60, 6: None, 7: None, 8: None, 9: None, 10: None}, 40),
        ({0: 10, 1: 20, 5: 30, 6: None, 7: None, 8: None, 9: None, 10: None}, 20),  # a pause
    ],
    ids=["few minutes have a loss", "minutes are missing", "no steps in the missing minutes"],
)
def test_a_missing_loss_is_dated_to_the_minute_before_its_last_value_at_most(minutes, complete_to):
    """By the fastest minute, where the minute before was not read."""
    series, step = PublishedSeries(), 0.0
    for number, with_loss in minutes.items():
        step = step + 10 if with_loss is None else float(with_loss)
        series.minute(number, step=step, **({} if with_loss is None else {"loss": 3.0}))
    _, found = see(series, Cursor("gpt"), names=MetricNames(nonfinite=""))
    assert found[-1].complete_to == complete_to


@pytest.mark.parametrize(("last_loss", "found_at"), [(9, None), (7, 10)])
def test_a_phase_that_prints_no_loss_is_no_nan(last_loss, found_at):
    """Its steps begin again; a loss that went missing before that is still missing."""
    series = PublishedSeries()
    for number in range(30):
        loss = {"loss": 3.0} if number <= last_loss else {}
        series.minute(number, step=10.0 * (number % 10) + 10, **loss)
    _, found = see(series, Cursor("gpt"), names=MetricNames(nonfinite=""))
    assert [row.at for row in found if row.nonfinite][:1] == ([] if found_at is None else [START + found_at * MINUTE])


@pytest.mark.parametrize(("trained", "evaluated"), [(4, 12), (30, 5), (3, 40)])
def test_an_evaluation_that_prints_the_last_step_again_is_no_nan(trained, evaluated):
    """However long it takes for the time trained; the next loss may come some minutes after it."""
    series, step = PublishedSeries(), 0.0
    for number in range(3 * (trained + evaluated)):
        trains = number % (trained + evaluated) < trained
        step += 10 * trains
        has_loss = trains and (number % (trained + evaluated) > 0 or not number)
        series.minute(number, step=step, **({"loss": 3.0} if has_loss else {}))
    cursor, found = see(series, Cursor("gpt"), names=MetricNames(nonfinite=""), now=START + number * MINUTE)
    assert not cursor.counts_epochs and not any(sample.nonfinite for sample in found)


def test_a_finite_flag_overrules_a_missing_loss():
    """The loss is late or logged more rarely: no NaN."""
    series = PublishedSeries()
    series.minute(0, step=10.0, loss=3.0, nonfinite=0.0)
    for number in (1, 2, 3, 4):
        series.minute(number, step=10.0 * number + 10, nonfinite=0.0)
    _, found = see(series, Cursor("gpt"))
    assert not any(s.nonfinite for s in found)


@pytest.mark.parametrize(
    "with_loss",
    [
        *(
            [number for number in range(200) if number % spacing == first]
            for spacing, first in ((5, 0), (60, 7), (2, 1))
        ),
        [9, 15, 42, 108, 120, 129, 141, 146, 160, 168, 196],  # the updates of a run of PPO, by its episodes
        [*(number for number in range(78) if number % 7 in (0, 2)), 94, 128, 190],
    ],
    ids=["every fifth minute", "every hour", "every second minute", "irregular", "ever more rarely"],
)
def test_a_loss_that_is_logged_rarely_is_no_nan(with_loss):
    """One that was never received is a missing metric, not a NaN."""
    series = PublishedSeries()
    for number in range(200):
        series.minute(number, step=10.0 * number + 10, **({"loss": 3.0} if number in with_loss else {}))
    cursor, found = see(series, Cursor("gpt"), names=MetricNames(nonfinite=""))
    assert len(found) > 150
    assert not any(sample.nonfinite for sample in found)
    gaps = [later - number - 1 for number, later in zip(with_loss, with_loss[1:], strict=False)]
    assert (cursor.silence.longest, cursor.silence.gap_minutes) == (max(gaps), sum(gaps))
    assert not any(s.nonfinite for s in see(series, Cursor("gpt"), names=MetricNames(nonfinite="", loss="other"))[1])


def test_a_series_that_was_not_read_is_not_an_empty_one():
    """Nothing is judged on half an answer; the next reading finds the cursor where it was."""
    series = PublishedSeries()
    series.minutes(range(3))
    whole = series.read(make_queries("gpt", NAMES), START, LATER, MINUTE)
    for missing in make_queries("gpt", NAMES):
        partly = {query: points for query, points in whole.items() if query != missing}
        assert make_samples(partly, Cursor("gpt"), NAMES, now=LATER) == (Cursor("gpt"), ())


@pytest.mark.parametrize(
    ("seconds", "read"), [(0.2, 1), (1, 1), (2, 5), (12, 20), (31, 60), (60, 60), (61, 120), (300, 300), (3599, 3600)]
)
def test_a_period_is_one_that_cloudwatch_takes(seconds, read):
    """1, 5, 10, 20, 30 seconds and whole minutes; never shorter than wished."""
    assert find_resolution(timedelta(seconds=seconds)) == timedelta(seconds=read)


def a_round(published: PublishedSeries, cursors: list[Cursor], now: datetime) -> tuple[list[Cursor], list[Sample]]:
    series = fetch(published, [MetricsReading(cursor, NAMES) for cursor in cursors], now=now)
    seen = [make_samples(series, cursor, NAMES, now=now) for cursor in cursors]
    return [cursor for cursor, _ in seen], [sample for _, samples in seen for sample in samples]


def test_a_round_asks_once_for_all_and_only_for_what_is_new():
    """All runs in one reading of a minute; a second round in the same minute asks nothing."""
    series = PublishedSeries()
    jobs = [f"job-{number}" for number in range(3)]
    for job in jobs:
        series.minutes(range(10), job)
    cursors, _ = a_round(series, [Cursor(job) for job in jobs], START + 5 * MINUTE)
    series.readings.clear()
    cursors, found = a_round(series, cursors, START + 6 * MINUTE)
    assert (len(found), series.readings) == (3, [(15, MINUTE)])
    assert a_round(series, cursors, START + timedelta(seconds=399)) == (cursors, [])
    assert series.readings == [(15, MINUTE)]


def test_a_silent_run_does_not_lengthen_the_reading_of_the_others():
    """It is asked for apart, as far back as to three hours ago."""
    series = PublishedSeries()
    series.minutes(range(400), "busy")
    cursors, _ = a_round(series, [Cursor("busy"), Cursor("mute")], START + 300 * MINUTE)
    series.readings.clear()
    a_round(series, cursors, START + 301 * MINUTE)
    assert sorted(series.readings) == [(5, MINUTE), (5, timedelta(hours=3) - MINUTE)]


@pytest.mark.parametrize(("minutes", "queries"), [(5, [10]), (6, [5, 5])])
def test_a_run_that_was_read_lately_is_asked_for_with_the_others(minutes, queries):
    series = PublishedSeries()
    for job in ("busy", "late"):
        series.minutes(range(310), job)
    (busy, late), _ = a_round(series, [Cursor("busy"), Cursor("late")], START + 300 * MINUTE)
    (busy,), _ = a_round(series, [busy], START + (299 + minutes) * MINUTE)
    series.readings.clear()
    a_round(series, [busy, late], START + (300 + minutes) * MINUTE)
    assert sorted(count for count, _ in series.readings) == queries


def test_a_longer_period_is_read_less_often():
    series = PublishedSeries()
    names = replace(NAMES, period=5 * MINUTE)
    cursor = Cursor("gpt", read_to=START)
    for minute in range(15):
        fetch(series, [MetricsReading(cursor, names)], now=START + minute * MINUTE)
    assert [length for _, length in series.readings] == [5 * MINUTE] * 5


rows = st.fixed_dictionaries(
    {},
    optional={
        "step": st.integers(0, 40).map(float) | st.floats(),
        "loss": st.floats(),
        "count": st.floats(),
        "nonfinite": st.sampled_from([0.0, 1.0]),
        "tokens_per_s": st.floats(),
    },
)
histories = st.lists(st.tuples(st.integers(0, 12), rows, st.integers(0, 14), st.booleans()), max_size=30)


@given(histories, st.sampled_from([NAMES, MetricNames(step="tokens_per_s"), MetricNames(nonfinite="", loss="")]))
def test_no_step_is_judged_twice(history, names):
    """Whatever arrives, in whatever order, late or twice, over however many attempts: steps and times only grow."""
    series, cursor, judged = PublishedSeries(), Cursor("gpt"), []
    for minute, row, now, relaunch in history:
        series.minute(minute, cursor.job, **row)
        cursor, found = see(series, cursor, now=START + now * MINUTE, names=names)
        assert [s.at for s in found] == sorted({s.at for s in found})
        judged += found
        cursor = with_next_attempt(cursor, cursor.job + "+") if relaunch else cursor
        assert loads(Cursor, dumps(cursor)) == cursor
    steps = [s.step for s in judged if s.step is not None]
    assert steps == sorted(set(steps))


def points_of(series: PublishedSeries, cursor: Cursor, order: Sequence[int]) -> dict[MetricQuery, Points]:
    whole = series.read(make_queries(cursor.job, NAMES), START, LATER, MINUTE)
    return {query: [points[i % len(points)] for i in order] if points else [] for query, points in whole.items()}


@given(st.permutations(range(12)), st.lists(st.integers(0, 11)))
def test_the_order_of_an_answer_does_not_matter(order, again):
    """Newest first, oldest first, shuffled, with repetitions: the same samples."""
    series = PublishedSeries()
    series.minutes(range(12))
    shuffled = points_of(series, Cursor("gpt"), [*order, *again])
    assert make_samples(shuffled, Cursor("gpt"), NAMES, now=LATER) == see(series, Cursor("gpt"))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8))
def test_reading_in_parts_is_reading_at_once(waits):
    """However the rounds fall, the samples are those of one look back."""
    published = PublishedSeries()
    published.minutes(range(60))
    now, cursor, parts = START, Cursor("gpt"), []
    for wait in waits:
        now += wait * MINUTE
        series = fetch(published, [MetricsReading(cursor, NAMES)], now=now)
        cursor, found = make_samples(series, cursor, NAMES, now=now)
        parts += found
    assert parts == list(see(published, Cursor("gpt"), now=now)[1])


def test_a_run_costs_no_more_among_a_thousand():
    def prepare(runs: int) -> Callable[[], list[Sample]]:
        published = PublishedSeries()
        for number in range(runs):
            published.minutes(range(3), f"job-{number}")
        cursors, _ = a_round(published, [Cursor(f"job-{number}") for number in range(runs)], START + 3 * MINUTE)
        now = START + 4 * MINUTE
        series = fetch(published, [MetricsReading(cursor, NAMES) for cursor in cursors], now=now)
        return lambda: [row for cursor in cursors for row in make_samples(series, cursor, NAMES, now=now)[1]]

    hundred, thousand = prepare(100), prepare(1000)
    assert len(thousand()) == 1000
    assert growth(hundred, thousand, repeats=5) < 40
