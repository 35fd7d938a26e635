"""An operator's rollback: back to the step that was named, whatever was saved since, and nothing is charged."""

from dataclasses import replace
from datetime import timedelta

import pytest

from rerail.decisions.checkpoint_health import assess_health
from rerail.messages.messages import CommandReceived, FindingsReceived
from rerail.model.actions import QuarantineCheckpoints
from rerail.model.checkpoints import EMERGENCY, Health
from rerail.model.finding import Finding, Kind, Level
from rerail.model.mailbox import CommandKind, ReportKind
from rerail.model.policy import Mode, Policy
from rerail.model.run import JobStatus, RunState
from rerail.model.signals import OperatorVerb
from tests.core.failures import NODE_LOST, OOM
from tests.fakes import BUCKET, Agent, World

SECOND = "gpt-a002"


def roll_back(world: World, step: int | None, *, id: str = "c1", why: str = "the data was wrong") -> str:
    """The operator says so; what the timeline says to it."""
    world.supervisor().handle(CommandReceived(id, "gpt", OperatorVerb.ROLLBACK, "ada", why, step=step))
    return world.runs.timeline[-1].reason


def relaunched(world: World, *, minutes: float = 3) -> str:
    """The step that the next job was told to resume from."""
    world.minutes(minutes)
    return world.sagemaker.requests[world.run().current.job_name]["Environment"]["RERAIL_RESUME_STEP"]


def under(world: World, **fields) -> World:
    world.policies.by_name["default"] = replace(world.policies.by_name["default"], **fields)
    return world


def test_a_job_with_an_agent_saves_its_evidence_and_goes_back():
    world = World().with_saves()
    agent = Agent(world)
    agent.hello()
    said = roll_back(world, 320)
    assert said.startswith(
        "ada said rollback to step 320 (the data was wrong): having the agent save a checkpoint first"
    )
    agent.acknowledges()
    world.checkpoints.save(step=510, reason=EMERGENCY)
    agent.commits(510)
    assert relaunched(world) == "300"
    run = world.run()
    assert (run.current.approved_by, run.ledger.charges, run.incidents, run.rungs_taken) == ("ada", {}, (), ())
    healths = {c.step: assess_health(run, c) for c in world.checkpoints.list_checkpoints(BUCKET)}
    assert {step for step, (health, _) in healths.items() if health is Health.QUARANTINED} == {400, 500, 510}
    assert "saved after step 320, to which ada rolled the run back: the data was wrong" in healths[400][1]


def test_what_is_saved_after_it_counts_again():
    """A crash after the rollback resumes from the new attempt's save, and not from the old one of the same step."""
    world = World().with_saves()
    roll_back(world, 300)
    relaunched(world)
    world.minutes(2)
    world.sagemaker.fail(SECOND, "InternalServerError: again")
    assert relaunched(world, minutes=40) == "300"
    world.minutes(2)
    world.checkpoints.save(step=350, attempt=3)
    world.sagemaker.fail("gpt-a003", "InternalServerError: again")
    assert relaunched(world, minutes=40) == "350"


def test_of_a_script_without_an_agent_what_is_newer_is_quarantined():
    world = World().with_saves(layout="huggingface")
    assert roll_back(world, 200).endswith("(the data was wrong)")
    assert relaunched(world) == "200"
    assert [c.step for c in world.checkpoints.list_checkpoints(BUCKET)] == [200, 100]
    assert sorted(c.step for c in world.checkpoints.quarantined) == [300, 400, 500]
    assert not any(isinstance(action, QuarantineCheckpoints) for action in world.run().pending)


def test_no_job_is_stopped_whose_newer_checkpoints_cannot_be_moved():
    """The run would be held afterwards: the operator is told first, and the job trains on."""
    world = World(quarantine_folders={}).with_saves(layout="huggingface")
    said = roll_back(world, 200)
    assert ", but nothing is done: the deployment does not let Rerail move checkpoints" in said
    assert said.endswith("in the context value quarantineFolders")
    world.minutes(3)
    assert (world.run().state, world.run().current.job_name) == (RunState.WATCHING, "gpt")


def test_step_0_is_the_beginning():
    world = World().with_saves()
    roll_back(world, 0)
    assert relaunched(world) == "0"
    assert world.run().current.resumed_from_step is None


@pytest.mark.parametrize("layout", ["manifest", "huggingface"])
def test_a_held_run_is_released_there(layout):
    """Its budgets start afresh, as with a release."""
    world = under(World().with_saves(layout=layout), retries=Policy().retries)
    world.sagemaker.fail("gpt", OOM)
    world.minutes(2)
    assert world.run().state is RunState.HELD
    assert roll_back(world, 299).endswith("(the data was wrong): creating gpt-a002 from step 200")
    assert relaunched(world, minutes=0) == "200"
    assert (world.run().hold_reason, world.run().ledger.charges) == ("", {})
    world.minutes(2)
    assert world.run().state is RunState.WATCHING


def test_a_completion_that_came_first_is_not_what_was_wanted():
    """The job completes while the rollback is under way: it is rolled back all the same."""
    world = World().with_saves()
    Agent(world).hello()
    roll_back(world, 300)
    world.sagemaker.end("gpt", JobStatus.COMPLETED)
    assert relaunched(world) == "300"


def test_a_failure_that_came_first_goes_back_as_far():
    world = under(World().with_saves(), mode=Mode.OBSERVE)
    Agent(world).hello()
    roll_back(world, 300)
    world.sagemaker.fail("gpt", "InternalServerError: x")
    assert relaunched(world) == "300"


def test_a_rollback_overrules_the_ladder():
    """A divergence is being answered, and the operator wants another step."""
    world = World().with_saves()
    Agent(world).hello()
    finding = Finding(Kind.DIVERGENCE, Level.INTERVENE, 510, 450, "ten times the usual loss")
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (finding,)))
    assert world.run().state is RunState.SAVING
    roll_back(world, 200)
    world.minutes(17)
    run = world.run()
    assert (run.current.resumed_from_step, run.current.rung, run.rungs_taken) == (200, "", ())


def test_a_rollback_waits_while_paused_and_is_done_afterwards():
    world = World().with_saves()
    world.pause.paused = True
    assert roll_back(world, 300).endswith("not yet: Rerail is paused for this account")
    world.minutes(10)
    assert list(world.sagemaker.jobs) == ["gpt"] and world.sagemaker.live() == ["gpt"]
    world.pause.paused = False
    assert relaunched(world) == "300"


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.APPROVE])
def test_an_operators_rollback_needs_no_approval(mode):
    world = under(World().with_saves(), mode=mode)
    roll_back(world, 300)
    assert relaunched(world) == "300"
    assert world.run().proposal is None


def test_where_nothing_clean_was_saved_so_early_nothing_is_done():
    """The job goes on, and the remedy is named."""
    world = World().with_saves()
    said = roll_back(world, 99)
    assert "but nothing clean was saved at or before it: `rerail checkpoints gpt` lists" in said
    assert (world.run().state, world.sagemaker.live(), world.run().labels) == (RunState.WATCHING, ["gpt"], ())


def test_an_ended_run_is_let_be():
    world = World().with_saves()
    world.sagemaker.end("gpt", JobStatus.COMPLETED)
    world.minutes(2)
    assert "but the run has ended (completed): start the job again by hand" in roll_back(world, 300)
    world.minutes(10)
    assert list(world.sagemaker.jobs) == ["gpt"]


def test_a_script_that_saves_nowhere_is_let_be():
    world = World().adopt(uri="")
    assert "but its jobs have no checkpoint folder that Rerail can read" in roll_back(world, 300)
    assert world.sagemaker.live() == ["gpt"]


def test_what_the_job_alone_can_see_is_bounded():
    """With an agent and without a CheckpointConfig, the job is told what it may take at most."""
    world = World().adopt(uri="")
    Agent(world).hello()
    roll_back(world, 300)
    world.minutes(17)
    assert relaunched(world) == "300"


def test_a_checkpoint_that_goes_missing_on_the_way_holds_the_run():
    """It is not silently begun from nothing."""
    world = World().with_saves()
    Agent(world).hello()
    roll_back(world, 300)
    world.checkpoints.saved[BUCKET] = [c for c in world.checkpoints.saved[BUCKET] if c.step > 300]
    world.minutes(17)
    run = world.run()
    assert run.state is RunState.HELD
    assert "no clean checkpoint is left at or before step 300" in run.hold_reason


@pytest.mark.parametrize(("verb", "step"), [(OperatorVerb.STOP, None), (OperatorVerb.ROLLBACK, 0)])
def test_a_rollback_while_saving_sets_the_resume_step(verb, step):
    """An earlier rollback that named a wrong step rejects nothing once it is corrected."""
    world = World().with_saves()
    agent = Agent(world)
    agent.hello()
    world.supervisor().handle(CommandReceived("c0", "gpt", verb, "ada", "", step=step))
    first = agent.asked.id
    world.clock.pass_by(timedelta(seconds=1))
    roll_back(world, 300)
    assert agent.asked.id != first and agent.asked.kind is CommandKind.CHECKPOINT
    agent.acknowledges()
    agent.commits(505)
    assert relaunched(world) == "300"


@pytest.mark.parametrize("has_trouble", [False, True])
def test_a_rollback_that_was_held_rejects_no_checkpoint(has_trouble):
    """The job goes on, as the newest command says, and a failure after the release resumes from its newest save.

    So it is where the rollback had taken the place of Rerail's own, for a loss that recovers.
    """
    world = World().with_saves()
    Agent(world).hello()
    if has_trouble:
        finding = Finding(Kind.DIVERGENCE, Level.INTERVENE, 510, 450, "ten times the usual loss")
        world.supervisor().handle(FindingsReceived("gpt", "gpt", (finding,)))
    roll_back(world, 300)
    for verb in (OperatorVerb.HOLD, OperatorVerb.RELEASE):
        world.supervisor().handle(CommandReceived(verb, "gpt", verb, "ada", ""))
    assert world.run().state is RunState.WATCHING
    recovered = Finding(Kind.DIVERGENCE, Level.RECOVERED, 560, 450, "as before", world.clock())
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (recovered,)))
    world.checkpoints.commit(600)
    world.sagemaker.fail("gpt", NODE_LOST)
    assert relaunched(world) == "600"


def test_a_rollback_during_a_stop_sets_the_resume_step():
    """The stop was called for a divergence; its end is not taken for somebody else's doing."""
    world = World().with_saves(layout="huggingface")
    world.sagemaker.stop = lambda job_name: None  # it takes its time
    finding = Finding(Kind.DIVERGENCE, Level.INTERVENE, 510, 450, "ten times the usual loss")
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (finding,)))
    assert world.run().state is RunState.STOPPING
    assert roll_back(world, 200).endswith("the job is being stopped already, to be relaunched from there")
    world.sagemaker.end("gpt", JobStatus.STOPPED)
    assert relaunched(world) == "200"
    assert sorted(c.step for c in world.checkpoints.quarantined) == [300, 400, 500]


def test_a_job_whose_restart_in_place_is_called_off_by_a_failure_goes_as_far_back():
    """The processes died of what the restart was to mend: the rollback that came since holds."""
    world = World().with_saves()
    agent = Agent(world)
    agent.deliver(agent.files(ReportKind.HELLO, abilities=("restart",)))
    bug = 'AlgorithmError: {"rerail":1,"cause":"user_code","error":"ValueError: x","step":507,"rank":0}, exit code: 1'
    agent.deliver(agent.files(ReportKind.CRASHED, evidence=bug))
    assert world.run().state is RunState.RESTARTING
    world.clock.pass_by(timedelta(seconds=1))
    roll_back(world, 300)
    world.sagemaker.fail("gpt", bug)
    assert relaunched(world) == "300"


def test_asked_twice_it_is_done_once():
    world = World().with_saves()
    roll_back(world, 300)
    roll_back(world, 300)
    relaunched(world)
    world.minutes(30)
    assert list(world.sagemaker.jobs) == ["gpt", SECOND]


def test_a_loss_that_went_wrong_unseen_for_long_goes_back_all_the_same():
    world = World().with_saves()
    everything = world.checkpoints.list_checkpoints
    world.checkpoints.list_checkpoints = lambda uri, *, upto=None, **_: everything(uri, upto=upto)[:3]  # type: ignore[method-assign]
    for step in range(510, 600, 10):
        world.checkpoints.save(step=step)
    gone = Finding(Kind.NON_FINITE, Level.INTERVENE, 599, 501, "loss is no number since step 501")
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (gone,)))
    assert relaunched(world, minutes=20) == "500", "the newest before the onset"
