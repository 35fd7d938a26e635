"""Machines kept warm, in the deployed stack: whose they are, and when."""

import time

import pytest

from local.stack import ACCOUNT, REGION
from tests.deployed.jobs import Account

pytestmark = pytest.mark.slow


def test_a_crashed_job_is_followed_on_its_own_warm_machines(account: Account):
    """The successor takes them over; after a stop of the owner's own they are the owner's to keep."""

    def pool(job: str) -> dict[str, str]:
        return account.sagemaker.describe_training_job(TrainingJobName=job).get("WarmPoolStatus", {})

    # No other job of the suite has volumes of this size.
    machines = {"VolumeSizeInGB": 31, "KeepAlivePeriodInSeconds": 3600}
    name = account.submit_struck("kept-warm", "kill", steps=10_000, machines=machines)
    second = f"{name}-a002"
    account.wait("the successor", lambda: account.jobs(name) == [name, second])
    assert (pool(name)["Status"], pool(name)["ReusedByJob"]) == ("Reused", second)
    account.run_in(name, "watching")
    account.sagemaker.stop_training_job(TrainingJobName=second)
    account.run_in(name, "stopped")
    assert pool(second)["Status"] in ("Available", "InUse")
    reasons = " ".join(entry.reason for entry in account.runs.timeline(name))
    assert f"attempt 2 goes into the warm pool of {name}" in reasons


def test_the_end_of_a_training_plan_is_no_persons_stop(account: Account):
    """SageMaker stops the job with its capacity: the run is held, and no job is launched on a plan that has ended."""
    plan = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-plan/nights"
    account.inject("plan", TrainingPlanArn=plan, EndTime=time.time() + 3 * 3600)
    name = account.submit("on-a-plan", steps=100_000, machines={"TrainingPlanArn": plan})
    account.run_in(name, "watching")
    account.inject("plan", TrainingPlanArn=plan, EndTime=time.time() + 60)
    account.sagemaker.stop_training_job(TrainingJobName=name)
    run = account.run_in(name, "held")
    assert "its training plan's capacity ended at" in run.hold_reason
    assert account.jobs(name) == [name]
