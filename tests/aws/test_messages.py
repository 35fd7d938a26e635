"""What leaves for the queue, the bus and the topics, read back at the other end."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import requests
from botocore.exceptions import ClientError

from rerail.aws import eventbridge, sqs
from rerail.aws.clients import client
from rerail.aws.eventbridge import EventBus, Receiver
from rerail.aws.report_links import ReportLinks
from rerail.aws.sns import SnsTopics
from rerail.aws.sqs import SqsQueue
from rerail.messages.messages import JobStateChanged, RunDue, parse_message
from rerail.model.actions import Severity
from rerail.model.notice import Notice
from rerail.model.runbooks import Runbook
from rerail.notices.notice import read_detail
from rerail.notices.notifiers.chat import format_chat
from rerail.notices.notifiers.email import format_text
from rerail.notices.notifiers.links import NoticeOrigin, make_links
from rerail.notices.notifiers.pagerduty import format_pagerduty
from tests.aws.places import ACCOUNT, REGION, make_bucket
from tests.fakes import World

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
ADVICE = "Use a smaller batch\nWhen that is done: rerail release gpt"
SAID = "gpt: held: oom is not retried", "attempt 2 failed: oom – held", "gpt/held-2"
WHERE = {"state": "held", "attempt": 2, "job": "gpt-a002", "dollars": 12.5}
NOTICE = Notice("gpt", Severity.PAGE, *SAID, NOON, "gpt", NOON, todo=ADVICE, runbook=Runbook.OUT_OF_MEMORY, **WHERE)
PLACE = NoticeOrigin(ACCOUNT, REGION)
LINKS = make_links(NOTICE, PLACE)


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
    SqsQueue(queue_url).wake([{"run": f"run-{n}"} for n in range(count)], at=NOON)
    assert sorted(map(str, map(parse_message, received(queue_url)))) == sorted(
        str(RunDue(f"run-{n}")) for n in range(count)
    )


def test_messages_for_a_job_and_for_a_run_are_distinguished(queue_url):
    """A run that is due is visited; a job is looked up first."""
    SqsQueue(queue_url).wake([{"run": "gpt"}, {"job": "lost"}], at=NOON)
    assert {str(parse_message(body)) for body in received(queue_url)} == {
        str(RunDue("gpt")),
        str(JobStateChanged("lost")),
    }


def test_a_message_that_is_not_accepted_is_an_error(monkeypatch):
    class Choosy:
        def send_message_batch(self, QueueUrl, Entries):
            return {"Successful": Entries[1:], "Failed": [{"Id": "0", "Code": "InternalError", "Message": "busy"}]}

    monkeypatch.setattr(sqs, "client", lambda service: Choosy())
    with pytest.raises(RuntimeError, match="1 wake-ups were not accepted; reason of the first: busy"):
        SqsQueue("url").wake([{"run": "a"}, {"run": "b"}], at=NOON)


def check_source(detail_type: str) -> None:
    """A rule of somebody's own, for events of ours."""
    events = client("events")
    events.create_event_bus(Name="rerail")
    pattern = {"source": ["rerail"], "detail-type": [detail_type]}
    events.put_rule(Name="ours", EventBusName="rerail", EventPattern=json.dumps(pattern))
    target = {"Id": "queue", "Arn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:signals"}
    events.put_targets(Rule="ours", EventBusName="rerail", Targets=[target])


def test_a_notice_on_the_bus_matches_a_users_rule(queue_url):
    """On our bus, from source `rerail`, with every field of the notice in its detail, as JSON types."""
    check_source("Rerail Notice")
    EventBus("rerail").publish(NOTICE)
    (body,) = received(queue_url)
    detail = json.loads(body)["detail"]
    assert detail == {
        "run": "gpt",
        "thread": "gpt",
        "severity": "page",
        "title": "gpt: held: oom is not retried",
        "body": "attempt 2 failed: oom – held",
        "key": "gpt/held-2",
        "at": "2026-01-31T12:00:00+00:00",
        "since": "2026-01-31T12:00:00+00:00",
        "did": "",
        "todo": "Use a smaller batch\nWhen that is done: rerail release gpt",
        "by": None,
        "runbook": "out-of-memory",
        "clears": "",
        "state": "held",
        "attempt": 2,
        "job": "gpt-a002",
        "step": None,
        "dollars": 12.5,
        "incident_dollars": None,
    }
    assert read_detail(detail) == NOTICE


def test_a_receiver_outside_of_aws_is_sent_exactly_what_it_takes(queue_url):
    check_source("Rerail PagerDuty")
    pager = Receiver("rerail", "Rerail PagerDuty", format_pagerduty)
    pager.send(NOTICE, LINKS)
    pager.send(replace(NOTICE, severity=Severity.INFORM), LINKS)
    assert [json.loads(body)["detail"] for body in received(queue_url)] == [format_pagerduty(NOTICE, LINKS)]


def test_what_is_put_has_its_source_its_type_and_its_time(monkeypatch):
    """A command has the time at which the bus received it."""
    put = []
    accepts = SimpleNamespace(put_events=lambda Entries: put.extend(Entries) or {"Entries": [{"EventId": "1"}]})
    monkeypatch.setattr(eventbridge, "client", lambda service: accepts)
    bus, change = EventBus("rerail"), World().with_saves().bus.events[-1]
    bus.publish(NOTICE)
    bus.publish_change(change)
    bus.send_command({"run": "gpt", "verb": "hold"})
    Receiver("rerail", "Rerail Webhook", lambda notice, links: {}).send(NOTICE, LINKS)
    assert [(entry["Source"], entry["DetailType"], entry.get("Time")) for entry in put] == [
        ("rerail", "Rerail Notice", NOON),
        ("rerail", "Rerail Run State Change", change.at),
        ("rerail.operator", "Rerail Command", None),
        ("rerail", "Rerail Webhook", NOON),
    ]


def said(topic: str, **changes) -> Notice:
    notice = replace(NOTICE, **changes)
    SnsTopics({Severity.PAGE: topic, Severity.CLEAR: topic, Severity.INFORM: "arn:elsewhere"}).publish(notice, LINKS)
    return notice


def test_a_page_is_published_on_its_topic(topic_queue):
    """Title as subject, the whole of it as text; run, severity and key for filters."""
    topic, url = topic_queue
    said(topic)
    (envelope,) = map(json.loads, received(url))
    assert envelope["Subject"] == "gpt: held: oom is not retried"
    assert envelope["Message"] == format_text(NOTICE, LINKS)
    assert envelope["Message"].startswith("attempt 2 failed: oom – held\n\nWhat to do:\n  - Use a smaller batch\n")
    assert {name: value["Value"] for name, value in envelope["MessageAttributes"].items()} == {
        "run": "gpt",
        "severity": "page",
        "key": "gpt/held-2",
    }


def test_a_chat_notice_has_the_chat_format(topic_queue):
    """On a topic of its own: what Amazon Q Developer cannot read it drops without a word."""
    topic, url = topic_queue
    SnsTopics({Severity.PAGE: topic}, chat=True).publish(NOTICE, LINKS)
    (envelope,) = map(json.loads, received(url))
    assert json.loads(envelope["Message"]) == format_chat(NOTICE, LINKS)


@pytest.mark.parametrize(
    ("title", "subject"),
    [
        ("x" * 200, "x" * 97 + "..."),
        ("loss\nran\taway", "loss ran away"),
        ("läuft – nicht", "l uft nicht"),
        ("\n\u2026\n", "Rerail"),
        ("  held  ", "held"),
    ],
)
def test_a_subject_is_made_fit_for_mail(topic_queue, title, subject):
    """SNS refuses line breaks, control characters, what is not ASCII, and more than 100 characters."""
    topic, url = topic_queue
    said(topic, title=title)
    assert [json.loads(body)["Subject"] for body in received(url)] == [subject]


def test_a_notice_without_a_topic_is_an_error(topic_queue):
    """A severity without a topic names itself, and a topic that is not there is an error."""
    topic, url = topic_queue
    with pytest.raises(KeyError, match="page"):
        SnsTopics({Severity.INFORM: topic}).publish(NOTICE, LINKS)
    with pytest.raises(ClientError):
        said(topic, severity=Severity.INFORM)
    assert received(url) == []


@pytest.mark.parametrize("run", ["gpt", "a-run.with strange/words?and=more&ümlaut#", "x" * 300])
def test_a_signed_link_opens_the_report_of_any_run(run):
    """Without a login, for some hours, and for nothing else."""
    make_bucket("reports")
    client("s3").put_object(Bucket="reports", Key=f"runs/{run}/report.html", Body=b"<h1>report</h1>")
    url = ReportLinks("reports", signed=True).of(replace(NOTICE, run=run), PLACE)
    parts = urlsplit(url)
    assert (parts.scheme, parts.netloc) == ("https", f"reports.s3.{REGION}.amazonaws.com")
    assert unquote(parts.path) == f"/runs/{run}/report.html"
    signed = parse_qs(parts.query)
    assert signed["X-Amz-Algorithm"] == ["AWS4-HMAC-SHA256"]
    assert int(signed["X-Amz-Expires"][0]) == 12 * 3600
    answer = requests.get(url, timeout=120)
    assert answer.text == "<h1>report</h1>"


def test_a_page_to_on_call_links_to_the_page_of_all_runs():
    """An inform has no such link, and neither has a page without a bucket."""
    page = replace(NOTICE, severity=Severity.PAGE)
    assert urlsplit(ReportLinks("reports", signed=True).of_all_runs(page, PLACE)).path == "/runs.html"
    assert ReportLinks("reports", signed=True).of_all_runs(replace(NOTICE, severity=Severity.INFORM), PLACE) == ""
    assert ReportLinks("", signed=True).of_all_runs(page, PLACE) == ""


def test_a_link_to_the_console_asks_for_a_login():
    """For those who do not want links that open for everybody, and where a URL cannot be signed."""
    url = ReportLinks("reports", signed=False).of(NOTICE, PLACE)
    assert url == (
        f"https://{REGION}.console.aws.amazon.com/s3/object/reports?region={REGION}&prefix=runs/gpt/report.html"
    )
    unknown = replace(PLACE, region="no region")
    assert ReportLinks("reports", signed=True).of(NOTICE, unknown) == url.replace(REGION, "no region")


def test_where_there_is_no_report_there_is_no_link():
    """Nobody has set it up, or it is of a job that is not supervised."""
    assert ReportLinks("", signed=True).of(NOTICE, PLACE) == ""
    assert ReportLinks("reports", signed=True).of(replace(NOTICE, state=""), PLACE) == ""
