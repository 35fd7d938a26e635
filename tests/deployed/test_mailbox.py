"""The mailbox of the deployed stack: an agent's reports wake the supervisor, and its wishes reach the agent."""

import json

import pytest

from cli.demo.handshake import find_handshakes
from rerail.model.mailbox import make_command_key, make_report_key
from tests.deployed.jobs import AGENT, BUCKET, Account, rerail

pytestmark = pytest.mark.slow
STEPS = 60


@pytest.fixture(scope="module")
def mailbox(account: Account) -> str:
    """Two jobs with an agent are under way, one that saves through SageMaker's copy and one that writes to S3 itself;
    both soon find themselves slow."""
    mailbox = account.aws.outputs["MailboxBucket"]
    for durability in ("local", "remote"):
        places = {"DURABILITY": durability, "MAILBOX": mailbox, "BUCKET": BUCKET}
        account.submit(f"asked-{durability}", script=AGENT, steps=STEPS, **places)
    return mailbox


def reports(account: Account, mailbox: str, run: str) -> list[str]:
    """Keys of what the run's agents have said."""
    listed = account.aws.client("s3").list_objects_v2(Bucket=mailbox, Prefix=f"runs/{run}/reports/")
    return [item["Key"] for item in listed.get("Contents", [])]


@pytest.mark.parametrize("durability", ["remote", "local"])
def test_a_job_that_is_to_be_moved_saves_first(account: Account, mailbox: str, durability: str, record_property):
    """Asked, heard, committed, and only then stopped and relaunched: from the very step that was saved for it."""
    run_id = f"asked-{durability}"
    run = account.run_in(run_id, "completed")
    (asked,) = find_handshakes(account.runs.timeline(run_id))
    record_property("handshake", asked)
    print(f"{run_id}: {asked}")
    assert account.jobs(run_id) == [run_id, f"{run_id}-a002"]
    assert run.current.resumed_from_step == asked["step"]
    # What it reports may be heard in any order, or after the supervisor has seen the checkpoint for itself.
    assert f"the emergency checkpoint of step {asked['step']} is committed" in asked["stopped_because"]
    assert asked["stop_called_after_s"] > 0
    assert run.current.agent
    command = json.loads(
        account.aws.client("s3").get_object(Bucket=mailbox, Key=make_command_key(run_id))["Body"].read()
    )
    assert (command["kind"], command["attempt"]) == ("train", 2), "an agent of attempt 1 would know that it is over"


def test_the_emergency_checkpoint_is_listed_as_the_one_to_resume_from(
    account: Account, mailbox: str, environment: dict[str, str]
):
    """`rerail checkpoints` looks where the supervisor looks."""
    run = account.run_in("asked-remote", "completed")
    answer = rerail(environment, "checkpoints", run.id, "--local", "--json")
    assert answer.returncode == 0, answer.stderr
    listed = json.loads(answer.stdout)
    saved = {row["step"]: row["reason"] for row in listed["checkpoints"]}
    assert saved[run.current.resumed_from_step] == "emergency"
    assert listed["resume_from"]["step"] == max(saved)


def test_reports_that_are_repeated_or_make_no_sense_change_nothing(account: Account, mailbox: str):
    """All that was said is said again, and something that is no report: one line in the timeline, no dead letter."""
    s3, run_id = account.aws.client("s3"), account.submit("gossip", steps=10_000)
    account.run_in(run_id, "watching")
    before, finished = account.runs.load("asked-remote"), reports(account, mailbox, "asked-remote")
    assert len(finished) == 5
    for key in finished:
        s3.copy_object(Bucket=mailbox, Key=key, CopySource=f"{mailbox}/{key}", MetadataDirective="REPLACE")
    for number, text in enumerate((b"", b"{", b'{"schema": 1, "type": "Report", "attempt": -1}', b"{" * 100_000)):
        s3.put_object(Bucket=mailbox, Key=make_report_key(run_id, f"nonsense-{number}"), Body=text)
    s3.put_object(Bucket=mailbox, Key="runs/never-heard-of/reports/1.json", Body=b"{}")
    s3.put_object(Bucket=mailbox, Key="runs/../reports/1.json", Body=b"{}")
    account.wait("the refusal", lambda: [e for e in account.runs.timeline(run_id) if e.finding == "bad_mail"])
    account.wait("an empty queue", account.has_handled_all)
    after = account.runs.load(run_id)
    assert (after.state, len(after.attempts), after.incidents) == ("watching", 1, ())
    assert account.runs.load("asked-remote") == before
    assert account.jobs("asked-remote") == ["asked-remote", "asked-remote-a002"]
    account.sagemaker.stop_training_job(TrainingJobName=run_id)
    account.run_in(run_id, "stopped")
    assert account.dead_letters() == []
