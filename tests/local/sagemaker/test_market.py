"""Quotas and shortages by instance type, told in SageMaker's own words and shapes."""

import pytest
from botocore.exceptions import ClientError

from rerail.aws.sagemaker import read_job
from rerail.decisions.fallback_machines import find_missing_quota
from rerail.model.machines import WarmPool
from rerail.model.self_repairs import SelfRepair
from tests.local.sagemaker.local_api import steps, until

pytestmark = pytest.mark.slow

ROLE = "arn:aws:iam::000000000000:role/{}"


def on(kind: str, count: int = 1, **more) -> dict:
    return {"InstanceType": kind, "InstanceCount": count, "VolumeSizeInGB": 10, **more}


def test_a_type_of_which_none_is_left(api):
    """Pending first, then CapacityError; another type is not short, and the supervisor reads it so."""
    api.inject("machines", InstanceType="ml.c5.xlarge", Count=0, WaitSeconds=0.2)
    job = api.create(ResourceConfig=on("ml.c5.xlarge"))
    pending = api.reached(job, lambda described: described["SecondaryStatus"] == "Pending")
    assert read_job(pending).lacks_machines
    described = api.ended(job)
    assert steps(described) == ["Starting", "Pending", "Starting", "Failed"]
    assert described["FailureReason"].startswith("CapacityError: Unable to provision")
    assert api.run(ResourceConfig=on("ml.c5.2xlarge"))["TrainingJobStatus"] == "Completed"
    api.inject("machines", InstanceType="ml.c5.xlarge", WaitSeconds=0)
    assert api.run(ResourceConfig=on("ml.c5.xlarge"))["TrainingJobStatus"] == "Completed"


def test_of_several_types_the_first_that_is_there_is_taken(api):
    """InstancePreferences: Describe says which, and how many."""
    api.inject("machines", InstanceType="ml.c5.9xlarge", Count=0)
    request = api.request()
    preferences = [{"InstanceType": "ml.c5.9xlarge"}, {"InstanceType": "ml.c5.18xlarge"}]
    request["ResourceConfig"] = {"InstancePreferences": preferences, "InstanceCount": 1, "VolumeSizeInGB": 10}
    api.sagemaker.create_training_job(**request)
    resources = api.ended(request["TrainingJobName"])["ResourceConfig"]
    assert (resources["SelectedInstanceType"], resources["SelectedInstanceCount"]) == ("ml.c5.18xlarge", 1)
    assert resources["InstancePreferences"] == preferences


def test_a_quota_counts_what_runs_and_what_is_kept(api):
    """Two at once and no third; a kept pool counts too, but for the job that takes it over."""
    role = ROLE.format("quota")
    api.inject("quota", InstanceType="ml.m5.4xlarge", Limit=1)
    first = api.create(RoleArn=role, ResourceConfig=on("ml.m5.4xlarge", KeepAlivePeriodInSeconds=600))
    with pytest.raises(api.sagemaker.exceptions.ResourceLimitExceeded, match="is 1 Instances.* utilization of 1"):
        api.create(ResourceConfig=on("ml.m5.4xlarge"))
    api.ended(first)
    until(lambda: api.describe(first).get("WarmPoolStatus", {}).get("Status") == "Available")
    with pytest.raises(api.sagemaker.exceptions.ResourceLimitExceeded):
        api.create(ResourceConfig=on("ml.m5.4xlarge"))
    second = api.create(RoleArn=role, ResourceConfig=on("ml.m5.4xlarge"))
    api.ended(second)
    assert read_job(api.describe(first)).pool == WarmPool("Reused", 0, second)
    api.inject("quota", InstanceType="ml.m5.4xlarge")
    assert api.run(ResourceConfig=on("ml.m5.4xlarge", 3))["TrainingJobStatus"] == "Completed"


def test_a_quota_of_nothing_is_read_as_one_that_never_heals(api):
    """And one that is only in use is not."""
    api.inject("quota", InstanceType="ml.p5.48xlarge", Limit=0)
    with pytest.raises(ClientError) as refused:
        api.create(ResourceConfig=on("ml.p5.48xlarge", 2))
    quota = find_missing_quota(str(refused.value))
    assert quota
    assert (quota.name, quota.limit, quota.needed) == ("ml.p5.48xlarge for training job usage", 0, 2)
    api.inject("resource_limit", Count=1)
    with pytest.raises(ClientError) as busy:
        api.create(ResourceConfig=on("ml.p4d.24xlarge", 2))
    assert find_missing_quota(str(busy.value)) is None


def test_a_retry_is_distinguished_from_a_spot_interruption(api):
    """The histories that the two leave are read as what they are."""
    retried = api.create("sleep 600", RetryStrategy={"MaximumRetryAttempts": 2})
    api.training(retried)
    api.inject("internal_error", TrainingJobName=retried)
    job = read_job(api.reached(retried, lambda d: steps(d).count("Training") == 2))
    assert dict(job.repaired.counts) == {SelfRepair.RETRY: 1}
    spot = api.create(
        "sleep 600",
        EnableManagedSpotTraining=True,
        StoppingCondition={"MaxRuntimeInSeconds": 600, "MaxWaitTimeInSeconds": 900},
    )
    api.training(spot)
    api.inject("interrupt", TrainingJobName=spot, WaitSeconds=0.1)
    job = read_job(api.reached(spot, lambda d: steps(d).count("Training") == 2))
    assert dict(job.repaired.counts) == {SelfRepair.SPOT: 1}
    assert job.repaired.seconds > 0
    for name in (retried, spot):
        api.inject("kill", TrainingJobName=name)
        api.ended(name)
