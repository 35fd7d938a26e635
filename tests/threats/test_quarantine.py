"""Jobs that name another team's checkpoint folder: Rerail's own permissions do not move what is in it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from moto import mock_aws

from rerail.aws.clients import client
from rerail.aws.s3 import S3Checkpoints
from rerail.decisions.decision import find_first_start
from rerail.messages.messages import FindingsReceived, JobStateChanged
from rerail.model.actions import QuarantineCheckpoints
from rerail.model.finding import Finding, Kind, Level
from rerail.model.run import RunState
from rerail.requests.relaunch import read_checkpoint_uri
from tests.aws.places import make_bucket, our_own_clients
from tests.fakes import BUCKET, MIDNIGHT, ROLE, World

NAMES = ("model.safetensors", "optimizer.pt", "trainer_state.json")
VICTIM = "victim/llama/"
STRANGER = "arn:aws:iam::111122223333:role/SageMakerOfMallory"


@pytest.fixture(autouse=True)
def aws() -> Iterator[None]:
    """An empty S3 with the bucket that the teams share."""
    with our_own_clients(), mock_aws():
        make_bucket("shared")
        yield


def keys() -> set[str]:
    """Return the keys of all objects."""
    return {item["Key"] for item in client("s3").list_objects_v2(Bucket="shared").get("Contents", [])}


def save_hugging_face(folder: str, *steps: int) -> None:
    for step in steps:
        for name in NAMES:
            client("s3").put_object(Bucket="shared", Key=f"{folder}checkpoint-{step}/{name}", Body=b"x")


def save_deepspeed(folder: str, *steps: int) -> None:
    for step in steps:
        for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"):
            client("s3").put_object(Bucket="shared", Key=f"{folder}global_step{step}/{name}", Body=b"x")
    client("s3").put_object(Bucket="shared", Key=f"{folder}latest", Body=f"global_step{steps[-1]}".encode())


def launch(request: Mapping[str, Any], *, started: timedelta, folders: Mapping[str, list[str]] | None = None) -> World:
    """Return a world over S3 in which mallory's job has the request; it began this long before its saves were made."""
    world = World(quarantine_folders=folders or {})
    world.clock.now = datetime.now(UTC) - started
    world.checkpoints = S3Checkpoints()
    return world.adopt("mallory", uri=read_checkpoint_uri(request), request=request)


def diverge(world: World, *, onset: int = 1) -> None:
    """Let mallory's script print that its loss went wrong at its first steps, and wait for what Rerail does."""
    world.clock.now = max(world.clock.now, datetime.now(UTC)) + timedelta(minutes=1)
    finding = Finding(Kind.NON_FINITE, Level.INTERVENE, 5, onset, "nan for 3 rows")
    world.supervisor().handle(FindingsReceived("mallory", "mallory", (finding,)))
    world.minutes(5)


SAVERS = pytest.mark.parametrize("save", [save_hugging_face, save_deepspeed])
AFTER_ITS_START, BEFORE_ITS_START = timedelta(minutes=20), timedelta(minutes=-5)


@pytest.mark.threat("T19")
@SAVERS
def test_a_folder_that_only_a_variable_names_is_never_changed(save):
    """SageMaker never checks a variable: the creator of the job needs no permission for the folder at all."""
    save(VICTIM, 1000, 2000, 3000)
    before = keys()
    variable = {"RERAIL_CHECKPOINTS": f"s3://shared/{VICTIM}"}
    request = {"Environment": variable, "CheckpointConfig": None, "RoleArn": ROLE}
    world = launch(request, started=AFTER_ITS_START, folders={ROLE: ["s3://shared/"]})
    diverge(world)
    assert keys() == before
    run = world.run("mallory")
    assert (run.state, len(world.sagemaker.jobs)) == (RunState.HELD, 1)
    assert "RERAIL_CHECKPOINTS" in run.hold_reason
    assert any(notice.severity == "page" and "CheckpointConfig" in notice.todo for notice in world.bus.notices)


@pytest.mark.threat("T19")
@SAVERS
@pytest.mark.parametrize("folders", [{}, {ROLE: ["s3://shared/"]}, {STRANGER: ["s3://shared/mallory/"]}])
def test_a_role_without_the_folder_moves_nothing_in_it(save, folders):
    """Only the deployment says in which folders a role's checkpoints are moved; without it, in none."""
    save(VICTIM, 1000, 2000, 3000)
    before = keys()
    request = {"CheckpointConfig": {"S3Uri": f"s3://shared/{VICTIM}"}, "RoleArn": STRANGER}
    world = launch(request, started=AFTER_ITS_START, folders=folders)
    diverge(world)
    assert keys() == before
    assert world.run("mallory").state is RunState.HELD
    assert "quarantineFolders" in world.run("mallory").hold_advice


@pytest.mark.threat("T19")
@SAVERS
def test_what_is_older_than_the_runs_first_job_is_not_moved(save):
    """It cannot be the run's own, whatever its step; so the run is held, and an operator looks."""
    save(VICTIM, 1000, 2000, 3000)
    before = keys()
    request = {"CheckpointConfig": {"S3Uri": f"s3://shared/{VICTIM}"}, "RoleArn": ROLE}
    world = launch(request, started=BEFORE_ITS_START, folders={ROLE: ["s3://shared/"]})
    diverge(world)
    assert keys() == before
    assert world.run("mallory").state is RunState.HELD
    assert "older than the run" in world.run("mallory").hold_reason


@pytest.mark.threat("T19")
def test_what_is_saved_in_the_second_of_the_start_is_the_runs_own():
    """S3 cuts its times to seconds, SageMaker does not."""
    world = World()
    world.clock.now += timedelta(milliseconds=700)
    world.adopt()
    assert find_first_start(world.run()) == MIDNIGHT


@pytest.mark.threat("T19")
def test_the_runs_own_checkpoints_are_still_quarantined():
    """The same in a folder of its own, which the deployment lists: the rollback is carried out."""
    request = {"CheckpointConfig": {"S3Uri": "s3://shared/teams/m/run"}, "RoleArn": ROLE}
    world = launch(request, started=AFTER_ITS_START, folders={ROLE: ["s3://shared/teams/m"]})
    save_hugging_face("teams/m/run/", 1000, 2000)
    diverge(world, onset=1500)
    assert world.run("mallory").state is RunState.WATCHING
    moved = {f"rerail-quarantine/mallory/a001/checkpoint-2000/{name}" for name in NAMES}
    assert keys() == {f"teams/m/run/checkpoint-1000/{name}" for name in NAMES} | moved


def share(world: World, uri: str, **request: Any) -> None:
    """Let another supervised run train, in this folder."""
    world.adopt("other", uri=uri, request=request)


def roll_back(world: World) -> None:
    """Send the run `gpt` back to before step 350."""
    finding = Finding(Kind.DIVERGENCE, Level.INTERVENE, 480, 350, "9.1 for 80 rows")
    world.supervisor().handle(FindingsReceived("gpt", "gpt", (finding,)))
    world.minutes(5)


def make_world() -> World:
    return World().with_saves(attempt=0, layout="huggingface")


@pytest.mark.threat("T19")
@pytest.mark.parametrize("uri", [BUCKET, BUCKET.rstrip("/"), "s3://bucket/checkpoints/below/", "s3://bucket/"])
def test_a_folder_that_two_live_runs_share_is_not_moved_from(uri):
    """Whose a checkpoint is, its name does not say: the run is held, and the other one is named."""
    world = make_world()
    share(world, uri)
    roll_back(world)
    assert world.checkpoints.quarantined == []
    assert (world.run().state, world.run("other").state) == (RunState.HELD, RunState.WATCHING)
    assert "run other saves" in world.run().hold_reason


@pytest.mark.threat("T19")
@pytest.mark.parametrize("uri", ["s3://bucket/checkpoints2/", "s3://bucket/Checkpoints/", "s3://bucket2/checkpoints/"])
def test_a_folder_beside_it_is_no_obstacle(uri):
    """Neither a longer name, nor other capitals, nor another bucket are the same folder."""
    world = make_world()
    share(world, uri)
    roll_back(world)
    assert (world.run().state, len(world.checkpoints.quarantined)) == (RunState.WATCHING, 2)


@pytest.mark.threat("T19")
def test_a_variable_of_a_strange_role_does_not_hold_anothers_rollback():
    """The reverse attack: a job that only claims the folder cannot keep its owner from being rolled back."""
    world = make_world()
    share(world, BUCKET, Environment={"RERAIL_CHECKPOINTS": BUCKET}, CheckpointConfig=None, RoleArn=STRANGER)
    roll_back(world)
    assert (world.run().state, len(world.checkpoints.quarantined)) == (RunState.WATCHING, 2)


@pytest.mark.threat("T19")
def test_a_run_that_ended_before_is_no_obstacle():
    """Its successor was started by hand in the same folder, which is how people continue a run."""
    world = World()
    share(world, BUCKET)
    world.sagemaker.fail("other", "AlgorithmError: torch.OutOfMemoryError: CUDA out of memory., exit code: 1")
    world.minutes(60)
    assert world.run("other").state is RunState.HELD
    world.with_saves(attempt=0, layout="huggingface")
    roll_back(world)
    assert (world.run().state, len(world.checkpoints.quarantined)) == (RunState.WATCHING, 2)


@pytest.mark.threat("T18")
def test_an_unreadable_record_forbids_the_quarantine():
    """Its run may save to the same folder."""
    world = make_world()
    share(world, "s3://bucket/other/")
    listed = world.runs.open_runs
    world.runs.open_runs = lambda *parts: [(name, run if name == "gpt" else None) for name, run in listed(*parts)]
    supervisor = world.supervisor()
    finding = Finding(Kind.DIVERGENCE, Level.INTERVENE, 480, 350, "9.1 for 80 rows")
    supervisor.handle(FindingsReceived("gpt", "gpt", (finding,)))
    world.supervisor().handle(JobStateChanged("gpt"))
    assert world.checkpoints.quarantined == []
    assert "record of run other cannot be read" in world.run().hold_reason


@pytest.mark.threat("T19")
def test_an_action_of_an_older_version_is_checked_too():
    """Its record says nothing of the run's start: the supervisor adds it before anything is moved."""
    world = make_world()
    world.checkpoints.moves_at_once = 0
    roll_back(world)
    pending = [replace(a, saved_after=None) if isinstance(a, QuarantineCheckpoints) else a for a in world.run().pending]
    run = replace(world.run(), pending=tuple(pending), version=world.run().version + 1)
    world.runs.save(run)
    world.checkpoints.moves_at_once = 1000
    world.minutes(2)
    assert (world.run().state, len(world.checkpoints.quarantined)) == (RunState.WATCHING, 2)
