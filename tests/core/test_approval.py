"""The mode `approve`: what would stop or create a job is proposed, and done when a human says so, or the policy."""

from dataclasses import replace
from datetime import timedelta

import pytest

from rerail.accounting.goodput import Badput, make_account
from rerail.decisions.approvals import is_still_valid
from rerail.messages.messages import CommandReceived, FindingsReceived
from rerail.model.actions import Severity
from rerail.model.finding import Finding, Kind, Level
from rerail.model.notice import Notice
from rerail.model.policy import Approval, Limits, Mode, OnExpiry, Policy
from rerail.model.run import ProposedAction, RunState
from rerail.model.signals import OperatorVerb
from tests.core.failures import NODE_LOST
from tests.fakes import World


@pytest.fixture
def world() -> World:
    """A run on a machine of known price, with checkpoints at steps 100 to 500, under the mode `approve`."""
    world = World()
    world.policies.by_name["default"] = Policy(mode=Mode.APPROVE)
    world.sagemaker.instance_type = "ml.p5.48xlarge"
    return world.with_saves()


def set_approval(world: World, **approval) -> None:
    world.policies.by_name["default"] = Policy(mode=Mode.APPROVE, approval=Approval(**approval))


def send_command(world: World, verb: OperatorVerb, proposal: str | None = None, number: int = 1) -> None:
    standing = world.run().proposal
    named = (standing.id if standing else "") if proposal is None else proposal
    world.supervisor().handle(CommandReceived(f"c{number}", "gpt", verb, "ada", "", named))


def report_finding(world: World, kind: Kind = Kind.DIVERGENCE, onset: int = 350, **times) -> None:
    finding = Finding(kind, Level.INTERVENE, 480, onset, f"{kind} since step {onset}", **times)
    world.supervisor().handle(FindingsReceived("gpt", world.run().current.job_name, (finding,)))


def pages(world: World) -> list[Notice]:
    return [notice for notice in world.bus.notices if notice.severity is Severity.PAGE]


def last_reason(world: World) -> str:
    return world.runs.timeline[-1].reason


def test_a_failed_run_is_relaunched_on_approval(world):
    """Nothing runs: the page says what would be done, for how much, and with which words."""
    world.lose_node(minutes=5)
    proposal = world.run().proposal
    assert (world.run().state, list(world.sagemaker.jobs)) == (RunState.WAITING, ["gpt"])
    assert (proposal.plan, proposal.what) == (ProposedAction.LAUNCH, "create gpt-a002 from step 500")
    (page,) = pages(world)
    assert page.title == "gpt: your approval is needed: create gpt-a002 from step 500"
    assert page.todo.splitlines() == [
        f"Yes: rerail approve gpt --proposal {proposal.id}",
        f"No: rerail deny gpt --proposal {proposal.id}",
        "Otherwise: it is done after 30 min",
    ]
    failed_at = world.run().open_incident.happened_at
    assert (page.by, page.runbook, page.since) == (proposal.expires_at, "approval", failed_at)
    assert "attempt 1 failed: infrastructure" in page.body
    assert "for about $" in page.did
    send_command(world, OperatorVerb.APPROVE)
    world.minutes(1)
    assert world.sagemaker.live() == ["gpt-a002"]
    assert world.run().current.approved_by == "ada"


def test_a_running_job_is_stopped_only_on_approval(world):
    """Nothing is charged for a proposal; once granted it is the same remedy as ever."""
    onset_at = world.clock() - timedelta(minutes=5)
    report_finding(world, at=world.clock(), onset_at=onset_at)
    assert [page.since for page in pages(world)] == [onset_at]
    world.minutes(20)
    assert (world.run().state, world.sagemaker.live()) == (RunState.WATCHING, ["gpt"])
    assert not world.run().ledger.charges
    send_command(world, OperatorVerb.APPROVE)
    world.minutes(3)
    assert world.sagemaker.live() == ["gpt-a002"]
    assert world.run().current.resumed_from_step < 350
    assert world.run().incidents[-1].onset_step == 350
    assert world.run().current.approved_by == "ada", "one word is enough for the stop and the relaunch"


def test_a_proposed_stop_stands_while_its_own_attempt_is_live(world):
    report_finding(world)
    run = world.run()
    valid = {state for state in RunState if is_still_valid(replace(run, state=state))}
    assert valid == {RunState.STARTING, RunState.WATCHING}
    assert not is_still_valid(replace(run, proposal=replace(run.proposal, attempt=2)))


def test_a_proposed_stop_falls_once_the_loss_recovers_not_once_its_level_is_accepted(world):
    report_finding(world)
    for level, stands in ((Level.ACCEPTED, True), (Level.RECOVERED, False)):
        over = Finding(Kind.DIVERGENCE, level, 500, None, "it stays", world.clock())
        world.supervisor().handle(FindingsReceived("gpt", "gpt", (over,)))
        assert (world.run().proposal is not None) is stands


def test_an_approval_counts_once(world):
    """The same event twice, and the same word again, create no second job."""
    world.lose_node(minutes=1)
    granted = world.run().proposal.id
    send_command(world, OperatorVerb.APPROVE)
    send_command(world, OperatorVerb.APPROVE, granted)
    world.minutes(3)
    send_command(world, OperatorVerb.APPROVE, granted, number=2)
    assert "nothing waits for approval" in last_reason(world)
    world.lose_node("gpt-a002", minutes=3)
    assert list(world.sagemaker.jobs) == ["gpt", "gpt-a002"], "the next launch needs a word of its own"


@pytest.mark.parametrize("named", ["p1", ""])
def test_a_late_approval_never_grants_a_newer_proposal(world, named):
    world.lose_node(minutes=1)
    send_command(world, OperatorVerb.APPROVE, named)
    assert (world.run().state, list(world.sagemaker.jobs)) == (RunState.WAITING, ["gpt"])
    assert f"but what stands is {world.run().proposal.id}: nothing is done" in last_reason(world)


@pytest.mark.threat("T30")
def test_an_approval_of_hours_ago_changes_nothing(world):
    """The supervisor was down meanwhile: what the page says of an expired proposal is done."""
    set_approval(world, on_expiry_dead=OnExpiry.HOLD)
    world.lose_node(minutes=5)
    named, asked_at = world.run().proposal.id, world.clock()
    world.clock.pass_by(timedelta(hours=2))
    assert "\nOtherwise: the run is held after" in pages(world)[-1].todo
    world.supervisor().handle(CommandReceived("c", "gpt", OperatorVerb.APPROVE, "ada", "", named, asked_at=asked_at))
    world.minutes(5)
    assert (world.sagemaker.live(), world.run().state) == ([], RunState.HELD)


@pytest.mark.parametrize("recovers", [False, True])
def test_a_stall_that_is_left_alone_is_no_goodput(world, recovers):
    """The operator denies the stop: until the job makes steps again, its time is spent on waiting for people."""
    before = make_account(world.run(), world.clock(), Policy())
    began = world.clock()
    stall = Finding(Kind.STALL, Level.INTERVENE, 500, 500, "no step for 10 min", began, began, idle=True)
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (stall,)))
    send_command(world, OperatorVerb.DENY)
    world.clock.pass_by(timedelta(minutes=30))
    if recovers:
        over = replace(stall, level=Level.RECOVERED, onset_step=None)
        world.supervisor().handle(FindingsReceived("gpt", "gpt", (over,)))
        world.clock.pass_by(timedelta(minutes=10))
    account = make_account(world.run(), world.clock(), Policy())
    assert account.badput_s[Badput.HUMAN] == 30 * 60
    assert account.goodput_s - before.goodput_s == (10 * 60 if recovers else 0)


def test_no_means_held_where_nothing_runs_and_hands_off_where_something_does(world):
    """A job that runs is never stopped by a no."""
    report_finding(world)
    send_command(world, OperatorVerb.DENY)
    world.minutes(60)
    assert (world.run().state, world.sagemaker.live()) == (RunState.WATCHING, ["gpt"])
    assert any("the job goes on" in entry.reason for entry in world.runs.timeline)
    world.lose_node(minutes=1)
    send_command(world, OperatorVerb.DENY, number=2)
    world.minutes(60)
    assert (world.run().state, list(world.sagemaker.jobs)) == (RunState.HELD, ["gpt"])
    send_command(world, OperatorVerb.RELEASE, number=3)
    world.minutes(2)
    assert world.sagemaker.live() == ["gpt-a002"], "a release is a human's word already"


@pytest.mark.parametrize(
    ("choice", "secondary", "live"),
    [(OnExpiry.ACT, "Training", "gpt-a002"), (OnExpiry.ACT, "Downloading", "gpt"), (OnExpiry.HOLD, "Training", "gpt")],
)
def test_an_unanswered_stop_is_dropped_or_done_at_expiry(world, choice, secondary, live):
    """By default left alone, and said so: whether it is worth anything, only a human can tell. A job that does not
    train, because SageMaker restarts it, is not stopped."""
    set_approval(world, on_expiry=choice)
    report_finding(world)
    what = "it is done" if choice is OnExpiry.ACT else "the job is left as it is"
    ends = "To end the run and its job, which costs $63.30 an hour: rerail stop gpt"
    assert pages(world)[-1].todo.endswith(f"\nOtherwise: {what} after 30 min\n{ends}")
    world.minutes(28)
    assert world.sagemaker.live() == ["gpt"]
    world.sagemaker.jobs["gpt"] = replace(world.sagemaker.jobs["gpt"], secondary=secondary)
    world.minutes(6)
    assert world.sagemaker.live() == [live]
    if choice is OnExpiry.HOLD:
        assert pages(world)[-1].title == "gpt: divergence: no answer, the job goes on"
        assert pages(world)[-1].todo.endswith(f"\n{ends}")
        assert world.run().proposal is None


@pytest.mark.parametrize("mode", [Mode.APPROVE, Mode.PAUSE])
def test_nothing_is_stopped_for_a_proposal_once_rerail_may_only_observe(world, mode):
    """Neither at its expiry, although the policy acts then, nor at the end of the pause that it waited for."""
    policy = Policy(mode=mode, approval=Approval(on_expiry=OnExpiry.ACT))
    world.policies.by_name["default"] = policy
    report_finding(world)
    assert world.run().proposal
    world.policies.by_name["default"] = replace(policy, mode=Mode.OBSERVE)
    world.minutes(60)
    assert (world.sagemaker.live(), world.run().stop, world.run().proposal) == (["gpt"], None, None)
    title = "no answer, the job goes on" if mode is Mode.APPROVE else "observing only"
    assert f"gpt: divergence: {title}" in [notice.title for notice in world.bus.notices]
    world.policies.by_name["default"] = replace(policy, mode=Mode.ACT)
    report_finding(world)
    assert world.run().state is RunState.STOPPING, "the finding still holds"


@pytest.mark.parametrize(("minutes", "is_stopped"), [(2, True), (40, False)])
def test_a_finding_whose_proposal_is_open_is_acted_on_once_the_policy_acts(world, minutes, is_stopped):
    """A proposal that expired while the function was down decides nothing: its finding may be over."""
    report_finding(world)
    world.policies.by_name["default"] = Policy(mode=Mode.ACT)
    world.clock.pass_by(timedelta(minutes=minutes))
    world.minutes(1)
    assert (bool(world.run().stop), world.run().proposal) == (is_stopped, None)
    assert any("no approval is needed now" in entry.reason for entry in world.runs.timeline) is is_stopped
    if not is_stopped:
        report_finding(world)
        assert world.run().state is RunState.STOPPING


def test_a_proposal_falls_with_what_it_was_about(world):
    """The job that would be stopped dies, or completes: there is another question, or none."""
    report_finding(world)
    first = world.run().proposal
    world.lose_node(minutes=1)
    assert world.run().proposal.plan is ProposedAction.LAUNCH
    send_command(world, OperatorVerb.APPROVE, first.id)
    assert list(world.sagemaker.jobs) == ["gpt"]


def test_a_newer_finding_takes_the_place_of_an_older_one(world):
    report_finding(world, Kind.THROUGHPUT_DROP, onset=300)
    first = world.run().proposal
    report_finding(world, Kind.NON_FINITE, onset=350)
    assert world.run().proposal.id != first.id
    assert world.run().proposal.finding.kind is Kind.NON_FINITE


def test_an_operators_own_command_needs_no_approval(world):
    world.supervisor().handle(CommandReceived("c1", "gpt", OperatorVerb.RESTART, "ada", ""))
    world.minutes(20)
    assert world.sagemaker.live() == ["gpt-a002"]


def test_a_proposal_that_expires_during_a_pause_holds_nothing(world):
    set_approval(world, on_expiry_dead=OnExpiry.HOLD)
    world.lose_node(minutes=5)
    world.pause.paused = True
    world.minutes(60)
    assert (world.run().state, len(pages(world))) == (RunState.WAITING, 1)
    world.pause.paused = False
    world.minutes(2)
    assert world.run().state is RunState.HELD


def test_an_approval_while_paused_waits_for_the_resume(world):
    report_finding(world)
    world.pause.paused = True
    send_command(world, OperatorVerb.APPROVE)
    assert "repeat the command two minutes after the end (`rerail resume`)" in last_reason(world)
    world.sagemaker.fail("gpt", NODE_LOST)
    world.pause.paused = False
    world.minutes(1)
    world.pause.paused = True
    send_command(world, OperatorVerb.APPROVE, number=2)
    world.minutes(10)
    assert (world.run().blocked_by, list(world.sagemaker.jobs)) == ("pause", ["gpt"])
    world.pause.paused = False
    world.minutes(2)
    assert world.sagemaker.live() == ["gpt-a002"]


def test_a_spent_budget_is_held_and_not_proposed(world):
    world.policies.by_name["default"] = Policy(mode=Mode.APPROVE, limits=Limits(attempts=1))
    world.lose_node(minutes=1)
    assert (world.run().state, world.run().proposal) == (RunState.HELD, None)


def test_a_stop_without_a_relaunch_is_named_so_when_asked_and_when_approved(world):
    """A run that has cost its limit is held after the stop, as the proposal says."""
    world.policies.by_name["default"] = Policy(mode=Mode.APPROVE, limits=Limits(run_dollars=200))
    world.minutes(200)
    report_finding(world)
    spent = "the job, without a relaunch: its next job would not be created: the run has cost $"
    assert f"stop {spent}" in pages(world)[-1].title
    send_command(world, OperatorVerb.APPROVE)
    assert f"stopping {spent}" in last_reason(world)
    world.minutes(20)
    assert (world.run().state, list(world.sagemaker.jobs)) == (RunState.HELD, ["gpt"])
