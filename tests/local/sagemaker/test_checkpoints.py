"""CheckpointConfig in both directions, with the traps of the real one."""

import time
from dataclasses import replace

import pytest

from tests.local.sagemaker.local_api import BUCKET, QUICK, LocalApi, until

pytestmark = pytest.mark.slow

WAITS_FOR_GO = "cd $SAGEMAKER_BASE_DIR/checkpoints; {first}; until [ -f ../code/go ]; do sleep 0.05; done; {then}"


def config(prefix: str) -> dict[str, str]:
    return {"S3Uri": f"s3://{BUCKET}/{prefix}"}


def go(api: LocalApi, job: str) -> None:
    (api.base(job) / "code" / "go").touch()


def local_files(api: LocalApi, job: str, host: str = "algo-1") -> set[str]:
    folder = api.base(job, host) / "checkpoints"
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_restored_to_every_host(api):
    """What lies under the prefix is in every host's folder before the script runs."""
    api.put("restore/step-1/manifest.json", "m")
    api.put("restore/step-1/rank-0.pt", "w")
    script = "cat $SAGEMAKER_BASE_DIR/checkpoints/step-1/manifest.json"
    job = api.create(script, CheckpointConfig=config("restore/"), ResourceConfig={"InstanceCount": 2})
    assert api.ended(job)["TrainingJobStatus"] == "Completed"
    for host in ("algo-1", "algo-2"):
        assert local_files(api, job, host) == {"step-1/manifest.json", "step-1/rank-0.pt"}


def test_prefix_match_trap(api):
    """Without a trailing slash the prefix of another run that begins alike is restored too."""
    api.put("trap/run-1/step-1/m", "mine")
    api.put("trap/run-10/step-9/m", "another's")
    careless = api.create(CheckpointConfig=config("trap/run-1"))
    careful = api.create(CheckpointConfig=config("trap/run-1/"))
    api.ended(careless)
    api.ended(careful)
    assert local_files(api, careless) == {"step-1/m", "0/step-9/m"}
    assert local_files(api, careful) == {"step-1/m"}


def test_uploads_while_running(api):
    """New and changed files reach S3 while the script runs, temporary ones do not; the last sync follows the exit."""
    script = WAITS_FOR_GO.format(first="echo 1 > a; echo 1 > b.tmp", then="echo 2 > a; echo 1 > last")
    job = api.create(script, CheckpointConfig=config("up/"))
    until(lambda: api.keys("up/") == {"a"})
    go(api, job)
    api.ended(job)
    assert api.keys("up/") == {"a", "last"}
    assert api.s3.get_object(Bucket=BUCKET, Key="up/a")["Body"].read() == b"2\n"


def test_deletions_are_mirrored(api):
    """A file that the script deletes is deleted in S3, even one that was restored."""
    api.put("down/old", "x")
    script = WAITS_FOR_GO.format(first="rm old; echo 1 > new", then="rm new; echo 1 > newer")
    job = api.create(script, CheckpointConfig=config("down/"))
    until(lambda: api.keys("down/") == {"new"})
    go(api, job)
    api.ended(job)
    assert api.keys("down/") == {"newer"}


def test_later_objects_stay_in_s3(api):
    """What others add to the prefix after the start is not copied down, and not deleted either."""
    job = api.create(WAITS_FOR_GO.format(first="echo 1 > a", then=":"), CheckpointConfig=config("late/"))
    until(lambda: api.keys("late/") == {"a"})
    api.put("late/command.json")
    time.sleep(0.3)
    assert local_files(api, job) == {"a"}
    go(api, job)
    api.ended(job)
    assert api.keys("late/") == {"a", "command.json"}


def test_lost_node_syncs_nothing(make_api):
    """What was not yet in S3 when the node was lost never gets there."""
    api = make_api(replace(QUICK, checkpoint_sync=30))
    job = api.create(WAITS_FOR_GO.format(first="echo 1 > a", then=":"), CheckpointConfig=config("lost/"))
    api.training(job)
    until(lambda: local_files(api, job) == {"a"})
    api.inject("internal_error", TrainingJobName=job)
    api.ended(job)
    assert api.keys("lost/") == set()
