"""`rerail chain` as it is typed: what it reads of the tasks, what it says is wrong, and how it ends."""

import json
from pathlib import Path

import pytest
from moto import mock_aws
from typer.testing import CliRunner, Result

from cli import place
from cli.chains.command import ChainScreen
from cli.chains.runner import ChainRunner
from cli.main import app
from cli.place import Place
from rerail.aws.clients import client
from tests.aws.places import REGION
from tests.raising import raising

ROLE = "arn:aws:iam::123456789012:role/Training"
BUCKET = f"sagemaker-{REGION}-123456789012"
TABLE = {
    "TableName": "Runs",
    "KeySchema": [{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}],
    "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "S"} for name in ("pk", "sk")],
    "BillingMode": "PAY_PER_REQUEST",
}
CHAIN = """
[submit]
role = "{role}"
[chain.c.prepare]
script = "code/prepare.py"
inputs = {{ raw = "s3://{bucket}/raw/", labels = "labels.csv" }}
{options}
[chain.c.train]
script = "code/train.py"
inputs = {{ data = "prepare.output" }}
"""


@pytest.fixture
def folder(monkeypatch, tmp_path) -> Path:
    """The folder of a chain, in an account in which Rerail has a table and no runs, and jobs complete at once."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    deployed = Place("stack Rerail", {"TableName": "Runs", "PolicyPrefix": "/rerail/policies"})
    monkeypatch.setattr(place, "find", lambda *, local: deployed)
    missing = "could not find"  # what moto calls a job that is not there
    monkeypatch.setattr("rerail.aws.sagemaker._is_missing", lambda error: missing in str(error).lower())
    monkeypatch.setattr("cli.submit.delivery.find_deployment", lambda screen: None)
    folder = tmp_path / "project"
    (folder / "code").mkdir(parents=True)
    (folder / ".git").mkdir()
    for name in ("prepare.py", "train.py"):
        (folder / "code" / name).write_text("print('hello')\n")
    (folder / "labels.csv").write_text("1\n")
    write(folder)
    monkeypatch.chdir(folder / "code")
    with mock_aws():
        where = {"CreateBucketConfiguration": {"LocationConstraint": REGION}}
        client("s3").create_bucket(Bucket=BUCKET, **where)
        client("s3").put_object(Bucket=BUCKET, Key="raw/a.csv", Body=b"1")
        client("dynamodb").create_table(**TABLE)
        yield folder


def write(folder: Path, options: str = "") -> None:
    (folder / "rerail.toml").write_text(CHAIN.format(role=ROLE, bucket=BUCKET, options=options))


def rerail(*words: str) -> Result:
    return CliRunner().invoke(app, ["chain", *words], env={"COLUMNS": "300", "NO_COLOR": "1"})


def plan(*words: str) -> dict[str, dict]:
    """What `--dry-run --json` prints, by task."""
    result = rerail("--dry-run", "--json", *words)
    assert result.exit_code == 0, result.output
    return {task["task"]: task for task in json.loads(result.stdout)["tasks"]}


def run_prepare() -> Result:
    """Run the chain, in which `prepare` leaves nothing: it completes, and `train` is refused."""
    result = rerail("--json")
    assert result.exit_code == 1, result.output
    return result


def test_what_changes_a_task_is_named_and_what_does_not_is_not(folder):
    assert plan()["prepare"]["why"] == "first run"
    assert client("sagemaker").list_training_jobs()["TrainingJobSummaries"] == []
    assert [item["Key"] for item in client("s3").list_objects_v2(Bucket=BUCKET)["Contents"]] == ["raw/a.csv"]
    run_prepare()
    assert plan()["prepare"]["does"] == "skip"
    write(
        folder, 'tags = { a = "x" }\nspot = true\nmax_runtime = "2h"\nvolume = 50\nmetrics = { loss = "l ([-0-9.e]+)" }'
    )
    assert plan()["prepare"]["does"] == "skip", "none of these changes a result"

    write(folder, 'env = { A = "1" }\ncount = 2')
    assert plan()["prepare"]["why"] == "environment A changed; machines changed: 1 -> 2"
    write(folder, 'hyperparameters = { lr = "0.1" }')
    assert plan()["prepare"]["why"] == "hyperparameter lr changed: none -> 0.1"
    write(folder)
    (folder / "labels.csv").write_text("2\n")
    assert plan()["prepare"]["why"] == "input labels changed"
    (folder / "labels.csv").write_text("1\n")
    client("s3").put_object(Bucket=BUCKET, Key="raw/b.csv", Body=b"2")
    assert plan()["prepare"]["why"] == "input raw changed"
    client("s3").delete_object(Bucket=BUCKET, Key="raw/b.csv")
    (folder / "code" / "model.py").write_text("x = 1\n")
    assert plan()["prepare"]["why"] == "code changed: model.py"


def test_an_artifact_that_is_not_there_ends_its_branch_with_the_remedy(folder):
    result = run_prepare()
    assert "to do: have prepare write to SM_OUTPUT_DATA_DIR, or run it again with --again prepare" in result.stderr
    assert "prepare.output is not there" in result.stderr and "not complete: train" in result.stderr
    tasks = {task["task"]: task for task in json.loads(result.stdout)["tasks"]}
    assert tasks["train"]["does"] == "failed" and tasks["prepare"]["artifacts"]["output"].endswith("output.tar.gz")
    jobs = client("sagemaker").list_training_jobs()["TrainingJobSummaries"]
    assert [job["TrainingJobName"] for job in jobs] == [tasks["prepare"]["run"]]
    again = plan("--again", "prepare")
    assert again["prepare"]["why"] == "asked for again" and again["prepare"]["run"] != tasks["prepare"]["run"]
    assert plan()["prepare"]["does"] == "skip", "a dry run asks for nothing"


@pytest.mark.parametrize(
    "options, problem, remedy",
    [
        ("instnce_type = 'x'", "unknown field 'instnce_type'", "did you mean 'instance_type'?"),
        ("name = 'x'", "unknown field 'name'", "known: script"),
        ("spot = 'yes'", "field 'spot' is 'yes'", "true or false"),
        ("count = [1]", "field 'count' is [1]", "a whole number"),
        ("env = { A = 1 }", "task prepare: field 'env' is {'A': 1}", "a table of texts"),
        ("instance_type = 'ml.g5.hugee'", "task prepare: --instance-type ml.g5.hugee", "did you mean"),
        ("max_runtime = 'long'", "task prepare: --max-runtime long", "90s, 15m"),
    ],
)
def test_a_wrong_option_is_named_with_its_task(folder, options, problem, remedy):
    write(folder, options)
    result = rerail("--dry-run")
    assert result.exit_code == 2 and problem in result.stderr and remedy in result.stderr, result.output


@pytest.mark.parametrize(
    "words, problem",
    [
        (["other"], "has no chain 'other'"),
        (["--again", "trian"], "--again trian: the chain has no such task"),
        (["--continue", "prepare"], "--continue prepare: nothing has changed since its run"),
        (["--continue", "other"], "--continue other: the chain has no such task"),
        (["--file", "missing.toml"], "--file missing.toml: there is no such file"),
        (["--state-machine"], "has no function that answers state machines"),
    ],
)
def test_a_wrong_word_starts_nothing(folder, words, problem):
    result = rerail(*words)
    assert result.exit_code == 2 and problem in result.stderr, result.output
    assert client("sagemaker").list_training_jobs()["TrainingJobSummaries"] == []


def test_no_objects_at_an_input_are_an_error(folder):
    client("s3").delete_object(Bucket=BUCKET, Key="raw/a.csv")
    result = rerail("--dry-run")
    assert result.exit_code == 2 and f"there are no objects at s3://{BUCKET}/raw/" in result.stderr


def test_ctrl_c_leaves_the_runs_and_names_the_command_that_resumes(folder, monkeypatch):
    monkeypatch.setattr(ChainRunner, "run", raising(KeyboardInterrupt))
    result = rerail("c", "--file", str(folder))
    assert result.exit_code == 130 and f"`rerail chain c --file {folder}` follows them again" in result.output


@pytest.mark.threat("T14")
def test_a_line_about_a_task_is_one_line(capsys):
    """Names in a job that others have started look like a line about another task."""
    ChainScreen(as_json=False).show("a", "another hyperparameter x\nb: complete")
    assert capsys.readouterr().out == "a: another hyperparameter x b: complete\n"
