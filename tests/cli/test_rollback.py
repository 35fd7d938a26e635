"""`rerail rollback` and `rerail save`: what would come of it is said first, what cannot be before anybody is asked."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from moto import mock_aws
from typer.testing import CliRunner

from cli import place
from cli.main import app
from cli.place import Place
from rerail.aws.clients import client
from rerail.messages.messages import CommandReceived, parse_message
from rerail.model.checkpoints import Health
from rerail.model.file_copies import FileCopy
from rerail.model.run import Attempt, HealthLabel, JobStatus, Run, RunState
from rerail.model.signals import OperatorVerb
from tests.aws.places import TABLE, make_bucket, make_table

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
TRAINS = Attempt(1, "gpt", JobStatus.IN_PROGRESS, "Training", NOW, NOW, agent=True)
RUN = Run("gpt", "default", RunState.WATCHING, NOW, (TRAINS,), checkpoint_uri="s3://bucket/gpt/")


@pytest.fixture
def sent(monkeypatch):
    """A run with clean saves of steps 100 to 300, one that was never finished, and what came over the bus."""
    events: list[dict] = []

    def put(**request):
        events.extend(request["Entries"])
        return {"FailedEntryCount": 0, "Entries": [{"EventId": "e1"}]}

    with mock_aws():
        make_table(client("dynamodb"))
        s3 = make_bucket("bucket")
        for step in (100, 200, 300):
            facts = {"schema": 1, "step": step, "attempt": 1, "saved_at": "2026-01-31T11:00:00Z"}
            text = json.dumps({**facts, "files": [{"name": "a", "bytes": 1}]}).encode()
            for name, body in (("a", b"1"), ("manifest.json", text)):
                s3.put_object(Bucket="bucket", Key=f"gpt/step-{step:09d}/{name}", Body=body)
        s3.put_object(Bucket="bucket", Key="gpt/step-000000050/a", Body=b"1")
        monkeypatch.setattr(
            place,
            "find",
            lambda *, local: Place("stack Rerail", {"TableName": TABLE, "BusName": "b", "PolicyPrefix": "/p"}),
        )
        monkeypatch.setattr(client("events"), "put_events", put)
        yield events


def call(run: Run, *words: str):
    Place("", {"TableName": TABLE}).runs.save(replace(run, version=1), None, {})
    return CliRunner().invoke(app, [words[0], "gpt", *words[1:]])


def given(sent: list[dict]) -> CommandReceived:
    envelope = {"id": "e1", "source": sent[0]["Source"], "detail": json.loads(sent[0]["Detail"])}
    command = parse_message(json.dumps(envelope))
    assert isinstance(command, CommandReceived)
    return command


@pytest.mark.parametrize(("to", "start"), [(300, 300), (299, 200), (5000, 300), (0, 0)])
def test_the_resume_step_is_printed_and_the_step_is_sent(sent, to, start):
    answer = call(RUN, "rollback", "--to", str(to), "--why", "bad data")
    assert answer.exit_code == 0, answer.output
    assert f"if it is accepted, gpt starts again from step {start};" in " ".join(answer.stdout.split())
    assert (given(sent).verb, given(sent).step, given(sent).why) == (OperatorVerb.ROLLBACK, to, "bad data")


def test_for_programs_stdout_is_json_alone(sent):
    printed = json.loads(call(RUN, "rollback", "--to", "250", "--json").stdout)
    assert (printed["run"], printed["verb"], printed["step"], printed["event"]) == ("gpt", "rollback", 250, "e1")


def test_where_nothing_was_saved_so_early_the_steps_that_are_there_are_named(sent):
    answer = call(RUN, "rollback", "--to", "99")
    assert (answer.exit_code, sent) == (2, [])
    assert "nothing clean was saved at or before step 99" in answer.stderr
    assert "clean are 100, 200, 300; --to 0 begins again" in answer.stderr


@pytest.mark.parametrize(
    ("to", "printed"),
    [
        ("150", "asked: rollback gpt. `rerail show gpt` shows the result."),
        ("99", "nothing clean was saved at or before step 99"),
    ],
)
def test_a_copy_of_a_file_that_is_overwritten_is_named_by_its_step(sent, to, printed):
    """Its step was reported when it was copied; there is nothing else that has one."""
    copies = (FileCopy("ckpt.pt", "rerail-versions/gpt/1/ckpt.pt", "e", 7, NOW, 1, step=120),)
    run = replace(RUN, checkpoint_uri="s3://bucket/other/", copies=copies, attempts=(replace(TRAINS, agent=False),))
    assert printed in call(run, "rollback", "--to", to).output


def test_what_is_not_trusted_is_not_offered(sent):
    """Saves that a rollback before has labelled are none to go back to."""
    label = HealthLabel(200, 1, Health.QUARANTINED, "saved after step 199, to which ada rolled the run back", "c1")
    answer = call(replace(RUN, labels=(label,)), "rollback", "--to", "300")
    assert "gpt starts again from step 100;" in " ".join(answer.stdout.split())


@pytest.mark.parametrize(
    ("facts", "error"),
    [
        ({"state": RunState.COMPLETED}, "(completed) to do: submit a run with --start-from gpt:STEP to begin"),
        ({"checkpoint_uri": "", "attempts": (replace(TRAINS, agent=False),)}, "save nowhere that Rerail knows of"),
        ({"checkpoint_uri": "s3://no-such-bucket/gpt/"}, "cannot see what gpt has saved"),
    ],
)
def test_an_impossible_rollback_sends_no_command(sent, facts, error):
    answer = call(replace(RUN, **facts), "rollback", "--to", "200")
    assert (answer.exit_code, sent) == (2, []) and error in " ".join(answer.stderr.split())


@pytest.mark.parametrize("step", ["-1", "many", "1.5"])
def test_a_step_is_a_whole_number(sent, step):
    assert (call(RUN, "rollback", "--to", step).exit_code, sent) == (2, [])


def test_a_save_is_asked_of_an_agent_alone(sent):
    assert call(replace(RUN, attempts=(replace(TRAINS, agent=False),)), "save").exit_code == 2
    assert sent == []


def test_a_save_is_asked_for(sent):
    saved = call(RUN, "save")
    assert saved.exit_code == 0 and "a checkpoint is waited for until" in saved.output
    assert (given(sent).verb, given(sent).step) == (OperatorVerb.SAVE, None)
