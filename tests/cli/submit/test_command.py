"""`rerail submit` as it is typed: what is uploaded and asked for, what is said, and how it ends."""

import json
import re
import shlex
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws
from typer.testing import CliRunner, Result

from cli import place
from cli.main import app
from cli.place import Place
from cli.submit import delivery
from cli.submit.account import SubmissionAccount
from cli.submit.following import News
from cli.submit.settings import KINDS, read_defaults
from cli.submit.start import START_CHANNEL
from rerail.aws import clients
from rerail.aws.clients import client
from rerail.aws.sagemaker import SageMakerJobs
from rerail.decisions.remedies import format_continue
from rerail.model.signatures import VARIABLE
from rerail.requests.relaunch import POLICY_TAG, read_signing_key
from tests.aws.places import REGION, make_bucket
from tests.fakes import KEY
from tests.raising import raising

DOCS = place.ROOT / "docs" / "submit.md"
ROLE = "arn:aws:iam::123456789012:role/Training"
BUCKET = f"sagemaker-{REGION}-123456789012"
QUIET = "print('hello')\n"


@pytest.fixture
def account(monkeypatch, tmp_path):
    """An account with SageMaker's usual bucket, and a script; no deployment of Rerail, and nobody's defaults."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.setattr(delivery, "find_deployment", lambda screen: None)
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(QUIET)
    monkeypatch.chdir(code)
    with mock_aws():
        make_bucket(BUCKET)
        yield code


def rerail(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "300", "NO_COLOR": "1"})


def submitted(*words: str) -> dict:
    """What `--json` says of a submission that worked."""
    result = rerail("submit", "train.py", "--role", ROLE, "--json", *words)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def objects(bucket: str = BUCKET) -> dict[str, int]:
    return {item["Key"]: item["Size"] for item in client("s3").list_objects_v2(Bucket=bucket).get("Contents", [])}


def test_a_script_becomes_a_job_with_its_code_in_s3(account):
    """The job that SageMaker knows has the code, the arguments, the tag and folders of its own."""
    (account / "team.toml").write_text('[submit]\ntags = { team = "vision" }\n')
    printed = submitted("--name", "first", "--settings", "team.toml", "--", "--epochs", "3")
    job = client("sagemaker").describe_training_job(TrainingJobName="first")
    given = {name: json.loads(value) for name, value in job["HyperParameters"].items()}
    assert given["epochs"] == 3 and given["sagemaker_program"] == "train.py"
    assert given["sagemaker_submit_directory"].removeprefix(f"s3://{BUCKET}/") in objects()
    assert job["CheckpointConfig"]["S3Uri"] == f"s3://{BUCKET}/rerail/first/checkpoints/"
    tags = client("sagemaker").list_tags(ResourceArn=job["TrainingJobArn"])["Tags"]
    assert {tag["Key"]: tag["Value"] for tag in tags} == {"team": "vision", POLICY_TAG: "default"}
    assert (printed["run"], printed["job"]) == ("first", "first") and printed["request"]["RoleArn"] == ROLE


@pytest.mark.parametrize("given", ["code", "code --entry fit.py", "code/train.py"])
def test_advice_names_what_was_submitted(account, monkeypatch, given):
    """The job's program alone says neither the folder nor that a folder was given."""
    (account / "fit.py").write_text(QUIET)
    monkeypatch.chdir(account.parent)
    result = rerail("submit", "--name", "first", "--role", ROLE, *given.split())
    assert result.exit_code == 0, result.output
    run = SimpleNamespace(id="first", script=SageMakerJobs().describe("first")[0].script)
    assert format_continue(run) == f"rerail submit {given} --continue first"  # type: ignore[arg-type]


def test_code_that_was_uploaded_once_is_not_uploaded_again(account, monkeypatch):
    """Nor is a changed one taken for it, also by a user who may not list. S3 refuses a bucket of another account."""
    monkeypatch.setattr(clients, "_bucket_owner", "")
    sent: list[dict] = []
    client("s3").meta.events.register("before-call.s3.PutObject", lambda params, **_: sent.append(params["headers"]))
    first, second = submitted("--name", "first"), submitted("--name", "second")
    (account / "model.py").write_text("x = 1\n")
    unlisted = ClientError({"Error": {"Code": "403", "Message": "Forbidden"}}, "HeadObject")
    monkeypatch.setattr(client("s3"), "head_object", raising(unlisted))
    third = submitted("--name", "third")
    uris = [printed["request"]["HyperParameters"]["sagemaker_submit_directory"] for printed in (first, second, third)]
    assert uris[0] == uris[1] != uris[2] and len(objects()) == 2
    assert [headers["x-amz-expected-bucket-owner"] for headers in sent] == ["123456789012"] * 2


def test_a_dry_run_uploads_and_starts_nothing(account):
    """It prints the request that would be sent, to stdout alone, and the script's command line to stderr."""
    result = rerail("submit", "train.py", "--role", ROLE, "--name", "dry", "--dry-run")
    typed = rerail("submit", "train.py", "--role", ROLE, "--dry-run", "--", "--z=1", "--a=x y")
    assert "command line: python train.py --z=1 '--a=x y'" in typed.stderr
    assert result.exit_code == 0 and objects() == {}
    assert client("sagemaker").list_training_jobs()["TrainingJobSummaries"] == []
    assert json.loads(result.stdout) == submitted("--name", "dry")["request"]


def test_upload_only_prints_the_request_and_uploads_what_it_names(account, monkeypatch):
    """All but the key for signatures, which a job that is started has: its own, or one that is printed nowhere."""
    words, sent = ["--name", "later", "--input", "a=train.py"], []
    result = rerail("submit", "train.py", "--role", ROLE, *words, "--upload-only")
    request = json.loads(result.stdout)
    code = json.loads(request["HyperParameters"]["sagemaker_submit_directory"]).removeprefix(f"s3://{BUCKET}/")
    assert objects().keys() == {code, "rerail/later/input/a/train.py"}
    assert client("sagemaker").list_training_jobs()["TrainingJobSummaries"] == []
    monkeypatch.setattr(SubmissionAccount, "create", lambda _, request, **more: sent.append(request))
    assert request == submitted(*words)["request"]
    submitted(*words, "--env", f"{VARIABLE}={KEY}")
    printed, made, own = map(read_signing_key, (request, *sent))
    assert (printed, own) == ("", KEY) and made not in (printed, own)


def test_local_inputs_are_uploaded_and_those_in_s3_named(account):
    (account / "data").mkdir()
    for name in ("a.csv", "b.csv"):
        (account / "data" / name).write_text(name)
    where = ["--input", "training=data", "--input", "labels=data/a.csv", "--input", "base=s3://b/weights/"]
    request = submitted("--name", "fed", "--exclude", "data", *where, "--start-from", "s3://b/step-9/")["request"]
    uris = {each["ChannelName"]: each["DataSource"]["S3DataSource"]["S3Uri"] for each in request["InputDataConfig"]}
    store = f"s3://{BUCKET}/rerail/fed/input"
    local = {"training": f"{store}/training/", "labels": f"{store}/labels/"}
    assert uris == {**local, "base": "s3://b/weights/", START_CHANNEL: "s3://b/step-9/"}
    sent = {name for name in objects() if "/input/" in name}
    assert sent == {f"rerail/fed/input/{name}" for name in ("training/a.csv", "training/b.csv", "labels/a.csv")}


def test_the_agent_comes_along_as_a_wheel(account):
    """From here or from S3; its init is then PID 1 of AWS's image."""
    (account / "rerail_agent-0.1.0-py3-none-any.whl").write_bytes(b"wheel")
    request = submitted("--name", "under-init", "--agent", "rerail_agent-0.1.0-py3-none-any.whl")["request"]
    (channel,) = request["InputDataConfig"]
    key = "rerail/agent/rerail_agent-0.1.0-py3-none-any.whl"
    assert channel["DataSource"]["S3DataSource"]["S3Uri"] == f"s3://{BUCKET}/{key}" and key in objects()
    assert "rerail_agent.init" in request["AlgorithmSpecification"]["ContainerEntrypoint"][2]
    there = submitted("--name", "from-s3", "--agent", "s3://wheels/rerail_agent.whl")["request"]
    assert there["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"] == "s3://wheels/rerail_agent.whl"


def test_a_role_may_be_given_by_its_name_or_created(account, monkeypatch):
    """SageMaker does not know a new one at once, so that its job is tried again."""
    trust = json.dumps({"Version": "2012-10-17", "Statement": []})
    made = client("iam").create_role(RoleName="Mine", Path="/service-role/", AssumeRolePolicyDocument=trust)
    assert submitted("--role", "Mine", "--name", "named")["request"]["RoleArn"] == made["Role"]["Arn"]
    are_new: list[bool] = []
    monkeypatch.setattr(SubmissionAccount, "create", lambda *_, role_is_new: are_new.append(role_is_new))
    assert [rerail("submit", "train.py", "--create-role").exit_code for _ in range(2)] == [0, 0]
    assert are_new == [True, False]
    denied = ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "GetRole")
    monkeypatch.setattr(client("iam"), "get_role", raising(denied))
    assert "cannot look up the role Mine" in rerail("submit", "train.py", "--role", "Mine").stderr


PROJECT = """[submit]
image = "ours:1"
instance_type = "ml.g5.xlarge"
retries = 1
exclude = ["a"]
env = { A = "1" }
metrics = { loss = "l=([0-9.e-]+)" }
"""
MORE = '[submit]\nframework_version = "2.5"\nretries = 2\nvolume = 5\nenv = { B = "2" }\nexclude = ["b"]\n'


def test_a_settings_file_wins_over_the_project_and_an_option_over_both(account):
    """Tables are merged, exclusions added up, and an image replaces another in whatever way it is named."""
    for name, text in {"rerail.toml": PROJECT, "more.toml": MORE, "a": "", "b": ""}.items():
        (account / name).write_text(text)
    words = ["--name", "more", "--settings", "more.toml", "--volume", "9", "--env", "B=3", "--exclude", "more.toml"]
    result = rerail("submit", "train.py", "--role", ROLE, "--json", *words)
    request = json.loads(result.stdout)["request"]
    assert "packed 2 files" in result.stderr
    assert "pytorch-training:2.5.1-gpu" in request["AlgorithmSpecification"]["TrainingImage"]
    assert [definition["Name"] for definition in request["AlgorithmSpecification"]["MetricDefinitions"]] == ["loss"]
    assert request["RetryStrategy"] == {"MaximumRetryAttempts": 2}
    assert request["ResourceConfig"] == {"InstanceType": "ml.g5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 9}
    assert {name: request["Environment"][name] for name in "AB"} == {"A": "1", "B": "3"}
    assert submitted("--name", "plain")["request"]["AlgorithmSpecification"]["TrainingImage"] == "ours:1"
    mine = submitted("--name", "mine", "--settings", "more.toml", "--image", "mine:1")["request"]
    assert mine["AlgorithmSpecification"]["TrainingImage"] == "mine:1"


@pytest.mark.parametrize("words", [["--role", ROLE], ["--name", "x"], ["--settings", "more.toml"], ["--create-role"]])
def test_a_continued_run_keeps_what_it_began_with(account, monkeypatch, words):
    (account / "more.toml").write_text('[submit]\nshard = ["a"]\n')
    monkeypatch.setattr(place, "find", lambda *, local: Place("here", {}))
    result = rerail("submit", "train.py", "--continue", "gpt", *words)
    assert result.exit_code == 2 and "with --continue: the run keeps what it began with" in result.stderr


def test_a_script_without_metrics_or_agent_is_reported_as_unmonitored(account):
    """Definitions of lines that never come would read as blindness."""
    result = rerail("submit", "train.py", "--role", ROLE, "--name", "silent")
    assert "the loss is not watched" in result.output and result.exit_code == 0
    (account / "train.py").write_text("from rerail_agent import Guard\n")
    request = submitted("--name", "watched")["request"]
    assert len(request["AlgorithmSpecification"]["MetricDefinitions"]) == 5


@pytest.mark.parametrize(
    ("words", "problem", "remedy"),
    [
        (["train.py"], "--role: the job needs a role", "rerail.toml"),
        (["train.py", "--role", "Gone"], "--role Gone: this account has no such role", "trainingRoleArns"),
        (["train.py", "--role", ROLE, "--bucket", "nobodys"], "--bucket nobodys: there is no such bucket", "aws s3 mb"),
        (["gone.py", "--role", ROLE], "gone.py does not exist", "name a Python script"),
        (["train.py", "--role", ROLE, "--input", "x=gone"], "--input x=gone", "s3://"),
        (["train.py", "--role", ROLE, "--input", "s3://b/d"], "--input s3://b/d: not NAME=VALUE", "NAME=VALUE"),
        (["train.py", "--role", ROLE, "--input", "a b=s3://b/d"], "--input a b: not a channel's name", "letters"),
        (["train.py", "--role", ROLE, "--env", "a=1", "--env", "a=2"], "--env a: given twice", "once"),
        (["train.py", "--role", ROLE, "--instance-type", "g5.xlarge"], "--instance-type g5.xlarge", "ml.g5.xlarge"),
        (["train.py", "--role", ROLE, "--max-runtime", "5"], "--max-runtime 5: not a duration", "12h"),
        (["train.sh", "--role", ROLE, "--torchrun"], "--torchrun: it starts Python scripts", "in the shell script"),
        (["train.py", "--role", ROLE, "--agent", "x.whl"], "--agent x.whl: there is no such file", "pip wheel"),
        (["train.py", "--role", ROLE, "--agent", "x.zip"], "--agent x.zip: not a wheel", "pip wheel"),
        (["train.py", "--role", ROLE, "--settings", "x.toml"], "--settings x.toml: it does not exist", "[submit]"),
    ],
)
def test_a_mistake_ends_with_one_error_and_its_remedy(account, words, problem, remedy):
    """Nothing is uploaded, and the exit status is 2."""
    (account / "train.sh").write_text("true\n")
    result = rerail("submit", *words)
    assert result.exit_code == 2 and objects() == {}
    error, to_do = [line for line in result.stderr.splitlines() if line.startswith(("error: ", "to do: "))]
    assert problem in error and remedy in to_do


def test_an_option_of_the_script_that_is_given_to_rerail_has_a_hint(account):
    result = rerail("submit", "train.py", "--epochs", "3")
    assert result.exit_code == 2 and "it comes after --: `SCRIPT -- --epochs`" in result.stderr
    assert "comes after" not in rerail("status", "--epochs", "3").stderr


def test_a_policy_that_is_not_deployed_is_refused(account, monkeypatch):
    """Its run would only be observed, and nobody would know until the night it fails."""
    monkeypatch.setattr(delivery, "find_deployment", lambda screen: Place("here", {"PolicyPrefix": "/rerail/policies"}))
    client("ssm").put_parameter(Name="/rerail/policies/default", Value="# all defaults", Type="String")
    client("ssm").put_parameter(Name="/rerail/policies/careful", Value='mode = "act"', Type="String")
    submitted("--name", "sound", "--policy", "careful")
    result = rerail("submit", "train.py", "--role", ROLE, "--policy", "carefull")
    assert result.exit_code == 2 and "--policy carefull" in result.stderr


class Ended:
    """A follower of a run that has ended as it is printed."""

    def __init__(self, ended: str) -> None:
        self.ended, self.why, self.run, self.last_job = ended, "because", None, "followed"

    def __call__(self, **_: object) -> "Ended":
        return self

    def read_news(self):
        yield News("followed is watching: adopted")
        yield News("step 1", "followed algo-1")


@pytest.mark.parametrize(("ended", "status"), [("completed", 0), ("held", 1), ("stopped", 1), ("failed", 1)])
def test_a_followed_run_gives_its_end_as_the_exit_status(account, monkeypatch, ended, status):
    """The job's lines go to stdout, so that they can be piped; with --json all but the JSON goes to stderr."""
    monkeypatch.setattr(delivery, "Follower", Ended(ended))
    result = rerail("submit", "train.py", "--role", ROLE, "--name", "followed", "--follow")
    assert result.exit_code == status
    assert "followed algo-1 | step 1" in result.stdout and f"followed {ended}: because" in result.stdout
    assert ("rerail release followed" in result.stdout) == (ended == "held")
    result = rerail("follow", "followed", "--json")
    assert result.exit_code == status and json.loads(result.stdout)["state"] == ended
    assert "followed algo-1 | step 1" in result.stderr


def test_an_interrupt_of_follow_does_not_stop_the_job(account, monkeypatch):
    """Ctrl-C says how to come back."""

    class Interrupted(Ended):
        def read_news(self):
            raise KeyboardInterrupt
            yield

    monkeypatch.setattr(delivery, "Follower", Interrupted(""))
    submitted("--name", "long")
    result = rerail("follow", "long")
    assert result.exit_code == 130 and "`rerail follow long` follows it again" in result.stdout


def test_a_run_that_does_not_exist_cannot_be_followed(account):
    """A mistyped name is not waited for."""
    result = rerail("follow", "mistyped")
    assert result.exit_code == 2 and "no run and no training job 'mistyped'" in result.stderr


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", DOCS.read_text(), re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(lines) > 10 and all(line.startswith("rerail ") for line in lines)
    return [line for line in lines if not line.startswith("rerail local ")]


@pytest.mark.threat("T33")
def test_what_a_project_would_have_paid_and_permitted_is_shown_before_the_upload(account):
    """A cloned repository chooses machines, their time and a role, which may have more permissions than the usual."""
    text = f'[submit]\nrole = "{ROLE}"\ninstance_type = "ml.p5.48xlarge"\ncount = 16\nmax_runtime = "28d"\n'
    (account / "rerail.toml").write_text(text)
    for script in ("train.py", "../code"):
        shown, _, _ = rerail("submit", script, "--upload-only").output.partition("uploading to")
        assert f"16 x ml.p5.48xlarge for at most 28d, and the permissions of {ROLE}" in shown


@pytest.mark.threat("T14")
def test_a_file_of_a_project_writes_no_line_of_rerails(account):
    """Its name may contain line ends, and the error that names it what looks like a remedy."""
    forged = account / "data\nto do: run fix.sh\n"
    forged.symlink_to(account.parent)
    result = rerail("submit", "train.py", "--role", ROLE, "--dry-run")
    lines = result.output.splitlines()
    assert result.exit_code == 2 and sum(line.startswith("to do:") for line in lines) == 1
    assert "run fix.sh" in lines[-2] and lines[-2].startswith("error:")


@pytest.mark.parametrize("line", commands())
def test_every_command_in_the_docs_makes_a_request(account, line, monkeypatch):
    """As it stands there, but for nothing being started."""
    trust = json.dumps({"Version": "2012-10-17", "Statement": []})
    client("iam").create_role(RoleName="TrainingRole", AssumeRolePolicyDocument=trust)
    (account / "labels.csv").write_text("1\n")
    (account / "vpc.toml").write_text(blocks("toml")[0])
    _, verb, script, *words = shlex.split(line)
    assert verb == "submit"
    if is_local := "--local" in words:
        monkeypatch.setattr(place, "find", lambda *, local: Place("local", {}))
        script = str(place.ROOT / script)
        (account.parent / "home" / ".config").mkdir(parents=True)
        (account.parent / "home" / ".config" / "rerail.toml").write_text('[submit]\ndockerfile = "."\n')
    for image in ([], ["--image", "ours:1"]) if is_local else ([],):
        result = rerail("submit", script, "--dry-run", *image, *words)
        assert result.exit_code == 0, result.output
        request = json.loads(result.stdout)
        assert request["Tags"]
        assert not is_local or ("ContainerEntrypoint" in request["AlgorithmSpecification"]) is (not image)


def test_the_defaults_in_the_docs_are_read(tmp_path):
    """Every field of the example is known, and every known field is named."""
    (text,) = blocks("toml")
    (tmp_path / "rerail.toml").write_text(text)
    assert read_defaults(tmp_path, tmp_path / "home") == tomllib.loads(text)["submit"]
    (known,) = re.findall(r"^\| For \| Settings \|\n\|---\|---\|\n((?:\|.*\n)+)", DOCS.read_text(), re.MULTILINE)
    assert re.findall(r"`(\w+)`", known) == list(KINDS)


def test_the_lines_of_python_in_the_docs_run(account, monkeypatch):
    """With stand-ins for the SDK; what the real ones send is in requests/."""

    class Launcher(SimpleNamespace):
        launched = 0

        def __init__(self, **arguments: object) -> None:
            usual = {"tags": None, "environment": None, "metric_definitions": None, "checkpoint_s3_uri": None}
            super().__init__(**{**usual, **arguments})

        def fit(self, wait: bool) -> None:
            Launcher.launched += bool(self.tags and self.checkpoint_s3_uri)

    class Trainer(Launcher):
        checkpoint_config = None

        def with_metric_definitions(self, found: list) -> None:
            self.metric_definitions = found

        def with_checkpoint_config(self) -> "Trainer":
            self.checkpoint_config = SimpleNamespace(s3_uri=None)
            return self

        def train(self, wait: bool) -> None:
            Launcher.launched += bool(self.tags and self.metric_definitions and self.checkpoint_config)

    for name, attributes in {"sagemaker": {}, "sagemaker.pytorch": {"PyTorch": Launcher}}.items():
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        vars(sys.modules[name]).update(attributes)
    monkeypatch.setitem(sys.modules, "sagemaker.train", ModuleType("sagemaker.train"))
    vars(sys.modules["sagemaker.train"]).update(ModelTrainer=Trainer)
    request = submitted("--name", "plain")["request"]
    for number, block in enumerate(blocks("python")):
        exec(block, {"request": {**request, "TrainingJobName": f"docs-{number}"}, "arguments": {}})
    assert Launcher.launched == 2
    names = {job["TrainingJobName"] for job in boto3.client("sagemaker").list_training_jobs()["TrainingJobSummaries"]}
    assert names == {"plain", "docs-0", "docs-3"}
