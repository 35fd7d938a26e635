"""What a task's result depends on, and how a difference reads."""

import hashlib
import json
from dataclasses import replace

import pytest

from cli.chains.fingerprints import (
    TaskFacts,
    explain_arguments,
    explain_changes,
    list_options,
    make_fingerprint,
    make_run_name,
    read_facts,
)
from cli.names import ATTEMPT
from rerail.model.run import make_run_id

FACTS = TaskFacts(
    code="c1",
    arguments=("--lr", "0.1"),
    options={"image": "one", "environment A": "1"},
    inputs={"data": "run c-a-1 a.output", "more": "files 1"},
    files={"train.py": "1", "model.py": "1"},
)


@pytest.mark.parametrize(
    "now, reason",
    [
        (replace(FACTS, arguments=("--lr", "0.2"), code="c2"), "arguments changed: --lr 0.1 -> 0.2"),
        (replace(FACTS, code="c2", files={**FACTS.files, "train.py": "2"}), "code changed: train.py"),
        (replace(FACTS, code="c2", files={"train.py": "1", "new.py": "1"}), "code changed: model.py, new.py"),
        (replace(FACTS, code="c2"), "code changed"),
        (replace(FACTS, options={"image": "two"}), "environment A changed; image changed: one -> two"),
        (replace(FACTS, inputs={**FACTS.inputs, "more": "files 2"}), "input more changed"),
        (
            replace(FACTS, inputs={"data": "run c-a-2 a.output"}),
            "input data changed: another a.output (c-a-2); input more is gone",
        ),
        (replace(FACTS, repetition=1), "asked for again"),
    ],
)
def test_each_difference_has_a_reason_and_another_fingerprint(now, reason):
    assert explain_changes(FACTS, now) == reason
    assert make_fingerprint("c", "t", FACTS) != make_fingerprint("c", "t", now)


def test_equal_facts_are_the_same_run_whatever_their_order():
    again = replace(FACTS, options=dict(reversed(FACTS.options.items())), files={})
    assert make_fingerprint("c", "t", FACTS) == make_fingerprint("c", "t", again)
    assert len({make_fingerprint(*names, FACTS) for names in (("c", "t"), ("c", "u"), ("d", "t"))}) == 3


def test_facts_survive_json_and_fields_of_later_versions():
    plain = json.loads(json.dumps(FACTS.to_plain())) | {"later": 1}
    assert read_facts(plain) == FACTS


@pytest.mark.parametrize(
    "before, now, reason",
    [
        (["--a", "1", "--fast"], ["--a", "1"], "--fast is gone"),
        (["--a=1"], ["--a=2", "--b"], "--a 1 -> 2, --b is new"),
        (["x.csv", "--a", "1"], ["y.csv", "--a", "1"], "x.csv --a 1 -> y.csv --a 1"),
        (["--a", "1", "--b", "2"], ["--b", "2", "--a", "1"], "--a 1 --b 2 -> --b 2 --a 1"),
        ([], ["run me"], "none -> 'run me'"),
    ],
)
def test_arguments_that_differ_are_named(before, now, reason):
    assert explain_arguments(before, now) == reason


def test_a_run_name_leaves_room_for_its_attempts():
    name = make_run_name("c" * 19 + "-" + "x" * 20, "t" * 40, "f" * 64)
    assert make_run_id(name) == name and "--" not in name
    assert not ATTEMPT.search(make_run_name("c", "t", "a" + "1" * 63))


def test_what_does_not_change_a_result_is_not_among_the_options():
    """Names, roles, addresses, tags, limits, disks and metrics may change; machines and environment may not."""
    request = {
        "TrainingJobName": "n",
        "RoleArn": "r",
        "AlgorithmSpecification": {"TrainingImage": "i", "ContainerEntrypoint": ["python", "/x/mode.py"],
                                   "MetricDefinitions": [{"Name": "loss", "Regex": "(x)"}]},
        "HyperParameters": {"sagemaker_program": '"train.py"', "sagemaker_job_name": '"n"', "lr": "1",
                            "sagemaker_rerail_script": '"train.py"',
                            "sagemaker_submit_directory": '"s3://b/rerail/code/abc/sourcedir.tar.gz"'},
        "InputDataConfig": [
            {"ChannelName": "data", "DataSource": {"S3DataSource": {"S3Uri": "s3://a/", "S3DataType": "S3Prefix"}}},
            {"ChannelName": "rerail", "DataSource": {"S3DataSource": {"S3Uri": "s3://wheel"}}},
        ],
        "OutputDataConfig": {"S3OutputPath": "s3://b/rerail/n/output/"},
        "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 2, "VolumeSizeInGB": 30},
        "StoppingCondition": {"MaxRuntimeInSeconds": 1},
        "CheckpointConfig": {"S3Uri": "s3://b/rerail/n/checkpoints/"},
        "Environment": {"A": "1"},
        "Tags": [{"Key": "team", "Value": "x"}],
    }  # fmt: skip
    assert list_options(request, named={"lr": "1"}, entry_point="/x/mode.py") == {
        "image": "i",
        "entry point": "python",
        "instance type": "ml.m5.large",
        "machines": "2",
        "environment A": hashlib.sha256(b"1").hexdigest()[:12],
        "program": '"train.py"',
        "hyperparameter lr": "1",
        "channel data": '{"ChannelName": "data", "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix"}}}',
    }


def test_a_reason_shows_no_secret():
    """The values of variables are not even kept; of arguments, what looks like a secret is hidden."""
    now = replace(FACTS, arguments=("--api-key", "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"))
    assert "abcdefghij" not in explain_changes(FACTS, now)
    assert explain_changes(FACTS, replace(FACTS, options={**FACTS.options, "environment A": "2"})) == (
        "environment A changed"
    )
