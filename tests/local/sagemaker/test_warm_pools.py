"""Warm pools: kept after which ends, reused by which jobs, gone when."""

import pytest
from botocore.exceptions import ClientError

from tests.local.sagemaker.local_api import until

pytestmark = pytest.mark.slow

KEEP = {"KeepAlivePeriodInSeconds": 600}
# Pools match on the role, so a role for each test keeps the tests apart.
ROLE = "arn:aws:iam::000000000000:role/{}"


def pool(api, job):
    return api.describe(job).get("WarmPoolStatus", {})


def test_reuse(api):
    """A matching job takes the pool over: Reused on the first, InUse on the second, which may use another image."""
    role = ROLE.format("reuse")
    first = api.create(RoleArn=role, ResourceConfig=KEEP)
    api.ended(first)
    assert pool(api, first)["Status"] == "Available"
    second = api.create("sleep 600", RoleArn=role, ResourceConfig=KEEP)
    api.training(second)
    assert pool(api, first)["Status"] == "Reused"
    assert pool(api, first)["ReusedByJob"] == second
    assert pool(api, second)["Status"] == "InUse"
    api.inject("kill", TrainingJobName=second)
    api.ended(second)
    assert pool(api, second)["Status"] == "Available"


@pytest.mark.parametrize(
    "change",
    [
        {"RoleArn": ROLE.format("other")},
        {"ResourceConfig": {**KEEP, "VolumeSizeInGB": 11}},
        {"EnableNetworkIsolation": True},
    ],
    ids=["role", "volume", "isolation"],
)
def test_no_match(api, change):
    """Role, cluster shape and network settings must be the same."""
    role = ROLE.format("no-match-" + "-".join(change))
    first = api.create(RoleArn=role, ResourceConfig=KEEP)
    api.ended(first)
    api.run(**{"RoleArn": role, "ResourceConfig": KEEP} | change)
    assert pool(api, first)["Status"] == "Available"


def test_lost_node_leaves_none(api):
    """A failure that may be the cluster's leaves no pool to reuse."""
    job = api.create("sleep 600", RoleArn=ROLE.format("lost"), ResourceConfig=KEEP)
    api.training(job)
    api.inject("internal_error", TrainingJobName=job)
    api.ended(job)
    assert pool(api, job)["Status"] == "Terminated"


def test_release(api):
    """KeepAlivePeriodInSeconds 0 lets an Available pool go; until then the job cannot be deleted."""
    role = ROLE.format("release")
    job = api.create(RoleArn=role, ResourceConfig=KEEP)
    api.ended(job)
    with pytest.raises(ClientError, match="warm pool"):
        api.sagemaker.delete_training_job(TrainingJobName=job)
    api.sagemaker.update_training_job(TrainingJobName=job, ResourceConfig={"KeepAlivePeriodInSeconds": 0})
    assert pool(api, job)["Status"] == "Terminated"
    second = api.create(RoleArn=role, ResourceConfig=KEEP)
    api.ended(second)
    assert "ReusedByJob" not in pool(api, job)


def test_expiry(api):
    """A pool that nobody takes ends with its period."""
    job = api.create(RoleArn=ROLE.format("expiry"), ResourceConfig={"KeepAlivePeriodInSeconds": 1})
    api.ended(job)
    until(lambda: pool(api, job)["Status"] == "Terminated")
    assert pool(api, job)["ResourceRetainedBillableTimeInSeconds"] == 1
