"""A rollback of a script without an agent: what it must not resume from is out of its way when it is launched again."""

from datetime import timedelta

import pytest

from rerail.decisions.decision import select_known
from rerail.messages.messages import FindingsReceived
from rerail.model.actions import CreateJob, QuarantineCheckpoints
from rerail.model.checkpoints import Health
from rerail.model.finding import Finding, Kind, Level
from rerail.model.run import RunState
from rerail.model.signals import OperatorVerb
from tests.fakes import BUCKET, Agent, World

FORBIDDEN = "CopyObject is not allowed"


FOREIGN = {"attempt": 0, "layout": "huggingface"}


def save(world: World, step: int) -> None:
    """As a script saves that knows nothing of manifests: the listing does not say whose it is."""
    world.checkpoints.save(step, **FOREIGN)


@pytest.fixture
def world() -> World:
    """A run without an agent has trained for an hour, with saves at steps 100 to 500."""
    return World().with_saves(**FOREIGN)


def report_divergence(world: World, *, onset: int = 350, job: str = "gpt") -> None:
    finding = Finding(Kind.DIVERGENCE, Level.INTERVENE, 480, onset, "9.1 for 80 rows")
    world.supervisor().handle(FindingsReceived("gpt", job, (finding,)))


def steps_in_folder(world: World) -> list[int]:
    """The steps that the next job would be given."""
    return sorted(checkpoint.step for checkpoint in world.checkpoints.saved[BUCKET])


def test_what_is_tainted_is_out_of_the_way_before_the_job_is_launched(world):
    created = []
    create = world.sagemaker.create
    world.sagemaker.create = lambda request: created.append(steps_in_folder(world)) or create(request)
    report_divergence(world)
    world.minutes(3)
    assert created == [[100, 200, 300]]
    assert [c.step for c in world.checkpoints.quarantined] == [500, 400]
    assert (world.run().current.job_name, world.run().current.resumed_from_step) == ("gpt-a002", 300)
    assert world.run().pending == ()
    assert "from step 300, once newer checkpoints are quarantined" in world.runs.timeline[-2].reason


def test_a_job_waits_for_as_many_turns_as_moving_takes(world):
    world.checkpoints.moves_at_once = 0
    report_divergence(world)
    world.minutes(5)
    run = world.run()
    assert (run.state, sorted(world.sagemaker.jobs)) == (RunState.STARTING, ["gpt"])
    assert [type(action) for action in run.pending] == [QuarantineCheckpoints, CreateJob]
    world.checkpoints.moves_at_once = 1
    world.minutes(5)
    assert (world.run().state, steps_in_folder(world)) == (RunState.WATCHING, [100, 200, 300])


def test_a_missing_permission_holds_the_run_and_is_named(world):
    """Never launched on a tainted state; released when the permission is there, it goes on."""
    world.checkpoints.forbidden = FORBIDDEN
    report_divergence(world)
    world.minutes(5)
    run = world.run()
    assert (run.state, sorted(world.sagemaker.jobs), run.pending) == (RunState.HELD, ["gpt"], ())
    assert "quarantineFolders" in run.hold_advice
    assert any("quarantineFolders" in notice.todo and notice.severity == "page" for notice in world.bus.notices)
    assert steps_in_folder(world) == [100, 200, 300, 400, 500]
    world.send_command(OperatorVerb.RELEASE, "too early")
    world.minutes(2)
    assert (world.run().state, sorted(world.sagemaker.jobs)) == (RunState.HELD, ["gpt"])
    world.checkpoints.forbidden = ""
    world.send_command(OperatorVerb.RELEASE, "in time")
    world.minutes(2)
    run = world.run()
    assert (run.state, run.current.job_name, run.current.resumed_from_step) == (RunState.WATCHING, "gpt-a002", 300)
    assert steps_in_folder(world) == [100, 200, 300]


def test_after_a_release_checkpoints_without_a_date_are_left_alone(world):
    """Only after a hold for that very reason."""
    asked = []
    move = world.checkpoints.quarantine
    world.checkpoints.quarantine = lambda action, authorize: asked.append(action.strict) or move(action, authorize)
    world.checkpoints.forbidden = "the steps of the checkpoints are unknown"
    report_divergence(world)
    world.minutes(2)
    world.send_command(OperatorVerb.RELEASE, "looked")
    world.minutes(1)
    assert asked[0] is True
    assert asked[-1] is False


def test_a_hold_cancels_the_quarantine_and_a_release_resumes_it(world):
    world.checkpoints.moves_at_once = 0
    report_divergence(world)
    world.minutes(2)
    world.send_command(OperatorVerb.HOLD, "wait")
    assert world.run().pending == ()
    world.checkpoints.moves_at_once = 1000
    world.minutes(3)
    assert steps_in_folder(world) == [100, 200, 300, 400, 500]
    world.send_command(OperatorVerb.RELEASE, "go")
    world.minutes(2)
    assert (world.run().state, steps_in_folder(world)) == (RunState.WATCHING, [100, 200, 300])


def test_what_the_successor_saves_is_progress_and_stays(world):
    """It passes the onset again, with the same step numbers; then its node is lost, and it resumes from there."""
    report_divergence(world)
    world.minutes(5)
    save(world, 400)
    world.minutes(12)
    assert world.run().open_incident is not None, "the trouble was found at step 480"
    world.lose_node("gpt-a002", minutes=3)
    assert world.run().current.resumed_from_step == 400
    assert steps_in_folder(world) == [100, 200, 300, 400]
    assert [c.step for c in world.checkpoints.quarantined] == [500, 400]


def test_an_onset_is_known_even_where_an_older_incident_is_open(world):
    """The node was lost before, and nothing new was saved since."""
    world.lose_node(minutes=3)
    assert world.run().open_incident is not None
    report_divergence(world, job="gpt-a002", onset=450)
    world.minutes(3)
    run = world.run()
    assert (run.current.number, run.current.resumed_from_step, steps_in_folder(world)) == (3, 400, [100, 200, 300, 400])
    assert [c.step for c in select_known(run, world.checkpoints.quarantined) if c.health is not Health.CLEAN] == [500]


def test_a_job_that_fails_while_it_is_being_stopped_is_rolled_back_all_the_same(world):
    stop = world.sagemaker.stop
    world.sagemaker.stop = lambda name: None
    report_divergence(world)
    world.sagemaker.stop = stop
    world.lose_node(minutes=5)
    run = world.run()
    assert (run.state, run.current.resumed_from_step, steps_in_folder(world)) == (
        RunState.WATCHING,
        300,
        [100, 200, 300],
    )


def test_without_a_clean_save_all_of_them_are_quarantined(world):
    report_divergence(world, onset=50)
    world.minutes(3)
    assert (world.run().current.resumed_from_step, steps_in_folder(world)) == (None, [])


def test_with_an_agent_nothing_is_moved_and_only_manifests_count(world):
    agent = Agent(world)
    agent.hello()
    world.checkpoints.commit(250)
    report_divergence(world)
    world.minutes(20)
    run = world.run()
    assert (run.current.job_name, run.current.resumed_from_step) == ("gpt-a002", 250)
    assert world.checkpoints.quarantined == []


def test_a_stop_without_an_onset_moves_nothing(world):
    """A hang, a lost node, a human's wish: what was saved is sound."""
    finding = Finding(Kind.STALL, Level.INTERVENE, 500, 500, "no step")
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (finding,)))
    world.minutes(5)
    assert (world.run().current.resumed_from_step, world.checkpoints.quarantined) == (500, [])


def test_checkpoints_from_before_the_run_belong_to_no_attempt(world):
    """They lay there already: older than all attempts, and as good as their steps say."""
    run = world.run()
    (old,) = [c for c in world.checkpoints.saved[BUCKET] if c.step == 100]
    world.clock.pass_by(timedelta(days=-2))
    save(world, 50)
    assert [(c.step, c.attempt) for c in select_known(run, world.checkpoints.saved[BUCKET]) if c.step <= 100] == [
        (50, 0),
        (100, 1),
    ]
    assert old.attempt == 0
    assert [c.step for c in select_known(run, world.checkpoints.saved[BUCKET][:1])] == [50], "it has saved nothing yet"


def save_unfinished(world: World, step: int) -> None:
    """The node was lost while this was on its way to S3."""
    world.checkpoints.save(step, attempt=0, layout="huggingface", missing=("trainer_state.json",))


def test_an_unfinished_save_is_out_of_the_way_of_a_script_that_would_fall_over_it(world):
    """The newest folder is the one that `get_last_checkpoint` takes, whatever is in it."""
    save_unfinished(world, 600)
    world.lose_node(minutes=3)
    assert (world.run().current.resumed_from_step, steps_in_folder(world)) == (500, [100, 200, 300, 400, 500])
    assert [c.step for c in world.checkpoints.quarantined] == [600]
    assert world.run().state is RunState.WATCHING


def test_an_unfinished_save_that_cannot_be_moved_is_reported_and_the_launch_goes_on(world):
    """What is unfinished is not tainted: the script may know better."""
    world.checkpoints.forbidden = FORBIDDEN
    save_unfinished(world, 600)
    world.lose_node(minutes=3)
    run = world.run()
    assert (run.state, run.current.job_name, run.pending) == (RunState.WATCHING, "gpt-a002", ())
    (published,) = [notice for notice in world.bus.notices if "not set aside" in notice.title]
    assert "quarantineFolders" in published.todo
    assert published.severity == "inform"


def test_a_save_that_only_looks_odd_is_not_moved_for_a_lost_node(world):
    """Fewer ranks than before, an extra file: in doubt it is not resumed from, and not touched."""
    world.checkpoints.save(600, attempt=0, layout="steps", missing=("rank-#.pt (4 of 8)",))
    world.lose_node(minutes=3)
    assert world.checkpoints.quarantined == []
    assert world.run().current.resumed_from_step == 500
