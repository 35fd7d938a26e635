"""Jobs that publish nothing of their own: SageMaker's load of their machines tells whether they compute."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.idle import hang, make_job
from rerail.detection.evaluate import MonitoredRun, RunDetection, evaluate_load
from rerail.detection.idle import describe_hosts, find_idle, is_load_due
from rerail.model.actions import ClearedBy, Notify, Severity
from rerail.model.errors import StateUnknown
from rerail.model.finding import Finding, Kind, Level
from rerail.model.metrics import Cursor, HostLoad, MetricQuery, Points, Statistic
from rerail.model.policy import Policy
from rerail.model.run import OpenPage
from rerail.model.thresholds import Thresholds
from tests.fakes import MIDNIGHT, World
from tests.raising import raising

MINUTE = timedelta(minutes=1)
BUSY = {"GPUUtilization": 720.0, "CPUUtilization": 900.0}
# A process that waits for ever may keep one CPU busy.
HUNG = {"GPUUtilization": 0.0, "CPUUtilization": 100.0}


@pytest.fixture
def world() -> World:
    """A job with the tag alone: no agent, and no metric definitions."""
    world = World()
    world.sagemaker.defined_metrics = ()
    return world.adopt()


def compute(world: World, minutes: int, load: dict[str, float] = BUSY, *, saves_every: int = 0) -> None:
    """Publish the load of the job's machine each minute, and save a checkpoint now and then."""
    for minute in range(1, minutes + 1):
        world.series.print(world.run().current.job_name, world.clock(), **load)
        if saves_every and minute % saves_every == 0:
            world.checkpoints.save(step=int((world.clock() - MIDNIGHT) / MINUTE) + 1)
        world.minutes(1)


def test_an_idle_job_is_relaunched_once_its_checkpoint_is_overdue(world):
    compute(world, 60, saves_every=10)
    compute(world, 15, HUNG)
    assert [notice.title for notice in world.bus.notices] == ["gpt: stall (warning)"]
    assert "no load for 660 s on the machine, usually" in world.bus.notices[0].body
    compute(world, 25, HUNG)
    run = world.run()
    assert (run.current.number, run.current.resumed_from_step, run.incidents[0].cause) == (2, 60, "hang")


def test_an_idle_job_without_checkpoints_is_only_reported(world):
    """Once for each time: no longer a pause than values are read for ends it, and its end is told too."""
    compute(world, 60)
    compute(world, 250, HUNG)
    compute(world, 60)
    compute(world, 30, HUNG)
    titles = [notice.title for notice in world.bus.notices]
    assert titles == ["gpt: stall (warning)", "gpt: stall (over)", "gpt: stall (warning)"]
    assert world.sagemaker.live() == ["gpt"]


def test_a_pause_in_which_a_checkpoint_is_saved_is_no_stall(world):
    """An upload computes nothing, and its objects appear."""
    for _ in range(6):
        compute(world, 30)
        compute(world, 9, HUNG)
        compute(world, 6, HUNG, saves_every=1)
    assert {notice.title for notice in world.bus.notices if ": stall" in notice.title} == set()


@pytest.mark.parametrize("load", [{"GPUUtilization": 800.0, "CPUUtilization": 100.0}, {"CPUUtilization": 900.0}, {}])
def test_a_job_that_computes_or_of_which_nothing_is_known_is_left_alone(world, load):
    """GPUs that wait for each other are busy, an evaluation may use CPUs alone, and no values prove nothing.

    That no checkpoint appears any more is told, until one does.
    """
    compute(world, 60, saves_every=10)
    compute(world, 90, load)
    notified = ["gpt: checkpoint_stall (warning)"]
    assert [notice.title for notice in world.bus.notices] == notified
    compute(world, 15, load, saves_every=10)
    assert [notice.title for notice in world.bus.notices] == [*notified, "gpt: checkpoint_stall (over)"]
    assert world.sagemaker.live() == ["gpt"]


def test_the_load_is_read_once_in_five_minutes_and_costs_two_series_a_machine(world, monkeypatch):
    asked: list[str] = []
    read = world.series.read
    monkeypatch.setattr(world.series, "read", lambda queries, *rest: asked.extend(queries) or read(queries, *rest))
    compute(world, 100)
    assert len(asked) == 100 // 5 * 2


@pytest.mark.parametrize("seconds", [1, 5, 60])
def test_no_run_is_left_out_by_looks_each_minute(seconds):
    """They fall in the same of five short periods each time."""
    looks = [MIDNIGHT + timedelta(minutes=minute) for minute in range(120)]
    for number in range(10):
        due = [is_load_due(f"run-{number}", at, timedelta(seconds=seconds)) for at in looks]
        assert 10 < sum(due) < 45


@pytest.mark.parametrize(("has_agent", "is_over"), [(False, ["blind"]), (True, [])])
def test_a_page_about_metrics_is_over_only_if_there_are_none(world, has_agent, is_over):
    """Machines that compute prove nothing about an agent that fell silent."""
    page = Notify(Severity.PAGE, "gpt: blind", "why", "gpt/blind", until=ClearedBy.RECOVERED, about=Kind.BLIND)
    attempts = (replace(world.run().current, agent=has_agent),)
    run = replace(world.run(), pages=(OpenPage(page, 1, MIDNIGHT),), attempts=attempts)
    busy = make_answers(HOUR_OF_LOAD)
    monitored, memory = MonitoredRun(run, Policy(), None, is_training=True), RunDetection("gpt", Cursor("gpt"))
    found = evaluate_load(memory, monitored, busy, at=MIDNIGHT + 61 * MINUTE).findings
    assert [finding.kind for finding in found] == is_over
    assert evaluate_load(memory, monitored, {}, at=MIDNIGHT + 61 * MINUTE).findings == ()


def test_a_folder_that_cannot_be_listed_stops_nothing_and_is_no_failure_of_the_sweep(world, monkeypatch):
    compute(world, 60, saves_every=10)

    monkeypatch.setattr(world.checkpoints, "list_saves", raising(StateUnknown("AccessDenied")))
    compute(world, 90, HUNG)
    assert [notice.title for notice in world.bus.notices] == ["gpt: stall (warning)"]
    assert world.round().run().unknown == ()


def make_answers(
    cpu: Sequence[tuple[datetime, float]], gpu: Sequence[tuple[datetime, float]] | None = ()
) -> dict[MetricQuery, Points]:
    """Return the answers of CloudWatch for one machine; None: not answered."""
    answers = {"CPUUtilization": cpu, "GPUUtilization": gpu}
    named = {MetricQuery("gpt", name, Statistic.AVERAGE, "algo-1"): points for name, points in answers.items()}
    return {query: points for query, points in named.items() if points is not None}


HOUR_OF_LOAD = [(MIDNIGHT + minute * MINUTE, 900.0) for minute in range(60)]
HOUR_OF_WAITING = [(MIDNIGHT + minute * MINUTE, 40.0) for minute in range(60, 120)]


@pytest.mark.parametrize(
    ("cpu", "gpu"),
    [
        ([*HOUR_OF_LOAD, *HOUR_OF_WAITING], None),
        ([*HOUR_OF_LOAD, *HOUR_OF_WAITING], HOUR_OF_LOAD),
        ([*HOUR_OF_LOAD, HOUR_OF_WAITING[0], HOUR_OF_WAITING[-1]], ()),
        ([*HOUR_OF_LOAD[:20], HOUR_OF_WAITING[40]], ()),
    ],
    ids=["a series that was not answered", "a series that ends", "a gap between two short pauses", "an old value"],
)
def test_missing_load_is_no_idle_machine(world, cpu, gpu):
    monitored = MonitoredRun(world.run(), Policy(), None, is_training=True, saved_at=(MIDNIGHT + MINUTE,))
    memory = RunDetection("gpt", Cursor("gpt"))
    assert evaluate_load(memory, monitored, make_answers(cpu, gpu), at=MIDNIGHT + 121 * MINUTE).findings == ()


def test_a_checkpoint_from_before_the_job_lets_nothing_be_stopped(world):
    """Others may have saved it: the job itself saves none, so none is overdue."""
    monitored = MonitoredRun(world.run(), Policy(), None, is_training=True, saved_at=(MIDNIGHT - MINUTE,))
    answers, memory = make_answers([*HOUR_OF_LOAD, *HOUR_OF_WAITING]), RunDetection("gpt", Cursor("gpt"))
    found = evaluate_load(memory, monitored, answers, at=MIDNIGHT + 121 * MINUTE).findings
    assert [finding.level for finding in found] == [Level.WARN]


def make_loads(levels: list[float], *, host: str = "algo-1") -> dict[str, tuple[HostLoad, ...]]:
    return {host: tuple(HostLoad(MIDNIGHT + n * MINUTE, level, 10 * level) for n, level in enumerate(levels, 1))}


def evaluate(loads, *, at, saved_at=(), **limits) -> Finding | None:
    hosts = describe_hosts(loads, at=at, period=MINUTE)
    return find_idle(hosts, saved_at, at=at, detection=replace(Thresholds(), **limits))


def test_one_idle_machine_among_busy_ones_is_named_and_stops_nothing():
    busy, hung = [90.0] * 60, [90.0] * 40 + [0.0] * 20
    loads = make_loads(busy, host="algo-1") | make_loads(hung, host="algo-2") | make_loads(busy, host="algo-3")
    at = MIDNIGHT + 61 * MINUTE
    finding = evaluate(loads, at=at, saved_at=[MIDNIGHT])
    assert finding and finding.level is Level.WARN
    assert finding.evidence.startswith("no load for 1260 s on algo-2 of 3 machines")


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        # Ten minutes without load, and one and a half times the longest pause; acted on after three times that.
        ([(90, 40), (0, 10)], None),
        ([(90, 40), (0, 11)], Level.WARN),
        ([(90, 30), (0, 9), (90, 20), (0, 15)], None),
        ([(90, 30), (0, 9), (90, 20), (0, 16)], Level.WARN),
        ([(90, 40), (0, 30)], Level.WARN),
        ([(90, 40), (0, 31)], Level.INTERVENE),
        # Less than a tenth of the usual load of the GPUs, or than five percent, is none.
        ([(90, 40), (8.9, 20)], Level.WARN),
        ([(90, 40), (9.1, 20)], None),
        ([(30, 40), (4.9, 20)], Level.WARN),
        ([(30, 40), (5.1, 20)], None),
        # Nothing is known of a job before twenty busy minutes.
        ([(90, 20), (0, 20)], Level.WARN),
        ([(90, 19), (0, 20)], None),
    ],
)
def test_a_pause_is_reported_by_its_load_and_its_length(hosts, expected):
    levels = [level for level, minutes in hosts for _ in range(minutes)]
    found = evaluate(make_loads(levels), at=MIDNIGHT + len(levels) * MINUTE, saved_at=[MIDNIGHT])
    assert (found and found.level) == expected


@given(st.randoms(use_true_random=False))
def test_a_healthy_job_is_never_stopped_and_a_hang_is_reported_within_an_hour(random):
    """Loading, evaluation, compilation, uploads and downloads of up to a quarter of an hour."""
    job = make_job(random, minutes=180, longest=15.0)
    assert not any(job.evaluate(minute)[1] for minute in range(0, len(job.levels), 5))
    began = hang(random, job)
    assert any(job.evaluate(minute)[0] for minute in range(began, began + 60, 5))


@given(st.lists(st.floats(30.0, 100.0), min_size=1, max_size=180), st.integers(0, 9))
def test_a_job_that_has_computed_within_ten_minutes_is_never_idle(levels, idle):
    """However its load varies, and whatever it has saved."""
    at = MIDNIGHT + (len(levels) + idle) * MINUTE
    assert evaluate(make_loads(levels + [0.0] * idle), at=at) is None
    assert evaluate(make_loads(levels + [0.0] * 100), at=at, stall_floor=timedelta(hours=1)) is None
