"""`rerail doctor --job/--run/--request`: can this job be watched, saved and brought back?"""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from moto import mock_aws

from cli.doctor import command, job, quotas, roles, storage
from cli.doctor.check import Check, CheckStatus, ask
from cli.doctor.deployment import Deployment
from cli.doctor.subject import Subject
from cli.place import now
from cli.training_logs import expressions
from rerail.aws.clients import client
from rerail.model.file_copies import FileCopy
from rerail.model.liveness import Phase
from rerail.model.mailbox import Heartbeat, make_heartbeat_key, serialize
from rerail.model.metrics import make_definitions
from rerail.model.run import Attempt, JobStatus, Run, RunState
from tests.aws.places import make_bucket
from tests.cli.cloud import Cloud, Deployed, denied, refused

TRUST = {"Statement": [{"Principal": {"Service": "sagemaker.amazonaws.com"}}]}
REQUEST: dict[str, Any] = {
    "TrainingJobName": "gpt",
    "RoleArn": "arn:aws:iam::1:role/MySageMakerRole",
    "AlgorithmSpecification": {"TrainingImage": "image", "MetricDefinitions": make_definitions()},
    "ResourceConfig": {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2, "VolumeSizeInGB": 30},
    "CheckpointConfig": {"S3Uri": "s3://bucket/gpt/"},
    "StoppingCondition": {"MaxRuntimeInSeconds": 86400},
    "Environment": {"STEPS": "100"},
}
TAGS = {"rerail:policy": "default"}
ALLOWED = {"EvaluationResults": [{"EvalActionName": "s3:PutObject", "EvalDecision": "allowed"}]}
REFUSED = {"EvaluationResults": [{"EvalActionName": "s3:PutObject", "EvalDecision": "implicitDeny"}]}
QUOTAS = {
    "ml.p4d.24xlarge for training job usage": 4.0,
    "ml.p4d.24xlarge for spot training job usage": 1.0,
    "ml.p4d.24xlarge for training warm pool usage": 0.0,
    "ml.p4de.24xlarge for training job usage": 0.0,
}
SOUND: dict[str, Any] = {
    "logs.describe_log_groups": {"logGroups": [{"logGroupName": "/aws/sagemaker/TrainingJobs"}]},
    "s3.get_bucket_location": {"LocationConstraint": "eu-west-1"},
    "s3.get_bucket_lifecycle_configuration": refused("NoSuchLifecycleConfiguration"),
    "s3.get_bucket_versioning": {},
    "s3.get_bucket_encryption": refused("ServerSideEncryptionConfigurationNotFoundError"),
    "iam.get_role": {"Role": {"AssumeRolePolicyDocument": TRUST}},
    "iam.simulate_principal_policy": ALLOWED,
    "lambda.get_function": {"Configuration": {"Role": "arn:aws:iam::1:role/Supervise"}},
    "service-quotas.list_service_quotas": {"Quotas": [{"QuotaName": key, "Value": n} for key, n in QUOTAS.items()]},
}


@pytest.fixture(autouse=True)
def deployed():
    """A default policy, a mailbox, and what the core's own adapters read."""
    with mock_aws():
        client("ssm").put_parameter(Name="/rerail/policies/default", Value='mode = "act"', Type="String")
        client("ssm").put_parameter(Name="/rerail/policies/watching", Value='mode = "observe"', Type="String")
        fallbacks = '[capacity]\nfallbacks = ["ml.p4de.24xlarge"]'
        client("ssm").put_parameter(Name="/rerail/policies/falling", Value=fallbacks, Type="String")
        make_bucket("mailbox")
        yield


def subject(request: Mapping[str, Any] | None = None, answers: Mapping[str, Any] | None = None, **more: Any) -> Subject:
    deployment = Deployment(Deployed(Cloud({**SOUND, **(answers or {})}), is_local=more.pop("is_local", False)))
    return Subject(deployment, {**REQUEST, **(request or {})}, **{"tags": TAGS, **more})


def asked(*given: Any, **more: Any) -> dict[str, Check]:
    return {check.name: check for check in ask("job", command.OF_A_JOB, subject(*given, **more))}


def test_a_sound_request_is_sound_in_every_point():
    answers = asked()
    assert {name: check.said for name, check in answers.items() if check.verdict is not CheckStatus.OK} == {}
    assert {"supervision", "metrics", "checkpoint bucket", "role is passed", "machine quota"} <= answers.keys()


IMAGE = "763104351884.dkr.ecr.eu-west-1.amazonaws.com/pytorch-training:2.8.0-gpu-py312"
NETWORK = {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]}
MOUNTED = {"Lifecycle": "AVAILABLE", "LustreConfiguration": {"MountName": "mount"}}
LUSTRE = {
    "ChannelName": "train",
    "DataSource": {
        "FileSystemDataSource": {
            "FileSystemId": "fs-01234567",
            "FileSystemType": "FSxLustre",
            "DirectoryPath": "/mount/set",
            "FileSystemAccessMode": "ro",
        }
    },
}


def test_a_mounted_file_system_and_an_image_of_ecr_are_looked_up():
    """In the account that the image's address names, and in the VPC of the request."""
    request = {"InputDataConfig": [LUSTRE], "VpcConfig": NETWORK, "AlgorithmSpecification": {"TrainingImage": IMAGE}}
    answers = asked(request, {"fsx.describe_file_systems": {"FileSystems": [MOUNTED]}})
    for name in ("file systems", "role pulls", "role joins vpc", "role logs"):
        assert answers[name].verdict is CheckStatus.OK, answers[name]
    assert not {"file systems", "role pulls", "role joins vpc"} & asked().keys(), "nothing to look up"


FILES = {"InputDataConfig": [LUSTRE], "VpcConfig": NETWORK}
ENCRYPTED = {
    "ServerSideEncryptionConfiguration": {"Rules": [{"ApplyServerSideEncryptionByDefault": {"KMSMasterKeyID": "k1"}}]}
}
KEY = {"KeyState": "Enabled", "Arn": "arn:aws:kms:eu-west-1:1:key/k1"}


def when(operation: str, answer: Any) -> dict[str, Any]:
    return {"answers": {operation: answer}}


def mounted(**facts: Any) -> dict[str, Any]:
    return when("fsx.describe_file_systems", {"FileSystems": [{**MOUNTED, **facts}]})


def on(count: int, **facts: Any) -> dict[str, Any]:
    return {"ResourceConfig": {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": count, **facts}}


def runs_for(seconds: int) -> dict[str, Any]:
    return {"StoppingCondition": {"MaxRuntimeInSeconds": seconds}}


def on_image(image: str) -> dict[str, Any]:
    return {"AlgorithmSpecification": {"TrainingImage": image}}


def reads(**metrics: str) -> dict[str, Any]:
    return {"AlgorithmSpecification": {"MetricDefinitions": [{"Name": k, "Regex": v} for k, v in metrics.items()]}}


MAY_NOT = when("iam.simulate_principal_policy", REFUSED)
NO_PASS = {"EvaluationResults": [{"EvalActionName": "iam:PassRole", "EvalDecision": "implicitDeny"}]}
DISABLED_KEY = {
    "answers": {
        "s3.get_bucket_encryption": ENCRYPTED,
        "kms.describe_key": {"KeyMetadata": {**KEY, "KeyState": "Disabled"}},
    }
}
BROKEN: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "no_tag": ("supervision", {}, {"tags": {}}),
    "a_tag_of_somebody_elses_run": ("supervision", {}, {"tags": {**TAGS, "rerail:run": "bert"}}),
    "a_job_of_a_tuner": ("supervision", {"TuningJobArn": "arn"}, {}),
    "a_name_that_is_none": ("name", {"TrainingJobName": "gpt_"}, {}),
    "a_policy_that_is_not_there": ("policy", {}, {"tags": {"rerail:policy": "defualt"}}),
    "no_checkpoints": ("checkpoints", {"CheckpointConfig": None}, {}),
    "a_run_that_is_too_short": ("max runtime", runs_for(300), {}),
    "a_run_that_is_too_long": ("max runtime", runs_for(10**7), {}),
    "a_warm_pool_of_spot_machines": (
        "keep alive",
        {"EnableManagedSpotTraining": True, "ResourceConfig": {"KeepAlivePeriodInSeconds": 600}},
        {},
    ),
    "no_room_in_environment": ("room", {"Environment": {f"V{n}": "" for n in range(98)}}, {}),
    "a_value_that_is_too_long": ("room", {"Environment": {"V": "x" * 513}}, {}),
    "no_room_for_tags": ("room", {}, {"tags": {**TAGS, **{f"t{n}": "" for n in range(48)}}}),
    "an_expression_that_does_not_compile": ("metrics", reads(loss="(["), {}),
    "an_expression_without_a_group": ("metrics", reads(loss="loss=[0-9.]+", step="step=([0-9]+)"), {}),
    "an_expression_that_cuts_small_losses": ("metrics", reads(loss="loss: ([0-9.]+)", step="step=([0-9]+)"), {}),
    "no_bucket": ("checkpoint bucket", {}, when("s3.get_bucket_location", refused("NoSuchBucket"))),
    "a_bucket_elsewhere": ("checkpoint bucket", {}, when("s3.get_bucket_location", {"LocationConstraint": None})),
    "a_key_that_is_disabled": ("checkpoint key", {}, DISABLED_KEY),
    "a_role_that_is_not_there": ("role", {}, when("iam.get_role", refused("NoSuchEntity"))),
    "a_role_that_sagemaker_may_not_take_on": (
        "role",
        {},
        when("iam.get_role", {"Role": {"AssumeRolePolicyDocument": {}}}),
    ),
    "a_role_that_may_not_be_passed": ("role is passed", {}, when("iam.simulate_principal_policy", NO_PASS)),
    "a_role_that_may_not_save": ("role saves", {}, MAY_NOT),
    "a_role_that_may_not_pull_its_image": ("role pulls", on_image(IMAGE), MAY_NOT),
    "an_image_of_another_region": ("role pulls", on_image(IMAGE.replace("eu-west-1", "us-east-1")), {}),
    "a_role_that_may_not_join_its_vpc": ("role joins vpc", {"VpcConfig": NETWORK}, MAY_NOT),
    "a_file_system_without_a_vpc": ("file systems", {"InputDataConfig": [LUSTRE]}, {}),
    "a_file_system_that_is_gone": (
        "file systems",
        FILES,
        when("fsx.describe_file_systems", refused("FileSystemNotFound")),
    ),
    "a_file_system_that_is_not_ready": ("file systems", FILES, mounted(Lifecycle="CREATING")),
    "a_folder_without_the_mount_name": ("file systems", FILES, mounted(LustreConfiguration={"MountName": "abcdef01"})),
    "checkpoints_that_rerail_may_not_read": ("supervisor reads", {}, MAY_NOT),
    "too_few_machines": ("machine quota", on(8), {}),
    "too_few_spot_machines": ("machine quota", {"EnableManagedSpotTraining": True}, {}),
    "no_quota_for_the_warm_pool": ("warm pool quota", on(2, KeepAlivePeriodInSeconds=600), {}),
}


@pytest.mark.parametrize("name, request_, more", BROKEN.values(), ids=list(BROKEN))
def test_what_is_broken_is_named_with_its_remedy(name, request_, more):
    answers = asked(request_, **more)
    assert answers[name].verdict is CheckStatus.BROKEN, answers[name]
    assert answers[name].remedy


UNUSABLE_KEY = {
    "answers": {
        "s3.get_bucket_encryption": ENCRYPTED,
        "kms.describe_key": {"KeyMetadata": KEY},
        "iam.simulate_principal_policy": REFUSED,
    }
}
LOGS = {"logGroupName": "/aws/sagemaker/TrainingJobs", "retentionInDays": 3}
WARNED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "a_key_that_rerail_may_not_use": ("supervisor decrypts", {}, UNUSABLE_KEY),
    "a_policy_that_only_watches": ("policy", {}, {"tags": {"rerail:policy": "watching"}}),
    "no_metrics": ("metrics", {"AlgorithmSpecification": {}}, {}),
    "no_flag_for_nan": ("metrics", {"AlgorithmSpecification": {"MetricDefinitions": make_definitions()[:3]}}, {}),
    "an_isolated_container": ("agent", {"EnableNetworkIsolation": True}, {}),
    "a_name_that_will_be_shortened": ("name", {"TrainingJobName": "g" * 63}, {}),
    "no_runtime": ("max runtime", {"StoppingCondition": {}}, {}),
    "logs_that_are_soon_gone": ("logs", {}, when("logs.describe_log_groups", {"logGroups": [LOGS]})),
    "a_deaf_agent": ("role reports", {}, MAY_NOT),
    "a_role_that_may_write_no_log": ("role logs", {}, MAY_NOT),
    "fallbacks_without_a_quota": ("fallback quotas", {}, {"tags": {"rerail:policy": "falling"}}),
}


@pytest.mark.parametrize("name, request_, more", WARNED.values(), ids=list(WARNED))
def test_a_questionable_setting_is_a_warning(name, request_, more):
    answers = asked(request_, **more)
    assert answers[name].verdict is CheckStatus.WARN, answers[name]
    assert answers[name].remedy


@pytest.mark.parametrize(
    ("machines", "retries", "verdict"), [(8, 0, "OK"), (9, 29, "WARN"), (9, 30, "OK"), (8, 4, "WARN")]
)
def test_the_retries_by_sagemaker_fit_the_number_of_machines(machines, retries, verdict):
    request = {
        "ResourceConfig": {**REQUEST["ResourceConfig"], "InstanceCount": machines},
        "RetryStrategy": {"MaximumRetryAttempts": retries},
    }
    assert asked(request)["retries"].verdict is CheckStatus[verdict]


@pytest.mark.parametrize("operation", sorted(SOUND))
def test_a_lacking_permission_is_named_and_ends_nothing(operation):
    answers = asked({"ResourceConfig": {**REQUEST["ResourceConfig"], "InstanceCount": 1}}, {operation: denied("a:B")})
    unknown = [check for check in answers.values() if check.verdict is CheckStatus.UNKNOWN]
    assert unknown and all("a:B" in check.said for check in unknown)
    assert all(check.verdict in (CheckStatus.OK, CheckStatus.UNKNOWN) for check in answers.values())


def slash(objects: Mapping[str, Any]) -> Check | None:
    uri = {"CheckpointConfig": {"S3Uri": "s3://bucket/runs/a-1"}}
    return job.checkpoint_slash(subject(uri, {"s3.list_objects_v2": objects}))


def test_a_folder_without_a_slash_takes_its_neighbours_too():
    """runs/a-1 is restored with runs/a-10 where that is there; else it is only a matter of time."""
    neighbours = slash({"CommonPrefixes": [{"Prefix": "runs/a-1/"}, {"Prefix": "runs/a-10/"}]})
    assert neighbours and neighbours.verdict is CheckStatus.BROKEN and "runs/a-10/" in neighbours.said
    alone = slash({"CommonPrefixes": [{"Prefix": "runs/a-1/"}]})
    assert alone and alone.verdict is CheckStatus.WARN and "s3://bucket/runs/a-1/" in alone.remedy


@pytest.mark.threat("T14")
def test_what_others_have_written_is_one_line_and_takes_limited_time(monkeypatch):
    """An object's name that looks like a line of the doctor's, and an expression of 30 characters that takes days."""
    monkeypatch.setattr(expressions, "WITHIN_S", 1.0)
    definitions = [{"Name": "loss", "Regex": r"(?!.*(?:a|a)+b)(\d)a{60}"}]
    named = {"Contents": [{"Key": "gpt\n  ok      people     7 subscribers are paged"}]}
    answers = asked(
        {
            "AlgorithmSpecification": {"TrainingImage": "image", "MetricDefinitions": definitions},
            "CheckpointConfig": {"S3Uri": "s3://bucket/gpt"},
        },
        {"s3.list_objects_v2": named},
    )
    assert "takes more than 1 s" in answers["metrics"].said
    assert not any("\n" in check.said + check.remedy for check in answers.values())


def test_a_file_that_may_not_be_copied_is_named_with_what_to_do():
    """A script with one file: without copies a torn one ends the run."""
    at = datetime(2026, 1, 31, tzinfo=UTC)
    problem = "Rerail may not change the folder. To do: deploy with that folder"
    run = Run("gpt", "default", RunState.WATCHING, at, (Attempt(1, "gpt", copy_problem=problem),))
    warned = storage.file_copies(subject(run=run))
    assert warned and (warned.verdict, warned.remedy) == (CheckStatus.WARN, "deploy with that folder")
    copied = replace(run, attempts=(Attempt(1, "gpt"),), copies=(FileCopy("a.pt", "k", "e", 1, at, 1),))
    found = storage.file_copies(subject(run=copied))
    assert found and found.verdict is CheckStatus.OK and "overwrites: 1;" in found.said
    assert storage.file_copies(subject(run=replace(copied, copies=()))) is None


def expiry(runtime_s: int, *rules: Mapping[str, Any]) -> Check | None:
    request = {"StoppingCondition": {"MaxRuntimeInSeconds": runtime_s}}
    return storage.checkpoint_expiry(subject(request, {"s3.get_bucket_lifecycle_configuration": {"Rules": rules}}))


@pytest.mark.parametrize(
    "rule, verdict",
    [
        ({"Filter": {"Prefix": ""}, "Expiration": {"Days": 1}}, CheckStatus.BROKEN),
        ({"Filter": {"Prefix": "gpt/"}, "Expiration": {"Days": 2}}, CheckStatus.WARN),
        ({"Prefix": "gpt/step-", "Expiration": {"Days": 1}}, CheckStatus.BROKEN),
        ({"Filter": {"Prefix": "gpt/"}, "Expiration": {"Date": "2026-01-01"}}, CheckStatus.BROKEN),
        ({"Filter": {"Prefix": "other/"}, "Expiration": {"Days": 1}}, CheckStatus.OK),
        ({"Filter": {"Tag": {"Key": "temporary"}}, "Expiration": {"Days": 1}}, CheckStatus.OK),
        ({"Filter": {"Prefix": ""}, "NoncurrentVersionExpiration": {"NoncurrentDays": 1}}, CheckStatus.OK),
        ({"Filter": {"Prefix": ""}, "Expiration": {"Days": 1}, "Status": "Disabled"}, CheckStatus.OK),
    ],
)
def test_a_lifecycle_rule_shorter_than_the_job_is_broken(rule, verdict):
    """What it deletes is what a relaunch would resume from; rules for others, or by tag, do not matter."""
    found = expiry(86400, {"ID": "sweeper", "Status": "Enabled", **rule})
    assert found and found.verdict is verdict, found


RUN = Run(
    id="gpt",
    policy="default",
    state=RunState.WATCHING,
    created_at=now(),
    attempts=(Attempt(number=1, job_name="gpt", status=JobStatus.IN_PROGRESS),),
)


def write_heartbeat(age: timedelta) -> None:
    heartbeat = Heartbeat(run="gpt", attempt=1, job="gpt", at=now() - age, phase=next(iter(Phase)), step=7)
    client("s3").put_object(Bucket="mailbox", Key=make_heartbeat_key("gpt"), Body=serialize(heartbeat))


def test_a_recent_heartbeat_is_found():
    """By the mailbox's own clock, in which it has just been written."""
    write_heartbeat(timedelta(hours=5))
    found = job.agent(subject(exists=True, run=RUN))
    assert found and found.verdict is CheckStatus.OK and "at step 7" in found.said


def test_a_missing_heartbeat_is_reported(monkeypatch):
    silent = subject(exists=True, run=RUN, answers={"s3.list_objects_v2": {"KeyCount": 0}})
    found = job.agent(silent)
    assert found and found.verdict is CheckStatus.WARN and "runs/gpt/command.json" in found.remedy
    write_heartbeat(timedelta())
    later = now() + timedelta(hours=1)
    monkeypatch.setattr(job, "now", lambda: later)
    found = job.agent(silent)
    assert found and found.verdict is CheckStatus.WARN and "has not beaten" in found.said
    assert job.agent(subject()) is None


def test_a_successor_of_our_own_is_supervised():
    """Its tag names the run that launched it."""
    tags = {**TAGS, "rerail:run": "gpt"}
    assert job.supervision(subject(exists=True, run=RUN, tags=tags)).verdict is CheckStatus.OK


def test_the_local_aws_is_not_asked_for_roles_and_quotas():
    """It has none, and a check that fails for that would say nothing."""
    local = subject(is_local=True)
    assert [check.name for check in ask("job", (*roles.QUESTIONS, *quotas.QUESTIONS), local)] == []


def test_our_own_expressions_are_sound():
    """What `rerail metrics` prints passes the doctor."""
    assert json.loads(json.dumps(make_definitions()))
    assert job.metrics(subject()).verdict is CheckStatus.OK
