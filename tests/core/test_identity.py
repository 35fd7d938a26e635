"""A job is the task's own if it runs the same program on the same data; role, machines and limits may differ."""

import copy

import pytest

from rerail.requests.identity import find_difference, make_digest
from rerail.requests.supervised import CHANNEL, supervised

PLACE = {"data": "s3://b/data/"}


def make_channel(name, uri):
    return {"ChannelName": name, "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": uri}}}


REQUEST = {
    "TrainingJobName": "c-train-1",
    "AlgorithmSpecification": {"TrainingImage": "image", "ContainerEntrypoint": ["python", "train.py"]},
    "HyperParameters": {"sagemaker_submit_directory": "s3://b/code/1/source.tar.gz", "lr": "0.1"},
    "Environment": {"SEED": "1"},
    "InputDataConfig": [make_channel("data", PLACE["data"]), make_channel(CHANNEL, "s3://b/agent/1/")],
    "OutputDataConfig": {"S3OutputPath": "s3://b/output/"},
    "CheckpointConfig": {"S3Uri": "s3://b/checkpoints/"},
    "RoleArn": "role",
}


def change(path, value):
    """Return the request with the value at this path."""
    request = copy.deepcopy(REQUEST)
    place = request
    *parents, last = path
    for name in parents:
        place = place[name]
    place[last] = value
    return request


def test_what_each_run_gets_anew_is_no_difference():
    started = supervised(REQUEST, environment={"RERAIL_EXECUTION": "arn"})
    started |= {"RoleArn": "other", "ResourceConfig": {"InstanceCount": 2}}
    assert started["Environment"].keys() > {"SEED", "RERAIL_EXECUTION"}
    assert find_difference(REQUEST, started, PLACE) == "" and make_digest(REQUEST) == make_digest(started)


@pytest.mark.parametrize("suffix", ["eu-west-1.amazonaws.com", "cn-north-1.amazonaws.com.cn"])
def test_another_build_of_the_same_folder_is_no_difference(suffix):
    """The preview names a tag, the job the digest that was pushed."""
    repository = f"111122223333.dkr.ecr.{suffix}/rerail-submit"
    place = ("AlgorithmSpecification", "TrainingImage")
    tagged, pushed = change(place, f"{repository}:0123"), change(place, f"{repository}@sha256:4567")
    assert find_difference(tagged, pushed, PLACE) == ""
    assert find_difference(tagged, change(place, f"mallory.io/{repository}:0123"), PLACE) == "another image"


@pytest.mark.threat("T35")
@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("AlgorithmSpecification", "TrainingImage"), "mallory", "another image"),
        (("AlgorithmSpecification", "ContainerEntrypoint"), ["sh"], "another entry point"),
        (("HyperParameters", "sagemaker_submit_directory"), "s3://mallory/code/1/source.tar.gz", "another code"),
        (("HyperParameters", "lr"), "9", "another hyperparameter lr"),
        (("Environment", "LD_PRELOAD"), "/opt/ml/input/data/x.so", "another environment LD_PRELOAD"),
        (("OutputDataConfig", "S3OutputPath"), "s3://mallory/output/", "another output bucket"),
        (("CheckpointConfig", "S3Uri"), "s3://mallory/checkpoints/", "another checkpoint bucket"),
        (("InputDataConfig", 1), make_channel(CHANNEL, "s3://mallory/agent/1/"), f"another channel {CHANNEL}"),
        (("InputDataConfig", 1), make_channel("more", "s3://b/more/"), f"another channel more, channel {CHANNEL}"),
        (("InputDataConfig", 0), make_channel("data", "s3://mallory/"), "it reads data from s3://mallory/"),
    ],
)
def test_another_program_or_other_data_is_named(path, value, said):
    found = change(path, value)
    assert find_difference(REQUEST, found, PLACE) == said
    assert (make_digest(found) == make_digest(REQUEST)) == said.startswith("it reads")
