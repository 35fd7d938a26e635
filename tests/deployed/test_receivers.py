"""The deployed template with every way to tell people: what reaches PagerDuty, a webhook and a chat, over real HTTP."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from html import unescape
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import requests

from local import deploy
from local.pace import Pace
from local.stack import ACCOUNT, REGION, ROOT, LocalAws
from rerail.model.actions import Severity
from rerail.model.notice import Notice
from rerail.model.policy import Mode
from rerail.model.runbooks import Runbook
from rerail.notices.notice import format_detail
from rerail.notices.notifiers.links import NoticeOrigin, make_links
from rerail.notices.notifiers.pagerduty import format_pagerduty
from rerail.notices.notifiers.webhook import format_webhook
from tests.deployed.conftest import ASSEMBLIES
from tests.deployed.jobs import Account, NotificationQueue, apart, patient, refusals
from tests.deployed.receiver import Receiver, listening

pytestmark = pytest.mark.slow
ROUTING_KEY, AUTHORIZATION = "R0123456789abcdef0123456789abcde", "Bearer of-a-webhook"
PAGER, HOOK = "/v2/enqueue", "/hook"
DOCS = "https://docs.example.com/rerail"
CONTEXT = {
    "chat": True,
    "answerLinks": True,
    "pagerDutySecret": "rerail/pagerduty",
    "webhookUrl": f"https://hooks.example.com{HOOK}",
    "webhookSecret": "rerail/webhook",
    "docsUrl": DOCS,
}
# A quarter of an hour of trying again is a second and a half, at reference speed.
HASTE = 10


class Receivers:
    """The account, its bus, and what its receivers have received."""

    def __init__(self, account: Account, receiver: Receiver) -> None:
        self.account, self.receiver = account, receiver
        self.aws, self.outputs = account.aws, account.aws.outputs
        self.queues = {key: NotificationQueue(account, f"ears-{key}", f"{key}TopicArn") for key in ("Page", "ChatPage")}

    def publish(self, notice: Notice) -> None:
        entry = {
            "Source": "rerail",
            "DetailType": "Rerail Notice",
            "Detail": json.dumps(format_detail(notice)),
            "EventBusName": self.outputs["BusName"],
        }
        assert self.aws.client("events").put_events(Entries=[entry])["FailedEntryCount"] == 0

    def messages(self, name: str) -> list[dict[str, Any]]:
        """All that a topic's subscribers have been sent so far."""
        return self.queues[name].received()

    def mails(self) -> dict[str, str]:
        """What was sent by e-mail, by the notice's key."""
        messages = [message for message in self.messages("Page") if "key" in message.get("MessageAttributes", {})]
        return {message["MessageAttributes"]["key"]["Value"]: message["Message"] for message in messages}

    def alarms(self) -> list[str]:
        """The alarms about letters that the page topic was messages of."""
        said = [m["Message"] for m in self.messages("Page") if m.get("Subject", "").startswith("ALARM")]
        return [text for text in said if "is not empty. Inspect the messages" in text]

    def letters(self) -> list[dict[str, Any]]:
        """What lies in the dead-letter queues of the receivers, with its attributes."""
        sqs, found = self.aws.client("sqs"), []
        for url in sqs.list_queues()["QueueUrls"]:
            if "PagerDutyDeadLetters" in url or "WebhookDeadLetters" in url:
                answer = sqs.receive_message(
                    QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"], VisibilityTimeout=0
                )
                for letter in answer.get("Messages", []):
                    attributes = {name: item["StringValue"] for name, item in letter["MessageAttributes"].items()}
                    found.append({"body": json.loads(letter["Body"]), **attributes})
        return found


@pytest.fixture(scope="module")
def receivers(tmp_path_factory: pytest.TempPathFactory, pace: Pace) -> Iterator[Receivers]:
    """The template with all of it switched on, and its destinations moved to this machine."""
    folder, scale = tmp_path_factory.mktemp("receivers"), HASTE * pace.scale
    with listening() as receiver, apart(folder, scale=scale, stack=None) as aws:
        secrets = aws.client("secretsmanager")
        secrets.create_secret(Name="rerail/pagerduty", SecretString=ROUTING_KEY)
        secrets.create_secret(Name="rerail/webhook", SecretString=AUTHORIZATION)
        outputs = deploy.deploy(
            deploy.synthesize(ROOT, ASSEMBLIES, context=CONTEXT | deploy.LOCAL_SCOPE, validate=False),
            "Rerail",
            aws.client,
        )
        move_here(aws, receiver.url)
        aws.redeployed(outputs)
        account = Account(aws, pace)
        account.set_up()
        yield Receivers(account, receiver)
        assert refusals(aws) == []


def move_here(aws: LocalAws, url: str) -> None:
    """What should go to PagerDuty, or to the webhook's host, comes here instead, at the same path."""
    events = aws.client("events")
    for destination in events.list_api_destinations()["ApiDestinations"]:
        path = destination["InvocationEndpoint"].split("/", 3)[3]
        events.update_api_destination(Name=destination["Name"], InvocationEndpoint=f"{url}/{path}")


def notice(severity: Severity, key: str, **more: Any) -> Notice:
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    facts = {"title": "gpt: held", "body": "out of memory at step 1200 <b>twice</b>", "did": "held the run"}
    return Notice(
        **{"run": "gpt", "severity": severity, "key": key, "at": at, "runbook": Runbook.OUT_OF_MEMORY, **facts, **more}
    )


def links(of: Notice) -> Any:
    return make_links(of, NoticeOrigin(ACCOUNT, REGION, DOCS))


def test_a_page_reaches_pagerduty_as_it_was_rendered(receivers: Receivers):
    """Byte for byte the rendering, and the routing key, which came out of the secret and was never on the bus."""
    page = notice(Severity.PAGE, "gpt/page")
    receivers.publish(page)
    (call,) = receivers.account.wait("a call to PagerDuty", lambda: receivers.receiver.at(PAGER, page.key))
    assert call.body == {**(format_pagerduty(page, links(page)) or {}), "routing_key": ROUTING_KEY}
    assert call.headers["X-Routing-Key"] == ROUTING_KEY
    assert call.headers["Content-Type"].startswith("application/json")
    assert call.body["payload"]["custom_details"]["runbook"] == f"{DOCS}/runbooks/out-of-memory/"


def test_a_page_reaches_the_webhook_with_its_authorization(receivers: Receivers):
    """The webhook has its own header, and no key of anybody else's."""
    page = notice(Severity.PAGE, "gpt/hook")
    receivers.publish(page)
    (call,) = receivers.account.wait("a call to the webhook", lambda: receivers.receiver.at(HOOK, page.key))
    assert call.body == format_webhook(page, links(page))
    assert call.headers["Authorization"] == AUTHORIZATION
    assert "routing_key" not in call.body


def test_a_proposal_is_approved_by_the_link_of_its_page(receivers: Receivers):
    """The node is lost and the policy asks; the page's link shows the question, and its form has the run go on."""
    account = receivers.account
    policy = account.add_policy("approve", lambda policy: replace(patient(policy, account.pace), mode=Mode.APPROVE))
    name = account.submit_struck("asks-first", "internal_error", policy=policy)
    proposal = account.run_in(name, "waiting").proposal
    assert proposal, account.describe()
    key = f"{name}/proposal-{proposal.id}"
    mail = account.wait("the page", lambda: receivers.mails().get(key))
    url = urlsplit(next(line for line in mail.splitlines() if "Approve or deny" in line).partition(": ")[2])
    page = f"{account.aws.endpoint_url}/_aws/execute-api/{url.netloc.partition('.')[0]}/$default{url.path}"
    fields = dict(parse_qsl(url.query))
    with requests.Session() as browser:
        browser.trust_env = False  # no proxy leads to this machine
        assert proposal.what in unescape(browser.get(page, params=fields, timeout=60).text)
        forged = browser.post(page, data={**fields, "who": "eve", "verb": "approve", "proposal": "p999"}, timeout=60)
        done = browser.post(page, data={**fields, "who": "ada", "verb": "approve"}, timeout=60)
    assert (forged.status_code, done.status_code) == (403, 200)
    run = account.run_in(name, "completed")
    assert (len(run.attempts), run.attempts[1].approved_by) == (2, "ada (by link)")


def test_repetitions_are_one_incident_that_an_all_clear_resolves(receivers: Receivers):
    """The same dedup key each time; `resolve` carries it too."""
    page = notice(Severity.PAGE, "gpt/again")
    receivers.publish(page)
    receivers.publish(page)
    receivers.publish(notice(Severity.CLEAR, "gpt/again/clear", title="gpt: all clear", clears=page.key))
    calls = receivers.account.wait("3 calls", lambda: len(c := receivers.receiver.at(PAGER, page.key)) == 3 and c)
    assert sorted(call.body["event_action"] for call in calls) == ["resolve", "trigger", "trigger"]
    assert {call.body["dedup_key"] for call in calls} == {page.key}


def test_an_inform_notice_pages_no_one(receivers: Receivers):
    """The webhook hears of it, PagerDuty does not."""
    receivers.publish(notice(Severity.INFORM, "gpt/inform"))
    receivers.account.wait("a call to the webhook", lambda: receivers.receiver.at(HOOK, "gpt/inform"))
    assert receivers.receiver.at(PAGER, "gpt/inform") == []


def test_the_chat_has_a_topic_and_a_form_of_its_own(receivers: Receivers):
    """Amazon Q Developer shows nothing but its own schema; the e-mail's topic stays text."""
    receivers.publish(notice(Severity.PAGE, "gpt/chat"))

    def chats() -> list[dict[str, Any]]:
        bodies = [json.loads(message["Message"]) for message in receivers.messages("ChatPage")]
        return [body for body in bodies if body["metadata"]["additionalContext"]["key"] == "gpt/chat"]

    (chat,) = receivers.account.wait("a message in the chat's topic", chats)
    assert (chat["version"], chat["source"]) == ("1.0", "custom")
    assert chat["metadata"]["threadId"] == "gpt"
    assert receivers.mails()["gpt/chat"].startswith("out of memory")


def test_a_receiver_that_is_down_for_a_moment_loses_nothing(receivers: Receivers):
    """503 and 429 are tried again until it is taken: the same body each time."""
    receivers.receiver.answers[PAGER] = [503, 429]
    receivers.publish(notice(Severity.PAGE, "gpt/flaky"))
    calls = receivers.account.wait("3 calls", lambda: len(c := receivers.receiver.at(PAGER, "gpt/flaky")) == 3 and c)
    assert [call.status for call in calls] == [503, 429, 202]
    assert calls[0].body == calls[1].body == calls[2].body
    assert receivers.letters() == []


def test_a_receiver_that_stays_down_is_itself_a_page(receivers: Receivers):
    """The letter lies aside without any secret, its alarm goes to the page topic, and the e-mail came anyway."""
    # Only this notice: the alarm about one receiver's dead letters must reach the other.
    receivers.receiver.refusals = {(PAGER, "gpt/lost"): 500, (HOOK, "gpt/lost"): 403}
    receivers.publish(notice(Severity.PAGE, "gpt/lost"))
    letters = receivers.account.wait("two letters", lambda: len(found := receivers.letters()) == 2 and found)
    refused, exhausted = sorted(letters, key=lambda letter: letter["ERROR_CODE"], reverse=True)
    assert (refused["ERROR_CODE"], refused["RETRY_ATTEMPTS"]) == ("SDK_CLIENT_ERROR", "0")
    assert len(receivers.receiver.at(HOOK, "gpt/lost")) == 1
    assert exhausted["EXHAUSTED_RETRY_CONDITION"] == "MaximumEventAgeInSeconds"
    assert len(receivers.receiver.at(PAGER, "gpt/lost")) == int(exhausted["RETRY_ATTEMPTS"]) + 1 > 3
    assert exhausted["body"]["dedup_key"] == "gpt/lost"
    assert ROUTING_KEY not in json.dumps(letters)

    said = receivers.account.wait("both alarms", lambda: len(found := receivers.alarms()) >= 2 and found)
    assert any("PagerDuty" in text for text in said)
    assert any("webhook" in text for text in said)
    assert "gpt/lost" in receivers.mails()


def test_each_receiver_is_notified_when_the_other_fails(receivers: Receivers):
    """An alarm of Rerail's own reaches PagerDuty as an incident, and the webhook as a notice of the usual form."""

    def incidents() -> list[dict[str, Any]]:
        taken = [call.body for call in receivers.receiver.at(PAGER) if call.status == 202]
        return [body for body in taken if "WebhookDeadLetters" in body["dedup_key"]]

    (incident,) = receivers.account.wait("an incident about the webhook", incidents)
    assert incident["event_action"] == "trigger"
    assert incident["routing_key"] == ROUTING_KEY
    assert "is not empty. Inspect the messages" in incident["payload"]["summary"]
    assert "Threshold Crossed" in incident["payload"]["custom_details"]["what happened"]

    def notices() -> list[dict[str, Any]]:
        taken = [call.body for call in receivers.receiver.at(HOOK) if call.status == 202]
        return [body for body in taken if "PagerDutyDeadLetters" in body["key"]]

    from jsonschema import validate  # takes seconds of each worker that collects this file

    (page,) = receivers.account.wait("a notice about PagerDuty", notices)
    validate(page, json.loads((ROOT / "docs" / "notice.schema.json").read_text()))
    assert (page["severity"], page["runbook"]) == ("page", Runbook.UNHEALTHY)


def test_an_undeliverable_notice_delays_no_recovery(receivers: Receivers):
    """The topic for informs is gone: the run is mended all the same, the other ways are used, and somebody is paged."""
    account = receivers.account
    receivers.aws.client("sns").delete_topic(TopicArn=receivers.outputs["InformTopicArn"])
    name = account.submit_struck("recovers", "internal_error")

    def completed() -> bool:
        receivers.aws.client("lambda").invoke(FunctionName=receivers.outputs["SweepFunctionName"], Payload=b"{}")
        run = account.runs.load(name)
        return bool(run and run.state == "completed")

    receivers.account.wait(f"{name} to complete", completed)
    run = account.runs.load(name)
    assert run is not None and len(run.attempts) == 2
    assert run.current.resumed_from_step
    assert [call for call in receivers.receiver.at(HOOK) if call.body["run"] == name and call.status == 202]
    receivers.account.wait(
        "a page about notify",
        lambda: [text for text in receivers.alarms() if "the dead-letter queue of the function notify" in text],
    )
