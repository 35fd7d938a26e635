"""Commands and their answers, without a network."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from rerail.model.finding import Finding, Kind, Level
from rerail.model.mailbox import CommandKind, Durability, Report, ReportKind, make_command_key, read_report, serialize
from rerail.model.signatures import sign
from rerail_agent.commands import CommandEffect, CommandState
from rerail_agent.identity import Identity
from tests.agent.jobs import command

ME = Identity(run="night", attempt=2, job="night-a002")
NOW = datetime.now(UTC)
KEY = "ab" * 32


def make_state() -> CommandState:
    return CommandState(ME)


def mine(id: str = "c1", **fields: object) -> bytes:
    return serialize(command(id, attempt=2, **fields))


def read(report: Report | None) -> Report:
    """As the supervisor reads it."""
    assert report is not None
    return read_report(serialize(report), run="night", id=report.id)


def test_a_checkpoint_command_is_acknowledged_and_then_answered():
    """The answer carries the command's id, the step, and where the checkpoint lies."""
    state = make_state()
    effect = state.receive(mine(), at=NOW)
    assert (effect.save, effect.fenced, read(effect.report).kind) == (True, False, ReportKind.ACKNOWLEDGED)
    state.set_agreed_step(61)
    answer = read(state.report_committed("s3://b/step-61", step=61, durability=Durability.REMOTE, at=NOW))
    assert (answer.id, answer.command, answer.step) == ("a002-checkpoint-c1", "c1", 61)
    assert state.report_committed("s3://b/step-90", step=90, durability=Durability.REMOTE, at=NOW) is None


def test_only_what_was_saved_at_the_agreed_step_or_later_answers():
    """A periodic save that was under way when the command came is not what was asked for."""
    state = make_state()
    state.receive(mine(), at=NOW)
    assert state.report_committed("p", step=50, durability=Durability.LOCAL, at=NOW) is None
    state.set_agreed_step(61)
    assert state.report_committed("p", step=50, durability=Durability.LOCAL, at=NOW) is None
    assert read(state.report_committed("p", step=None, durability=Durability.LOCAL, at=NOW)).step == 61


def test_the_same_command_again_is_no_news():
    state = make_state()
    assert state.receive(mine(), at=NOW).save
    assert state.receive(mine(), at=NOW) == CommandEffect()
    assert state.receive(mine("c2"), at=NOW).save


@pytest.mark.parametrize("kind", list(CommandKind))
def test_each_command_to_this_attempt_brings_the_settings_of_the_policy(kind):
    """A newer command replaces an older one, which the agent may not have read."""
    state = make_state()
    assert state.receive(mine(kind=kind, settings="{}"), at=NOW).settings == "{}"
    assert state.receive(serialize(command(attempt=1, settings="{}")), at=NOW).settings == ""


@pytest.mark.parametrize("text", [serialize(command(attempt=1)), mine(kind=CommandKind.TRAIN)], ids=["older", "owner"])
def test_a_command_of_an_older_attempt_or_about_ownership_asks_for_nothing(text):
    assert make_state().receive(text, at=NOW) == CommandEffect()


@pytest.mark.parametrize("kind", list(CommandKind))
def test_a_newer_attempt_fences_this_one(kind):
    """It says so once, as the answer to the command that it cannot grant any more if there is one."""
    state = make_state()
    state.receive(mine(), at=NOW)
    effect = state.receive(serialize(command("c9", attempt=3, kind=kind)), at=NOW)
    answer = read(effect.report)
    assert (effect.fenced, effect.save, answer.kind, answer.command) == (True, False, ReportKind.REFUSED, "c1")
    assert answer.reason == "attempt 3 owns the run: attempt 2 saves no more"
    assert state.receive(serialize(command("c10", attempt=3)), at=NOW) == CommandEffect(fenced=True)
    state.set_agreed_step(5)
    assert state.report_committed("p", step=5, durability=Durability.LOCAL, at=NOW) is None


def test_past_its_deadline_a_command_is_refused():
    """Nobody waits for the answer any more: it changes nothing."""
    late = make_state().receive(mine(left_s=-86400), at=NOW)
    answer = read(late.report)
    assert (late.save, answer.kind, answer.command) == (False, ReportKind.REFUSED, "c1")
    assert "deadline passed" in answer.reason


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"{", "not JSON"),
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"{}", "schema"),
        (b" " * 70_000, "at most"),
        (mine().replace(b'"night"', b'"day"'), "field 'run'"),
        (mine().replace(b'"checkpoint"', b'"dance"'), "dance"),
        (json.dumps({"schema": 1, "type": "Command", "id": "c1"}).encode(), "missing"),
    ],
)
def test_what_is_no_command_for_this_run_is_refused_once_with_the_reason(text, words):
    """It changes nothing, however often it is read."""
    state = make_state()
    answer = state.receive(text, at=NOW)
    assert (answer.save, answer.fenced) == (False, False)
    assert words in read(answer.report).reason
    assert state.receive(text, at=NOW) == CommandEffect()
    assert state.receive(mine(), at=NOW).save


def test_a_save_that_fails_is_answered_once():
    """Whoever waits for the checkpoint should not wait until the deadline."""
    state = make_state()
    assert state.report_failed("no disk", at=NOW) is None
    state.receive(mine(), at=NOW)
    answer = read(state.report_failed("no disk left " * 100, at=NOW))
    assert (answer.id, answer.command, answer.kind) == ("a002-refused-c1", "c1", ReportKind.REFUSED)
    assert state.report_failed("again", at=NOW) is None


def test_ids_are_the_same_for_the_same_thing_and_differ_otherwise():
    """A report that is sent twice overwrites itself; no two things share a name, and every name is a legal one."""
    at = NOW + timedelta(seconds=5)
    spike = Finding(Kind.LOSS_SPIKE, Level.WARN, 60, 58, "loss 5")
    assert (
        make_state().report_finding(spike, at=NOW).id
        == make_state().report_finding(spike, at=at).id
        == "a002-findings-loss_spike-warn-58"
    )
    start = Finding(Kind.STARTUP_STALL, Level.INTERVENE, None, None, "no step")
    others = [spike, replace(spike, onset_step=61), replace(spike, level=Level.INTERVENE), start]
    odd = ["c/1", "c 1", "c:1", "ü" * 128, "x" * 128, "x" * 127 + "y", "../../heartbeat"]
    reports = [make_state().report_finding(finding, at=NOW) for finding in others] + [make_state().report_hello(at=NOW)]
    reports += [make_state().receive(mine(id), at=NOW).report for id in odd]
    assert len({read(report).id for report in reports}) == len(reports)


@pytest.mark.parametrize("character", ["x", "\n", '"', "\\", "é", "火", "\udcff", "😀"])
def test_evidence_is_cut_to_what_its_reader_takes(character):
    """JSON makes twelve bytes of one rare character, and half of one is no text."""
    finding = Finding(Kind.STALL, Level.INTERVENE, 60, 60, f"stuck in {character}")
    report = read(make_state().report_finding(finding, at=NOW, evidence=f"main thread {character * 100_000}"))
    assert report.evidence.startswith("main thread ")
    assert len(report.evidence) > 5_000


@pytest.mark.threat("T8")
def test_an_agent_with_a_key_obeys_signed_commands_only():
    """Unsigned, another run's key, another run's folder, changed bytes: refused, and reported once in all."""
    state = CommandState(replace(ME, signing_key=KEY))
    name = make_command_key("night")
    forged = [
        mine("f1"),
        mine("f2", kind=CommandKind.TRAIN),
        sign(mine("f3"), name=name, key="cd" * 32),
        sign(mine("f4"), name=make_command_key("another"), key=KEY),
        sign(mine("f5"), name=name, key=KEY).replace(b'"f5"', b'"f6"'),
        mine("f7").replace(b'{"schema"', b'{"seal":"' + b"ab" * 32 + b'","schema"'),
        mine("f8")[:-1] + b',"seal":null}',
    ]
    effects = [state.receive(text, at=NOW) for text in forged]
    assert not any(effect.save or effect.fenced for effect in effects)
    (report,) = [read(effect.report) for effect in effects if effect.report]
    assert (report.kind, report.command) == (ReportKind.REFUSED, "")
    assert "seal" in report.reason
    assert state.receive(sign(mine("c1"), name=name, key=KEY), at=NOW).save


@pytest.mark.threat("T8")
def test_a_signed_command_that_is_written_again_changes_nothing():
    """Of an older attempt, of this process, or late: its id, attempt and deadline are signed with it."""
    name = make_command_key("night")
    state = CommandState(replace(ME, signing_key=KEY))
    assert state.receive(sign(mine("c1"), name=name, key=KEY), at=NOW).save
    older = sign(serialize(command("c0", attempt=1)), name=name, key=KEY)
    for text in (older, sign(mine("c1"), name=name, key=KEY), sign(mine("c2", left_s=-3600), name=name, key=KEY)):
        assert not state.receive(text, at=NOW).save


@pytest.mark.threat("T8")
def test_an_agent_without_a_key_reads_signed_commands():
    """The run has a key since its adoption, and the first job was started without one."""
    assert make_state().receive(sign(mine(), name=make_command_key("night"), key=KEY), at=NOW).save
