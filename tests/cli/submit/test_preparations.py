"""Preparations of `rerail submit`: a role, an image, and the address of another run's checkpoint."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from cli.place import Place
from cli.submit import docker_image, training_role
from cli.submit.account import ROLE_KNOWN_WITHIN_S, ROLE_PAUSE_S, SubmissionAccount
from cli.submit.docker_image import REPOSITORY, TAG_LENGTH, build_image, make_tag, name_image
from cli.submit.problem import Problem
from cli.submit.screen import SubmitScreen
from cli.submit.start import find_start
from cli.submit.training_role import create_role, make_policy, plan_role
from rerail.aws.clients import client
from rerail.model.run import Attempt, Run, RunState, TimelineEntry
from tests.aws.places import REGION, TABLE, make_table

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
ACCOUNT = "123456789012"
DOCKER = """#!/bin/sh
echo "$@" >> "{log}"
case "$*" in
    login*) cat >> "{log}"; echo >> "{log}";;
    build*) tar -tz >> "{log}";;
    *.Id*) echo sha256:{id};;
    *RepoDigests*) echo '["mallory.io/x@sha256:0", "'"${{5%:*}}"'@sha256:{digest}"]';;
esac
exit {code}
"""


@pytest.fixture
def aws():
    with mock_aws():
        yield


@pytest.fixture
def docker(monkeypatch, tmp_path):
    """A docker command that logs its arguments; `code` is its exit status."""
    log, folder = tmp_path / "docker.log", tmp_path / "bin"
    folder.mkdir()

    def install(code: int = 0) -> Path:
        program = folder / "docker"
        program.write_text(DOCKER.format(log=log, code=code, id="1" * 64, digest="d" * 64))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        return log

    return install


@pytest.fixture
def context(tmp_path) -> Path:
    """A Dockerfile with what it copies."""
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "Dockerfile").write_text("FROM scratch\nCOPY train.py /\n")
    (folder / "train.py").write_text("x = 1\n")
    return folder / "Dockerfile"


def test_a_role_that_exists_is_taken_and_a_missing_one_is_created_with_little(aws):
    """It may use its bucket, its part of the mailbox, its log and its metrics; SageMaker alone may take it on."""
    account = SubmissionAccount()
    planned = plan_role(account, "", is_wanted=True)
    assert planned.is_new and planned.arn == f"arn:aws:iam::{ACCOUNT}:role/{training_role.DEFAULT_ROLE}"
    with pytest.raises(Problem, match="--role: the job needs a role"):
        plan_role(account, "", is_wanted=False)
    create_role(planned.arn, REGION, "sagemaker-bucket", "mailbox")
    assert plan_role(account, "", is_wanted=True) == replace(planned, is_new=False)
    role = client("iam").get_role(RoleName=training_role.DEFAULT_ROLE)["Role"]
    (trust,) = role["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Principal"] == {"Service": "sagemaker.amazonaws.com"}
    assert trust["Condition"] == {"StringEquals": {"aws:SourceAccount": ACCOUNT}}
    policy = client("iam").get_role_policy(RoleName=training_role.DEFAULT_ROLE, PolicyName=training_role.POLICY)
    statements = policy["PolicyDocument"]["Statement"]
    written = [s["Resource"] for s in statements if "s3:PutObject" in s["Action"] and s["Effect"] == "Allow"]
    (denied,) = (s["Resource"] for s in statements if s["Effect"] == "Deny")
    folder = "arn:aws:s3:::sagemaker-bucket/rerail"
    assert denied == [f"{folder}/code/*/sourcedir.tar.gz", f"{folder}/agent/*.whl", f"{folder}/chains/*/chain.json"]
    assert written == [
        ["arn:aws:s3:::sagemaker-bucket/rerail/*"],
        ["arn:aws:s3:::mailbox/runs/*/heartbeat.json", "arn:aws:s3:::mailbox/runs/*/reports/*"],
    ]
    for statement in statements:
        assert (
            statement["Resource"] != ["*"]
            or statement["Action"] == ["ecr:GetAuthorizationToken"]
            or (statement["Action"] == ["cloudwatch:PutMetricData"] and statement["Condition"])
        )


def test_the_role_is_named_in_the_partition_of_its_region():
    statements = make_policy("aws-cn", "cn-north-1", ACCOUNT, ["b"])["Statement"]
    assert all(arn == "*" or arn.startswith("arn:aws-cn:") for s in statements for arn in s["Resource"])


def test_a_new_role_is_waited_for(monkeypatch):
    """A role that is not new is refused at once, and a refusal for another reason too."""
    error = {"Error": {"Code": "ValidationException", "Message": "Could not assume role arn:x."}}
    refusal = ClientError(error, "CreateTrainingJob")
    calls, pauses = [], []

    class SageMaker:
        answers: list[Exception | None] = []

        def create_training_job(self, **request: object) -> None:
            calls.append(request)
            if answer := self.answers.pop(0):
                raise answer

    monkeypatch.setattr("cli.submit.account.client", lambda service: SageMaker())
    request = {"TrainingJobName": "a", "RoleArn": "arn:x", "ResourceConfig": {}}
    SageMaker.answers = [refusal, refusal, None]
    SubmissionAccount().create(request, role_is_new=True, sleep=pauses.append)
    assert len(calls) == 3 and pauses == [ROLE_PAUSE_S] * 2
    SageMaker.answers = [refusal]
    with pytest.raises(Problem, match="may not take it on"):
        SubmissionAccount().create(request, sleep=pauses.append)
    SageMaker.answers = [refusal] * 100
    with pytest.raises(Problem, match="may not take it on"):
        SubmissionAccount().create(request, role_is_new=True, sleep=pauses.append)
    assert sum(pauses) <= ROLE_KNOWN_WITHIN_S + 2 * ROLE_PAUSE_S
    SageMaker.answers = [ClientError({"Error": {"Code": "ResourceInUse", "Message": "taken"}}, "CreateTrainingJob")]
    with pytest.raises(Problem, match="a job of that name exists"):
        SubmissionAccount().create(request, role_is_new=True, sleep=pauses.append)


@pytest.mark.slow
def test_an_image_is_built_of_what_is_packed_and_named_by_its_digest(aws, docker, context):
    """Its repository is created, docker gets ECR's password on stdin, and the tag names the folder's content.

    An image that the registry has under that tag may be anybody's: it is built again.
    """
    log, screen = docker(), SubmitScreen(False)
    (context.parent / ".env").write_text("TOKEN=1")
    (context.parent / ".dockerignore").write_text(".dockerignore\nDockerfile\n")
    image = name_image(context, ACCOUNT, REGION)
    repository, tag = image.rpartition(":")[::2]
    assert (repository, tag) == (f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/{REPOSITORY}", make_tag(context))
    for _ in range(2):
        docker_image._create_repository()  # another may do so at the same moment
        assert build_image(context, image, screen) == f"{repository}@sha256:{'d' * 64}"
        pushed = f"{image}-{'1' * TAG_LENGTH}"
        calls = log.read_text().splitlines()
        assert calls == [
            f"build --platform linux/amd64 -t {image} -f Dockerfile -",
            "Dockerfile",
            "train.py",
            f"image inspect --format {{{{.Id}}}} {image}",
            f"tag {image} {pushed}",
            f"login --username AWS --password-stdin {repository.partition('/')[0]}",
            f"{ACCOUNT}-auth-token",
            f"push {pushed}",
            f"image inspect --format {{{{json .RepoDigests}}}} {pushed}",
        ]
        log.unlink()
    (found,) = client("ecr").describe_repositories()["repositories"]
    assert found["repositoryName"] == REPOSITORY and found["imageTagMutability"] == "IMMUTABLE"
    (context.parent / "train.py").write_text("x = 2\n")
    assert name_image(context, ACCOUNT, REGION) != image


@pytest.mark.slow
def test_a_build_that_fails_and_a_machine_without_docker_are_one_error(aws, docker, context, monkeypatch, tmp_path):
    image = name_image(context, ACCOUNT, REGION)
    docker(code=3)
    with pytest.raises(Problem, match="`docker build` ended with exit code 3"):
        build_image(context, image, SubmitScreen(False))
    (tmp_path / "bin" / "docker").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(docker_image, "LONGEST_S", 0.1)
    with pytest.raises(Problem, match="`docker build` was stopped after 0.1 s"):
        build_image(context, image, SubmitScreen(False))
    monkeypatch.setattr(docker_image.shutil, "which", lambda name: None)
    with pytest.raises(Problem, match="no docker command") as problem:
        build_image(context, image, SubmitScreen(False))
    assert "--image" in problem.value.remedy
    with pytest.raises(Problem, match="there is no such file"):
        name_image(tmp_path / "gone", ACCOUNT, REGION)


def make_completed_run(name: str) -> tuple[Place, Any]:
    make_table(client("dynamodb"))
    where = Place("here", {"TableName": TABLE})
    run = Run(name, "default", RunState.COMPLETED, NOON, (Attempt(1, name),), checkpoint_uri=f"s3://bucket/{name}/")
    where.runs.save(replace(run, version=1), TimelineEntry(name, 1, NOON, run.state, run.state, "made"), {})
    s3 = boto3.client("s3", region_name=REGION)
    s3.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": REGION})
    return where, s3


def test_a_run_starts_from_another_runs_newest_good_checkpoint(aws):
    """Or from a step of it; what is torn, or does not exist, is never taken for one."""
    where, s3 = make_completed_run("gpt")
    files = ("model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json")
    for step, names in ((100, files), (200, files), (300, files[:2])):
        for name in names:
            s3.put_object(Bucket="bucket", Key=f"gpt/checkpoint-{step}/{name}", Body=b"x")
    assert find_start(where, "gpt") == "s3://bucket/gpt/checkpoint-200/"
    assert find_start(where, "gpt:100") == "s3://bucket/gpt/checkpoint-100/"
    assert find_start(None, "s3://elsewhere/x/") == "s3://elsewhere/x/"
    for given, words in (("gpt:300", "no such checkpoint"), ("gpt:x", "not a step")):
        with pytest.raises(Problem, match=words):
            find_start(where, given)
    with pytest.raises(Problem, match="not deployed"):
        find_start(None, "gpt")


def test_a_run_starts_from_a_file_that_a_script_overwrites_in_place(aws):
    """The one file is the channel; of several nobody knows which belong together."""
    where, s3 = make_completed_run("nano")
    s3.put_object(Bucket="bucket", Key="nano/ckpt.pt", Body=b"x")
    assert find_start(where, "nano") == "s3://bucket/nano/ckpt.pt"
