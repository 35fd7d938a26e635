"""Warm pools: kept after which ends, reused by which jobs, gone when."""

import pytest
from botocore.exceptions import ClientError

from tests.local.sagemaker.stage import until

pytestmark = pytest.mark.slow

KEEP = {"KeepAlivePeriodInSeconds": 600}
# Pools match on the role, so a role for each test keeps the tests apart.
ROLE = "arn:aws:iam::000000000000:role/{}"


def pool(stage, job):
    return stage.describe(job).get("WarmPoolStatus", {})


def test_reuse(stage):
    """A matching job takes the pool over: Reused on the first, InUse on the second, which may use another image."""
    role = ROLE.format("reuse")
    first = stage.create(RoleArn=role, ResourceConfig=KEEP)
    stage.ended(first)
    assert pool(stage, first)["Status"] == "Available"
    second = stage.create("sleep 600", RoleArn=role, ResourceConfig=KEEP)
    stage.training(second)
    assert pool(stage, first)["Status"] == "Reused"
    assert pool(stage, first)["ReusedByJob"] == second
    assert pool(stage, second)["Status"] == "InUse"
    stage.inject("kill", TrainingJobName=second)
    stage.ended(second)
    assert pool(stage, second)["Status"] == "Available"


@pytest.mark.parametrize(
    "change",
    [
        {"RoleArn": ROLE.format("other")},
        {"ResourceConfig": {**KEEP, "VolumeSizeInGB": 11}},
        {"EnableNetworkIsolation": True},
    ],
    ids=["role", "volume", "isolation"],
)
def test_no_match(stage, change):
    """Role, cluster shape and network settings must be the same."""
    role = ROLE.format("no-match-" + "-".join(change))
    first = stage.create(RoleArn=role, ResourceConfig=KEEP)
    stage.ended(first)
    stage.run(**{"RoleArn": role, "ResourceConfig": KEEP} | change)
    assert pool(stage, first)["Status"] == "Available"


def test_lost_node_leaves_none(stage):
    """A failure that may be the cluster's leaves no pool to reuse."""
    job = stage.create("sleep 600", RoleArn=ROLE.format("lost"), ResourceConfig=KEEP)
    stage.training(job)
    stage.inject("internal_error", TrainingJobName=job)
    stage.ended(job)
    assert pool(stage, job)["Status"] == "Terminated"


def test_release(stage):
    """KeepAlivePeriodInSeconds 0 lets an Available pool go; until then the job cannot be deleted."""
    role = ROLE.format("release")
    job = stage.create(RoleArn=role, ResourceConfig=KEEP)
    stage.ended(job)
    with pytest.raises(ClientError, match="warm pool"):
        stage.sagemaker.delete_training_job(TrainingJobName=job)
    stage.sagemaker.update_training_job(TrainingJobName=job, ResourceConfig={"KeepAlivePeriodInSeconds": 0})
    assert pool(stage, job)["Status"] == "Terminated"
    second = stage.create(RoleArn=role, ResourceConfig=KEEP)
    stage.ended(second)
    assert "ReusedByJob" not in pool(stage, job)


def test_expiry(stage):
    """A pool that nobody takes ends with its period."""
    job = stage.create(RoleArn=ROLE.format("expiry"), ResourceConfig={"KeepAlivePeriodInSeconds": 1})
    stage.ended(job)
    until(lambda: pool(stage, job)["Status"] == "Terminated")
    assert pool(stage, job)["ResourceRetainedBillableTimeInSeconds"] == 1
