"""The request of a submission: what SageMaker and its toolkit expect, and one clear error for each mistake."""

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError, NoCredentialsError

from cli.chains.definition import find_file, parse_chain
from cli.submit.account import find_refusal
from cli.submit.images import VERSIONS, find_aws_image
from cli.submit.problem import Problem
from cli.submit.request import JobRequest, make_training_request
from cli.submit.settings import SubmitSettings, parse_seconds, read_defaults, read_file
from rerail.model.metrics import make_definitions
from rerail.requests.relaunch import POLICY_TAG

JOB = JobRequest(
    name="mnist-1",
    role="arn:aws:iam::111122223333:role/Training",
    region="eu-west-1",
    image="image",
    folder="s3://bucket/rerail/mnist-1/",
    program="train.py",
    code="s3://bucket/rerail/code/abc/sourcedir.tar.gz",
    settings=SubmitSettings(),
)


def change(**changes) -> JobRequest:
    """Return the job with other settings, and with other fields of its own; metrics are the latter."""
    own = {name: changes.pop(name) for name in ("name", "role", "metrics") if name in changes}
    return replace(JOB, settings=replace(JOB.settings, **changes), **own)


def refused(**changes) -> Problem:
    with pytest.raises(Problem) as problem:
        make_training_request(change(**changes))
    assert problem.value.remedy
    return problem.value


def test_script_mode_hyperparameters_are_as_the_toolkit_reads_them():
    """Every value is JSON, and the script's own arguments lie beside it."""
    request = make_training_request(replace(change(torchrun=True), hyperparameters={"epochs": "3"}))
    assert request["HyperParameters"].pop("epochs") == "3"
    assert {name: json.loads(value) for name, value in request["HyperParameters"].items()} == {
        "sagemaker_program": "train.py",
        "sagemaker_submit_directory": "s3://bucket/rerail/code/abc/sourcedir.tar.gz",
        "sagemaker_container_log_level": 20,
        "sagemaker_job_name": "mnist-1",
        "sagemaker_region": "eu-west-1",
        "sagemaker_torch_distributed_enabled": True,
        "sagemaker_instance_type": "ml.m5.xlarge",
    }


def test_the_job_is_supervised_and_has_folders_of_its_own():
    """Tag, checkpoint folder with its slash, outputs."""
    request = make_training_request(change(policy="careful", tags={"team": "vision"}, checkpoint_path="/ckpt"))
    tags = {tag["Key"]: tag["Value"] for tag in request["Tags"]}
    assert tags == {"team": "vision", POLICY_TAG: "careful"}
    assert request["CheckpointConfig"] == {"S3Uri": "s3://bucket/rerail/mnist-1/checkpoints/", "LocalPath": "/ckpt"}
    assert request["OutputDataConfig"] == {"S3OutputPath": "s3://bucket/rerail/mnist-1/output/"}


def test_the_metrics_are_rerails_the_scripts_own_or_none():
    """None: Rerail's line is printed; an empty table: nobody knows the lines."""
    defined = lambda metrics: (  # noqa: E731
        make_training_request(change(metrics=metrics))["AlgorithmSpecification"].get("MetricDefinitions")
    )
    assert defined(None) == make_definitions()
    assert defined({}) is None
    assert defined({"loss": "Loss: ([0-9.]+)"}) == [{"Name": "loss", "Regex": "Loss: ([0-9.]+)"}]


def test_spot_machines_are_waited_for_and_warm_ones_kept():
    spot = make_training_request(change(spot=True, max_runtime="1h", max_wait="2h"))
    assert spot["StoppingCondition"] == {"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 7200}
    assert spot["EnableManagedSpotTraining"] is True
    warm = make_training_request(change(keep_alive="30m", count=2))
    assert warm["ResourceConfig"]["KeepAlivePeriodInSeconds"] == 1800
    assert warm["ResourceConfig"]["InstanceCount"] == 2


@pytest.mark.parametrize(
    ("changes", "words", "remedy"),
    [
        ({"name": "my_job"}, "--name my_job", "letters and digits"),
        ({"name": "x" * 64}, "--name", "1-63"),
        ({"name": "gpt-a002"}, "--name gpt-a002: relaunches have such names", "leave out"),
        ({"instance_type": "ml.g5.xlrage"}, "--instance-type ml.g5.xlrage", "did you mean ml.g5.xlarge"),
        ({"count": 0}, "--count 0", "leave it out"),
        ({"keep_alive": "22000s"}, "keep_alive", "at most 6h"),
        ({"keep_alive": "60s", "spot": True}, "keep_alive", "leave out --spot"),
        ({"spot": True, "max_wait": "60s"}, "max_wait", "together"),
        ({"metrics": {"loss": "Loss: ("}}, "--metric loss: not a regular", "quote"),
        ({"metrics": {"loss": "Loss: [0-9.]+"}}, "--metric loss: has 0 groups", "( )"),
        ({"metrics": {"loss": "(x)(y)"}}, "--metric loss: has 2 groups", "(?: )"),
        ({"policy": "a b"}, "policy 'a b'", "--help"),
        ({"env": {"A": "x" * 513}}, "environment", "option"),
        ({"tags": {f"t{n}": "" for n in range(50)}}, "tags", "--help"),
        ({"role": "Training"}, "roleArn", "option"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(changes, words, remedy):
    """Before anything is uploaded or paid for."""
    problem = refused(**changes)
    assert words in problem.what and remedy in problem.remedy


def test_durations_are_read_as_people_write_them():
    assert [parse_seconds("--x", text) for text in ("90s", "15m", "1.5h", "5d")] == [90, 900, 5400, 432000]
    with pytest.raises(Problem, match="--x 15: not a duration"):
        parse_seconds("--x", "15")


@pytest.mark.parametrize(
    ("version", "machine", "region", "image"),
    [
        ("2.8", "ml.g5.xlarge", "us-east-1", "763104351884.dkr.ecr.us-east-1.amazonaws.com 2.8.0-gpu-py312"),
        ("2.5.1", "ml.m5.xlarge", "eu-south-1", "692866216735.dkr.ecr.eu-south-1.amazonaws.com 2.5.1-cpu-py311"),
        ("2.7", "ml.p5.48xlarge", "cn-north-1", "727897471807.dkr.ecr.cn-north-1.amazonaws.com.cn 2.7.1-gpu-py312"),
    ],
)
def test_the_image_is_aws_own_for_the_machine_and_region(version, machine, region, image):
    """As `sagemaker.image_uris.retrieve("pytorch", ...)` of the SDK 2.257 says."""
    assert find_aws_image("pytorch", version, machine, region) == "/pytorch-training:".join(image.split())


def test_a_version_or_machine_without_an_image_is_refused():
    with pytest.raises(Problem, match=r"framework_version 2\.81") as problem:
        find_aws_image("pytorch", "2.81", "ml.g5.xlarge", "us-east-1")
    assert "--image" in problem.value.remedy and all(version in problem.value.remedy for version in VERSIONS["pytorch"])
    with pytest.raises(Problem, match="--instance-type ml.trn1.2xlarge"):
        find_aws_image("pytorch", "2.8", "ml.trn1.2xlarge", "us-east-1")


def answered(code: str, message: str = "") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, "CreateTrainingJob")


@pytest.mark.parametrize(
    ("error", "words", "remedy"),
    [
        (answered("ResourceInUse"), "--name mnist-1", "another --name"),
        (answered("ResourceLimitExceeded", "0 Instances"), "quota", "'ml.m5.xlarge for training job usage'"),
        (
            answered("AccessDeniedException", "not authorized to perform: iam:PassRole on resource"),
            "--role arn:aws:iam::111122223333:role/Training: you may not hand it",
            "iam:PassedToService",
        ),
        (answered("ValidationException", "Could not assume role x."), "--role", "trust sagemaker.amazonaws.com"),
        (answered("ValidationException", "Cannot find image x in ECR"), "--image", "region"),
        (answered("ExpiredTokenException"), "credentials have expired", "aws sso login"),
        (NoCredentialsError(), "no AWS credentials", "--local"),
        (answered("ThrottlingException", "Rate exceeded"), "AWS is busy", "in a minute"),
        (answered("AccessDeniedException", "sagemaker:CreateTrainingJob"), "CreateTrainingJob", "permission"),
        (answered("ValidationException", "something new"), "something new", "fix"),
    ],
)
def test_a_refusal_by_sagemaker_is_reported_with_a_remedy(error, words, remedy):
    """Its own words, the option that they are about, and the remedy."""
    problem = find_refusal(error, make_training_request(JOB))
    assert words in problem.what and remedy in problem.remedy


def test_defaults_come_from_the_project_and_from_the_person(tmp_path):
    """The nearest file wins, field by field."""
    home, project = tmp_path / "home", tmp_path / "project"
    (home / ".config").mkdir(parents=True)
    (project / "vision" / "mnist").mkdir(parents=True)
    (project / ".git").mkdir()
    (home / ".config" / "rerail.toml").write_text('[submit]\nrole = "Mine"\nbucket = "mine"\n')
    (project / "rerail.toml").write_text('[submit]\nrole = "Ours"\ncount = 2\ntags = { team = "vision" }\n')
    found = read_defaults(project / "vision" / "mnist", home)
    assert found == {"role": "Ours", "bucket": "mine", "count": 2, "tags": {"team": "vision"}}


@pytest.mark.parametrize(
    ("text", "words", "remedy"),
    [
        ("[submit]\nrolle = 'x'", "unknown field 'rolle'", "did you mean 'role'"),
        ("[submit]\ncount = '2'", "field 'count' is '2'", "a whole number"),
        ("[submit]\ncount = true", "field 'count' is True", "a whole number"),
        ("[submit]\ntags = { a = 1 }", "field 'tags'", "a table of texts"),
        ("submit = 1", "submit must be a table", "[submit]"),
        ("[submit", "not valid TOML", "correct"),
    ],
)
def test_a_mistake_in_the_defaults_is_named_with_its_file(tmp_path: Path, text, words, remedy):
    (tmp_path / "rerail.toml").write_text(text)
    with pytest.raises(Problem) as problem:
        read_defaults(tmp_path, tmp_path / "home")
    assert words in problem.value.what and "rerail.toml" in problem.value.what and remedy in problem.value.remedy


@pytest.mark.threat("T33")
def test_without_a_repository_a_file_above_is_not_the_projects(tmp_path: Path, monkeypatch):
    """As in /tmp: unless the home folder, or the current one, lies above too."""
    (tmp_path / "rerail.toml").write_text('[submit]\nbucket = "mallorys"\n')
    below = tmp_path / "work" / "deep"
    below.mkdir(parents=True)
    assert read_defaults(below, tmp_path / "home" / "me") == {}
    with pytest.raises(Problem, match=r"no rerail\.toml at or above"):
        find_file(None, below)
    assert read_defaults(below, tmp_path) == {"bucket": "mallorys"}
    monkeypatch.chdir(tmp_path)
    assert read_defaults(below, tmp_path / "home" / "me") == {"bucket": "mallorys"}
    (tmp_path / "work" / ".git").mkdir()
    assert read_defaults(below, tmp_path) == {}


@pytest.mark.threat("T33")
def test_the_defaults_of_another_user_in_a_folder_above_are_refused(tmp_path: Path, monkeypatch):
    """Anybody may write to a shared folder above; a file of root's there is an administrator's."""
    (tmp_path / "rerail.toml").write_text('[submit]\nbucket = "mallorys"\n')
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    stat = os.stat
    monkeypatch.setattr(Path, "stat", lambda path: SimpleNamespace(st_size=0, st_uid=4321, st_mode=stat(path).st_mode))
    monkeypatch.setattr(os, "getuid", lambda: 1234)
    with pytest.raises(Problem, match=r"rerail\.toml belongs to another user"):
        read_defaults(tmp_path / "mine", tmp_path / "home")
    monkeypatch.setattr(os, "getuid", lambda: 4321)
    assert read_defaults(tmp_path / "mine", tmp_path / "home") == {"bucket": "mallorys"}


@pytest.mark.threat("T33")
@pytest.mark.parametrize("given", ["~/.aws", "../other", "/etc/passwd", "sent", ".env", ".git", "a/../../b", "x.whl"])
@pytest.mark.parametrize("field", ["dependencies", "agent", "dockerfile", "inputs", "script"])
def test_no_path_of_a_project_leads_out_of_it(tmp_path: Path, monkeypatch, field: str, given: str):
    """Whoever wrote `rerail.toml` chose the bucket too; what a person names on the command line goes."""
    home, clone, other = tmp_path / "home", tmp_path / "clone", tmp_path / "other"
    for folder in (home / ".aws", clone / "code", other):
        folder.mkdir(parents=True)
    (clone / ".env").write_text("TOKEN=1")
    (clone / "sent").symlink_to(other)
    (clone / "x.whl").symlink_to(home / ".aws")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(clone)
    file, value = clone / "rerail.toml", {"dependencies": [given], "inputs": {"x": given}}.get(field, given)
    readers = [lambda: parse_chain(file, {"c": {"t": {"script": "a.py", field: value}}}, "c")]
    if field != "script":
        text = f'{{ x = "{given}" }}' if field == "inputs" else json.dumps(value)
        file.write_text(f"[submit]\n{field} = {text}\n")
        readers += [lambda: read_defaults(clone, home), lambda: read_file(file)]
    for read in readers:
        with pytest.raises(Problem, match=r"rerail\.toml.*(outside of|looks like a secret)"):
            read()


@pytest.mark.threat("T33")
@pytest.mark.parametrize("field", ["dependencies", "dockerfile", "script"])
def test_what_looks_like_an_address_is_a_path_where_only_paths_are_read(tmp_path: Path, monkeypatch, field: str):
    test_no_path_of_a_project_leads_out_of_it(tmp_path, monkeypatch, field, "s3://../../home/.aws")


@pytest.mark.threat("T1")
@pytest.mark.parametrize("name", ["RERAIL_SEAL_KEY", "RERAIL_RUN", "RERAIL_MAILBOX", "RERAIL_EXECUTION"])
def test_no_variable_of_a_project_names_its_run_or_key(tmp_path: Path, monkeypatch, name: str):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "rerail.toml"
    file.write_text(f'[submit.env]\nRERAIL_TRACKING = "on"\n{name} = "{"ab" * 32}"\n')
    task = {"script": "a.py", "env": {name: "x"}}
    readers = (lambda: read_defaults(tmp_path, tmp_path / "home"), lambda: read_file(file))
    for read in (*readers, lambda: parse_chain(file, {"c": {"t": task}}, "c")):
        with pytest.raises(Problem, match=rf"rerail\.toml: env sets {name}, which a project may not"):
            read()
    file.write_text(file.read_text().replace(name, "OTHER"))
    assert read_defaults(tmp_path, tmp_path / "home")["env"].keys() == {"RERAIL_TRACKING", "OTHER"}


@pytest.mark.threat("T33")
def test_the_defaults_of_a_project_build_no_image(tmp_path: Path, monkeypatch):
    """A build runs programs on this machine; a file that the command line names may ask for one."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "rerail.toml"
    file.write_text('[submit]\ndockerfile = "docker"\n')
    chains = {"c": {"t": {"script": "a.py", "dockerfile": "docker"}}}
    for read in (lambda: read_defaults(tmp_path, tmp_path / "home"), lambda: parse_chain(file, chains, "c")):
        with pytest.raises(Problem, match="a project's defaults build no image"):
            read()
    assert read_file(file) == {"dockerfile": "docker"}
