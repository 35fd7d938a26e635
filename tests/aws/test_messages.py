"""What leaves for the queue, the bus and the topics, read back at the other end."""

import json
from datetime import UTC, datetime

import pytest
from botocore.exceptions import ClientError

from rerail.actions import Severity, Tell
from rerail.aws import eventbridge, sqs
from rerail.aws.clients import client
from rerail.aws.eventbridge import EventBus
from rerail.aws.sns import SnsTopics
from rerail.aws.sqs import SqsQueue
from rerail.wakeups import JobHeard, RunDue, read
from tests.aws.places import ACCOUNT, REGION

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOTICE = Tell(Severity.PAGE, "gpt: held", "attempt 2 failed: oom – held", "gpt/held-2")


@pytest.fixture
def queue_url() -> str:
    return client("sqs").create_queue(QueueName="signals")["QueueUrl"]


def received(url: str) -> list[str]:
    """Everything that waits in the queue."""
    bodies: list[str] = []
    queue = client("sqs")
    while messages := queue.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        bodies += [message["Body"] for message in messages]
        for message in messages:
            queue.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return bodies


@pytest.fixture
def topic_queue(queue_url) -> tuple[str, str]:
    """A topic and the queue that hears it."""
    topic = client("sns").create_topic(Name="page")["TopicArn"]
    client("sns").subscribe(TopicArn=topic, Protocol="sqs", Endpoint=f"arn:aws:sqs:{REGION}:{ACCOUNT}:signals")
    return topic, queue_url


@pytest.mark.parametrize("count", [0, 1, 10, 11, 25])
def test_wakeups_arrive_in_any_number(queue_url, count):
    """Ten a batch, however many there are, and each is one that the supervisor reads."""
    SqsQueue(queue_url).wake([{"run": f"run-{n}"} for n in range(count)], at=NOON)
    assert sorted(map(str, map(read, received(queue_url)))) == sorted(str(RunDue(f"run-{n}")) for n in range(count))


def test_a_wakeup_for_a_job_and_one_for_a_run_are_told_apart(queue_url):
    """A run that is due is visited; a job is looked up first."""
    SqsQueue(queue_url).wake([{"run": "gpt"}, {"job": "lost"}], at=NOON)
    assert {str(read(body)) for body in received(queue_url)} == {str(RunDue("gpt")), str(JobHeard("lost"))}


def test_a_wakeup_that_is_not_accepted_is_an_error(monkeypatch):
    """SQS may take nine of ten: the round fails aloud, and the next minute makes it good."""

    class Choosy:
        def send_message_batch(self, QueueUrl, Entries):
            return {"Successful": Entries[1:], "Failed": [{"Id": "0", "Code": "InternalError", "Message": "busy"}]}

    monkeypatch.setattr(sqs, "client", lambda service: Choosy())
    with pytest.raises(RuntimeError, match="1 wake-ups were not accepted, the first because busy"):
        SqsQueue("url").wake([{"run": "a"}, {"run": "b"}], at=NOON)


def test_a_notice_is_heard_by_whoever_has_a_rule(queue_url):
    """On our bus, from source `rerail`, with severity, title, body and dedup key in its detail."""
    events = client("events")
    events.create_event_bus(Name="rerail")
    pattern = {"source": ["rerail"], "detail-type": ["Rerail Notice"], "detail": {"severity": ["page"]}}
    events.put_rule(Name="pages", EventBusName="rerail", EventPattern=json.dumps(pattern))
    target = {"Id": "queue", "Arn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:signals"}
    events.put_targets(Rule="pages", EventBusName="rerail", Targets=[target])
    EventBus("rerail").publish(NOTICE, run="gpt", at=NOON)
    (body,) = received(queue_url)
    assert json.loads(body)["detail"] == {
        "run": "gpt",
        "severity": "page",
        "title": "gpt: held",
        "body": "attempt 2 failed: oom – held",
        "key": "gpt/held-2",
    }


def test_a_notice_that_is_not_accepted_is_an_error(monkeypatch):
    """PutEvents answers 200 even then: it stays pending, and the next turn says it again."""

    class Choosy:
        def put_events(self, Entries):
            return {"FailedEntryCount": 1, "Entries": [{"ErrorCode": "InternalFailure", "ErrorMessage": "busy"}]}

    monkeypatch.setattr(eventbridge, "client", lambda service: Choosy())
    with pytest.raises(RuntimeError, match="the notice gpt/held-2 was not accepted: busy"):
        EventBus("rerail").publish(NOTICE, run="gpt", at=NOON)


def said(topic: str, **changes) -> dict:
    notice = {"run": "gpt", "severity": "page", "title": "gpt: held", "body": "why", "key": "gpt/held-2"}
    SnsTopics({Severity.PAGE: topic, Severity.INFORM: "arn:elsewhere"}).say({**notice, **changes})
    return notice


def test_a_page_is_told_on_its_topic(topic_queue):
    """Title as subject, body and the command to look closer as message; run, severity and key for filters."""
    topic, url = topic_queue
    said(topic)
    (envelope,) = map(json.loads, received(url))
    assert envelope["Subject"] == "gpt: held"
    assert envelope["Message"] == "why\n\nrerail show gpt"
    assert {name: value["Value"] for name, value in envelope["MessageAttributes"].items()} == {
        "run": "gpt",
        "severity": "page",
        "key": "gpt/held-2",
    }


@pytest.mark.parametrize(
    ("title", "subject"),
    [
        ("x" * 200, "x" * 100),
        ("loss\nran\taway", "loss ran away"),
        ("läuft – nicht", "l uft   nicht"),
        ("\n\u2026\n", "Rerail"),
        ("  held  ", "held"),
    ],
)
def test_a_subject_is_made_fit_for_mail(topic_queue, title, subject):
    """SNS refuses line breaks, control characters, what is not ASCII, and more than 100 characters."""
    topic, url = topic_queue
    said(topic, title=title)
    assert [json.loads(body)["Subject"] for body in received(url)] == [subject]


def test_a_notice_without_its_fields_is_not_said_half(topic_queue):
    """A missing field names itself, an unknown severity too, and a topic that is not there is an error."""
    topic, url = topic_queue
    with pytest.raises(KeyError, match="body"):
        SnsTopics({Severity.PAGE: topic}).say({"run": "gpt", "severity": "page", "title": "t", "key": "k"})
    with pytest.raises(ValueError, match="shout"):
        said(topic, severity="shout")
    with pytest.raises(ClientError):
        said(topic, severity="inform")
    assert received(url) == []
