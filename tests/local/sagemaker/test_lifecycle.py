"""A job's life from Starting to its end: states, events, signals, exit codes, restarts."""

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import replace

import pytest

from local.sagemaker.processes import read_handling
from tests.local.sagemaker.local_api import BUCKET, QUICK, steps, until

pytestmark = pytest.mark.slow

FOREVER = "while :; do sleep 0.05; done"
LISTENS = "touch $SAGEMAKER_BASE_DIR/code/listens; " + FOREVER
HONOURS_SIGTERM = "trap 'echo saved > $SAGEMAKER_BASE_DIR/checkpoints/done; exit 0' TERM; " + LISTENS
ORPHAN = """import os, subprocess, sys, time
code = "import time; time.sleep(600)"
orphan = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdin=subprocess.DEVNULL)
open(os.environ["SAGEMAKER_BASE_DIR"] + "/code/orphan", "w").write(str(orphan.pid))
{then}
"""


def await_handler(api, job):
    """Return when the script of the container runs, with the handler that it has or has not."""
    until((api.base(job) / "code" / "listens").exists)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_success(api):
    """A script that exits with 0 goes through every state and leaves its model in S3."""
    job = api.create("echo weights > $SAGEMAKER_BASE_DIR/model/w; echo report > $SAGEMAKER_BASE_DIR/output/data/r")
    described = api.ended(job)
    assert (described["TrainingJobStatus"], described["SecondaryStatus"]) == ("Completed", "Completed")
    assert steps(described) == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    for step, following in zip(
        described["SecondaryStatusTransitions"], described["SecondaryStatusTransitions"][1:], strict=False
    ):
        assert step["EndTime"] == following["StartTime"]
        assert step["StatusMessage"]
    assert described["CreationTime"] < described["TrainingStartTime"] < described["TrainingEndTime"]
    assert described["ModelArtifacts"]["S3ModelArtifacts"] == f"s3://{BUCKET}/out/{job}/output/model.tar.gz"
    body = api.s3.get_object(Bucket=BUCKET, Key=f"out/{job}/output/model.tar.gz")["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        assert archive.extractfile("w").read() == b"weights\n"
    assert api.keys(f"out/{job}/output/") == {"model.tar.gz", "output.tar.gz"}


def test_events(api):
    """Each change is an event: epoch milliseconds, tags as a map, no CheckpointConfig or Environment, in order."""
    began = time.time()
    job = api.create(
        "exit 0",
        Tags=[{"Key": "rerail:policy", "Value": "standard"}],
        Environment={"A": "b"},
        CheckpointConfig={"S3Uri": f"s3://{BUCKET}/events/"},
    )
    api.ended(job)
    entries = api.events_of(job)
    details = [json.loads(entry["Detail"]) for entry in entries]
    assert [d["SecondaryStatus"] for d in details] == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    assert [d["TrainingJobStatus"] for d in details] == ["InProgress"] * 4 + ["Completed"]
    assert {(entry["Source"], entry["DetailType"]) for entry in entries} == {
        ("aws.sagemaker", "SageMaker Training Job State Change")
    }
    last = details[-1]
    assert int(began * 1000) <= last["CreationTime"] <= time.time() * 1000
    assert isinstance(last["SecondaryStatusTransitions"][0]["StartTime"], int)
    assert last["Tags"] == {"rerail:policy": "standard"}
    assert last["FailureReason"] is None
    assert details[0]["TrainingEndTime"] is None
    assert not {"CheckpointConfig", "Environment"} & last.keys()


def test_container_contract(api):
    """Each host finds its configuration, its channels and a clean environment."""
    api.put("data/train/a.csv", "1,2")
    api.put("data/trainee/b.csv", "no")
    script = "env > $SAGEMAKER_BASE_DIR/code/env; echo $0 $@ > $SAGEMAKER_BASE_DIR/code/argv"
    channel = {
        "ChannelName": "train",
        "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": f"s3://{BUCKET}/data/train/"}},
    }
    os.environ["SECRET_OF_THIS_MACHINE"] = "x"
    try:
        job = api.create(
            script,
            ResourceConfig={"InstanceCount": 2},
            HyperParameters={"lr": "0.1"},
            Environment={"MINE": "yes"},
            InputDataConfig=[channel],
        )
        assert api.ended(job)["TrainingJobStatus"] == "Completed"
    finally:
        del os.environ["SECRET_OF_THIS_MACHINE"]
    environments = []
    for host in ("algo-1", "algo-2"):
        base = api.base(job, host)
        config = {path.stem: json.loads(path.read_text()) for path in (base / "input" / "config").iterdir()}
        assert config["hyperparameters"] == {"lr": "0.1"}
        assert config["inputdataconfig"]["train"]["TrainingInputMode"] == "File"
        assert config["resourceconfig"]["current_host"] == host
        assert config["resourceconfig"]["hosts"] == ["algo-1", "algo-2"]
        assert config["resourceconfig"]["network_interface_name"] == "lo"
        assert config["resourceconfig"]["instance_groups"][0]["instance_group_name"] == "homogeneousCluster"
        assert [p.name for p in (base / "input" / "data" / "train").iterdir()] == ["a.csv"]
        assert (base / "code" / "argv").read_text() == "main train\n"
        environments.append(dict(line.partition("=")[::2] for line in (base / "code" / "env").read_text().splitlines()))
    for environment in environments:
        assert environment["TRAINING_JOB_NAME"] == job
        assert environment["MINE"] == "yes"
        assert environment["AWS_ACCESS_KEY_ID"] == "000000000000"
        assert "SECRET_OF_THIS_MACHINE" not in environment
    assert environments[0]["MASTER_PORT"] == environments[1]["MASTER_PORT"]
    assert environments[0]["SAGEMAKER_BASE_DIR"] != environments[1]["SAGEMAKER_BASE_DIR"]


def test_network_isolation(api):
    """An isolated container has no credentials, no endpoint, and nothing to connect to."""
    job = api.create("env > $SAGEMAKER_BASE_DIR/code/env", EnableNetworkIsolation=True)
    assert api.ended(job)["TrainingJobStatus"] == "Completed"
    lines = (api.base(job) / "code" / "env").read_text().splitlines()
    environment = dict(line.partition("=")[::2] for line in lines)
    assert not {name for name in environment if name.startswith(("AWS_ENDPOINT", "AWS_ACCESS", "AWS_SECRET"))}
    assert environment["AWS_REGION"] == "us-east-1"
    assert environment["HTTPS_PROXY"] == "http://127.0.0.1:9"


def test_a_launcher_finds_the_images_python(api):
    """`python` is the image's interpreter for the entrypoint and for whatever it starts."""
    script = "import os, sys; open(os.environ['SAGEMAKER_BASE_DIR'] + '/code/python', 'w').write(sys.prefix)"
    algorithm = {"ContainerEntrypoint": ["sh", "-c"], "ContainerArguments": [f'python -c "{script}"']}
    job = api.create(AlgorithmSpecification=algorithm)
    assert api.ended(job)["TrainingJobStatus"] == "Completed"
    assert (api.base(job) / "code" / "python").read_text() == sys.prefix


def test_stop_with_handler(patient_api):
    """SIGTERM reaches the entrypoint; what it saves is synced and the job ends as Stopped."""
    api = patient_api
    job = api.create(HONOURS_SIGTERM, CheckpointConfig={"S3Uri": f"s3://{BUCKET}/stop-handler/"})
    api.training(job)
    await_handler(api, job)
    api.stop(job)
    assert api.describe(job)["TrainingJobStatus"] == "Stopping"
    described = api.ended(job)
    assert (described["TrainingJobStatus"], described["SecondaryStatus"]) == ("Stopped", "Stopped")
    assert steps(described) == ["Starting", "Downloading", "Training", "Stopping", "Uploading", "Stopped"]
    assert "FailureReason" not in described
    assert api.keys("stop-handler/") == {"done"}


def test_stop_of_an_entrypoint_that_blocks_the_signal(patient_api):
    """A SIGTERM that comes while the entrypoint blocks it is delivered when it has a handler, as to a real PID 1."""
    api = patient_api
    script = """import os, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
open(os.environ["SAGEMAKER_BASE_DIR"] + "/code/blocked", "w").close()
time.sleep(0.3)
signal.signal(signal.SIGTERM, lambda *_: (open(os.environ["SAGEMAKER_BASE_DIR"] + "/code/heard", "w"), sys.exit(0)))
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
time.sleep(600)
"""
    job = api.create(script)
    until((api.base(job) / "code" / "blocked").exists)
    api.stop(job)
    api.ended(job)
    assert (api.base(job) / "code" / "heard").exists()


def test_handler_and_mask_of_a_signal_come_from_one_moment():
    """A process that sets its handler before it unblocks the signal is never taken for one without a handler."""
    script = """import signal
while True:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, print)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
"""
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        try:
            until(lambda: read_handling(process.pid, signal.SIGTERM)[0])
            assert all(any(read_handling(process.pid, signal.SIGTERM)) for _ in range(5000))
        finally:
            process.kill()


def test_stop_without_handler(api):
    """An entrypoint without a handler is deaf, as PID 1 of a container is: it runs on until SIGKILL ends the grace."""
    job = api.create(LISTENS)
    api.training(job)
    await_handler(api, job)
    begun = time.monotonic()
    api.stop(job)
    assert api.ended(job)["TrainingJobStatus"] == "Stopped"
    assert time.monotonic() - begun >= QUICK.stop_grace


def test_stop_reaches_only_the_entrypoint(api):
    """A child with a handler gets no SIGTERM when the entrypoint does not pass it on."""
    child = f"trap 'touch $SAGEMAKER_BASE_DIR/code/heard' TERM; {LISTENS}"
    job = api.create(f"import subprocess\nsubprocess.run(['sh', '-c', {child!r}])")
    api.training(job)
    await_handler(api, job)
    api.stop(job)
    api.ended(job)
    assert not (api.base(job) / "code" / "heard").exists()


def test_stop_before_training(make_api):
    """A job that is stopped while Starting ends as Stopped without having run."""
    api = make_api(replace(QUICK, start=30))
    job = api.create()
    api.stop(job)
    described = api.ended(job)
    assert steps(described) == ["Starting", "Stopping", "Stopped"]
    assert "TrainingStartTime" not in described


def test_max_runtime(api):
    """MaxRuntimeInSeconds stops a job like StopTrainingJob does, and says so in the secondary status."""
    described = api.run(HONOURS_SIGTERM, StoppingCondition={"MaxRuntimeInSeconds": 1})
    assert (described["TrainingJobStatus"], described["SecondaryStatus"]) == ("Stopped", "MaxRuntimeExceeded")


@pytest.mark.parametrize("seconds", [0.5, 600], ids=["after exit", "after SIGKILL"])
def test_orphans_die(api, seconds):
    """A descendant that left the session dies with the container, however the entrypoint ended."""
    job = api.create(ORPHAN.format(then=f"time.sleep({seconds})"))
    api.training(job)
    path = api.base(job) / "code" / "orphan"
    pid = int(until(lambda: path.exists() and path.read_text()))
    if seconds > 1:
        api.stop(job)
    api.ended(job)
    assert not alive(pid)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 7", "AlgorithmError: , exit code: 7"),
        ("kill -9 $$", "AlgorithmError: , exit code: 137"),
        (
            'printf \'{"cause": "oom"}\' > $SAGEMAKER_BASE_DIR/output/failure; exit 1',
            'AlgorithmError: {"cause": "oom"}, exit code: 1',
        ),
    ],
)
def test_failure(api, script, reason):
    """The exit code and the failure file make the FailureReason; no model is kept."""
    job = api.create(script)
    described = api.ended(job)
    assert (described["TrainingJobStatus"], described["SecondaryStatus"]) == ("Failed", "Failed")
    assert described["FailureReason"] == reason
    assert steps(described) == ["Starting", "Downloading", "Training", "Uploading", "Failed"]
    assert "ModelArtifacts" not in described
    assert json.loads(api.events_of(job)[-1]["Detail"])["FailureReason"] == reason


def test_one_host_fails(api):
    """When a host fails the others are killed, and its exit code decides."""
    script = (
        "grep -q 'current_host\": \"algo-2' $SAGEMAKER_BASE_DIR/input/config/resourceconfig.json && exit 5; sleep 600"
    )
    described = api.run(script, ResourceConfig={"InstanceCount": 2})
    assert described["FailureReason"] == "AlgorithmError: , exit code: 5"


def test_unknown_image(api):
    """An image that no folder stands for fails the job, naming it."""
    algorithm = {"TrainingImage": "000000000000.dkr.ecr.us-east-1.amazonaws.com/unheard-of:1"}
    assert "'unheard-of'" in api.run(AlgorithmSpecification=algorithm)["FailureReason"]
