"""`rerail approve` and `deny`, `pause` and `resume`: a word names what it is about; the pause is a parameter."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from moto import mock_aws
from typer.testing import CliRunner

from cli import place
from cli.main import app
from cli.place import Outputs, Place
from rerail.aws.clients import client
from rerail.messages.messages import CommandReceived, parse_message
from rerail.model.run import Attempt, JobStatus, Proposal, ProposedAction, Run, RunState
from rerail.model.signals import OperatorVerb
from rerail.supervisor.pause import parse_pause
from tests.aws.places import TABLE, make_table

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
OUTPUTS = {
    "TableName": TABLE,
    "BusName": "rerail",
    "PauseParameter": "/rerail/switch",
    "PolicyPrefix": "/rerail/policies",
}
PROPOSAL = Proposal(
    "p7", ProposedAction.LAUNCH, 2, "create gpt-a002 from step 500", "the node died", NOON, NOON + timedelta(hours=1)
)
RUN = Run("gpt", "approve", RunState.WAITING, NOON, (Attempt(1, "gpt"), Attempt(2, "gpt-a002")), proposal=PROPOSAL)


@pytest.fixture
def sent(monkeypatch):
    """What came over the bus."""
    events: list[dict] = []

    def put(**request):
        events.extend(request["Entries"])
        return {"FailedEntryCount": 0, "Entries": [{"EventId": "1"}]}

    with mock_aws():
        make_table(client("dynamodb"))
        client("ssm").put_parameter(Name="/rerail/switch", Value="on", Type="String")
        monkeypatch.setattr(place, "find", lambda *, local: Place("stack Rerail", OUTPUTS))
        monkeypatch.setattr(client("events"), "put_events", put)
        yield events


def keep(run: Run) -> None:
    Place("", OUTPUTS).runs.save(replace(run, version=run.version + 1), None, {})


def call(*words: str):
    return CliRunner().invoke(app, words)


def parse_sent(entry: dict) -> CommandReceived:
    envelope = {"id": "e1", "source": entry["Source"], "detail": json.loads(entry["Detail"])}
    given = parse_message(json.dumps(envelope))
    assert isinstance(given, CommandReceived)
    return given


@pytest.mark.parametrize("verb", [OperatorVerb.APPROVE, OperatorVerb.DENY])
@pytest.mark.parametrize("named", [(), ("--proposal", "p7")])
def test_an_answer_names_the_open_proposal(sent, verb, named):
    """Without an id it is the one that is shown, and no other."""
    keep(RUN)
    answer = call(verb.value, "gpt", *named, "--why", "seen it")
    assert answer.exit_code == 0, answer.output
    assert "p7: create gpt-a002 from step 500 (the node died)" in " ".join(answer.output.split())
    given = parse_sent(sent[0])
    assert (given.verb, given.proposal, given.why) == (verb, "p7", "seen it")


def test_an_older_proposal_cannot_be_answered(sent):
    """Somebody reads last hour's page: they are told what stands now, and nothing is sent."""
    keep(RUN)
    answer = call("approve", "gpt", "--proposal", "p3")
    assert answer.exit_code == 2
    assert "p3 does not stand any more, p7 does: create gpt-a002 from step 500" in answer.stderr
    assert not sent


@pytest.mark.parametrize(
    ("verb", "facts", "reason"),
    [
        ("approve", {}, "nothing waits for approval (waiting)"),
        ("deny", {}, "nothing waits for approval (waiting)"),
        ("release", {"state": RunState.COMPLETED}, "the run is not held (completed)"),
        ("hold", {"state": RunState.COMPLETED}, "the run has ended (completed)"),
        ("hold", {"state": RunState.HELD}, "the run is held already"),
        ("restart", {"state": RunState.HELD}, "no job of this run is live (held)"),
        ("stop", {"state": RunState.STOPPED}, "no job of this run is live (stopped)"),
        ("save", {}, "the run does not train (waiting)"),
    ],
)
def test_a_command_that_would_change_nothing_is_not_sent(sent, verb, facts, reason):
    """Exit status 1, the reason, and the command that helps."""
    keep(replace(RUN, proposal=None, **facts))
    answer = call(verb, "gpt")
    assert (answer.exit_code, sent) == (1, [])
    assert f"error: {verb} gpt: {reason}" in answer.stderr
    helps = "release" if facts.get("state") is RunState.HELD else "show"
    assert f"to do: `rerail {helps} gpt`" in answer.stderr
    assert call(verb, "no-such-run").exit_code == 2


@pytest.mark.parametrize(("agent", "until"), [(False, "12:16"), (True, "12:23")])
def test_without_an_agent_the_wait_is_at_most_as_long_as_the_job_has_trained(sent, monkeypatch, agent, until):
    """The time that is printed is the supervisor's."""
    monkeypatch.setattr(place, "now", lambda: NOON + timedelta(minutes=8))
    trains = Attempt(1, "gpt", JobStatus.IN_PROGRESS, "Training", NOON, NOON, agent=agent)
    keep(replace(RUN, proposal=None, state=RunState.WATCHING, attempts=(trains,), checkpoint_uri="s3://bucket/gpt/"))
    printed = " ".join(call("restart", "gpt").output.split())
    assert f"if it is accepted, the job waits for a checkpoint until {until} UTC" in printed


def test_rerail_is_paused_and_resumed(sent):
    """One parameter, which the functions read every minute."""
    for _ in range(2):
        said = " ".join(call("pause").output.split())
        assert said.startswith("Rerail is paused for this account, within two minutes: no job is stopped or launched.")
        assert said.endswith("To lift the pause: rerail resume")
        assert parse_pause(client("ssm").get_parameter(Name="/rerail/switch")["Parameter"]["Value"]) is True
    said = " ".join(call("resume").output.split())
    assert said.startswith("Rerail is active for this account, within two minutes: ")
    assert parse_pause(client("ssm").get_parameter(Name="/rerail/switch")["Parameter"]["Value"]) is False


def test_a_pause_is_printed_as_json(sent):
    assert json.loads(call("pause", "--json").stdout) == {"place": "stack Rerail", "paused": True}
    assert json.loads(call("resume", "--json").stdout) == {"place": "stack Rerail", "paused": False}


def test_a_stack_of_an_older_version_is_paused_too(sent, monkeypatch):
    """It calls its output otherwise, and its functions know the words "on" and "off" alone."""
    older = Outputs({"TableName": TABLE, "BusName": "rerail", "SwitchParameter": "/rerail/switch"})
    monkeypatch.setattr(place, "find", lambda *, local: Place("stack Rerail", older))
    for command, word in (("pause", "off"), ("resume", "on")):
        assert call(command).exit_code == 0
        assert client("ssm").get_parameter(Name="/rerail/switch")["Parameter"]["Value"] == word
