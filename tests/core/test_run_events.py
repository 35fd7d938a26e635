"""Each state change of a run is one event in the published form, until it is known to be published."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from rerail.messages.messages import JobStateChanged
from rerail.model.codec import dumps, loads
from rerail.model.policy import Policy
from rerail.model.run import JobStatus, Run, RunState, StateChange, make_state_change
from rerail.model.run_event import RunEvent, format_run_event
from rerail.supervisor.run_events import make_run_event
from tests.fakes import World

# Fields that events of an earlier version do not have.
ADDED = {"step"}
SCHEMA = Path(__file__).parents[2] / "docs" / "run.schema.json"
MODEL = "s3://bucket/gpt-a002/output/model.tar.gz"


def complete_after_relaunch() -> World:
    world = World()
    world.sagemaker.instance_type = "ml.p4d.24xlarge"
    world.adopt()
    world.checkpoints.save(step=100)
    world.clock.pass_by(timedelta(hours=1))
    world.lose_node(minutes=6)
    world.sagemaker.end("gpt-a002", JobStatus.COMPLETED, artifacts=MODEL)
    world.minutes(1)
    return world


def validate(event: RunEvent) -> None:
    from jsonschema import Draft202012Validator  # takes seconds of each worker that collects this file

    schema = json.loads(SCHEMA.read_text())
    detail = json.loads(json.dumps(format_run_event(event)))
    Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(detail)
    assert set(detail) == set(schema["properties"]) == {*schema["required"], *ADDED}


def test_a_recovered_run_is_one_chain_of_events_with_one_end():
    world = complete_after_relaunch()
    events = world.bus.events
    assert [event.state for event in events] == ["starting", "watching", "waiting", "starting", "watching", "completed"]
    assert [event.previous_state for event in events] == ["", *(event.state for event in events[:-1])]
    assert len({event.id for event in events}) == len(events)
    for event in events:
        validate(event)
    (end,) = (event for event in events if event.is_end)
    assert (end.job, end.first_job, end.attempts, end.artifacts) == ("gpt-a002", "gpt", 2, MODEL)
    assert end.dollars == make_run_event(world.run(), _change(world), at=end.at, policy=Policy(), reports="").dollars
    assert end.dollars and end.dollars > 0
    run = world.run()
    trained = replace(run, attempts=(*run.attempts[:-1], replace(run.current, last_step=700)))
    assert make_run_event(trained, _change(world), at=end.at, policy=Policy(), reports="").step == 700


@pytest.mark.parametrize("name", ["run_ended", "run_changed"])
def test_the_stored_samples_have_the_published_form(name):
    from jsonschema import validate

    event = json.loads((SCHEMA.parents[1] / "tests" / "events" / f"{name}.json").read_text())
    validate(event["detail"], json.loads(SCHEMA.read_text()))


def _change(world: World) -> StateChange:
    return make_state_change(world.run(), RunState.WATCHING, at=world.clock(), version=1, reason="")


def test_the_report_is_named_where_reports_are_deployed():
    world = complete_after_relaunch()
    event = make_run_event(world.run(), _change(world), at=world.clock(), policy=Policy(), reports="pages")
    assert event.report == "s3://pages/runs/gpt/report.html"


def test_an_end_that_the_bus_refuses_is_published_by_the_sweep():
    """The run has ended, so that nothing but the event keeps it open."""
    world = World().adopt()
    world.bus.refusals = 50
    world.sagemaker.end("gpt", JobStatus.STOPPED)
    world.minutes(3)
    assert world.run().state is RunState.STOPPED and world.run().unpublished and world.run().is_swept
    assert not any(event.is_end for event in world.bus.events)
    world.bus.refusals = 0
    world.minutes(2)
    assert [event.state for event in world.bus.events if event.is_end] == ["stopped"]
    assert world.run().unpublished == () and not world.run().is_swept


def test_an_older_version_keeps_what_is_to_be_published():
    """It does not know the field, and writes it back."""
    world = World()
    world.sagemaker.submit("gpt")
    world.bus.refusals = 50
    world.supervisor().handle(JobStateChanged("gpt"))
    run = world.run()
    assert run.unpublished
    table = json.loads(dumps(run))
    unpublished = table.pop("unpublished")
    older = loads(Run, json.dumps({**table, "unpublished_by_a_newer_version": unpublished}))
    assert older.unpublished == ()
    rewritten = json.loads(dumps(replace(older, version=older.version + 1)))
    rewritten["unpublished"] = rewritten.pop("unpublished_by_a_newer_version")
    assert loads(Run, json.dumps(rewritten)).unpublished == run.unpublished
