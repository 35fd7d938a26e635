"""The voice: each notice in every way that is set up, and an error where it could not be told."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

import notify
from rerail.aws.clients import client
from rerail.model.codec import BadRecord
from rerail.notices.notifiers.targets import NOTIFIERS
from tests.functions.account import TOPICS, Account, Context, sample


def send(name: str, **changes: Any) -> None:
    event = sample(name)
    event["detail"] |= changes
    notify.handler(event, Context("notify"))


def received(account: Account) -> dict[str, list[Any]]:
    """What each topic's subscribers were told."""
    return {topic: account.received(topic) for topic in TOPICS}


@pytest.fixture
def receivers(account) -> str:
    """A queue that hears what is on the bus for receivers outside of AWS."""
    pattern = {"source": ["rerail"], "detail-type": ["Rerail PagerDuty", "Rerail Webhook"]}
    client("events").put_rule(Name="receivers", EventBusName="rerail", EventPattern=json.dumps(pattern))
    client("sqs").create_queue(QueueName="receivers-ears")
    arn = "arn:aws:sqs:eu-west-1:123456789012:receivers-ears"
    client("events").put_targets(Rule="receivers", EventBusName="rerail", Targets=[{"Id": "queue", "Arn": arn}])
    return "receivers"


@pytest.mark.parametrize("severity", ["page", "inform"])
def test_a_notice_goes_to_the_topics_of_its_severity(account, severity):
    """Somebody is woken, or whoever looks is told; never both. An e-mail for people, and a card for the chat."""
    send(f"notice_{severity}")
    detail = sample(f"notice_{severity}")["detail"]
    by_topic = received(account)
    assert {topic for topic, messages in by_topic.items() if messages} == {severity, f"chat-{severity}"}
    (message,), (card,) = by_topic[severity], by_topic[f"chat-{severity}"]
    assert message["Subject"] == detail["title"]
    assert message["Message"].startswith(f"{detail['body']}\n\n")
    assert message["Message"].endswith(f"  Terminal: rerail show {detail['run']}")
    assert message["MessageAttributes"]["key"]["Value"] == detail["key"]
    assert json.loads(card["Message"])["metadata"]["threadId"] == detail["run"]


def test_commands_of_the_local_aws_have_its_option_in_every_channel(account, receivers):
    event = sample("notice_page")
    event["account"] = "000000000000"
    event["detail"]["todo"] = "Make the batch smaller: `rerail submit train.py`\nThen: rerail release gpt"
    notify.handler(event, Context("notify"))
    (mail,), (chat,) = account.received("page"), account.received("chat-page")
    texts = [mail["Message"], chat["Message"], *map(json.dumps, account.received(receivers))]
    assert len(texts) == 2 + len(NOTIFIERS)
    for text in texts:
        commands = re.findall(r"rerail (?:submit|release|show)[\w .-]*", text)
        assert len(commands) == 3 and all(command.endswith(" --local") for command in commands)


def test_the_links_lead_to_report_runbook_and_console(account):
    """Region and account are those of the event."""
    send("notice_page")
    (message,) = account.received("page")
    links = dict(line.strip().split(": ", 1) for line in message["Message"].partition("Links:\n")[2].splitlines())
    report = "https://rerail-reports.s3.eu-west-1.amazonaws.com/runs/gpt-7b/report.html?X-Amz-"
    assert links.pop("Report").startswith(report)
    assert links.pop("All runs").startswith("https://rerail-reports.s3.eu-west-1.amazonaws.com/runs.html?X-Amz-")
    assert links == {
        "Runbook": "https://docs.example.com/runbooks/out-of-memory/",
        "Console": "https://eu-west-1.console.aws.amazon.com/sagemaker/home?region=eu-west-1#/jobs/gpt-7b-a002",
        "Terminal": "rerail show gpt-7b",
    }


def test_what_is_not_set_up_is_left_out(account, receivers, monkeypatch):
    """Two topics are all that is needed."""
    for variable in ("CHAT_PAGE_TOPIC", "CHAT_INFORM_TOPIC", "TARGETS", "REPORTS", "DOCS_URL"):
        monkeypatch.setenv(f"RERAIL_{variable}", "")
    send("notice_page")
    assert {topic for topic, messages in received(account).items() if messages} == {"page"}
    assert account.received(receivers) == []


def test_one_failed_channel_blocks_no_other(account, receivers):
    """The chat's topic is gone: people, pager and webhook are told, then the function fails and is run again."""
    account.sns.delete_topic(TopicArn=account.topics["chat-page"])
    with pytest.raises(Exception, match="gpt-7b/held-2 was not delivered to every channel: chat: NotFoundException"):
        send("notice_page")
    assert len(account.received("page")) == 1
    assert len(account.received(receivers)) == 2


def test_a_rendering_that_fails_keeps_no_email_back(account, monkeypatch):
    """Whatever is wrong with a text, somebody is woken."""

    def breaks(*_: Any) -> None:
        raise ValueError("a character too many")

    monkeypatch.setattr("rerail.aws.sns.format_chat", breaks)
    monkeypatch.setattr("wiring.notify.NOTIFIERS", [replace(target, format=breaks) for target in NOTIFIERS])
    with pytest.raises(Exception, match="chat: ValueError: a character too many; PagerDuty: .*; webhook: "):
        send("notice_page")
    assert len(account.received("page")) == 1


@pytest.mark.parametrize("field", ["run", "severity", "title", "body", "key"])
def test_a_notice_without_a_field_is_refused(account, field):
    """The error names the field, and nothing is told by halves."""
    event = sample("notice_page")
    del event["detail"][field]
    with pytest.raises(BadRecord, match=field):
        notify.handler(event, Context("notify"))
    assert account.received("page") == []
