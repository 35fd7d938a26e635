"""A damaged checkpoint is quarantined, the run resumes from the one before it, and without one it is held."""

import pytest

from rerail.model.actions import Severity
from rerail.model.causes import Cause
from rerail.model.checkpoints import Health
from rerail.model.run import RunState
from rerail.model.runbooks import Runbook
from tests.fakes import World

DAMAGED = (
    "AlgorithmError: RuntimeError: PytorchStreamReader failed reading zip archive: not a ZIP archive, exit code: 1"
)


def lose_node(steps: tuple[int, ...], *, layout: str = "manifest") -> World:
    """Return a run that saved at these steps, lost its node and is on its second attempt."""
    world = World().adopt()
    for step in steps:
        world.minutes(10)
        world.checkpoints.save(step=step, layout=layout)
    world.lose_node(minutes=30, metrics={"step": 317.0})
    assert world.run().current.resumed_from_step == max(steps)
    return world


@pytest.mark.parametrize("layout", ["manifest", "hf"])
def test_the_damaged_checkpoint_is_quarantined_and_the_one_before_is_used(layout: str) -> None:
    """A script's own files are moved before the next job is created; with manifests, the script is told the step."""
    world = lose_node((100, 200, 300), layout=layout)
    world.sagemaker.fail("gpt-a002", DAMAGED)
    world.minutes(30)
    run = world.run()
    assert (run.current.number, run.current.resumed_from_step) == (3, 200)
    assert [checkpoint.step for checkpoint in world.checkpoints.quarantined] == ([] if layout == "manifest" else [300])
    assert run.attempts[1].cause is Cause.DAMAGED_CHECKPOINT
    assert (run.labels[-1].step, run.labels[-1].until, run.labels[-1].health) == (300, 300, Health.QUARANTINED)


def test_without_a_sound_checkpoint_the_run_is_held() -> None:
    """The notice names the step, the folder and what to do; nothing is moved or deleted."""
    world = lose_node((100,))
    world.sagemaker.fail("gpt-a002", DAMAGED)
    world.minutes(30)
    run, notice = world.run(), world.bus.notices[-1]
    assert (run.state, notice.severity, notice.runbook) == (RunState.HELD, Severity.PAGE, Runbook.DAMAGED_CHECKPOINT)
    assert "the checkpoint at step 100 is damaged" in notice.title
    assert f"Delete or replace the damaged file in {run.checkpoint_uri} (with S3 versioning" in notice.todo
    assert world.checkpoints.quarantined == []


def test_a_damaged_checkpoint_that_may_not_be_moved_holds_the_run() -> None:
    """The next job would load it again, and the one before it would be blamed."""
    world = lose_node((200, 300), layout="hf")
    world.quarantine_folders = {}
    world.sagemaker.fail("gpt-a002", DAMAGED)
    world.minutes(30)
    assert (world.run().state, len(world.run().labels)) == (RunState.HELD, 1)


def test_an_attempt_that_has_trained_had_loaded_its_checkpoint() -> None:
    """Another file was damaged: no checkpoint of the run is blamed."""
    world = lose_node((200, 300))
    world.sagemaker.fail("gpt-a002", DAMAGED, metrics={"step": 350.0})
    world.minutes(30)
    assert (world.run().labels, world.run().current.resumed_from_step) == ((), 300)
