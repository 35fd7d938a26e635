"""Heartbeats in place of metrics: cheaper, sooner, and given up the minute they cannot be believed."""

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.detection.evaluate import MonitoredRun, RunDetection, evaluate_heartbeat, resume_detection
from rerail.model.codec import dumps, loads
from rerail.model.liveness import Phase
from rerail.model.mailbox import make_heartbeat_key, read_heartbeat, serialize
from rerail.model.policy import Policy
from rerail.model.run import Attempt, JobStatus, Run, RunState
from rerail.ports import ReceivedHeartbeat
from tests.core.strategies import heartbeats
from tests.fakes import MIDNIGHT, Agent, World
from tests.raising import raising

MINUTE = timedelta(minutes=1)
STEPS_A_MINUTE = 10
SLOW_SAVE = "gpt: checkpoint_stall (warning)"


@pytest.fixture
def world() -> World:
    world = World()
    world.sagemaker.defined_metrics = ("step", "loss", "nonfinite")
    return world.adopt()


@pytest.fixture
def asked(world, monkeypatch) -> list[str]:
    """The jobs whose metrics were paid for."""
    jobs: list[str] = []
    read = world.series.read

    def noted(queries, *rest):
        jobs.extend(query.job for query in queries)
        return read(queries, *rest)

    monkeypatch.setattr(world.series, "read", noted)
    return jobs


def train(world: World, minutes: int, agent: Agent | None = None, *, first: int = 0, loss: float = 2.0, **facts) -> int:
    """The job prints for so many minutes, and its agent's heart beats where there is one; the last step."""
    step, job = first, world.run().current.job_name
    for _ in range(minutes):
        step += STEPS_A_MINUTE
        value = loss + 3.0 * math.exp(-step / 500) + 0.01 * math.sin(step)
        world.series.print(job, world.clock(), step=float(step), loss=value, nonfinite=0.0, count=10.0)
        if agent:
            agent.beats(step, moved_at=world.clock(), loss=value, step_seconds=6.0, **facts)
        world.minutes(1)
    return step


def detector_state(world: World):
    return world.memories.recall(["gpt"])["gpt"]


def test_a_fresh_heartbeat_costs_no_metrics(world, agent, asked):
    train(world, 30, agent)
    assert asked == []
    assert world.round().run().with_heartbeat == 1
    assert detector_state(world).detectors.liveness.step == 300
    assert world.notice_titles() == []


def test_without_an_agent_nothing_is_looked_for_in_the_mailbox(world, monkeypatch):
    monkeypatch.setattr(world.mailbox, "heartbeats", lambda folders: 1 / 0)
    train(world, 5)
    assert detector_state(world).cursor.step == 40


def test_metrics_are_read_once_the_heartbeat_is_stale(world, agent, asked):
    step = train(world, 30, agent)
    step = train(world, 1, first=step)
    assert asked == []
    train(world, 2, first=step)
    assert set(asked) == {"gpt"}


def test_no_step_is_judged_twice_and_none_is_passed_over(world, agent, monkeypatch):
    """To and fro: the agent judges what its heartbeats tell of, we the rest, each row once and in order."""
    rows: list[int] = []
    monkeypatch.setattr("rerail.detection.evaluate.evaluate_sample", _noting(rows))
    step = train(world, 20)
    step = train(world, 20, agent, first=step)
    step = train(world, 20, first=step)
    step = train(world, 20, agent, first=step)
    train(world, 20, first=step)
    assert rows == sorted(set(rows)), "each row once, in order"
    of_the_agent = {*range(200, 401, 10), *range(600, 801, 10)}
    missed = set(range(10, 980, 10)) - set(rows) - of_the_agent
    assert missed == set()
    assert not {row for row in rows if 220 <= row <= 400 or 620 <= row <= 800}


def _noting(rows: list[int]):
    from rerail.detection.detectors import evaluate_sample

    def noted(watch, sample, detection):
        if sample.at:  # others are what the heartbeats teach
            rows.append(sample.step)
        return evaluate_sample(watch, sample, detection)

    return noted


def test_trouble_after_the_hand_over_is_dated_after_it(world, agent):
    """What the agent judged was sound: a rollback must not reach back over it, to what was found before it began."""
    step = train(world, 30)
    step = print_nan(world, 1, first=step)
    step = train(world, 5, first=step)
    step = train(world, 110, agent, first=step)
    world.checkpoints.save(step=step)
    print_nan(world, 10, first=step)
    incident = world.run().incidents[0]
    assert incident.kind == "non_finite"
    assert step - STEPS_A_MINUTE < incident.onset_step <= step + 3 * STEPS_A_MINUTE


def print_nan(world: World, minutes: int, *, first: int) -> int:
    """The loss is no number."""
    step = first
    for _ in range(minutes):
        step += STEPS_A_MINUTE
        world.series.print("gpt", world.clock(), step=float(step), nonfinite=1.0, count=10.0)
        world.minutes(1)
    return step


@pytest.mark.parametrize("facts", [{"attempt": 2}, {"job": "gpt-old"}])
def test_a_heartbeat_of_another_attempt_is_ignored(world, agent, asked, facts):
    for name, value in facts.items():
        setattr(agent, name, value)
    train(world, 5, agent)
    assert set(asked) == {"gpt"}


def test_what_the_job_calls_the_time_proves_nothing(world, agent, asked):
    """Its clock is a day slow, then a day fast: by the mailbox's clock the heartbeat is young, and steps go on."""
    step = 0
    for wrong in (timedelta(days=-1), timedelta(days=1)):
        for _ in range(15):
            step += 10
            at = world.clock() + wrong
            agent.beats(step, at=at, moved_at=at - timedelta(seconds=3))
            world.minutes(1)
    assert asked == []
    assert world.notice_titles() == []
    assert detector_state(world).detectors.liveness.moved_at == world.clock() - MINUTE - timedelta(seconds=3)


def test_the_detectors_know_the_run_when_they_take_over(world, agent):
    """They learnt from the heartbeats, and said nothing to them: one row after the hand-over a spike is seen."""
    step = train(world, 100, agent)
    step = train(world, 5, first=step)
    train(world, 5, first=step, loss=9.0)
    assert world.notice_titles()[0] == "gpt: loss_spike (warning)"


def test_a_loss_in_heartbeats_is_reported_by_the_agent_alone(world, agent):
    """Twice the same news would be one too many."""
    step = train(world, 100, agent)
    train(world, 100, agent, first=step, loss=9.0)
    assert world.notice_titles() == []
    assert world.run().state is RunState.WATCHING


def test_a_heartbeat_that_cannot_be_read_is_counted_and_the_metrics_are_read(world, agent, asked):
    world.mailbox.put(make_heartbeat_key("gpt"), b"{")
    report = world.round().run()
    assert (list(report.bad_heartbeats), report.with_heartbeat) == (["gpt"], 0)
    train(world, 5)
    assert set(asked) == {"gpt"}


def test_heartbeats_are_read_when_no_metrics_can_be_read(world, agent, monkeypatch):
    """One run has an agent, the other has not, and CloudWatch refuses."""
    from rerail.model.errors import Throttled

    world.adopt("plain")

    monkeypatch.setattr(world.series, "read", raising(Throttled("GetMetricData: rate exceeded")))
    train(world, 5, agent)
    assert detector_state(world).detectors.liveness.step == 50
    assert world.round().run().unread == "GetMetricData: rate exceeded"


@pytest.mark.parametrize(
    ("phase", "minutes", "titles"),
    [
        (Phase.STEP, 30, ["gpt: stall (warning)"]),
        (Phase.STARTUP, 70, ["gpt: startup_stall (warning)"]),
        (Phase.SAVE, 15, [SLOW_SAVE]),
        (Phase.SAVE, 25, [SLOW_SAVE, "gpt: checkpoint_stall: a checkpoint has been running for 1260 s, limit 600 s"]),
    ],
)
def test_what_takes_too_long_by_the_heartbeats_stops_nothing(world, agent, phase, minutes, titles):
    """The heart beats on, the step does not move: whoever looks at the main thread is the witness, not the silence."""
    step = None if phase is Phase.STARTUP else train(world, 30, agent)
    stopped = world.clock()
    for _ in range(minutes):
        agent.beats(step, phase, moved_at=stopped)
        world.minutes(1)
    assert world.notice_titles() == titles
    assert world.sagemaker.live() == ["gpt"]


def test_an_evaluation_that_is_announced_is_learnt(world, agent):
    """Twenty minutes without a step, four times: told at first, known then."""
    step = train(world, 30, agent)
    for _ in range(4):
        stopped = world.clock()
        for _ in range(20):
            agent.beats(step, Phase.EVALUATION, moved_at=stopped)
            world.minutes(1)
        step = train(world, 30, agent, first=step)
    assert detector_state(world).detectors.liveness.evaluation_s > 600
    assert world.notice_titles() == ["gpt: stall (warning)", "gpt: stall (over)"]


def test_a_job_that_repeats_steps_after_a_restart_of_sagemakers_own_is_alive(world, agent):
    """Its step numbers go back; it moves all the same."""
    train(world, 30, agent)
    train(world, 15, agent, first=100)
    assert world.notice_titles() == []
    assert detector_state(world).detectors.liveness.step == 250


def test_a_job_without_metric_definitions_is_watched_by_its_agent(world):
    """Heartbeats are the only signs of a job without metric definitions: their end is reported, and stops nothing."""
    world.sagemaker.end("gpt", JobStatus.COMPLETED)
    world.sagemaker.defined_metrics = ()
    world.adopt("plain")
    agent = Agent(world, run="plain", job="plain")
    agent.hello()
    for minute in range(20):
        agent.beats(minute, moved_at=world.clock())
        world.minutes(1)
    assert world.round().run().monitored == 1
    world.minutes(60)
    assert world.round().run().monitored == 0
    assert [title for title in world.notice_titles() if title.startswith("plain")] == ["plain: blind (warning)"]


@given(st.lists(heartbeats, max_size=6), st.lists(st.integers(-200, 200), min_size=6, max_size=6))
def test_no_heartbeat_content_ends_a_sweep(beats, lags):
    """One job's nonsense must not blind us to all the others."""
    run = Run("gpt", "default", RunState.WATCHING, MIDNIGHT, (Attempt(1, "gpt", agent=True),))
    monitored = MonitoredRun(run, Policy(), None, is_training=True)
    memory, now = resume_detection(None, monitored, at=MIDNIGHT), MIDNIGHT
    for heartbeat, lag in zip(beats, lags, strict=False):
        now += MINUTE
        received = ReceivedHeartbeat(
            read_heartbeat(serialize(heartbeat), run=heartbeat.run), now + timedelta(seconds=lag)
        )
        memory = loads(RunDetection, dumps(evaluate_heartbeat(memory, monitored, received, at=now).memory))
        assert memory.detectors.liveness.received_at <= now
        assert memory.detectors.liveness.moved_at is None or memory.detectors.liveness.moved_at <= now
        assert memory.cursor.read_to <= now
