"""Every injection and what the platform makes of it."""

import json

import pytest

from local.sagemaker.control import InjectionRefused
from tests.local.sagemaker.stage import BUCKET, steps, until

pytestmark = pytest.mark.slow

INTERNAL_ERROR = "InternalServerError: We encountered an internal error.  Please try again."
SPOT = {"EnableManagedSpotTraining": True, "StoppingCondition": {"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 60}}


# The folder of an attempt is fresh, so a file outside it tells the second attempt from the first.
def test_kill(stage):
    """All processes of one host are killed: the job fails with 137, as after the out-of-memory killer."""
    job = stage.create("sleep 600 & sleep 600", ResourceConfig={"InstanceCount": 2})
    stage.training(job)
    stage.inject("kill", TrainingJobName=job, Host="algo-2")
    described = stage.ended(job)
    assert described["FailureReason"] == "AlgorithmError: , exit code: 137"


def test_retries_used_up(stage):
    """The internal error after the last retry fails the job."""
    job = stage.create("sleep 600", RetryStrategy={"MaximumRetryAttempts": 1})
    for attempt in (1, 2):
        stage.reached(job, lambda d, n=attempt: d["SecondaryStatus"] == "Training" and steps(d).count("Training") == n)
        stage.inject("internal_error", TrainingJobName=job)
    assert stage.ended(job)["FailureReason"] == INTERNAL_ERROR


def test_spot_notice(patient_stage, tmp_path):
    """Reclaimed instances are told by SIGTERM: what is saved and synced then is what the same job starts anew with."""
    script = """
        [ -f {flag} ] && cp -r $SAGEMAKER_BASE_DIR/checkpoints {flag}-restored && exit 0
        trap 'echo 2 > $SAGEMAKER_BASE_DIR/checkpoints/at-notice; sleep 0.4; exit 0' TERM
        echo 1 > $SAGEMAKER_BASE_DIR/checkpoints/periodic; touch {flag}
        while :; do sleep 0.05; done"""
    stage, flag, uri = patient_stage, tmp_path / "flag", f"s3://{BUCKET}/spot/"
    job = stage.create(script.format(flag=flag), CheckpointConfig={"S3Uri": uri}, **SPOT)
    stage.training(job)
    until(flag.exists)
    stage.inject("interrupt", TrainingJobName=job, WaitSeconds=0.1)
    described = stage.ended(job)
    assert steps(described).count("Training") == 2
    assert described["SecondaryStatusTransitions"][3]["Status"] == "Interrupted"
    assert {path.name for path in (tmp_path / "flag-restored").iterdir()} == {"periodic", "at-notice"}


def test_stop_while_interrupted(stage):
    """A stop wins over the platform's own repair: the job ends as Stopped and does not train again."""
    job = stage.create("sleep 600", **SPOT)
    stage.training(job)
    stage.inject("interrupt", TrainingJobName=job, WaitSeconds=60)
    stage.reached(job, lambda d: d["SecondaryStatus"] == "Interrupted")
    stage.stop(job)
    assert steps(stage.ended(job))[3:] == ["Interrupted", "Stopping", "Stopped"]


def test_spot_wait_exceeded(stage):
    """A spot job that does not get its instances back in time is stopped."""
    stopping = {"MaxRuntimeInSeconds": 1, "MaxWaitTimeInSeconds": 1}
    job = stage.create("trap 'exit 0' TERM; while :; do sleep 0.05; done", **SPOT | {"StoppingCondition": stopping})
    stage.training(job)
    stage.inject("interrupt", TrainingJobName=job, WaitSeconds=60)
    described = stage.ended(job)
    assert (described["TrainingJobStatus"], described["SecondaryStatus"]) == ("Stopped", "MaxWaitTimeExceeded")


def test_capacity_wait(stage):
    """A job may wait as Pending and then get its instances."""
    stage.inject("capacity", Count=1, WaitSeconds=0.2, Granted=True)
    described = stage.run()
    assert steps(described)[:4] == ["Starting", "Pending", "Starting", "Downloading"]
    assert described["TrainingJobStatus"] == "Completed"


def test_resource_limit(stage):
    """CreateTrainingJob is refused and leaves no job behind."""
    stage.inject("resource_limit", Count=1)
    request = stage.request()
    with pytest.raises(stage.sagemaker.exceptions.ResourceLimitExceeded, match="account-level service limit"):
        stage.sagemaker.create_training_job(**request)
    stage.sagemaker.create_training_job(**request)
    stage.ended(request["TrainingJobName"])


def test_a_refusal_may_be_for_some_jobs_alone(stage):
    """Those whose names begin so are refused or find no machines; the others do not use the fault up."""
    stage.inject("resource_limit", Count=1, TrainingJobName="ours")
    stage.inject("capacity", Count=1, TrainingJobName="ours")
    other = stage.create(TrainingJobName="theirs-1")
    with pytest.raises(stage.sagemaker.exceptions.ResourceLimitExceeded):
        stage.create(TrainingJobName="ours-1")
    assert stage.ended(other)["TrainingJobStatus"] == "Completed"
    assert "CapacityError" in stage.ended(stage.create(TrainingJobName="ours-1"))["FailureReason"]


STEP = {"MetricDefinitions": [{"Name": "step", "Regex": r"step=(\d+)"}]}
# Saves and prints one step, then waits for a file before it prints the next.
STEPS = (
    "echo 1 > $SAGEMAKER_BASE_DIR/checkpoints/one; echo step=1; "
    "while [ ! -f {go} ]; do sleep 0.01; done; echo step=2; sleep 600"
)


def test_a_fault_comes_at_a_step(stage, tmp_path):
    """It waits for the last of its jobs, some of which do not exist yet, and until what was saved is in S3."""
    saved = {"CheckpointConfig": {"S3Uri": f"s3://{BUCKET}/at"}, "AlgorithmSpecification": STEP}
    first = stage.create(STEPS.format(go=tmp_path / "go"), **saved)
    later = stage.request(STEPS.format(go=tmp_path / "go"), **saved)
    names = [first, later["TrainingJobName"]]
    faults = [{"Fault": "internal_error", "TrainingJobName": names[0]}, {"Fault": "stop", "TrainingJobName": names[1]}]
    stage.inject("at", TrainingJobNames=names, Step=2, Faults=faults)
    stage.sagemaker.create_training_job(**later)
    for job in names:
        stage.reached(job, lambda d: d["SecondaryStatus"] == "Training" and metric(d, "step") == 1)
    (tmp_path / "go").touch()
    assert stage.ended(names[0])["FailureReason"] == INTERNAL_ERROR
    assert stage.ended(names[1])["TrainingJobStatus"] == "Stopped"
    assert stage.keys("at/") == {"one"}


def metric(described, name):
    return next(
        (data["Value"] for data in described.get("FinalMetricDataList", []) if data["MetricName"] == name), None
    )


def statuses(stage, job):
    return [json.loads(entry["Detail"])["SecondaryStatus"] for entry in stage.events_of(job)]


def test_event_delivery(make_stage):
    """Events get lost, come twice, or come late, as AWS allows itself."""
    stage = make_stage()
    stage.inject("events", Loss=2)
    job = stage.create()
    stage.ended(job)
    assert statuses(stage, job) == ["Starting", "Training", "Completed"]
    stage.inject("events", Loss=0, Repeat=1)
    job = stage.create()
    stage.ended(job)
    assert statuses(stage, job)[:4] == ["Starting", "Starting", "Downloading", "Downloading"]
    stage.inject("events", Repeat=0, Delay=1)
    job = stage.create()
    stage.ended(job)
    assert statuses(stage, job) == []
    until(lambda: len(statuses(stage, job)) == 5)


@pytest.mark.parametrize(
    ("fault", "fields", "message"),
    [
        ("earthquake", {}, "Fault must be one of"),
        ("throttle", {"Operation": "Nothing"}, "Operation must be one of"),
        ("capacity", {"Count": "many"}, "Count must be a number"),
        ("kill", {"TrainingJobName": "never-heard-of"}, "Requested resource not found"),
        ("at", {"TrainingJobNames": "job", "Step": 1, "Faults": []}, "TrainingJobNames must be a list"),
        ("at", {"TrainingJobNames": ["job"], "Step": 1, "Faults": ["kill"]}, "Faults must be a list"),
        ("at", {"TrainingJobNames": ["job"], "Step": 1, "Faults": [{"Fault": "flood"}]}, "Fault must be one of"),
        ("at", {"TrainingJobNames": ["job"], "Faults": []}, "Step must be a number"),
    ],
)
def test_refused(stage, fault, fields, message):
    """An injection that makes no sense says why."""
    with pytest.raises(InjectionRefused, match=message):
        stage.inject(fault, **fields)
