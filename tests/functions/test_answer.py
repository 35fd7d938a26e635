"""The page behind a proposal's link: it shows the question, and sends an answer only if Rerail has signed the link."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from botocore.exceptions import ClientError

import answer
import notify
import wiring.answer
from rerail.aws.clients import client
from rerail.aws.signing_key import SigningKey
from rerail.messages.messages import CommandReceived, parse_message
from rerail.model.run import Attempt, Proposal, ProposedAction, Run, RunState
from rerail.model.signals import OperatorVerb
from tests.functions.account import ANSWERS, Account, Context, sample

NOW = datetime(2026, 1, 31, 3, tzinfo=UTC)
HOUR = timedelta(hours=1)
PROPOSAL = Proposal("p7", ProposedAction.LAUNCH, 1, "create gpt-a002 <b>", "it died", NOW, NOW + HOUR, dollars=31.5)
RUN = Run("gpt", "approve", RunState.WAITING, NOW, (Attempt(1, "gpt"),), proposal=PROPOSAL, version=1)
PAGE = {"run": "gpt", "thread": "gpt", "key": "gpt/proposal-p7", "by": (NOW + HOUR).isoformat()}
ANSWER = {"who": "Ada", "why": "looks right", "verb": "approve"}


@pytest.fixture(autouse=True)
def commands(account: Account, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run with a proposal, a clock, and a queue that hears commands."""
    account.runs.save(RUN, None, {})
    monkeypatch.setattr(wiring.answer, "now", lambda: NOW)
    client("events").put_rule(Name="commands", EventBusName="rerail", EventPattern='{"source": ["rerail.operator"]}')
    client("sqs").create_queue(QueueName="commands-ears")
    arn = "arn:aws:sqs:eu-west-1:123456789012:commands-ears"
    client("events").put_targets(Rule="commands", EventBusName="rerail", Targets=[{"Id": "queue", "Arn": arn}])
    return "commands"


def read_link(account: Account, **changes: Any) -> dict[str, str]:
    """Return the fields of the link in the mail about the proposal; empty if there is none."""
    event = sample("notice_page")
    event["detail"] |= PAGE | changes
    notify.handler(event, Context("notify"))
    (message,) = account.received("page")
    links = [line.partition(": ")[2] for line in message["Message"].splitlines() if "Approve or deny" in line]
    if not links:
        return {}
    url = urlsplit(links[0])
    assert f"{url.scheme}://{url.netloc}" == ANSWERS
    return dict(parse_qsl(url.query))


def request(method: str, fields: dict[str, str], **changes: Any) -> dict[str, Any]:
    """Call the function as API Gateway does, with these changes to the event."""
    query = urlencode(fields)
    event = {
        "version": "2.0",
        "routeKey": f"{method} /answer",
        "rawPath": "/answer",
        "rawQueryString": query if method == "GET" else "",
        "headers": {"content-type": "application/x-www-form-urlencoded"},
        "queryStringParameters": fields if method == "GET" else {},
        "body": "" if method == "GET" else query,
        "isBase64Encoded": False,
        "requestContext": {"http": {"method": method, "path": "/answer"}, "stage": "$default"},
    }
    return answer.handler({**event, **changes}, Context("answer"))


def test_the_link_of_a_page_shows_the_proposal_and_changes_nothing(account, commands):
    """Programs of chats open links for a preview. What is quoted is text."""
    shown = request("GET", read_link(account))
    assert shown["statusCode"] == 200
    for quoted in (
        "gpt: your approval is needed",
        "p7: create gpt-a002 &lt;b&gt;",
        "it died",
        "$31.50",
        "04:00 UTC",
    ):
        assert quoted in shown["body"]
    assert shown["body"].index("<button disabled hidden>") < shown["body"].index('value="approve"')  # for the Enter key
    assert "default-src 'none'" in shown["headers"]["Content-Security-Policy"]
    assert account.received(commands) == []


@pytest.mark.parametrize("verb", [OperatorVerb.APPROVE, OperatorVerb.DENY])
def test_an_answer_becomes_an_operators_command(account, commands, verb):
    done = request("POST", read_link(account) | ANSWER | {"who": " Ada\n Lovelace", "verb": verb.value})
    assert (done["statusCode"], f"to {verb} proposal p7 of gpt" in done["body"]) == (200, True)
    (event,) = account.received(commands)
    command = parse_message(json.dumps(event))
    assert isinstance(command, CommandReceived)
    assert (command.run, command.verb, command.proposal) == ("gpt", verb, "p7")
    assert (command.who, command.why) == ("Ada Lovelace (by link)", "looks right")


@pytest.mark.threat("T30")
@pytest.mark.parametrize("body", ["//79", "%%%", "a", "\udcff", None, "=" * 5000])
@pytest.mark.parametrize("is_encoded", [True, False])
def test_no_body_of_a_stranger_makes_the_function_fail(account, commands, body, is_encoded):
    """An error of the function pages on-call; this caller needs neither link nor signature."""
    assert request("POST", {}, body=body, isBase64Encoded=is_encoded)["statusCode"] == 400
    assert account.received(commands) == []


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.threat("T30")
def test_a_link_that_was_changed_answers_nothing(account, commands, method):
    """Each field is signed: a link for one proposal is none for the next, nor for another run, nor for longer."""
    link = read_link(account)
    changes = {"run": "gpt-2", "proposal": "p8", "expires": str(int(link["expires"]) + 1), "signature": "0" * 64}
    for name, value in changes.items():
        assert request(method, link | ANSWER | {name: value})["statusCode"] == 403
        assert request(method, {**link, **ANSWER, name: "!"})["statusCode"] == 400
    assert account.received(commands) == []


@pytest.mark.threat("T30")
def test_a_link_answers_its_proposal_only_while_that_is_open(account, commands, monkeypatch):
    link = read_link(account)
    monkeypatch.setattr(wiring.answer, "now", lambda: NOW + HOUR)
    wiring.answer.make_answering.cache_clear()
    assert request("POST", link | ANSWER)["statusCode"] == 410
    monkeypatch.setattr(wiring.answer, "now", lambda: NOW)
    wiring.answer.make_answering.cache_clear()
    later = replace(PROPOSAL, expires_at=PROPOSAL.expires_at + timedelta(minutes=1))  # of a new run of that name
    for version, proposal in ((2, replace(PROPOSAL, id="p9")), (3, later)):
        account.runs.save(replace(RUN, proposal=proposal, version=version))
        gone = request("POST", link | ANSWER)
        assert (gone["statusCode"], "no longer open" in gone["body"]) == (410, True)
    assert account.received(commands) == []


@pytest.mark.parametrize("missing", [{"who": " "}, {"verb": "stop"}, {"verb": ""}])
def test_an_incomplete_answer_is_refused(account, commands, missing):
    done = request("POST", read_link(account) | ANSWER | missing)
    assert (done["statusCode"], "Give your name" in done["body"]) == (400, True)
    assert account.received(commands) == []


@pytest.mark.parametrize("changes", [{"severity": "inform"}, {"key": "gpt/held-2"}, {"by": None}, {"run": "other"}])
def test_only_a_page_that_asks_for_an_approval_has_the_link(account, changes):
    if changes.get("severity") == "inform":
        event = sample("notice_page")
        event["detail"] |= PAGE | changes
        notify.handler(event, Context("notify"))
        assert "Approve or deny" not in account.received("inform")[0]["Message"]
    else:
        assert read_link(account, **changes) == {}


def test_a_page_is_sent_also_if_its_link_cannot_be_signed(account, monkeypatch):
    monkeypatch.setattr(SigningKey, "__init__", lambda self, key: setattr(self, "_key", "no-such-key"))
    assert read_link(account) == {}


def test_a_key_that_cannot_be_used_is_an_error_and_no_verdict(account):
    with pytest.raises(ClientError):
        SigningKey("no-such-key").has_signed(b"message", "0" * 64)
