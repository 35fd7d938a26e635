"""A record that is older than the world: restored from a backup, or lost, while the run's jobs went on."""

from copy import deepcopy
from dataclasses import replace
from datetime import timedelta

import pytest
from moto import mock_aws

from rerail.aws.clients import client
from rerail.aws.dynamodb import DynamoRuns
from rerail.decisions.adoption import is_first_job_of_rebuilt
from rerail.decisions.reconcile import read_claim
from rerail.messages.messages import CommandReceived, JobStateChanged
from rerail.model.actions import Severity
from rerail.model.run import Attempt, JobStatus, RunState, make_run_id
from rerail.model.signals import OperatorVerb
from rerail.model.signatures import VARIABLE
from rerail.requests.relaunch import ATTEMPT_TAG, RUN_TAG
from tests.aws.places import TABLE, make_table, our_own_clients
from tests.core.failures import NODE_LOST, OOM
from tests.fakes import KEY, World

LONG_NAME = "gpt-with-a-name-too-long-for-a-run-and-the-suffix-of-an-attempt"


def lose_nodes(world: World, *, times: int) -> World:
    """The run's job dies so often, and is relaunched and saves each time."""
    for _ in range(times):
        world.lose_node(world.run().current.job_name, minutes=30)
        world.checkpoints.save(step=100 * world.checkpoints.count + 100, attempt=world.run().current.number)
    return world


def test_a_restored_record_catches_up_with_the_world():
    """The newest attempt is watched, the ones between are known, and people are told once."""
    world = World().with_saves()
    backup = deepcopy(world.runs)
    lose_nodes(world, times=3)
    world.runs = backup
    world.minutes(5)
    run = world.run()
    assert run.state is RunState.WATCHING and run.current.job_name == "gpt-a004"
    assert [attempt.status for attempt in run.attempts] == [JobStatus.FAILED] * 3 + [JobStatus.IN_PROGRESS]
    assert world.sagemaker.live() == ["gpt-a004"]
    assert [notice.title for notice in world.bus.notices].count("gpt: its record was older than the world") == 1


def test_a_restored_record_that_was_held_lets_go_of_the_hold():
    """What it was held for is over: a job of ours is alive, and somebody must watch it."""
    world = World().with_saves()
    for _ in range(2):
        world.sagemaker.fail(world.run().current.job_name, OOM)
        world.minutes(2)
    assert world.run().state is RunState.HELD
    backup = deepcopy(world.runs)
    world.sagemaker.submit("gpt-a002", policy="default", request={"Environment": {VARIABLE: KEY}})
    world.sagemaker.job_tags["gpt-a002"] |= {RUN_TAG: "gpt", ATTEMPT_TAG: "2"}
    world.runs = backup
    world.minutes(2)
    assert world.run().state is RunState.WATCHING and not world.run().hold_reason


def test_a_run_whose_record_is_lost_is_taken_up_under_its_own_name():
    """Its next attempt is the next number, and nothing is launched beside it."""
    world = lose_nodes(World().with_saves(), times=2)
    world.runs = World().runs
    world.minutes(5)
    assert world.run().state is RunState.WATCHING and world.run().current.number == 3
    lose_nodes(world, times=1)
    assert world.sagemaker.live() == ["gpt-a004"] and world.sagemaker.most_live_at_once == 1


@pytest.mark.parametrize("name", ["x" * 60, "gpt-202601310000"])
def test_a_run_whose_id_is_no_job_s_name_is_taken_up_too(name):
    """A shortened one, and a dated one whose date is part of the job's own name: no other run gets the job."""
    world = World()
    world.sagemaker.submit(name)
    run = world.supervisor().on_job_changed(name)
    world.lose_node(name, minutes=30)
    world.runs = World().runs
    world.minutes(5)
    (id,) = world.runs.records
    assert run is not None and id == run.id and world.run(id).current.number == 2


@pytest.mark.parametrize("first", ["gpt", "gpt-a002"])
def test_a_lost_table_leaves_one_live_job_whichever_event_comes_first(first):
    """Over the real table: two runs in one folder would both save and launch."""
    with mock_aws(), our_own_clients():
        make_table(client("dynamodb"))
        world = lose_nodes(World().with_saves(), times=1)
        world.runs = DynamoRuns(TABLE, lambda: world.clock().timestamp())
        for job_name in (first, *{"gpt", "gpt-a002"} - {first}) * 2:
            world.supervisor().handle(JobStateChanged(job_name))
        world.minutes(20)
        assert [run_id for run_id, _ in world.runs.all_runs()] == ["gpt"]
        assert (world.sagemaker.live(), world.sagemaker.most_live_at_once) == (["gpt-a002"], 1)


@pytest.mark.threat("T5")
def test_a_job_tagged_as_a_later_attempt_takes_no_name_from_a_run_to_come():
    """Nobody knows a run `gpt` yet: the job is a run under its own name, and a later job `gpt` is the run `gpt`."""
    world = World()
    world.sagemaker.submit("gpt-a002")
    world.sagemaker.job_tags["gpt-a002"] |= {RUN_TAG: "gpt", ATTEMPT_TAG: "2"}
    world.supervisor().handle(JobStateChanged("gpt-a002"))
    assert world.run("gpt-a002").current.number == 1
    world.minutes(5)
    world.sagemaker.submit("gpt", uri="s3://bucket/victim/")
    assert world.supervisor().on_job_changed("gpt") == world.run("gpt")
    world.send_command(OperatorVerb.STOP, 1)
    world.minutes(30)
    assert world.sagemaker.live() == ["gpt-a002"]
    world.lose_node("gpt-a002", minutes=20)
    assert world.sagemaker.live() == ["gpt-a002-a002"]


def test_a_new_job_under_the_name_of_a_rebuilt_attempt_is_a_run_of_its_own():
    """The attempt's job was deleted before the record was rebuilt, and its name is used again."""
    world = lose_nodes(World().with_saves(), times=2)
    del world.sagemaker.jobs["gpt-a002"]
    world.runs = World().runs
    world.minutes(5)
    world.sagemaker.submit("gpt-a002", uri="s3://bucket/another/")
    run = world.supervisor().on_job_changed("gpt-a002")
    assert run is not None and run.id == "gpt-a002" and world.run().current.job_name == "gpt-a003"


def test_a_rebuilt_run_began_with_the_older_job_that_its_id_shortens():
    """Not with another job of that length, nor with a later one; a run whose record was kept knows its jobs."""
    world = World().with_saves()
    job = replace(world.sagemaker.jobs["gpt"], name=LONG_NAME)
    second = Attempt(2, "", created_at=job.created_at + timedelta(seconds=1))
    kept = replace(world.run(), id=make_run_id(LONG_NAME), attempts=(world.run().current, second))
    rebuilt = replace(kept, attempts=(Attempt(1, ""), second))
    assert is_first_job_of_rebuilt(rebuilt, job) and not is_first_job_of_rebuilt(kept, job)
    for facts in ({"name": "another-" + LONG_NAME[8:]}, {"name": rebuilt.id}, {"created_at": second.created_at}):
        assert not is_first_job_of_rebuilt(rebuilt, replace(job, **facts))


@pytest.mark.threat("T5")
@pytest.mark.parametrize("first", ["unsupervised", "another key", "later", "live"])
def test_a_job_that_did_not_begin_the_run_proves_no_earlier_attempt(first):
    """The job of the run's name exists, and Rerail has not launched the other one after it."""
    world = World()
    request = {"Environment": {VARIABLE: KEY}} if first == "another key" else {}
    for name in ("gpt-a002", "gpt") if first == "later" else ("gpt", "gpt-a002"):
        own = {"request": request} if name == "gpt" else {}
        world.sagemaker.submit(name, policy=None if (first, name) == ("unsupervised", "gpt") else "default", **own)
        world.minutes(1)
    world.sagemaker.job_tags["gpt-a002"] |= {RUN_TAG: "gpt", ATTEMPT_TAG: "2"}
    world.runs = World().runs
    world.supervisor().handle(JobStateChanged("gpt-a002"))
    assert world.run("gpt-a002").current.number == 1 and world.runs.load("gpt") is None


def test_a_human_s_stop_is_final_for_a_restored_record_too():
    """The world says who has stopped it: not we."""
    world = World().with_saves()
    backup = deepcopy(world.runs)
    lose_nodes(world, times=1)
    world.sagemaker.end("gpt-a002", JobStatus.STOPPED)
    world.runs = backup
    world.minutes(60)
    assert world.run().state is RunState.STOPPED and world.sagemaker.live() == []


@pytest.mark.parametrize(
    ("name", "tags"),
    [
        ("gpt-a002", {RUN_TAG: "gpt"}),
        ("gpt-a002", {RUN_TAG: "other", ATTEMPT_TAG: "2"}),
        ("copy", {RUN_TAG: "gpt", ATTEMPT_TAG: "2"}),
        ("gpt-a001", {RUN_TAG: "gpt", ATTEMPT_TAG: "1"}),
        ("gpt-a-02", {RUN_TAG: "gpt", ATTEMPT_TAG: "-2"}),
    ],
)
def test_tags_alone_make_no_attempt(name, tags):
    """Tags are copied by hand; only a name and tags that belong together are ours."""
    assert read_claim(name, tags) is None


def test_a_hold_of_a_human_outlives_a_job_that_the_record_does_not_know():
    """Somebody else has launched it, a second deployment for one: a human said hold, and hears that it runs."""
    world = World().with_saves()
    world.supervisor().handle(CommandReceived("c1", "gpt", OperatorVerb.HOLD, "ann", "a look at the data"))
    world.sagemaker.fail("gpt", NODE_LOST)
    world.sagemaker.submit("gpt-a002", policy="default", request={"Environment": {VARIABLE: KEY}})
    world.sagemaker.job_tags["gpt-a002"] |= {RUN_TAG: "gpt", ATTEMPT_TAG: "2"}
    world.minutes(2)
    run = world.run()
    assert (run.state, run.current.job_name, run.held_by) == (RunState.HELD, "gpt-a002", "ann")
    assert [notice.title for notice in world.bus.notices if notice.severity is Severity.PAGE] == [
        "gpt: its job runs, and it is held"
    ]
    world.lose_node("gpt-a002", minutes=60)
    assert world.sagemaker.live() == []
    world.supervisor().handle(CommandReceived("c2", "gpt", OperatorVerb.RELEASE, "ann", ""))
    assert world.sagemaker.live() == ["gpt-a003"] and not world.run().held_by
