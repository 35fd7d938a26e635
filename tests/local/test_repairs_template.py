"""Template properties and events that stock MiniStack loses or refuses."""

from datetime import UTC, datetime

import pytest
from botocore.exceptions import ClientError

from local.stack import LocalAws
from tests.local.waiting import Mailbox


def test_table_keeps_its_expiry_and_recovery(aws: LocalAws) -> None:
    """TTL and point-in-time recovery of the template are on."""
    table = {"TableName": aws.outputs["TableName"]}
    dynamodb = aws.client("dynamodb")
    expiry = dynamodb.describe_time_to_live(**table)["TimeToLiveDescription"]
    assert expiry == {"TimeToLiveStatus": "ENABLED", "AttributeName": "expires"}
    backups = dynamodb.describe_continuous_backups(**table)["ContinuousBackupsDescription"]
    assert backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"] == "ENABLED"


def test_event_carries_the_time_of_its_sender(aws: LocalAws) -> None:
    """An entry's Time is the event's time."""
    moment = datetime(2026, 11, 21, 1, 2, 3, tzinfo=UTC)
    entry = {"Source": "test", "DetailType": "Timed", "Detail": "{}", "EventBusName": "sample", "Time": moment}
    aws.client("events").put_events(Entries=[entry])
    [event] = Mailbox(aws, "TimedEvents").find(lambda m: True)
    assert event["body"]["time"] == "2026-11-21T01:02:03Z"


def test_object_put_reaches_the_bus(aws: LocalAws) -> None:
    """An object written to a bucket with EventBridge switched on in the template is announced on the default bus; a
    rule with a wildcard takes the keys that it means, and each writing of an object is news."""
    s3, bucket = aws.client("s3"), aws.outputs["MailboxName"]
    other = ["runs/a/command.json", "runs/a/heartbeat.json", "runs/a/reports/1.txt"]
    written = ["runs/a/reports/1.json", "runs/b-2/reports/x.y_z.json", "runs/a/reports/1.json"]
    for key in (*other, *written):
        s3.put_object(Bucket=bucket, Key=key, Body=b"{}")
    events = [event["body"] for event in Mailbox(aws, "Mail").find(lambda m: True, count=len(written))]
    assert sorted(event["detail"]["object"]["key"] for event in events) == sorted(written)
    assert {event["detail"]["bucket"]["name"] for event in events} == {bucket}
    assert {(event["source"], event["detail-type"]) for event in events} == {("aws.s3", "Object Created")}


def test_a_conditional_read_reports_unchanged_and_missing_objects(aws: LocalAws) -> None:
    """The agent asks again and again, and pays for an answer only when there is one."""
    s3, place = aws.client("s3"), {"Bucket": aws.outputs["MailboxName"], "Key": "runs/c/command.json"}
    with pytest.raises(s3.exceptions.NoSuchKey):
        s3.get_object(**place)
    etag = s3.put_object(**place, Body=b"{}")["ETag"]
    with pytest.raises(ClientError) as unchanged:
        s3.get_object(**place, IfNoneMatch=etag)
    assert unchanged.value.response["ResponseMetadata"]["HTTPStatusCode"] == 304
    s3.put_object(**place, Body=b"{ }")
    assert s3.get_object(**place, IfNoneMatch=etag)["Body"].read() == b"{ }"
