"""The minute's round: who is woken, who is let sleep, and what is said where nothing could be seen."""

from datetime import timedelta

import pytest

from rerail.accounting import goodput
from rerail.detection import evaluate
from rerail.detection.evaluate import RunDetection
from rerail.messages.messages import JobStateChanged
from rerail.model.codec import loads
from rerail.model.errors import StateUnknown
from rerail.model.run import JobStatus, RunState
from rerail.sweep import sweep
from rerail.sweep.sweep import SweepReport
from tests.core.failures import NODE_LOST
from tests.fakes import BUCKET, World
from tests.raising import raising


@pytest.fixture
def world() -> World:
    return World()


def adopt_runs(world: World, *names: str) -> World:
    for name in names:
        world.adopt(name, uri=f"{BUCKET}{name}/")
    return world


def fail_describe(world: World, monkeypatch, *names: str) -> None:
    """SageMaker does not answer for these jobs."""
    see = world.sagemaker.describe

    def describe(name):
        if name in names:
            raise StateUnknown(f"DescribeTrainingJob {name}: throttled")
        return see(name)

    monkeypatch.setattr(world.sagemaker, "describe", describe)


def test_runs_that_go_well_are_let_sleep(world):
    adopt_runs(world, "a", "b", "c")
    assert world.round().run() == SweepReport(open=3, due=0, discovered=0, unknown=())
    assert world.queue.waiting == []


def test_a_run_that_waits_is_woken_when_its_time_has_come(world):
    adopt_runs(world, "a")
    world.sagemaker.fail("a", NODE_LOST)
    world.supervisor().handle(JobStateChanged("a"))
    assert world.run("a").state is RunState.WAITING
    world.clock.now = world.run("a").wake_at - timedelta(seconds=1)
    assert world.round().run().due == 0
    world.clock.now = world.run("a").wake_at
    assert world.round().run().due == 1


def test_a_run_with_a_pending_action_is_due_in_any_state(world, monkeypatch):
    """A supervisor that died between recording and acting is made good within the minute, even if SageMaker is mute."""
    adopt_runs(world, "a")
    world.sagemaker.fail("a", NODE_LOST)
    monkeypatch.setattr(world.bus, "publish", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        world.supervisor().handle(JobStateChanged("a"))
    assert world.run("a").pending
    fail_describe(world, monkeypatch, "a", "a-a002")
    assert world.round().run() == SweepReport(open=1, due=1, discovered=0, unknown=())


def test_a_blind_run_is_counted_and_never_acted_on(world, monkeypatch):
    """Nothing is known of it, so nothing is done; the others are looked after as ever."""
    adopt_runs(world, "a", "b")
    world.sagemaker.fail("a", NODE_LOST)
    world.sagemaker.fail("b", NODE_LOST)
    fail_describe(world, monkeypatch, "a")
    assert world.round().run() == SweepReport(open=2, due=1, discovered=0, unknown=("a",))
    assert world.queue.waiting == [{"run": "b"}]


def test_a_broken_policy_blinds_its_own_runs_alone(world):
    adopt_runs(world, "a", "b")
    world.sagemaker.fail("b", NODE_LOST)
    get = world.policies.get

    class HalfBroken:
        calls = 0

        def get(self, name):
            self.calls += 1
            if self.calls == 1:
                raise StateUnknown("GetParameter of policy 'default': throttled")
            return get(name)

    world.policies = HalfBroken()
    report = world.round().run()
    assert len(report.unknown) == 1
    assert report.open == 2


def test_a_job_whose_events_were_lost_is_discovered(world):
    """Tagged, running and unheard of: the round names the job, and the supervisor adopts it."""
    adopt_runs(world, "a")
    world.sagemaker.submit("lost")
    assert world.round().run() == SweepReport(open=1, due=0, discovered=1, unknown=())
    assert world.queue.waiting == [{"job": "lost"}]
    world.minutes(1)
    assert world.run("lost").state is RunState.WATCHING
    assert world.round().run().discovered == 0


def test_an_untagged_job_is_asked_about_once(world):
    world.sagemaker.submit("stranger", policy=None)
    assert world.round().run().discovered == 1
    world.minutes(1)
    assert world.round().run() == SweepReport(open=0, due=0, discovered=0, unknown=())
    assert world.runs.load("stranger") is None


def test_our_own_jobs_are_known(world):
    """A successor is known from the moment it is named, before SageMaker has it."""
    adopt_runs(world, "a")
    world.lose_node("a", minutes=20)
    assert [attempt.job_name for attempt in world.run("a").attempts] == ["a", "a-a002"]
    assert world.round().run() == SweepReport(open=1, due=0, discovered=0, unknown=())


def test_runs_that_have_ended_are_not_asked_about(world):
    adopt_runs(world, "a")
    world.sagemaker.end("a", JobStatus.COMPLETED)
    world.minutes(2)
    assert world.run("a").state is RunState.COMPLETED
    assert world.round().run().open == 0


def test_due_runs_are_woken_even_if_no_list_can_be_had(world, monkeypatch):
    """Looking for lost jobs is the lesser duty: its failure is raised, after those that are due were woken."""
    adopt_runs(world, "a")
    world.sagemaker.fail("a", NODE_LOST)

    monkeypatch.setattr(world.sagemaker, "changed_since", raising(StateUnknown("ListTrainingJobs: throttled")))
    with pytest.raises(StateUnknown):
        world.round().run()
    assert world.queue.waiting == [{"run": "a"}]


def test_the_round_writes_nothing(world):
    """What it would decide is decided again by the supervisor: no record changes, no job is touched."""
    adopt_runs(world, "a")
    world.sagemaker.fail("a", NODE_LOST)
    before = dict(world.runs.records)
    world.round().run()
    assert world.runs.records == before
    assert list(world.sagemaker.jobs) == ["a"]


def test_a_record_that_makes_no_sense_keeps_the_round_from_no_other_run(world, monkeypatch):
    adopt_runs(world, "a", "b", "c")
    see = world.sagemaker.describe
    world.sagemaker.fail("c", NODE_LOST)
    monkeypatch.setattr(world.sagemaker, "describe", lambda name: None if name == "a" else see(name))
    report = world.round().run()
    assert report.unknown == ("a",)
    assert "TypeError" in report.broken["a"]
    assert world.queue.waiting == [{"run": "c"}]


def test_figures_that_make_no_sense_are_of_one_run_alone(world, monkeypatch):
    """It is said whose, the figures of the others are told, and what is due is due."""
    adopt_runs(world, "a", "b")
    world.sagemaker.fail("a", NODE_LOST)

    def account(run, at, policy):
        if run.id == "a":
            raise OverflowError("integer division result too large for a float")
        return goodput.make_account(run, at, policy)

    monkeypatch.setattr(sweep, "make_account", account)
    report = world.round().run()
    assert "OverflowError" in report.broken["a"] and report.unknown == ()
    assert world.queue.waiting == [{"run": "a"}] and sum(report.fleet.runs.values()) == 2


def test_a_memory_that_makes_no_sense_keeps_no_other_run_from_being_judged(world, monkeypatch):
    """It is said of which run, and the detectors of the others go on learning."""
    world.sagemaker.defined_metrics = ("loss", "step")
    adopt_runs(world, "a", "b", "c")
    recall = world.memories.recall

    def garbled(runs):
        if "b" in runs:
            raise TypeError("unsupported operand")
        return recall(runs)

    monkeypatch.setattr(world.memories, "recall", garbled)
    report = world.round().run()
    assert "b cannot be judged: TypeError: unsupported operand" in report.unread
    assert sorted(world.memories.records) == ["a", "c"]


def test_a_run_that_cannot_be_evaluated_has_no_metrics_read_twice(world, monkeypatch):
    """Half of the others were read again with each halving: three times the cost for one run, nine times for all."""
    world.sagemaker.defined_metrics = ("loss", "step")
    adopt_runs(world, "a", "b", "c", "d")
    world.clock.now += timedelta(minutes=5)
    world.round().run()
    world.clock.now += timedelta(minutes=5)
    read, asked = world.series.read, []
    monkeypatch.setattr(world.series, "read", lambda queries, *span: asked.extend(queries) or read(queries, *span))
    original = evaluate.evaluate_run

    def fail_for_b(memory, monitored, *rest, **options):
        return original(memory, None if monitored.run.id == "b" else monitored, *rest, **options)

    monkeypatch.setattr(evaluate, "evaluate_run", fail_for_b)
    assert "b cannot be judged: AttributeError" in world.round().run().unread
    assert {query.job for query in asked} == {"a", "b", "c", "d"} and len(asked) == len(set(asked))
    assert loads(RunDetection, world.memories.records["c"]).looked_at == world.clock.now
