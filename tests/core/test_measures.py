"""What is published stays within fixed words, whatever the runs are and however many there are."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerail.accounting.goodput import make_account
from rerail.decisions.decision import Decision
from rerail.messages import service_metrics
from rerail.messages.messages import RunDue
from rerail.messages.service_metrics import ALL, MetricValue
from rerail.model.actions import Severity
from rerail.model.causes import Cause
from rerail.model.policy import Policy
from rerail.model.run import RunState
from rerail.supervisor import decision_metrics
from rerail.supervisor.decision_metrics import RecordedDecision
from rerail.sweep import fleet_metrics, sweep
from rerail.sweep.sweep import SweepReport
from tests.core import strategies
from tests.core.failures import NODE_LOST, OOM
from tests.examples import count_examples

# CloudWatch's list price of a custom metric, in dollars a month (the first 10,000); each hour is paid for by itself.
A_METRIC = 0.30
BOUND = sum(len(measure) for said in ALL.values() for measure in said)
DECLARED = {
    (measure.name, measure.unit, measure.dimension, word)
    for said in ALL.values()
    for measure in said
    for word in (*measure.words, *([] if measure.by else [""]))
}


def describe(said: MetricValue) -> tuple[str, str, str, str]:
    return said.name, said.unit, said.dimension, said.of


def test_there_are_so_many_metrics_and_no_more():
    """And so much do they cost at most."""
    assert len(DECLARED) == BOUND <= 90
    assert BOUND * A_METRIC <= 27


def test_each_has_a_name_of_its_own_and_one_dimension():
    """A name means one thing, whoever says it."""
    names = [measure.name for said in ALL.values() for measure in said]
    assert len(names) == len(set(names))
    assert {m.dimension for said in ALL.values() for m in said} == {"", "State", "Cause", "Kind", "Action", "Severity"}
    assert all(bool(m.dimension) == bool(m.by) for said in ALL.values() for m in said)


@pytest.mark.parametrize("word", ["gpt-7b", "watching", Cause.OOM, Severity.PAGE, None])
def test_a_dimension_value_of_another_type_is_refused(word):
    """Neither a name, nor the right letters without the enum, nor another enum's word."""
    with pytest.raises(TypeError, match="Runs has the dimension RunState"):
        service_metrics.RUNS.of(1, word)
    with pytest.raises(TypeError, match="OpenRuns"):
        service_metrics.OPEN.of(1, RunState.HELD)


@settings(max_examples=count_examples(25), deadline=None)
@given(st.lists(strategies.runs, max_size=4), strategies.moments)
def test_whatever_the_runs_are_a_round_publishes_what_is_declared(runs, at):
    """No run and no job ever becomes a dimension, and nothing is published twice."""
    accounts = [make_account(run, at, Policy()) for run in runs]
    report = SweepReport(len(runs), 0, 0, (), fleet=fleet_metrics.make_fleet(runs, accounts), paused=False)
    said = [describe(metric) for metric in sweep.list_metrics(report)]
    assert set(said) <= DECLARED
    assert len(said) == len(set(said))


@settings(max_examples=count_examples(40), deadline=None)
@given(strategies.runs, strategies.runs, st.lists(strategies.actions, max_size=6), st.floats(-10, 1e6))
def test_whatever_is_decided_a_message_publishes_what_is_declared(before, after, actions, waited_s):
    """Neither does a decision's."""
    turn = RecordedDecision(before, Decision(after, tuple(actions), reason="so it is"))
    said = list(decision_metrics.list_metrics([turn, turn], waited_s=waited_s))
    assert {describe(metric) for metric in said} <= DECLARED
    assert all(metric.value >= 0 for metric in said)


def test_a_decision_without_a_reason_is_not_counted(world):
    """It only notes facts: a message that decides nothing publishes nothing."""
    turn = RecordedDecision(world.run(), Decision(world.run()))
    assert list(decision_metrics.list_metrics([turn], waited_s=1)) == []


def test_a_failure_is_one_decision_with_its_incident(world):
    """What the supervisor did on one message is what it publishes of it."""
    supervisor = world.supervisor()
    world.sagemaker.fail("gpt", NODE_LOST)
    supervisor.handle(RunDue("gpt"))
    said = {
        (metric.name, metric.of): metric.value for metric in decision_metrics.list_metrics(supervisor.turns, waited_s=2)
    }
    assert said == {
        ("Decisions", ""): 1,
        ("SignalToDecision", ""): 2,
        ("Actions", "nothing"): 1,  # the launch comes after its backoff
        ("IncidentsOpened", "infrastructure"): 1,
        ("NoticesDecided", "inform"): 1,
    }
    supervisor.handle(RunDue("gpt"))
    assert (
        list(decision_metrics.list_metrics(supervisor.turns, waited_s=2)) == []
    )  # and not again with the next message


@pytest.mark.parametrize(("unread", "count"), [("", 0), ("CloudWatch refuses", 1)])
def test_a_sweep_that_reads_no_metrics_is_counted(unread, count):
    """An alarm watches it: nobody is judged meanwhile."""
    said = {metric.name: metric.value for metric in sweep.list_metrics(SweepReport(1, 0, 0, (), unread=unread))}
    assert said["UnreadRounds"] == count


def test_a_held_run_is_counted_as_long_as_its_page_stands(world):
    """The sweep comes by for the page's sake, and tells that somebody is waited for."""
    supervisor = world.supervisor()
    world.sagemaker.fail("gpt", OOM)
    supervisor.handle(RunDue("gpt"))
    said = {(metric.name, metric.of): metric.value for metric in sweep.list_metrics(world.round().run())}
    assert said[("HeldRuns", "")] == said[("Runs", "held")] == 1
    assert said[("SweepsCompleted", "")] == 1
    assert said[("OpenIncidents", "")] == 0
    assert 0 < said[("GoodputShare", "")] <= 100
