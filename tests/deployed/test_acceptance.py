"""`rerail acceptance` in the deployed stack: killed, interrupted, and whole."""

import json
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from cli import place
from cli.acceptance.checks import CHECKS
from cli.acceptance.cleanup import find_leftovers, list_live_jobs
from cli.submit.options import LOCAL_BUCKET
from rerail.model.policy import Policy
from tests.deployed.jobs import RERAIL, ROOT, Account, patient
from tests.deployed.jobs import rerail as run_rerail

pytestmark = pytest.mark.slow
# What the local AWS cannot show.
NOT_TRIED = {"encryption"}


@pytest.fixture(scope="module")
def command(account: Account) -> list[str]:
    """The command under a policy that restarts in place; the suite's own does not."""

    def adapt(policy: Policy) -> Policy:
        policy = patient(policy, account.pace)
        return replace(policy, restart=replace(policy.restart, in_place=True))

    name = account.add_policy("acceptance", adapt)
    return ["acceptance", "--local", "--yes", "--policy", name]


def start(account: Account, environment: dict[str, str], command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start it with a job that trains until it is stopped, and wait until that trains."""
    words = [*command, "--only", "hang", "--output", str(folder)]
    with (folder / "printed").open("wb") as printed:
        process = subprocess.Popen(
            [*RERAIL, *words], cwd=ROOT, env=environment, stdout=printed, stderr=printed, preexec_fn=_restore_sighup
        )

    def is_training() -> bool:
        assert process.poll() is None, (folder / "printed").read_text()
        jobs = list_live_jobs(look(account), "rerail-acceptance-")
        return any(
            account.sagemaker.describe_training_job(TrainingJobName=job)["SecondaryStatus"] == "Training"
            for job in jobs
        )

    account.wait("its job trains", is_training)
    return process


def _restore_sighup() -> None:
    """A process that nohup started ignores SIGHUP, and so do those that it starts."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def look(account: Account) -> place.Place:
    account.look_here()
    return place.Place("the suite's", account.aws.outputs, is_local=True)


def list_traces(account: Account) -> list[str]:
    """Return what an acceptance has left: queues, rules, jobs, folders, subscriptions and tags."""
    sns = account.aws.client("sns")
    topics = [account.aws.outputs[name] for name in ("PageTopicArn", "InformTopicArn")]
    subscribed = [
        subscription["Endpoint"]
        for topic in topics
        for subscription in sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
        if "rerail-acceptance-" in subscription["Endpoint"]
    ]
    tagged = [
        job
        for job in account.jobs("rerail-acceptance-")
        for tag in account.sagemaker.list_tags(
            ResourceArn=account.sagemaker.describe_training_job(TrainingJobName=job)["TrainingJobArn"]
        )["Tags"]
        if tag["Key"] == "rerail:acceptance"
    ]
    return [*find_leftovers(look(account), LOCAL_BUCKET), *subscribed, *tagged]


def test_it_starts_nothing_without_a_terminal_to_ask_on(environment: dict[str, str], command: list[str]):
    """It says what it would start, its price and its longest duration."""
    asked = run_rerail(environment, *(word for word in command if word != "--yes"))
    assert asked.returncode == 2 and "there is no terminal to ask on" in asked.stderr
    assert "starts 8 training jobs on ml.m5.large" in asked.stderr and " at list prices, at most $" in asked.stderr
    wrong = run_rerail(environment, *command, "--only", "nan,everything")
    assert wrong.returncode == 2 and "--only everything: there is no such check" in wrong.stderr


def test_where_no_job_may_be_created_nothing_is_confirmed(
    account: Account, environment: dict[str, str], command: list[str], tmp_path: Path
):
    """As in an account whose policies demand what the jobs lack: exit 3, and not a green result."""
    denied = {"Operation": "CreateTrainingJob", "TrainingJobName": "rerail-acceptance-"}
    account.inject("deny", **denied, Count=100)
    try:
        done = run_rerail(environment, *command, "--only", "hang", "--output", str(tmp_path))
    finally:
        account.inject("deny", **denied, Count=0)
    assert done.returncode == 3, done.stderr
    verdicts = {check["verdict"] for check in json.loads((tmp_path / "acceptance.json").read_text())["checks"]}
    assert verdicts == {"not tried"} and "explicit deny" in done.stderr


def test_a_closed_terminal_leaves_nothing_behind(
    account: Account, environment: dict[str, str], command: list[str], tmp_path: Path
):
    process = start(account, environment, command, tmp_path)
    process.send_signal(signal.SIGHUP)
    assert process.wait(account.pace.real(120)) == 130, (tmp_path / "printed").read_text()
    assert json.loads((tmp_path / "acceptance.json").read_text())["interrupted"] is True
    assert not list_traces(account)


def test_it_confirms_every_assumption_and_removes_what_a_killed_one_has_left(
    account: Account, environment: dict[str, str], command: list[str], tmp_path: Path
):
    """The result is valid by its schema, and only what the emulator cannot show is not tried."""
    from jsonschema import Draft202012Validator  # takes seconds of each worker that collects this file

    killed = start(account, environment, command, tmp_path)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    (left,) = find_leftovers(look(account), LOCAL_BUCKET)

    done = run_rerail(environment, *command, "--output", str(tmp_path))
    assert f"removed what {left} had left" in done.stderr
    result = json.loads((tmp_path / "acceptance.json").read_text())
    seen = {check["id"]: (check["verdict"], check["seen"]) for check in result["checks"]}
    expected = {check.id: "not tried" if check.id in NOT_TRIED else "confirmed" for check in CHECKS}
    unexpected = {id: found for id, found in seen.items() if found[0] != expected[id]}
    assert not unexpected, f"{unexpected}\n{account.describe()}"
    assert (done.returncode, set(seen)) == (0, set(expected)), done.stderr
    schema = json.loads((ROOT / "docs" / "acceptance.schema.json").read_text())
    Draft202012Validator(schema).validate(result)
    measured = result["measurements"]
    assert all(measured[name]["count"] for name in ("startup_s", "warm_startup_s", "stop_s", "event_s", "upload_s"))
    assert "AlgorithmError" in (tmp_path / "acceptance.html").read_text()
    assert not list_traces(account)
