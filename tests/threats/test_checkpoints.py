"""Forged checkpoints choose no step, give back no retries, and hide no checkpoint of a script."""

from dataclasses import replace
from typing import Any

import pytest

from rerail.decisions.decision import find_manifest_key, select_known, with_attempt
from rerail.messages.messages import CommandReceived, JobStateChanged
from rerail.model.checkpoint_layouts import Layout
from rerail.model.run import RunState
from rerail.model.signals import OperatorVerb
from tests.fakes import BUCKET, KEY, Agent, World

STEP = 10**12


def fail(world: World, **facts: Any) -> None:
    job = world.run().current.job_name
    world.sagemaker.fail(job, "InternalServerError: node", **facts)
    world.supervisor().handle(JobStateChanged(job))
    world.minutes(31)


@pytest.fixture
def signed() -> World:
    world = World(new_key=lambda: KEY).with_saves()
    Agent(world).hello()
    return world


@pytest.mark.threat("T34")
def test_an_unsigned_manifest_chooses_no_step_of_a_run_that_signs(signed):
    signed.checkpoints.save(STEP)
    fail(signed)
    run = signed.run()
    assert (run.current.resumed_from_step, run.ledger.progress_step) == (500, 500)
    assert find_manifest_key(run) == KEY


@pytest.mark.threat("T34")
def test_unsigned_manifests_buy_no_retries(signed):
    """A script that never saves ends at its budget, however many manifests others write."""
    for step in range(1, 41):
        if signed.run().state.is_end:
            break
        signed.checkpoints.save(1000 * step, attempt=signed.run().current.number)
        fail(signed)
    assert signed.run().state is RunState.HELD
    assert len(signed.run().attempts) <= 6


def test_a_report_that_arrives_during_the_listing_hides_no_checkpoint():
    """A job that fails soon after its start: another invocation records its agent, which has signed what was listed."""
    world = World(new_key=lambda: KEY).with_saves()

    def record_agent() -> None:
        run = world.run()
        world.runs.save(replace(with_attempt(run, replace(run.current, agent=True)), version=run.version + 1))

    world.checkpoints.on_list = record_agent
    fail(world)
    assert world.run().attempts[0].agent and world.run().current.resumed_from_step == 500


def test_manifests_from_before_the_agent_count_until_the_first_signed_step():
    """A first job without the key saves unsigned manifests; its successor resumes from them and signs its own."""
    world = World(new_key=lambda: KEY).with_saves(is_signed=False)
    fail(world)
    assert world.run().current.resumed_from_step == 500
    Agent(world, attempt=2, job="gpt-a002").hello()
    world.checkpoints.commit(600, attempt=2)
    run, saved = world.run(), world.checkpoints.saved[BUCKET]
    assert [checkpoint.step for checkpoint in select_known(run, saved)] == [600, 500, 400, 300, 200, 100]
    world.checkpoints.save(50, attempt=1)
    assert 50 not in [checkpoint.step for checkpoint in select_known(run, saved)], "S3 received it after the hello"


@pytest.mark.threat("T34")
def test_manifests_beside_a_scripts_own_checkpoints_change_nothing():
    world = World().with_saves(layout=Layout.HUGGING_FACE)
    world.checkpoints.save(STEP)
    fail(world)
    assert world.run().current.resumed_from_step == 500


@pytest.mark.threat("T34")
def test_an_unsigned_manifest_proves_no_step_that_the_run_did_not_report():
    """Without an agent nobody signs. What is reported bounds the progress, so that a false step does not hide it."""
    world = World().adopt()
    world.minutes(10)
    world.checkpoints.save(STEP)
    fail(world, metrics={"step": 450.0})
    assert world.run().ledger.progress_step == 450


@pytest.mark.threat("T34")
def test_a_release_counts_progress_from_what_is_there():
    world = World().with_saves(is_signed=False)
    world.checkpoints.save(STEP)
    fail(world)
    assert world.run().ledger.progress_step == STEP
    world.checkpoints.saved[BUCKET] = [c for c in world.checkpoints.saved[BUCKET] if c.step < STEP]
    for verb in (OperatorVerb.HOLD, OperatorVerb.RELEASE):
        world.supervisor().handle(CommandReceived(verb, "gpt", verb, "ada", "", asked_at=world.clock()))
        world.minutes(1)
    assert world.run().ledger.progress_step == 500
