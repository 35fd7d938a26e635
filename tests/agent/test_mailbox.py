"""The background thread, with the real SDK against a bucket service of this machine."""

import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rerail.model.finding import Finding, Kind, Level
from rerail.model.mailbox import CommandKind
from rerail.model.signatures import is_signed
from rerail.model.thresholds import Thresholds
from rerail_agent import guard as guard_module
from rerail_agent import mailbox_objects
from rerail_agent.checkpoints import open_store
from rerail_agent.mailbox_objects import MailboxBucket, Unreachable
from tests.agent.fake_s3 import BUCKET, HANG_S, OWNER, Bucket
from tests.agent.jobs import command, environment_of
from tests.raising import raising

SPIKE = Finding(Kind.LOSS_SPIKE, Level.WARN, 60, 58, "loss 5")


def findings_in(bucket: Bucket) -> set[tuple[Kind, int | None]]:
    """What was found, and where it began; a busy machine may have had a slow step besides."""
    return {(finding.kind, finding.onset_step) for report in bucket.reports().values() for finding in report.findings}


def train_until_wanted(guard, first: int = 1) -> int:
    """Steps until a checkpoint is wanted; that step."""
    deadline = time.monotonic() + HANG_S
    for step in itertools.count(first):
        guard.step(step=step, loss=2.0, log=False)
        if guard.wants_checkpoint:
            return step
        assert time.monotonic() < deadline, "no checkpoint was wanted"
        time.sleep(0.005)
    raise AssertionError("unreachable")


class Gate:
    """Holds every request of the agent back while it is shut, as a network does that never answers."""

    def __init__(self) -> None:
        self.waiting, self.gave_up = threading.Event(), threading.Event()
        self._open = threading.Event()
        self._open.set()

    def shut(self) -> None:
        """Hold requests back from now on; return when one of them waits."""
        self._open.clear()
        assert self.waiting.wait(HANG_S)

    def open(self) -> None:
        self._open.set()

    def pass_through(self) -> None:
        """Wait until it is open, but not for ever: a waiting request then goes on, and the test fails."""
        if not self._open.is_set():
            self.waiting.set()
            if not self._open.wait(HANG_S):
                self.gave_up.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate()

    def behind_gate(request: Callable[..., Any]) -> Callable[..., Any]:
        def wait_first(*arguments: Any, **options: Any) -> Any:
            made.pass_through()
            return request(*arguments, **options)

        return wait_first

    monkeypatch.setattr(MailboxBucket, "read", behind_gate(MailboxBucket.read))
    monkeypatch.setattr(MailboxBucket, "write", behind_gate(MailboxBucket.write))
    yield made
    made.open()


def test_a_checkpoint_that_could_not_be_restored_is_reported_each_time(bucket: Bucket, new_guard):
    """Certain damage and a failed load apart; each with its step, and the attempt that had saved it."""
    guard = new_guard(bucket)
    guard.not_restored(20, "__0_0.distcp does not match its checksum", damaged=True, saved_by=1)
    guard.not_restored(10, "rank 0 cannot load it", saved_by=None)
    guard.not_restored(10, "rank 0 cannot load it", saved_by=None)
    damaged, unloaded = bucket.wait_for_report("damaged"), bucket.wait_for_report("unloaded")
    assert (damaged.step, damaged.saved_by, "checksum" in damaged.reason) == (20, 1, True)
    assert (unloaded.step, unloaded.saved_by) == (10, None)
    guard.close()
    assert len([name for name in bucket.reports() if "unloaded" in name]) == 2


def test_a_machine_whose_clock_is_ahead_saves_on_request(bucket: Bucket, new_guard, monkeypatch):
    monkeypatch.setattr(guard_module, "_now", lambda: datetime.now(UTC) + timedelta(minutes=16))
    guard = new_guard(bucket)
    bucket.command(command(left_s=600))
    train_until_wanted(guard)
    assert bucket.wait_for_report("acknowledged").command == "c1"


def test_the_handshake_reports_hello_receipt_and_checkpoint(bucket: Bucket, new_guard):
    guard = new_guard(bucket)
    hello = bucket.wait_for_report("hello")
    assert (hello.id, hello.run, hello.attempt, hello.job) == ("a001-hello", "night", 1, "night")
    bucket.command(command())
    step = train_until_wanted(guard)
    assert guard.reason == "emergency"
    assert bucket.wait_for_report("acknowledged").command == "c1"
    guard.step(step=step + 1, loss=2.0)
    assert not guard.wants_checkpoint
    guard.committed("/opt/ml/checkpoints/step-x", step)
    report = bucket.wait_for_report("checkpoint")
    assert (report.command, report.step, report.durability) == ("c1", step, "local")


def test_commands_follow_one_another(bucket: Bucket, new_guard):
    """Each id is one wish, granted once."""
    guard = new_guard(bucket)
    step = 0
    for id in ("c1", "c2"):
        bucket.command(command(id))
        step = train_until_wanted(guard, step + 1)
        guard.committed("s3://b/p", step)
        bucket.wait_for(lambda id=id: f"a001-checkpoint-{id}" in bucket.reports())
    assert {report.durability for report in bucket.reports().values() if report.kind == "checkpoint"} == {"remote"}


@pytest.mark.threat("T1")
@pytest.mark.parametrize(("key", "is_key"), [("5ea1" * 16, True), ("", False), ("too short", False)])
def test_what_an_agent_writes_is_signed(bucket: Bucket, new_guard, key: str, is_key: bool):
    """Reports and heartbeats, with the key that the job was handed; without one, or with something else, as before."""
    new_guard(bucket, RERAIL_SEAL_KEY=key)
    bucket.wait_for_report("hello")
    bucket.wait_for(lambda: bucket.heartbeat())
    for name, text in list(bucket.objects.items()):
        assert is_signed(text, name=name, key="5ea1" * 16) is is_key
    assert bucket.reports()["a001-hello"].job == "night"


def test_an_unchanged_command_is_not_read_twice(bucket: Bucket, new_guard):
    """The poll is conditional: S3 answers 304."""
    bucket.command(command(kind=CommandKind.TRAIN))
    new_guard(bucket)

    def statuses() -> list[int]:
        return [request.status for request in bucket.requests if request.method == "GET"]

    bucket.wait_for(lambda: statuses().count(304) >= 3)
    assert statuses().count(200) == 1


def test_a_save_that_fails_is_reported(bucket: Bucket, new_guard, capfd):
    """step() catches what the save raises, and answers the command."""

    guard = new_guard(bucket, save=raising(OSError("no space left")))
    bucket.command(command())
    train_until_wanted(guard)
    report = bucket.wait_for_report("refused")
    assert "no space left" in report.reason
    assert report.command == "c1"
    assert "no space left" in capfd.readouterr().err


def test_step_calls_the_save_function_that_the_guard_was_given(bucket: Bucket, new_guard):
    reasons = []
    guard = new_guard(bucket, save=lambda reason: reasons.append(reason) or "/fsx/step-1")
    bucket.command(command())
    step = train_until_wanted(guard)
    assert bucket.wait_for_report("checkpoint").step == step
    assert reasons == ["emergency"]


def test_the_heartbeat_has_step_loss_speed_and_phase(bucket: Bucket, new_guard):
    guard = new_guard(bucket)
    assert bucket.wait_for(bucket.heartbeat).phase == "startup"
    before, after = [], []
    for step in range(1, 20):
        before.append(time.monotonic())
        guard.step(step=step, loss=2.5, tokens=1000, log=step % 5 == 0)
        after.append(time.monotonic())
        time.sleep(0.01)
    heartbeat = bucket.wait_for(lambda: (b := bucket.heartbeat()) and b.step == 19 and b)
    assert (heartbeat.run, heartbeat.attempt, heartbeat.phase, heartbeat.loss) == ("night", 1, "step", 2.5)
    assert heartbeat.moved_at is not None
    shortest = min(later - earlier for earlier, later in zip(after, before[1:], strict=False))
    longest = max(later - earlier for earlier, later in zip(before, after[1:], strict=False))
    assert shortest <= (heartbeat.step_seconds or shortest) <= longest
    assert 1000 / longest <= heartbeat.tokens_per_s <= 1000 / shortest
    with guard.phase("save"):
        assert bucket.wait_for(lambda: (b := bucket.heartbeat()) and b.phase == "save")
    guard.step(step=20, loss=float("nan"))
    assert bucket.wait_for(lambda: (b := bucket.heartbeat()) and b.step == 20 and b.loss is None)


def test_a_spike_is_reported_and_requests_a_suspect_checkpoint(bucket: Bucket, new_guard):
    """Spikes mostly recover by themselves: the warning only causes a save, which answers no command."""
    guard = new_guard(bucket)
    wanted = []
    for step in range(1, 130):
        guard.step(step=step, loss=9.0 if step in (100, 101) else 2.0 + step % 7 / 100, log=False)
        if guard.wants_checkpoint:
            wanted.append((step, guard.reason, guard.health))
            guard.committed("/p", step)
    assert wanted == [(100, "warning", "suspect")]
    assert guard.health == "clean"
    bucket.wait_for(lambda: (Kind.LOSS_SPIKE, 100) in findings_in(bucket))
    assert "checkpoint" not in {report.kind for report in bucket.reports().values()}


def test_saving_on_a_warning_can_be_switched_off(bucket: Bucket, new_guard):
    guard = new_guard(bucket, RERAIL_SAVE_ON_WARNING="off")
    for step in range(1, 110):
        guard.step(step=step, loss=9.0 if step == 100 else 2.0 + step % 7 / 100, log=False)
        assert not guard.wants_checkpoint
    assert bucket.wait_for_report("findings")


def test_a_broken_command_is_refused_once_and_changes_nothing(bucket: Bucket, new_guard):
    guard = new_guard(bucket)
    bucket.put("runs/night/command.json", b'{"schema": 1}')
    assert "type" in bucket.wait_for_report("refused").reason
    guard.step(step=1, loss=2.0)
    assert not guard.wants_checkpoint
    bucket.command(command())
    train_until_wanted(guard, 2)
    assert len([report for report in bucket.reports().values() if report.kind == "refused"]) == 1


def test_after_an_outage_everything_arrives_once_and_under_its_name(
    bucket: Bucket, new_guard, gate: Gate, monkeypatch, capfd
):
    """Reports wait, the training does not; one line tells of the trouble and one of its end."""
    monkeypatch.setattr("rerail_agent.mailbox_client.RETRY_S", (0.02, 0.1))
    bucket.broken = {"PUT": (503, "SlowDown"), "GET": (500, "InternalError")}
    guard = new_guard(bucket)
    guard.report(SPIKE)
    bucket.wait_for(lambda: len([r for r in bucket.requests if r.method == "PUT"]) > 5)
    assert not bucket.reports()
    gate.shut()
    guard.step(step=1, loss=2.0)
    assert not gate.gave_up.is_set(), "the step waited for a request"
    gate.open()
    bucket.broken = {}
    bucket.command(command())
    train_until_wanted(guard)
    bucket.wait_for_report("acknowledged")
    assert sorted(bucket.reports()) == ["a001-acknowledged-c1", "a001-findings-loss_spike-warn-58", "a001-hello"]
    logged = capfd.readouterr().err
    assert logged.count("SlowDown") == 1
    assert logged.count("works again") == 2


def test_a_missing_permission_is_logged_once_and_retried_rarely(bucket: Bucket, new_guard, capfd):
    """A role that may not write there costs nothing but what the mailbox is for."""
    bucket.broken = {"PUT": (403, "AccessDenied"), "GET": (403, "AccessDenied")}
    guard = new_guard(bucket)
    said: list[str] = []

    def listened() -> int:
        # A guard of an earlier test may still print a line about its own mailbox.
        said.extend(line for line in capfd.readouterr().err.splitlines() if "AccessDenied" in line)
        return len(said)

    bucket.wait_for(lambda: listened() >= 2)
    time.sleep(0.4)
    listened()
    assert len(bucket.requests) == 2
    assert [line.count("AccessDenied") for line in said] == [1, 1]
    closing = threading.Thread(target=lambda: guard.close(within_s=10 * HANG_S), daemon=True)
    closing.start()
    closing.join(HANG_S)
    assert not closing.is_alive(), "it waits to send what is not received"


@pytest.mark.parametrize(
    ("variable", "meanwhile", "problem"),
    [
        ("AWS_ACCESS_KEY_ID", "", "NoCredentialsError"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9", "EndpointConnectionError"),
    ],
)
def test_an_environment_that_is_cleared_for_a_moment_is_read_again(
    bucket: Bucket, monkeypatch, variable, meanwhile, problem
):
    """Accelerate clears the environment for a moment in the training thread: the next try reads it again."""
    for name, value in environment_of(bucket, base=Path(), AWS_EC2_METADATA_DISABLED="true").items():
        monkeypatch.setenv(name, value)
    post = MailboxBucket(BUCKET, "us-east-1", account=OWNER)
    with monkeypatch.context() as cleared:
        cleared.setenv(variable, meanwhile)
        with pytest.raises(Unreachable, match=problem) as missing:
            post.write("runs/night/x.json", b"{}")
    assert not missing.value.lasting
    post.write("runs/night/x.json", b"{}")
    assert list(bucket.objects) == ["runs/night/x.json"]
    assert post.read("runs/night/x.json") is not None


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_a_local_aws_is_asked_under_its_one_host_name(monkeypatch, name):
    for key, value in {name: "http://emulator:4566", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}.items():
        monkeypatch.setenv(key, value)
    client = mailbox_objects.make_s3_client("us-east-1", OWNER, attempts=1)
    asked = client.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": "x.json"})
    assert asked.startswith(f"http://emulator:4566/{BUCKET}/x.json?")


def test_a_role_that_may_not_list_still_receives_commands(bucket: Bucket, new_guard, capfd):
    """Without s3:ListBucket S3 denies what merely is not there yet: reports flow, and polling goes on at its pace."""
    bucket.broken = {"GET": (403, "AccessDenied")}
    guard = new_guard(bucket)
    bucket.wait_for_report("hello")
    bucket.wait_for(lambda: len([r for r in bucket.requests if r.status == 403]) >= 3)
    bucket.broken = {}
    bucket.command(command())
    train_until_wanted(guard)
    assert capfd.readouterr().err.count("AccessDenied") == 1


def test_a_network_that_never_answers_does_not_hold_up_the_end(bucket: Bucket, new_guard, gate: Gate):
    """close() waits for the last mail, but not beyond its limit."""
    guard = new_guard(bucket)
    gate.shut()
    guard.report(SPIKE)
    guard.close(within_s=0.2)
    guard.close()
    assert not gate.gave_up.is_set()


def test_the_last_report_gets_out_before_the_end(bucket: Bucket, new_guard):
    guard = new_guard(bucket)
    bucket.wait_for_report("hello")
    guard.report(SPIKE)
    guard.close()
    assert "a001-findings-loss_spike-warn-58" in bucket.reports()


@pytest.mark.parametrize("rank", ["1", "7"])
def test_only_rank_0_talks_to_the_mailbox(bucket: Bucket, new_guard, rank):
    guard = new_guard(bucket, RANK=rank)
    guard.step(step=1, loss=2.0)
    guard.report(SPIKE)
    time.sleep(0.2)
    assert bucket.requests == []


@pytest.mark.threat("T23")
def test_a_mailbox_of_another_account_commands_no_job(bucket: Bucket, new_guard, capfd):
    """Another account took the bucket's name first. The agent neither reads nor writes there; training goes on."""
    bucket.owner = "999999999999"
    bucket.command(command())
    guard = new_guard(bucket)
    bucket.wait_for(lambda: {request.method for request in bucket.requests} == {"GET", "PUT"})
    for step in range(1, 20):
        guard.step(step=step, loss=2.0)
        assert not guard.wants_checkpoint
    guard.close()
    assert {request.status for request in bucket.requests} == {403}
    assert set(bucket.objects) == {"runs/night/command.json"}
    assert "AccessDenied" in capfd.readouterr().err


@pytest.mark.threat("T23")
def test_checkpoints_go_to_no_bucket_of_another_account(bucket: Bucket, monkeypatch):
    """s3torchconnector cannot ask for the owner, so the store asks once before its first use."""
    for name, value in environment_of(bucket, base=Path("/nowhere")).items():
        monkeypatch.setenv(name, value)
    bucket.owner = "999999999999"
    with pytest.raises(PermissionError, match=f"not a bucket of this job's account {OWNER}.*s3:ListBucket"):
        open_store(f"s3://{BUCKET}/runs/night/")
    bucket.owner = OWNER
    assert open_store(f"s3://{BUCKET}/runs/night/").uri == f"s3://{BUCKET}/runs/night/"


@pytest.mark.threat("T8")
def test_a_report_is_written_once_under_a_name_that_cannot_be_taken(bucket: Bucket, new_guard, monkeypatch):
    """A name without a nonce is no use to those who take it first; a lost answer is not a second report."""
    bucket.objects["runs/night/reports/a001-hello.json"] = b"taken"
    new_guard(bucket)
    bucket.wait_for(lambda: len([key for key in bucket.objects if "hello" in key]) == 3)  # of the first two heartbeats
    del bucket.objects["runs/night/reports/a001-hello.json"]
    assert bucket.reports()["a001-hello"].job == "night"
    for name, value in environment_of(bucket, base=Path()).items():
        monkeypatch.setenv(name, value)
    mailbox = MailboxBucket(BUCKET, "us-east-1", account=OWNER)
    mailbox.write("runs/night/reports/x.json", b"{}", once=True)
    mailbox.write("runs/night/reports/x.json", b"{1}", once=True)
    assert bucket.objects["runs/night/reports/x.json"] == b"{}"


@pytest.mark.threat("T8")
def test_a_finding_is_reported_again_while_it_is_open(bucket: Bucket, new_guard):
    """The first report was lost: the loss stays bad, and a later report reaches the supervisor."""
    guard = new_guard(bucket, RERAIL_HEARTBEAT_SECONDS="0.05")
    for step in range(1, 200):
        guard.step(step=step, loss=2.0 if step < 150 else float("nan"))

    def count() -> int:
        return sum("findings-non_finite-intervene" in key for key in bucket.objects)

    bucket.wait_for(lambda: count() >= 3)
    for step in range(200, 400):
        guard.step(step=step, loss=2.0)
    guard.close()


def test_the_settings_of_the_policy_come_with_a_command(bucket: Bucket, new_guard, capfd):
    """To a job that Rerail has not launched; what the job sets itself comes first."""
    guard = new_guard(bucket, RERAIL_SAVE_INTERVAL='{"longest": 60}')
    settings = {
        "RERAIL_DETECTION": '{"startup_limit": 7200.0, "patience_rows": 40}',
        "RERAIL_SAVE_INTERVAL": '{"longest": 1200.0}',
        "RERAIL_MTBF_SECONDS": "43200",
    }
    bucket.command(command(kind=CommandKind.TRAIN, settings=json.dumps(settings)))
    bucket.wait_for(lambda: guard._watchdog.limits.unknown_s == 7200)
    assert (
        guard._detection.thresholds
        == guard._settings.detection
        == Thresholds(startup_limit=timedelta(hours=2), patience_rows=40)
    )
    assert guard._settings.mtbf_s == 43_200
    assert guard._settings.interval.longest == timedelta(minutes=1)
    assert "settings of the policy" in capfd.readouterr().err


@pytest.mark.slow
def test_parent_and_child_can_import_after_a_fork():
    child = os.fork()
    is_free = mailbox_objects._importing.acquire(timeout=5)
    if child == 0:
        os._exit(not is_free)
    assert is_free and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    mailbox_objects._importing.release()
