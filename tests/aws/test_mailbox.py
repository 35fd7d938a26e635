"""The mailbox in S3: what is there, what is not, and what is too much."""

from datetime import UTC, datetime, timedelta
from hashlib import sha256

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from rerail.aws import mailbox
from rerail.aws.mailbox import S3Mailbox
from rerail.model.errors import BadMailboxObject, CommandNotStored, StateUnknown, Throttled
from rerail.model.liveness import Phase
from rerail.model.mailbox import (
    SIZE_LIMIT,
    Command,
    CommandKind,
    Heartbeat,
    Report,
    ReportKind,
    make_change_key,
    make_command_key,
    make_heartbeat_key,
    make_report_key,
    read_command,
    serialize,
)
from rerail.model.signatures import sign
from tests.aws.places import make_bucket
from tests.fakes import KEY
from tests.raising import raising

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
BUCKET = "sagemaker-rerail-123456789012-eu-west-1"


@pytest.fixture
def s3():
    return make_bucket(BUCKET)


def a_heartbeat(run: str) -> Heartbeat:
    return Heartbeat(run, 1, run, NOON, Phase.STEP, 60)


def a_report() -> Report:
    return Report("r1", "gpt", 1, "gpt", ReportKind.HELLO, NOON)


def refusing(monkeypatch, code: str) -> None:
    """Every call is answered with this error."""

    class Refusing:
        def __getattr__(self, name):
            return raising(ClientError({"Error": {"Code": code, "Message": "no"}}, name))

    monkeypatch.setattr(mailbox, "client", lambda service: Refusing())


def test_a_command_is_stored_where_the_agent_reads_it(s3):
    """The newest one only."""
    for number in (1, 2):
        S3Mailbox(BUCKET).post(Command(f"c{number}", "gpt", number, CommandKind.TRAIN, NOON))
    answer = s3.get_object(Bucket=BUCKET, Key=make_command_key("gpt"))
    assert read_command(answer["Body"].read(), run="gpt").id == "c2"
    assert answer["ContentType"] == "application/json"


def test_a_report_is_read_by_its_key(s3):
    s3.put_object(Bucket=BUCKET, Key=make_report_key("gpt", "r1"), Body=serialize(a_report()))
    assert S3Mailbox(BUCKET).report(make_report_key("gpt", "r1")) == a_report()


def test_a_report_that_is_not_there_is_none(s3):
    assert S3Mailbox(BUCKET).report(make_report_key("gpt", "r2")) is None


@pytest.mark.parametrize("key", [make_command_key("gpt"), "runs/a/b/reports/x.json"])
def test_any_other_object_is_no_report(s3, key):
    with pytest.raises(BadMailboxObject):
        S3Mailbox(BUCKET).report(key)


@pytest.mark.parametrize(("size", "defect"), [(0, "json"), (SIZE_LIMIT, "json"), (SIZE_LIMIT + 1, "size")])
def test_no_more_is_read_than_a_report_may_hold(s3, size, defect):
    """Ten gigabytes would cost as much memory as sixty-four kilobytes."""
    s3.put_object(Bucket=BUCKET, Key=make_report_key("gpt", "r1"), Body=b"x" * size)
    with pytest.raises(BadMailboxObject) as error:
        S3Mailbox(BUCKET).report(make_report_key("gpt", "r1"))
    assert error.value.defect == defect


def test_a_change_is_read_if_it_is_what_the_command_names(s3):
    digest = sha256(b"{}").hexdigest()
    s3.put_object(Bucket=BUCKET, Key=make_change_key("gpt", digest), Body=b"{}")
    s3.put_object(Bucket=BUCKET, Key=make_change_key("gpt", "0" * 64), Body=b"{}")
    assert S3Mailbox(BUCKET).change("gpt", digest) == b"{}"
    for name in ("0" * 64, "1" * 64):
        with pytest.raises(BadMailboxObject, match="not what the command names|does not exist"):
            S3Mailbox(BUCKET).change("gpt", name)


def test_heartbeats_are_read_together(s3):
    """Those that there are, with the time of their arrival; why one cannot be read; nothing of one that is absent."""
    begun = datetime.now(UTC) - timedelta(seconds=2)
    for run in ("a", "b"):
        name = make_heartbeat_key(run)
        body = sign(serialize(a_heartbeat(run)), name=name, key=KEY if run == "a" else "")
        s3.put_object(Bucket=BUCKET, Key=name, Body=body)
    s3.put_object(Bucket=BUCKET, Key=make_heartbeat_key("torn"), Body=b'{"schema":1')
    s3.put_object(Bucket=BUCKET, Key=make_heartbeat_key("alien"), Body=serialize(a_heartbeat("a")))
    beats = S3Mailbox(BUCKET).heartbeats(["b", "a", "a", "torn", "alien", "absent"], {"a": KEY, "b": KEY})
    assert {run: received.heartbeat for run, received in beats.received.items()} == {
        "a": a_heartbeat("a"),
        "b": a_heartbeat("b"),
    }
    assert all(begun <= received.at <= datetime.now(UTC) for received in beats.received.values())
    assert {run for run, received in beats.received.items() if received.is_signed} == {"a"}, "it alone is signed"
    assert set(beats.unread) == {"torn", "alien"}
    assert "not JSON" in beats.unread["torn"] and "field 'run'" in beats.unread["alien"]


def test_no_heartbeats_are_read_for_no_runs(s3):
    assert S3Mailbox(BUCKET).heartbeats([]) == ({}, {})


def test_a_mailbox_that_may_not_be_read_is_no_empty_one(s3, monkeypatch):
    """Each heartbeat says why; a report is asked for again."""
    refusing(monkeypatch, "AccessDenied")
    assert "AccessDenied" in S3Mailbox(BUCKET).heartbeats(["gpt"]).unread["gpt"]
    with pytest.raises(StateUnknown, match="AccessDenied"):
        S3Mailbox(BUCKET).report(make_report_key("gpt", "r1"))


@pytest.mark.threat("T8")
@pytest.mark.parametrize("code", ["InvalidObjectState", "InvalidRequest", "KMS.DisabledException"])
def test_a_report_that_its_writer_made_unreadable_is_passed_over(s3, monkeypatch, code):
    """Archived or encrypted: asked for again it would end as a dead letter, which pages."""
    refusing(monkeypatch, code)
    with pytest.raises(BadMailboxObject, match="cannot be read: it is") as error:
        S3Mailbox(BUCKET).report(make_report_key("gpt", "r1"))
    assert error.value.defect == "unreadable"


@pytest.mark.parametrize(
    ("code", "error"), [("SlowDown", Throttled), ("AccessDenied", CommandNotStored), ("NoSuchBucket", CommandNotStored)]
)
def test_a_command_that_is_not_stored_stays_pending(s3, monkeypatch, code, error):
    refusing(monkeypatch, code)
    with pytest.raises(error, match=r"PutObject runs/gpt/command\.json"):
        S3Mailbox(BUCKET).post(Command("c1", "gpt", 1, CommandKind.TRAIN, NOON))


def test_a_failed_connection_is_an_unknown_result(s3, monkeypatch):
    class Dead:
        def __getattr__(self, name):
            return raising(EndpointConnectionError(endpoint_url="https://s3"))

    monkeypatch.setattr(mailbox, "client", lambda service: Dead())
    with pytest.raises(CommandNotStored):
        S3Mailbox(BUCKET).post(Command("c1", "gpt", 1, CommandKind.TRAIN, NOON))
    with pytest.raises(StateUnknown):
        S3Mailbox(BUCKET).report(make_report_key("gpt", "r1"))
    assert "gpt" in S3Mailbox(BUCKET).heartbeats(["gpt"]).unread
