"""Every injection and what the platform makes of it."""

import json

import pytest

from local.sagemaker.control import InjectionRefused
from tests.local.sagemaker.local_api import BUCKET, steps, until

pytestmark = pytest.mark.slow

INTERNAL_ERROR = "InternalServerError: We encountered an internal error.  Please try again."
SPOT = {"EnableManagedSpotTraining": True, "StoppingCondition": {"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 60}}


# The folder of an attempt is fresh, so a file outside it tells the second attempt from the first.
def test_kill(api):
    """All processes of one host are killed: the job fails with 137, as after the out-of-memory killer."""
    job = api.create("sleep 600 & sleep 600", ResourceConfig={"InstanceCount": 2})
    api.training(job)
    api.inject("kill", TrainingJobName=job, Host="algo-2")
    described = api.ended(job)
    assert described["FailureReason"] == "AlgorithmError: , exit code: 137"


def test_oom(api):
    """As after `kill`, with the reason that a script gives."""
    job = api.create("sleep 600 & sleep 600")
    api.training(job)
    api.inject("oom", TrainingJobName=job)
    assert "CUDA out of memory" in api.ended(job)["FailureReason"]


def test_hang_and_slow(api):
    """A stopped script counts no further; a slowed one counts less often, and both can be ended."""
    counts = "i=0; while :; do i=$((i+1)); echo $i > $SAGEMAKER_BASE_DIR/code/count; sleep 0.01; done"
    script = f"({counts}) & wait"
    hung, slow = api.create(script), api.create(script)
    for job in (hung, slow):
        api.training(job)
        until((api.base(job) / "code" / "count").exists)
    with pytest.raises(InjectionRefused, match="Share must lie between 0 and 1"):
        api.inject("slow", TrainingJobName=slow, Share=2)
    api.inject("hang", TrainingJobName=hung)
    api.inject("slow", TrainingJobName=slow, Share=0.2)
    frozen = (api.base(hung) / "code" / "count").read_text()
    before = _count(api, slow)
    until(lambda: _count(api, slow) > before + 20)  # it goes on
    assert (api.base(hung) / "code" / "count").read_text() == frozen
    for job in (hung, slow):
        api.inject("kill", TrainingJobName=job)
        assert api.ended(job)["TrainingJobStatus"] == "Failed"


def _count(api, job) -> int:
    return int((api.base(job) / "code" / "count").read_text() or 0)


def test_retries_used_up(api):
    """The internal error after the last retry fails the job."""
    job = api.create("sleep 600", RetryStrategy={"MaximumRetryAttempts": 1})
    for attempt in (1, 2):
        api.reached(job, lambda d, n=attempt: d["SecondaryStatus"] == "Training" and steps(d).count("Training") == n)
        api.inject("internal_error", TrainingJobName=job)
    assert api.ended(job)["FailureReason"] == INTERNAL_ERROR


def test_spot_notice(patient_api, tmp_path):
    """Reclaimed instances are told by SIGTERM: what is saved and synced then is what the same job starts anew with."""
    script = """
        [ -f {flag} ] && cp -r $SAGEMAKER_BASE_DIR/checkpoints {flag}-restored && exit 0
        trap 'echo 2 > $SAGEMAKER_BASE_DIR/checkpoints/at-notice; sleep 0.4; exit 0' TERM
        echo 1 > $SAGEMAKER_BASE_DIR/checkpoints/periodic; touch {flag}
        while :; do sleep 0.05; done"""
    api, flag, uri = patient_api, tmp_path / "flag", f"s3://{BUCKET}/spot/"
    job = api.create(script.format(flag=flag), CheckpointConfig={"S3Uri": uri}, **SPOT)
    api.training(job)
    until(flag.exists)
    api.inject("interrupt", TrainingJobName=job, WaitSeconds=0.1)
    described = api.ended(job)
    assert steps(described).count("Training") == 2
    assert described["SecondaryStatusTransitions"][3]["Status"] == "Interrupted"
    assert {path.name for path in (tmp_path / "flag-restored").iterdir()} == {"periodic", "at-notice"}


def test_stop_while_interrupted(api):
    """A stop wins over the platform's own repair: the job ends as Stopped and does not train again."""
    job = api.create("sleep 600", **SPOT)
    api.training(job)
    api.inject("interrupt", TrainingJobName=job, WaitSeconds=60)
    api.reached(job, lambda d: d["SecondaryStatus"] == "Interrupted")
    api.stop(job)
    assert steps(api.ended(job))[3:] == ["Interrupted", "Stopping", "Stopped"]


def test_spot_wait_exceeded(api):
    """A spot job that does not get its instances back in time is stopped."""
    stopping = {"MaxRuntimeInSeconds": 1, "MaxWaitTimeInSeconds": 1}
    job = api.create("trap 'exit 0' TERM; while :; do sleep 0.05; done", **SPOT | {"StoppingCondition": stopping})
    api.training(job)
    api.inject("interrupt", TrainingJobName=job, WaitSeconds=60)
    described = api.ended(job)
    assert (described["TrainingJobStatus"], described["SecondaryStatus"]) == ("Stopped", "MaxWaitTimeExceeded")


def test_capacity_wait(api):
    """A job may wait as Pending and then get its instances."""
    api.inject("capacity", Count=1, WaitSeconds=0.2, Granted=True)
    described = api.run()
    assert steps(described)[:4] == ["Starting", "Pending", "Starting", "Downloading"]
    assert described["TrainingJobStatus"] == "Completed"


def test_resource_limit(api):
    """CreateTrainingJob is refused and leaves no job behind."""
    api.inject("resource_limit", Count=1)
    request = api.request()
    with pytest.raises(api.sagemaker.exceptions.ResourceLimitExceeded, match="account-level service limit"):
        api.sagemaker.create_training_job(**request)
    api.sagemaker.create_training_job(**request)
    api.ended(request["TrainingJobName"])


def test_a_refusal_may_be_for_some_jobs_alone(api):
    """Those whose names begin so are refused or find no machines; the others do not use the fault up."""
    api.inject("resource_limit", Count=1, TrainingJobName="ours")
    api.inject("capacity", Count=1, TrainingJobName="ours")
    other = api.create(TrainingJobName="theirs-1")
    with pytest.raises(api.sagemaker.exceptions.ResourceLimitExceeded):
        api.create(TrainingJobName="ours-1")
    assert api.ended(other)["TrainingJobStatus"] == "Completed"
    assert "CapacityError" in api.ended(api.create(TrainingJobName="ours-1"))["FailureReason"]


STEP = {"MetricDefinitions": [{"Name": "step", "Regex": r"step=(\d+)"}]}
# Saves and prints one step, then waits for a file before it prints the next.
STEPS = (
    "echo 1 > $SAGEMAKER_BASE_DIR/checkpoints/one; echo step=1; "
    "while [ ! -f {go} ]; do sleep 0.01; done; echo step=2; sleep 600"
)


def test_a_fault_comes_at_a_step(api, tmp_path):
    """It waits for the last of its jobs, some of which do not exist yet, and until what was saved is in S3."""
    saved = {"CheckpointConfig": {"S3Uri": f"s3://{BUCKET}/at"}, "AlgorithmSpecification": STEP}
    first = api.create(STEPS.format(go=tmp_path / "go"), **saved)
    later = api.request(STEPS.format(go=tmp_path / "go"), **saved)
    names = [first, later["TrainingJobName"]]
    faults = [{"Fault": "internal_error", "TrainingJobName": names[0]}, {"Fault": "stop", "TrainingJobName": names[1]}]
    api.inject("at", TrainingJobNames=names, Step=2, Faults=faults)
    api.sagemaker.create_training_job(**later)
    for job in names:
        api.reached(job, lambda d: d["SecondaryStatus"] == "Training" and metric(d, "step") == 1)
    (tmp_path / "go").touch()
    assert api.ended(names[0])["FailureReason"] == INTERNAL_ERROR
    assert api.ended(names[1])["TrainingJobStatus"] == "Stopped"
    assert api.keys("at/") == {"one"}


def metric(described, name):
    return next((d["Value"] for d in described.get("FinalMetricDataList", []) if d["MetricName"] == name), None)


def statuses(api, job):
    return [json.loads(entry["Detail"])["SecondaryStatus"] for entry in api.events_of(job)]


def test_event_delivery(make_api):
    """Events get lost, come twice, or come late, as AWS allows itself."""
    api = make_api()
    api.inject("events", Loss=2)
    job = api.create()
    api.ended(job)
    assert statuses(api, job) == ["Starting", "Training", "Completed"]
    api.inject("events", Loss=0, Repeat=1)
    job = api.create()
    api.ended(job)
    assert statuses(api, job)[:4] == ["Starting", "Starting", "Downloading", "Downloading"]
    api.inject("events", Repeat=0, Delay=1)
    job = api.create()
    api.ended(job)
    assert statuses(api, job) == []
    until(lambda: len(statuses(api, job)) == 5)


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
def test_refused(api, fault, fields, message):
    """An injection that makes no sense says why."""
    with pytest.raises(InjectionRefused, match=message):
        api.inject(fault, **fields)
