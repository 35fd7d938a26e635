"""Whether Rerail may act is asked when it acts: a decision from before the policy changed to `observe` is withdrawn."""

from dataclasses import replace

import pytest

from rerail.decisions.decision import Decision, has_pending, make_notice, with_attempt
from rerail.decisions.deferrals import on_paused, with_deferrals
from rerail.decisions.launch import with_next_attempt
from rerail.messages.messages import CommandReceived, FindingsReceived, JobStateChanged
from rerail.model.actions import CreateJob, Severity, StopJob
from rerail.model.errors import Throttled
from rerail.model.finding import Finding, Kind, Level
from rerail.model.mailbox import Ability, ReportKind
from rerail.model.policy import Approval, Ladder, Mode, OnExpiry
from rerail.model.run import JobStatus, ProposedAction, RunState
from rerail.model.signals import OperatorVerb, Paused
from tests.core.failures import NODE_LOST
from tests.fakes import DEFAULT, Agent, World
from tests.raising import raising

OBSERVE = replace(DEFAULT, mode=Mode.OBSERVE)


def observe(world: World) -> None:
    world.policies.by_name["default"] = OBSERVE


def diverge(world: World) -> None:
    nan = Finding(Kind.NON_FINITE, Level.INTERVENE, 520, 510, "nan", world.clock())
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (nan,)))


def throttle(monkeypatch, world: World, call: str) -> None:
    """Let SageMaker refuse every such call, until `monkeypatch.undo`."""
    monkeypatch.setattr(world.sagemaker, call, raising(Throttled("rate exceeded")))


@pytest.mark.parametrize("waits_for", ["delay", "capacity", "answer", "creation", "creation after no answer"])
def test_no_launch_is_carried_out_under_observe(monkeypatch, waits_for):
    """Whatever it waited for; it is notified once, and goes ahead when the policy acts again."""
    world = World().with_saves()
    if waits_for == "capacity":
        world.sagemaker.no_capacity = 3
    if "answer" in waits_for:
        world.policies.by_name["default"] = replace(DEFAULT, mode=Mode.APPROVE)
    if "creation" in waits_for:
        throttle(monkeypatch, world, "create")
    world.sagemaker.fail("gpt", NODE_LOST)
    world.supervisor().handle(JobStateChanged("gpt"))
    world.minutes({"delay": 0, "creation after no answer": 40}.get(waits_for, 2))
    before = len(world.bus.notices)
    observe(world)
    world.sagemaker.no_capacity = 0
    monkeypatch.undo()
    world.minutes(180)
    assert (world.run().state, world.sagemaker.live()) == (RunState.WAITING, [])
    titles = [notice.title for notice in world.bus.notices[before:]]
    assert titles.count("gpt: waits") == 1 or "answer" in waits_for
    world.policies.by_name["default"] = DEFAULT
    world.minutes(5)
    assert world.sagemaker.live() == ["gpt-a002"]


@pytest.mark.parametrize("action", ["launch", "stop"])
def test_a_policy_that_observes_since_the_decision_counts_when_the_action_is_carried_out(monkeypatch, action):
    """It was deployed in the moment in which the decision was recorded."""
    world = World().with_saves()
    save = world.runs.save

    def save_then_observe(run, *args, **kwargs):
        result = save(run, *args, **kwargs)
        if has_pending(run, CreateJob) or has_pending(run, StopJob):
            observe(world)
        return result

    monkeypatch.setattr(world.runs, "save", save_then_observe)
    if action == "launch":
        world.sagemaker.fail("gpt", NODE_LOST)
    else:
        diverge(world)
    world.minutes(40)
    state, live = (RunState.WAITING, []) if action == "launch" else (RunState.WATCHING, ["gpt"])
    assert (world.run().state, world.sagemaker.live()) == (state, live)
    assert world.policies.by_name["default"] is OBSERVE


def test_an_operators_release_launches_under_observe():
    """A command of an operator is carried out whatever the mode of the policy is."""
    world = World().with_saves()
    world.sagemaker.fail("gpt", NODE_LOST)
    world.supervisor().handle(JobStateChanged("gpt"))
    observe(world)
    world.minutes(10)
    world.send_command(OperatorVerb.HOLD, "hold")
    world.send_command(OperatorVerb.RELEASE, "release")
    world.minutes(3)
    assert (world.run().state, world.sagemaker.live()) == (RunState.WATCHING, ["gpt-a002"])


@pytest.mark.parametrize("mode", [Mode.ACT, Mode.APPROVE])
@pytest.mark.parametrize("is_throttled", [False, True], ids=["saving", "throttled"])
def test_a_stop_that_was_not_called_is_withdrawn_under_observe(monkeypatch, is_throttled, mode):
    """It is notified, and a person's stop after it is not taken for Rerail's. The policy's approval expires too."""
    world = World().with_saves()
    approval = Approval(on_expiry=OnExpiry.ACT)
    world.policies.by_name["default"] = replace(DEFAULT, mode=mode, approval=approval)
    if is_throttled:
        throttle(monkeypatch, world, "stop")
    else:
        Agent(world).hello()
    diverge(world)
    if mode is Mode.APPROVE:
        world.minutes(31)
    assert world.run().state is (RunState.STOPPING if is_throttled else RunState.SAVING)
    observe(world)
    world.minutes(40)
    assert (world.run().state, world.sagemaker.live()) == (RunState.WATCHING, ["gpt"])
    assert ["may only observe now" in notice.body for notice in world.bus.notices].count(True) == 1
    world.sagemaker.end("gpt", JobStatus.STOPPED)
    world.minutes(20)
    assert (world.run().state, world.sagemaker.live()) == (RunState.STOPPED, [])


@pytest.mark.parametrize("abilities", [(), (Ability.RESTART, Ability.RATE)], ids=["stop", "restart"])
@pytest.mark.parametrize("withdrawn", ["policy", "operator"])
def test_a_withdrawn_rollback_rejects_no_checkpoint(withdrawn, abilities):
    """Its charge and its rung are withdrawn too. The loss recovers, and a later failure loses none of what was saved
    since."""
    world = World().with_saves()
    agent = Agent(world)
    agent.deliver(agent.files(ReportKind.HELLO, abilities=abilities))
    ladder = Ladder(replays=0, skips=0, far_skips=0) if abilities else Ladder()
    world.policies.by_name["default"] = replace(DEFAULT, ladder=ladder)
    diverge(world)
    assert world.run().current.rate == (0.9 if abilities else 1.0)
    if withdrawn == "policy":
        observe(world)
        world.minutes(20)
    else:
        world.send_command(OperatorVerb.HOLD, "hold")
        world.send_command(OperatorVerb.RELEASE, "release")
    ledger = world.run().ledger
    assert (world.run().state, sum(ledger.charges.values()), ledger.without_progress) == (RunState.WATCHING, 0, 0)
    assert (world.run().current.rate, world.run().current.rung, world.run().rungs_taken) == (1.0, "", ())
    recovered = Finding(Kind.NON_FINITE, Level.RECOVERED, 560, 510, "finite", world.clock())
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (recovered,)))
    world.policies.by_name["default"] = DEFAULT
    world.checkpoints.commit(800)
    world.lose_node(minutes=10)
    assert world.run().current.resumed_from_step == 800


@pytest.mark.parametrize("began", [Mode.ACT, Mode.OBSERVE])
@pytest.mark.parametrize("later", [Mode.ACT, Mode.APPROVE])
def test_a_finding_that_still_holds_is_decided_on_once_rerail_may_act(began, later):
    """Rerail observed when it was found, or withdrew its stop; under `observe` it is notified once."""
    world = World().with_saves()
    Agent(world).hello()
    for mode in (began, Mode.OBSERVE, Mode.OBSERVE):
        world.policies.by_name["default"] = replace(DEFAULT, mode=mode)
        diverge(world)
        world.minutes(1)
    assert [notice.title for notice in world.bus.notices].count("gpt: non_finite: observing only") <= 1
    assert (world.run().state, world.run().open_warnings) == (RunState.WATCHING, {"non_finite": 510})
    world.policies.by_name["default"] = replace(DEFAULT, mode=later)
    diverge(world)
    assert world.run().state is (RunState.SAVING if later is Mode.ACT else RunState.WATCHING)
    assert bool(world.run().proposal) is (later is Mode.APPROVE)


@pytest.mark.parametrize("call", ["stop", "create"])
def test_what_sagemaker_has_not_taken_is_proposed_under_approve(monkeypatch, call):
    """It was decided on while the policy acted."""
    world = World().with_saves()
    throttle(monkeypatch, world, call)
    if call == "stop":
        diverge(world)
    else:
        world.lose_node(minutes=5)
    assert has_pending(world.run(), StopJob if call == "stop" else CreateJob)
    world.policies.by_name["default"] = replace(DEFAULT, mode=Mode.APPROVE)
    monkeypatch.undo()
    world.minutes(5)
    if call == "stop":
        diverge(world)
    assert world.run().proposal.plan is (ProposedAction.STOP if call == "stop" else ProposedAction.LAUNCH)
    assert world.sagemaker.live() == (["gpt"] if call == "stop" else [])
    assert world.bus.notices[-1].severity is Severity.PAGE


@pytest.mark.parametrize("is_persons", [True, False], ids=["a-persons-stop", "our-call-is-taken-later"])
def test_a_stop_is_ours_only_once_sagemaker_has_taken_the_call(monkeypatch, is_persons):
    """Until then a person may stop the job in the console, and it is not relaunched."""
    world = World().with_saves()
    throttle(monkeypatch, world, "stop")
    diverge(world)
    world.minutes(5)
    assert (world.run().state, world.sagemaker.live()) == (RunState.STOPPING, ["gpt"])
    if is_persons:
        world.sagemaker.end("gpt", JobStatus.STOPPED)
    monkeypatch.undo()
    world.minutes(30)
    state = RunState.STOPPED if is_persons else RunState.WATCHING
    assert (world.run().state, world.sagemaker.live()) == (state, [] if is_persons else ["gpt-a002"])
    assert world.run().pending == ()


def test_a_hold_withdraws_a_stop_that_was_not_taken(monkeypatch):
    """The person who holds the run has its job go on."""
    world = World().with_saves()
    throttle(monkeypatch, world, "stop")
    diverge(world)
    assert world.run().pending
    hold = CommandReceived("c1", "gpt", OperatorVerb.HOLD, "ada", "", asked_at=world.clock())
    world.supervisor().handle(hold)
    monkeypatch.undo()
    world.minutes(30)
    assert (world.run().state, world.sagemaker.live(), world.run().pending) == (RunState.HELD, ["gpt"], ())


def test_a_failed_attempt_does_not_prove_its_own_recovery(monkeypatch):
    """Checkpoints that it saves while its stop is throttled do not close its incident."""
    world = World().with_saves()
    throttle(monkeypatch, world, "stop")
    stall = Finding(Kind.STALL, Level.INTERVENE, 500, 500, "no step", world.clock())
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (stall,)))
    world.checkpoints.save(600)
    world.minutes(5)
    assert world.run().open_incident is not None


def test_a_proposal_repeats_what_informs_and_leaves_the_other_actions_alone():
    world = World().with_saves()
    run = world.run()
    run = with_attempt(run, replace(run.current, status=JobStatus.FAILED))
    run = with_next_attempt(run, 500, wake_at=world.clock())
    page, inform, clear = (make_notice(run, urgency, "title", "the node is lost", key=urgency) for urgency in Severity)
    decision = Decision(run, (page, inform, clear, StopJob("gpt")))
    proposed = with_deferrals(run, decision, Paused(world.clock()), replace(DEFAULT, mode=Mode.APPROVE))
    assert proposed.actions[:-1] == (page, clear, StopJob("gpt"))
    assert "the node is lost" in proposed.actions[-1].body


def test_a_pause_withdraws_only_a_stop_that_was_not_called():
    run = World().with_saves().run()
    assert on_paused(run, Paused(run.created_at), DEFAULT) == Decision(run)
