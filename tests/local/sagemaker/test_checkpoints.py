"""CheckpointConfig in both directions, with the traps of the real one."""

import time
from dataclasses import replace

import pytest

from tests.local.sagemaker.stage import BUCKET, QUICK, Stage, until

pytestmark = pytest.mark.slow

WAITS_FOR_GO = "cd $SAGEMAKER_BASE_DIR/checkpoints; {first}; until [ -f ../code/go ]; do sleep 0.05; done; {then}"


def config(prefix: str) -> dict[str, str]:
    return {"S3Uri": f"s3://{BUCKET}/{prefix}"}


def go(stage: Stage, job: str) -> None:
    (stage.base(job) / "code" / "go").touch()


def local_files(stage: Stage, job: str, host: str = "algo-1") -> set[str]:
    folder = stage.base(job, host) / "checkpoints"
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_restored_to_every_host(stage):
    """What lies under the prefix is in every host's folder before the script runs."""
    stage.put("restore/step-1/manifest.json", "m")
    stage.put("restore/step-1/rank-0.pt", "w")
    script = "cat $SAGEMAKER_BASE_DIR/checkpoints/step-1/manifest.json"
    job = stage.create(script, CheckpointConfig=config("restore/"), ResourceConfig={"InstanceCount": 2})
    assert stage.ended(job)["TrainingJobStatus"] == "Completed"
    for host in ("algo-1", "algo-2"):
        assert local_files(stage, job, host) == {"step-1/manifest.json", "step-1/rank-0.pt"}


def test_prefix_match_trap(stage):
    """Without a trailing slash the prefix of another run that begins alike is restored too."""
    stage.put("trap/run-1/step-1/m", "mine")
    stage.put("trap/run-10/step-9/m", "another's")
    careless = stage.create(CheckpointConfig=config("trap/run-1"))
    careful = stage.create(CheckpointConfig=config("trap/run-1/"))
    stage.ended(careless)
    stage.ended(careful)
    assert local_files(stage, careless) == {"step-1/m", "0/step-9/m"}
    assert local_files(stage, careful) == {"step-1/m"}


def test_uploads_while_running(stage):
    """New and changed files reach S3 while the script runs, temporary ones do not; the last sync follows the exit."""
    script = WAITS_FOR_GO.format(first="echo 1 > a; echo 1 > b.tmp", then="echo 2 > a; echo 1 > last")
    job = stage.create(script, CheckpointConfig=config("up/"))
    until(lambda: stage.keys("up/") == {"a"})
    go(stage, job)
    stage.ended(job)
    assert stage.keys("up/") == {"a", "last"}
    assert stage.s3.get_object(Bucket=BUCKET, Key="up/a")["Body"].read() == b"2\n"


def test_deletions_are_mirrored(stage):
    """A file that the script deletes is deleted in S3, even one that was restored."""
    stage.put("down/old", "x")
    script = WAITS_FOR_GO.format(first="rm old; echo 1 > new", then="rm new; echo 1 > newer")
    job = stage.create(script, CheckpointConfig=config("down/"))
    until(lambda: stage.keys("down/") == {"new"})
    go(stage, job)
    stage.ended(job)
    assert stage.keys("down/") == {"newer"}


def test_later_objects_stay_in_s3(stage):
    """What others add to the prefix after the start is not copied down, and not deleted either."""
    job = stage.create(WAITS_FOR_GO.format(first="echo 1 > a", then=":"), CheckpointConfig=config("late/"))
    until(lambda: stage.keys("late/") == {"a"})
    stage.put("late/command.json")
    time.sleep(0.3)
    assert local_files(stage, job) == {"a"}
    go(stage, job)
    stage.ended(job)
    assert stage.keys("late/") == {"a", "command.json"}


def test_lost_node_syncs_nothing(make_stage):
    """What was not yet in S3 when the node was lost never gets there."""
    stage = make_stage(replace(QUICK, checkpoint_sync=30))
    job = stage.create(WAITS_FOR_GO.format(first="echo 1 > a", then=":"), CheckpointConfig=config("lost/"))
    stage.training(job)
    until(lambda: local_files(stage, job) == {"a"})
    stage.inject("internal_error", TrainingJobName=job)
    stage.ended(job)
    assert stage.keys("lost/") == set()
