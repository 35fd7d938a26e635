"""Quotas and shortages by instance type, told in SageMaker's own words and shapes."""

import pytest
from botocore.exceptions import ClientError

from rerail.aws.sagemaker import job_from
from rerail.decisions.fallback_machines import find_missing_quota
from rerail.model.machines import WarmPool
from rerail.model.self_repairs import SelfRepair
from tests.local.sagemaker.stage import steps, until

pytestmark = pytest.mark.slow

ROLE = "arn:aws:iam::000000000000:role/{}"


def on(kind: str, count: int = 1, **more) -> dict:
    return {"InstanceType": kind, "InstanceCount": count, "VolumeSizeInGB": 10, **more}


def test_a_type_of_which_none_is_left(stage):
    """Pending first, then CapacityError; another type is not short, and the supervisor reads it so."""
    stage.inject("machines", InstanceType="ml.c5.xlarge", Count=0, WaitSeconds=0.2)
    job = stage.create(ResourceConfig=on("ml.c5.xlarge"))
    pending = stage.reached(job, lambda described: described["SecondaryStatus"] == "Pending")
    assert job_from(pending).lacks_machines
    described = stage.ended(job)
    assert steps(described) == ["Starting", "Pending", "Starting", "Failed"]
    assert described["FailureReason"].startswith("CapacityError: Unable to provision")
    assert stage.run(ResourceConfig=on("ml.c5.2xlarge"))["TrainingJobStatus"] == "Completed"
    stage.inject("machines", InstanceType="ml.c5.xlarge", WaitSeconds=0)
    assert stage.run(ResourceConfig=on("ml.c5.xlarge"))["TrainingJobStatus"] == "Completed"


def test_of_several_types_the_first_that_is_there_is_taken(stage):
    """InstancePreferences: Describe says which, and how many."""
    stage.inject("machines", InstanceType="ml.c5.9xlarge", Count=0)
    request = stage.request()
    preferences = [{"InstanceType": "ml.c5.9xlarge"}, {"InstanceType": "ml.c5.18xlarge"}]
    request["ResourceConfig"] = {"InstancePreferences": preferences, "InstanceCount": 1, "VolumeSizeInGB": 10}
    stage.sagemaker.create_training_job(**request)
    resources = stage.ended(request["TrainingJobName"])["ResourceConfig"]
    assert (resources["SelectedInstanceType"], resources["SelectedInstanceCount"]) == ("ml.c5.18xlarge", 1)
    assert resources["InstancePreferences"] == preferences


def test_a_quota_counts_what_runs_and_what_is_kept(stage):
    """Two at once and no third; a kept pool counts too, but for the job that takes it over."""
    role = ROLE.format("quota")
    stage.inject("quota", InstanceType="ml.m5.4xlarge", Limit=1)
    first = stage.create(RoleArn=role, ResourceConfig=on("ml.m5.4xlarge", KeepAlivePeriodInSeconds=600))
    with pytest.raises(stage.sagemaker.exceptions.ResourceLimitExceeded, match="is 1 Instances.* utilization of 1"):
        stage.create(ResourceConfig=on("ml.m5.4xlarge"))
    stage.ended(first)
    until(lambda: stage.describe(first).get("WarmPoolStatus", {}).get("Status") == "Available")
    with pytest.raises(stage.sagemaker.exceptions.ResourceLimitExceeded):
        stage.create(ResourceConfig=on("ml.m5.4xlarge"))
    second = stage.create(RoleArn=role, ResourceConfig=on("ml.m5.4xlarge"))
    stage.ended(second)
    assert job_from(stage.describe(first)).pool == WarmPool("Reused", 0, second)
    stage.inject("quota", InstanceType="ml.m5.4xlarge")
    assert stage.run(ResourceConfig=on("ml.m5.4xlarge", 3))["TrainingJobStatus"] == "Completed"


def test_a_quota_of_nothing_is_read_as_one_that_never_heals(stage):
    """And one that is only in use is not."""
    stage.inject("quota", InstanceType="ml.p5.48xlarge", Limit=0)
    with pytest.raises(ClientError) as refused:
        stage.create(ResourceConfig=on("ml.p5.48xlarge", 2))
    quota = find_missing_quota(str(refused.value))
    assert quota
    assert (quota.name, quota.limit, quota.needed) == ("ml.p5.48xlarge for training job usage", 0, 2)
    stage.inject("resource_limit", Count=1)
    with pytest.raises(ClientError) as busy:
        stage.create(ResourceConfig=on("ml.p4d.24xlarge", 2))
    assert find_missing_quota(str(busy.value)) is None


def test_a_retry_of_sagemakers_own_is_told_from_a_spot_interruption(stage):
    """The histories that the two leave are read as what they are."""
    retried = stage.create("sleep 600", RetryStrategy={"MaximumRetryAttempts": 2})
    stage.training(retried)
    stage.inject("internal_error", TrainingJobName=retried)
    job = job_from(stage.reached(retried, lambda d: steps(d).count("Training") == 2))
    assert dict(job.repaired.counts) == {SelfRepair.RETRY: 1}
    spot = stage.create(
        "sleep 600",
        EnableManagedSpotTraining=True,
        StoppingCondition={"MaxRuntimeInSeconds": 600, "MaxWaitTimeInSeconds": 900},
    )
    stage.training(spot)
    stage.inject("interrupt", TrainingJobName=spot, WaitSeconds=0.1)
    job = job_from(stage.reached(spot, lambda d: steps(d).count("Training") == 2))
    assert dict(job.repaired.counts) == {SelfRepair.SPOT: 1}
    assert job.repaired.seconds > 0
    for name in (retried, spot):
        stage.inject("kill", TrainingJobName=name)
        stage.ended(name)
