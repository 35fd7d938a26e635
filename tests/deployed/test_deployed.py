"""The deployed template at work: real rules, queue, functions and table, real processes, hostile events."""

import json
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest

from rerail.model.file_copies import FileCopy
from rerail.model.partitions import is_turn
from rerail.model.run import Incident
from rerail.requests.relaunch import POLICY_TAG
from rerail.sweep.describe_schedule import OWN_MINUTE
from tests.deployed.jobs import BUCKET, HALT_AT, Account, NotificationQueue, rerail

pytestmark = pytest.mark.slow


def test_with_every_event_lost_the_sweep_alone_adopts_and_relaunches(account: Account):
    name = "lost-events"
    account.inject("events", Loss=1, TrainingJobName=name)
    try:
        account.submit(name, steps=HALT_AT + 10, HALT_AT=str(HALT_AT))
        account.run_in(name, "watching")
        account.inject_at_step(name, "internal_error", at_step=HALT_AT)
        run = account.run_in(name, "completed")
    finally:
        account.inject("events", Loss=0, TrainingJobName="")
    assert account.jobs(name) == [name, f"{name}-a002"]
    assert run.attempts[1].resumed_from_step == HALT_AT


def test_events_that_come_again_and_again_make_one_successor(account: Account):
    name = "repeated-events"
    account.inject("events", Repeat=4, TrainingJobName=name)
    try:
        account.submit_struck(name, "kill")
        account.run_in(name, "completed")
    finally:
        account.inject("events", Repeat=0, TrainingJobName="")
    assert account.jobs(name) == [name, f"{name}-a002"]


def test_a_bare_exit_code_is_explained_by_the_log(account: Account):
    """The reason is ", exit code: 1"; the cause stands in the job's log only."""
    script = Path(__file__).parent / "bare_script.py"
    names = {cause: f"bare-{cause.replace('_', '-')}" for cause in ("oom", "infrastructure", "user_code")}
    for cause, name in names.items():
        account.submit(name, script=script, DIES_OF=cause)
    for cause, name in names.items():

        def find_incident(name: str = name) -> Incident | None:
            run = account.runs.load(name)
            return run.incidents[0] if run and run.incidents else None

        incident = account.wait(f"the incident of {name}", find_incident)
        assert incident.cause == cause
        assert "could be read" not in incident.reason
        if cause == "user_code":
            assert incident.evidence == "KeyError: 'eos'"


def test_a_torn_file_is_replaced_by_its_copy(account: Account, tmp_path: Path):
    """The machine is lost while the script overwrites its only checkpoint; the attempt after it cannot load that."""
    # Checkpoints are listed in one real minute of a few, which the name chooses: for this one it is the next.
    names, soon = (f"tears-its-file-{number}" for number in count()), datetime.now(UTC) + timedelta(minutes=1)
    name = next(name for name in names if is_turn(name, soon, every=OWN_MINUTE))
    tear, s3 = tmp_path / "tear", account.aws.client("s3")
    script = Path(__file__).parent / "file_script.py"
    account.submit(name, script=script, steps=1, TEAR=str(tear))

    def copies() -> tuple[FileCopy, ...]:
        run = account.runs.load(name)
        return run.copies if run and not run.pending else ()

    account.wait("a copy", copies)
    tear.touch()
    is_torn = lambda: s3.head_object(Bucket=BUCKET, Key=f"{name}/ckpt.pt")["ContentLength"] == 500  # noqa: E731
    account.wait("the torn file", is_torn)
    account.inject("internal_error", TrainingJobName=name)
    run = account.run_in(name, "completed")
    assert [attempt.cause for attempt in run.attempts] == ["infrastructure", "damaged_checkpoint", None]
    moved = s3.head_object(Bucket=BUCKET, Key=f"rerail-quarantine/{name}/a002/ckpt.pt")
    restored = s3.head_object(Bucket=BUCKET, Key=f"{name}/ckpt.pt")["ETag"].strip('"')
    assert moved["ContentLength"] == 500 and restored in {copy.copy_etag for copy in run.copies}
    listed = s3.list_objects_v2(Bucket=BUCKET, Prefix=f"rerail-versions/{name}/")["Contents"]
    assert {item["Key"] for item in listed} == {copy.key for copy in run.copies} and len(listed) <= 3


def test_a_humans_stop_is_final(account: Account):
    name = account.submit("stopped-by-hand", steps=10_000)
    account.run_in(name, "watching")
    account.sagemaker.stop_training_job(TrainingJobName=name)
    account.run_in(name, "stopped")
    assert account.jobs(name) == [name]


def test_a_job_without_the_tag_is_left_alone(account: Account):
    name = account.submit("not-ours", policy=None, BUG_AT="20")
    status = lambda: account.sagemaker.describe_training_job(TrainingJobName=name)["TrainingJobStatus"]  # noqa: E731
    account.wait("the failure", lambda: status() == "Failed")
    neighbour = account.submit("ours-meanwhile", steps=20)
    account.run_in(neighbour, "completed")
    assert account.jobs("not-ours") == [name]
    assert account.runs.load(name) is None


def test_a_job_that_is_tagged_while_it_trains_is_adopted_on_request(account: Account, environment: dict[str, str]):
    """SageMaker sends no event about a tag, and the sweep lists only jobs that have changed."""
    name = account.submit("tagged-late", policy=None, steps=10_000)
    account.has_saved(name, steps=20)
    refused = rerail(environment, "adopt", name, "--local")
    assert (refused.returncode, "add-tags" in refused.stderr) == (2, True)
    arn = account.sagemaker.describe_training_job(TrainingJobName=name)["TrainingJobArn"]
    account.sagemaker.add_tags(ResourceArn=arn, Tags=[{"Key": POLICY_TAG, "Value": "default"}])
    assert rerail(environment, "adopt", name, "--local").returncode == 0
    account.run_in(name, "watching")
    assert rerail(environment, "stop", name, "--now", "--local").returncode == 0
    account.run_in(name, "stopped")


def test_a_hold_pages_once_and_its_end_clears(account: Account, environment: dict[str, str]):
    """With the reason and what to do; the all-clear goes where the page went."""
    on_call = NotificationQueue(account, "on-call", "PageTopicArn")
    name = account.submit("has-a-bug", BUG_AT="20")
    account.run_in(name, "held")
    pages = account.wait("a page", lambda: on_call.received(about=name))
    assert [page["Subject"] for page in pages] == [f"{name}: held: ValueError: bad shape at step 20, twice"]
    assert "ValueError: bad shape" in pages[0]["Message"]
    assert f"rerail submit SCRIPT --continue {name}" in pages[0]["Message"]
    assert rerail(environment, "stop", name, "--local").returncode == 0
    notices = account.wait("the all-clear", lambda: on_call.received(about=name)[1:])
    assert [clear["Subject"] for clear in notices] == [f"{name}: all clear: no longer held (stopped)"]
    assert account.jobs(name) == [name, f"{name}-a002"]


def test_an_operator_restarts_a_run_and_it_loses_nothing(account: Account, environment: dict[str, str]):
    name = account.submit("moved", steps=10_000)
    account.has_saved(name, steps=20)
    account.run_in(name, "watching")
    asked = rerail(environment, "restart", name, "--why", "a noisy node", "--local")
    assert asked.returncode == 0, asked.stderr
    run = account.wait("the successor", lambda: r if (r := account.runs.load(name)).current.number == 2 else None)
    assert run.current.resumed_from_step >= 20
    shown = rerail(environment, "show", name, "--local", "--json")
    reasons = [entry["reason"] for entry in json.loads(shown.stdout)["timeline"]]
    assert any("restart (a noisy node): waiting up to" in reason for reason in reasons)
    rerail(environment, "stop", name, "--local")
    account.run_in(name, "stopped")


def test_a_users_own_alarm_on_a_job_reaches_its_timeline_and_stops_nothing(account: Account):
    name = account.submit("alarmed", steps=10_000)
    account.run_in(name, "watching")
    cloudwatch = account.aws.client("cloudwatch")
    cloudwatch.put_metric_alarm(
        AlarmName="loss-too-high",
        Namespace="/aws/sagemaker/TrainingJobs",
        MetricName="loss",
        Dimensions=[{"Name": "TrainingJobName", "Value": name}],
        Statistic="Maximum",
        Period=60,
        EvaluationPeriods=1,
        Threshold=1e9,
        ComparisonOperator="GreaterThanThreshold",
        TreatMissingData="ignore",
    )
    cloudwatch.set_alarm_state(AlarmName="loss-too-high", StateValue="ALARM", StateReason="it is")
    entries = account.wait(
        "the alarm in the timeline", lambda: [e for e in account.runs.timeline(name) if e.finding == "alarm"]
    )
    assert "alarm loss-too-high went off: it is" in entries[0].reason
    assert account.jobs(name) == [name]
    account.sagemaker.stop_training_job(TrainingJobName=name)
    account.run_in(name, "stopped")
