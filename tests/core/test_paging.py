"""Pages that stand: told once, again after a while, and ended by one all-clear each."""

from dataclasses import replace
from datetime import timedelta

import pytest

from rerail.decisions.decision import Decision
from rerail.decisions.open_pages import with_pages
from rerail.messages.messages import FindingsReceived
from rerail.model.actions import ClearedBy, Notify, Severity
from rerail.model.errors import PolicyError
from rerail.model.finding import Finding, Kind, Level
from rerail.model.notice import Notice
from rerail.model.policy import Approval, Limits, Mode, Notices, OnExpiry, Policy
from rerail.model.rate_limit import LaunchRequest
from rerail.model.run import JobStatus, OpenPage, RunState
from rerail.model.runbooks import Runbook
from rerail.model.signals import OperatorVerb, Tick
from rerail.supervisor.supervisor import NOTICE_LEASE
from tests.core.failures import NODE_LOST, OOM
from tests.fakes import DEFAULT, World
from tests.raising import raising

HOUR = timedelta(hours=1)


def report_finding(world: World, kind: Kind, level: Level = Level.INTERVENE, onset: int | None = 480) -> None:
    job = world.run().current.job_name
    finding = Finding(kind, level, 480, onset, f"{kind} {level}", world.clock(), world.clock())
    world.supervisor().handle(FindingsReceived("gpt", job, (finding,)))


def notices_of(world: World, severity: Severity) -> list[Notice]:
    return [notice for notice in world.bus.notices if notice.severity is severity]


def pages(world: World) -> list[str]:
    return [notice.key for notice in notices_of(world, Severity.PAGE)]


def cleared(world: World) -> list[str]:
    return [notice.clears for notice in notices_of(world, Severity.CLEAR)]


@pytest.fixture
def held(world) -> World:
    """A run that is out of memory, of which somebody was paged."""
    world.sagemaker.fail("gpt", OOM)
    world.minutes(2)
    assert (world.run().state, pages(world)) == (RunState.HELD, ["gpt/held-1"])
    return world


def test_a_release_ends_the_page_of_a_held_run(held):
    held.send_command(OperatorVerb.RELEASE)
    held.minutes(60)
    (clear,) = notices_of(held, Severity.CLEAR)
    assert (clear.clears, clear.runbook) == ("gpt/held-1", Runbook.OUT_OF_MEMORY)
    assert clear.title == "gpt: all clear: no longer held (starting)"
    assert clear.body == "ada said release: creating gpt-a002 from step 500"
    assert held.run().pages == ()


def test_a_stop_ends_it_too(held):
    held.send_command(OperatorVerb.STOP)
    assert (held.run().state, cleared(held)) == (RunState.STOPPED, ["gpt/held-1"])


def test_a_held_run_whose_job_completes_after_all_is_clear(world):
    """The job of a run that was held for its loss goes on until somebody stops it, or it is done."""
    world.policies.by_name["default"] = Policy(retries=replace(Policy().retries, diverged=0))
    report_finding(world, Kind.DIVERGENCE)
    assert pages(world) == ["gpt/held-1"]
    world.sagemaker.end("gpt", JobStatus.COMPLETED)
    world.minutes(2)
    assert (world.run().state, cleared(world)) == (RunState.COMPLETED, ["gpt/held-1"])


def test_an_open_page_repeats_after_its_interval_and_never_sooner(held):
    """The same key, so that a pager adds it to the incident that is open; a held run is swept for that alone."""
    held.minutes(3.8 * 60, every=timedelta(minutes=5))
    assert len(pages(held)) == 1
    held.minutes(20)
    assert pages(held) == ["gpt/held-1"] * 2
    assert held.runs.timeline[-1].reason == "still so: gpt: held: OutOfMemoryError: CUDA out of memory"
    held.minutes(8 * 60, every=timedelta(minutes=10))
    assert len(pages(held)) == 4
    held.send_command(OperatorVerb.RELEASE)
    held.minutes(10)
    assert (cleared(held), held.run().pages) == (["gpt/held-1"], ())


def test_zero_is_never_again(held):
    held.policies.by_name["default"] = Policy(notices=Notices(refire=timedelta()))
    held.minutes(24 * 60, every=HOUR)
    assert len(pages(held)) == 1


def test_an_ended_run_whose_page_stands_costs_no_call_to_sagemaker(held, monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr(held.sagemaker, "describe", asked.append)
    held.minutes(30)
    assert asked == []


@pytest.mark.parametrize(
    ("verb", "after"), [(OperatorVerb.APPROVE, RunState.WATCHING), (OperatorVerb.DENY, RunState.HELD)]
)
def test_an_answer_ends_the_page_that_asked_for_it(world, verb, after):
    """What was denied is held, of which nobody is paged: somebody has just said so."""
    world.policies.by_name["default"] = Policy(mode=Mode.APPROVE)
    world.lose_node(minutes=2)
    (asked,) = pages(world)
    world.send_command(verb, proposal=world.run().proposal.id)
    world.minutes(2)
    assert (world.run().state, pages(world), cleared(world)) == (after, [asked], [asked])


def test_an_unanswered_proposal_ends_where_the_policy_acts(world):
    world.policies.by_name["default"] = Policy(mode=Mode.APPROVE)
    world.lose_node(minutes=40)
    assert world.run().state is RunState.WATCHING
    assert cleared(world) == pages(world)
    (clear,) = notices_of(world, Severity.CLEAR)
    assert "no answer to" in clear.body and "the policy acts then" in clear.body


def test_an_unanswered_proposal_is_followed_by_the_page_of_the_hold(world):
    world.policies.by_name["default"] = Policy(mode=Mode.APPROVE, approval=Approval(on_expiry_dead=OnExpiry.HOLD))
    world.lose_node(minutes=40)
    asked, now = pages(world)
    assert (now, cleared(world)) == ("gpt/held-2", [asked])


def test_a_question_is_withdrawn_with_its_trouble(world):
    """The loss has mended while somebody was being woken."""
    world.policies.by_name["default"] = Policy(mode=Mode.APPROVE)
    report_finding(world, Kind.DIVERGENCE)
    report_finding(world, Kind.DIVERGENCE, Level.RECOVERED)
    assert world.run().proposal is None
    assert cleared(world) == pages(world) != []


def test_a_finding_that_is_over_ends_its_page(world):
    """And is news when it comes again, though it is the same attempt."""
    report_finding(world, Kind.BLIND)
    report_finding(world, Kind.BLIND, onset=490)
    assert pages(world) == ["gpt/blind-1"], "one page for one trouble, however often it is found anew"
    report_finding(world, Kind.BLIND, Level.RECOVERED, onset=None)
    assert cleared(world) == ["gpt/blind-1"]
    report_finding(world, Kind.BLIND, Level.RECOVERED, onset=None)
    report_finding(world, Kind.BLIND)
    report_finding(world, Kind.BLIND, Level.RECOVERED, onset=None)
    assert pages(world) == cleared(world) == ["gpt/blind-1"] * 2
    assert notices_of(world, Severity.CLEAR)[-1].title == "gpt: all clear: blind is over"


def test_a_level_that_is_accepted_is_not_said_to_be_over(world):
    """The page of an unanswered proposal ends with it, and its warning too; the loss has not recovered."""
    world.policies.by_name["default"] = Policy(mode=Mode.APPROVE)
    report_finding(world, Kind.LOSS_SPIKE, Level.WARN)
    report_finding(world, Kind.DIVERGENCE)
    world.minutes(40)
    for kind in (Kind.LOSS_SPIKE, Kind.DIVERGENCE):
        report_finding(world, kind, Level.ACCEPTED)
    titles = [notice.title for notice in world.bus.notices][-2:]
    assert titles == ["gpt: loss_spike (accepted as normal)", "gpt: all clear: divergence is accepted as normal"]


def test_metrics_that_return_clear_the_page():
    """The job saves on and prints nothing: a page. The sweep asks of every page that stands whether it still has a
    reason, and ends it when the metrics are back."""
    world = World()
    world.sagemaker.defined_metrics = ("step", "loss")
    world.adopt()
    step = _prints(world, 0, minutes=20)
    for _ in range(8):
        world.minutes(5)
        step += 50
        world.checkpoints.save(step=step)
    assert (pages(world), cleared(world)) == (["gpt/blind-1"], [])
    _prints(world, step, minutes=5)
    assert cleared(world) == ["gpt/blind-1"]
    assert "metrics are received again" in notices_of(world, Severity.CLEAR)[0].body
    assert world.run().state is RunState.WATCHING


def _prints(world: World, step: int, *, minutes: int) -> int:
    """The job makes ten steps a minute, and says so."""
    for _ in range(minutes):
        step += 10
        world.series.print("gpt", world.clock(), step=step, loss=2.0 + step % 7 / 100, count=10)
        world.minutes(1)
    return step


def test_a_finding_falls_with_its_attempt(world):
    """That the attempt is over does not say that what ailed it is."""
    report_finding(world, Kind.CHECKPOINT_STALL)
    world.lose_node(minutes=5)
    (clear,) = notices_of(world, Severity.CLEAR)
    assert (clear.clears, clear.title) == ("gpt/checkpoint_stall-1", "gpt: all clear: attempt 1 is over")


def test_never_an_all_clear_for_what_was_never_paged(world):
    """A warning that is over informs, as it began."""
    report_finding(world, Kind.LOSS_SPIKE, Level.WARN)
    report_finding(world, Kind.LOSS_SPIKE, Level.RECOVERED)
    world.lose_node(minutes=20)
    world.sagemaker.end("gpt-a002", JobStatus.COMPLETED)
    world.minutes(2)
    assert world.run().state is RunState.COMPLETED
    assert (pages(world), cleared(world)) == ([], [])


def test_the_rate_limit_is_over_when_the_launch_that_paged_goes_ahead(world):
    """While it only asks again, it is not, and the page stands."""
    world.policies.by_name["default"] = Policy(limits=Limits(account_relaunches=1))
    world.adopt("bert", uri="s3://bucket/bert/")
    world.minutes(1)
    for name in ("bert", "gpt"):
        world.sagemaker.fail(name, NODE_LOST)
    world.minutes(30)
    (paged,) = pages(world)
    assert paged.startswith("rerail/brake-")
    world.rate_limit.admit(LaunchRequest("moe-a002"), at=world.clock(), limit=9, window=timedelta(hours=1))
    world.minutes(45)
    assert (pages(world), cleared(world)) == ([paged], [])
    world.minutes(60)
    assert cleared(world) == [paged]


def test_a_bus_that_refuses_notices_keeps_no_recovery_waiting(world, monkeypatch):
    """The relaunch is done at once, the notice stays owed, the message fails so that an alarm goes off, and people are
    told once the bus is back."""

    world.sagemaker.fail("gpt", NODE_LOST)
    monkeypatch.setattr(world.bus, "publish", raising(RuntimeError("the bus is full")))
    for _ in range(3):
        with pytest.raises(RuntimeError, match="the bus is full"):
            world.minutes(1)
    assert world.sagemaker.live() == ["gpt-a002"]
    assert [type(action) for action in world.run().pending] == [Notify]
    monkeypatch.undo()
    world.minutes(1)
    assert [notice.title for notice in world.bus.notices] == ["gpt: infrastructure: relaunching"]
    assert world.run().pending == ()


def test_a_pending_notice_is_sent_when_the_policy_is_broken(world, monkeypatch):
    world.sagemaker.fail("gpt", OOM)
    monkeypatch.setattr(world.bus, "publish", raising(RuntimeError("the bus is full")))
    with pytest.raises(RuntimeError):
        world.minutes(1)
    monkeypatch.undo()
    monkeypatch.setattr(world.policies, "get", raising(PolicyError("policy 'default' is not valid TOML")))
    world.clock.pass_by(NOTICE_LEASE)
    world.supervisor().visit("gpt")
    assert pages(world) == ["gpt/held-1"]


def test_an_all_clear_waits_for_its_page(world, monkeypatch):
    """The bus took the second and not the first: nobody is told of an end before the beginning."""
    publish = world.bus.publish

    def pages_are_refused(notice: Notice) -> None:
        if notice.severity is Severity.PAGE:
            raise RuntimeError("the bus is full")
        publish(notice)

    monkeypatch.setattr(world.bus, "publish", pages_are_refused)
    world.sagemaker.fail("gpt", OOM)
    with pytest.raises(RuntimeError):
        world.minutes(1)
    world.clock.pass_by(NOTICE_LEASE)
    with pytest.raises(RuntimeError):
        world.send_command(OperatorVerb.RELEASE)
    assert world.bus.notices == []
    monkeypatch.undo()
    world.minutes(2)
    assert [notice.severity for notice in world.bus.notices] == [Severity.PAGE, Severity.CLEAR]


def test_a_page_that_is_still_to_be_sent_is_not_repeated(world):
    """Its first sending is pending, since the bus has refused it for hours."""
    at, notice = (
        world.clock(),
        Notify(Severity.PAGE, "gpt: blind", "no metrics", "gpt/blind", until=ClearedBy.RECOVERED),
    )
    page = OpenPage(notice, 1, at - 2 * DEFAULT.notices.refire)
    sent = replace(world.run(), pages=(page,))
    assert notice in with_pages(sent, Decision(sent), Tick(at), DEFAULT).actions
    unsent = replace(sent, pending=(notice,))
    assert notice not in with_pages(unsent, Decision(unsent), Tick(at), DEFAULT).actions
