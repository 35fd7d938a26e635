"""Records: what is written today is read today, tomorrow and by the next version."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given

from rerail.decisions.decide import decide
from rerail.model.actions import CreateJob, Notify, ReleaseWarmPool, Severity, StopJob
from rerail.model.causes import Cause
from rerail.model.codec import BadRecord, dumps, loads
from rerail.model.policy import Policy
from rerail.model.record import Record
from rerail.model.run import (
    AfterStop,
    Attempt,
    Incident,
    Job,
    JobStatus,
    Ledger,
    PlannedStop,
    Run,
    RunState,
    TimelineEntry,
)
from rerail.model.signals import JobObserved
from tests.core.strategies import runs, timeline_entries

STORED = Path(__file__).parent / "data" / "run-schema-1.json"
START = datetime(2026, 1, 31, 1, tzinfo=UTC)

# A run in the middle of everything at once: every type that a record may hold is in it.
FULL = Run(
    id="gpt-7b",
    policy="default",
    state=RunState.SAVING,
    created_at=START,
    attempts=(
        Attempt(
            number=1,
            job_name="gpt-7b",
            status=JobStatus.FAILED,
            secondary="Failed",
            created_at=START,
            training_started_at=START + timedelta(minutes=4),
            ended_at=START + timedelta(hours=1, microseconds=250),
            failure_reason='AlgorithmError: {"rerail":1,"cause":"hardware"}, exit code: 1',
            cause=Cause.HARDWARE,
            fingerprint="0a1b2c3d",
            last_step=1100,
            self_repairs=1,
            keep_alive_seconds=1800,
        ),
        Attempt(
            number=2, job_name="gpt-7b-a002", status=JobStatus.IN_PROGRESS, secondary="Training", resumed_from_step=1000
        ),
    ),
    checkpoint_uri="s3://bucket/gpt-7b/",
    ledger=Ledger(
        charges={Cause.HARDWARE: 1, Cause.USER_CODE: 2},
        without_progress=1,
        progress_step=1000,
        starts=(START, START + timedelta(hours=1)),
        capacity_since=START + timedelta(hours=2),
        entries=("2026-01-31T02:00:00Z hardware: failure 1 since the last progress",),
    ),
    incidents=(
        Incident(
            number=1,
            kind="job_failed",
            attempt=1,
            cause=Cause.HARDWARE,
            reason="attempt 1 failed: hardware",
            evidence="CUDA error: uncorrectable ECC error encountered – host “algo-2”",
            happened_at=START + timedelta(hours=1),
            decided_at=START + timedelta(hours=1, seconds=20),
            step=1100,
            resume_step=1000,
            actions=("release_warm_pool", "relaunch"),
            closed_at=START + timedelta(hours=3),
            resolution="recovered",
        ),
    ),
    pending=(
        CreateJob("gpt-7b-a002", 2, 1000),
        StopJob("gpt-7b-a002"),
        ReleaseWarmPool("gpt-7b"),
        Notify(Severity.INFORM, "gpt-7b: hardware: relaunching", "…", "gpt-7b/failed-1"),
    ),
    stop=PlannedStop(
        AfterStop.RELAUNCH, "ada said restart", START + timedelta(hours=3), START + timedelta(hours=3, minutes=15)
    ),
    wake_at=START + timedelta(hours=4),
    hold_reason="",
    observe_only=True,
    commands=("c1", "c2"),
    version=12,
)


@given(runs)
def test_any_run_survives_its_own_text(run):
    assert loads(Run, dumps(run)) == run


@given(timeline_entries)
def test_any_timeline_entry_survives_its_own_text(entry):
    assert loads(TimelineEntry, dumps(entry)) == entry


def test_a_record_of_an_older_day_keeps_loading():
    """A run as the first version stored it. If this fails, the records in people's tables fail too: raise SCHEMA."""
    assert loads(Run, STORED.read_text()) == FULL


def test_defaults_are_left_out():
    """A record stays short: only what differs from a field's default is written."""
    run = Run("a", "default", RunState.WATCHING, START, (Attempt(1, "a"),))
    attempt = {"type": "Attempt", "number": 1, "job_name": "a"}
    assert json.loads(dumps(run)) == {
        "schema": 2,
        "type": "Run",
        "id": "a",
        "policy": "default",
        "state": "watching",
        "created_at": "2026-01-31T01:00:00+00:00",
        "attempts": [attempt],
    }


def test_a_field_of_a_later_version_is_passed_over():
    record = json.loads(dumps(FULL))
    record["mood"] = "hopeful"
    record["attempts"][0]["mood"] = {"deep": [1]}
    record["pending"][0]["mood"] = None
    run = loads(Run, json.dumps(record))
    attempts = tuple(replace(attempt, newer_fields="") for attempt in run.attempts)
    assert replace(run, newer_fields="", attempts=attempts) == FULL


@pytest.mark.parametrize("schema", [0, 3, "1", None])
def test_a_record_of_another_schema_is_refused(schema):
    """What was written on other terms is never guessed at."""
    with pytest.raises(BadRecord, match="a Run of another schema than 2: deploy the version that wrote it"):
        loads(Run, json.dumps({**json.loads(dumps(FULL)), "schema": schema}))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"state": "asleep"}, r"Run.state: 'asleep' is not a valid RunState"),
        ({"created_at": "noon"}, r"Run.created_at: Invalid isoformat string"),
        ({"pending": [{"type": "FormatDisk"}]}, r"Run.pending\[0\]: type 'FormatDisk' is not one of CreateJob, "),
        ({"pending": ["StopJob"]}, r"Run.pending\[0\]: type None is not one of"),
        ({"attempts": [{"type": "Attempt", "number": 1}]}, r"Run.attempts\[0\]: .*job_name"),
        (
            {"ledger": {"type": "Ledger", "charges": {"mice": 1}}},
            r"Run.ledger.charges.mice: 'mice' is not a valid Cause",
        ),
    ],
)
def test_a_broken_record_names_the_place(change, complaint):
    with pytest.raises(BadRecord, match=complaint):
        loads(Run, json.dumps({**json.loads(dumps(FULL)), **change}))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7"])
def test_what_is_no_record_at_all_is_refused(text):
    with pytest.raises(BadRecord):
        loads(Run, text)


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("id", 7, "Run.id: 7 is not a valid str"),
        ("version", "3", "Run.version: '3' is not a valid int"),
        ("version", True, "Run.version: True is not a valid int"),
        ("version", 10**400, "Run.version: a number of more than 64 bits"),
        ("observe_only", "yes", "Run.observe_only: 'yes' is not a valid bool"),
        ("commands", "abc", "Run.commands: 'abc' is not a list"),
        ("commands", ["c1", 7], r"Run.commands\[1\]: 7 is not a valid str"),
        ("pending", [None], "type None is not one of CreateJob"),
        ("created_at", "2026-01-31T01:00:00", "Run.created_at: '2026-01-31T01:00:00' has no time zone"),
        ("attempts", [{"type": "Attempt", "number": 1, "job_name": ["gpt"]}], "is not a valid str"),
    ],
)
def test_a_record_with_a_value_of_another_kind_is_no_record(field, value, named):
    """Read as it stands, it would break a decision later, and with it whatever else is decided in that minute."""
    table = json.loads(dumps(FULL)) | {field: value}
    with pytest.raises(BadRecord, match=named):
        loads(Run, json.dumps(table))


@pytest.mark.parametrize("text", ["[" * 20_000, '{"schema":1,"attempts":' + "[" * 20_000, "\ud800", "1" * 5_000])
def test_a_text_that_is_no_record_at_all_is_said_to_be_none(text):
    """However deep, however long."""
    with pytest.raises(BadRecord) as raised:
        loads(Run, text)
    assert len(str(raised.value)) < 500


JOB = Job("gpt-7b-a002", "arn", JobStatus.IN_PROGRESS, "Downloading", START + timedelta(hours=1))


def with_newer_fields(record: dict, depth: int = 0) -> dict:
    """Return the record as a newer version might write it: each object of a run has fields that are new."""
    new = {"seal": True, "extra": [1, {"type": "Unheard", "of": None}], f"at{depth}": "2026-01-31T01:00:00+00:00"}
    carried = {cls.__name__ for cls in Record.__subclasses__()}
    inner = {
        name: [with_newer_fields(item, depth + 1) if isinstance(item, dict) else item for item in value]
        if isinstance(value, list)
        else with_newer_fields(value, depth + 1)
        if isinstance(value, dict)
        else value
        for name, value in record.items()
    }
    return {**inner, **(new if record.get("type") in carried else {})}


def test_fields_of_a_newer_version_survive_a_decision():
    """A function of the version before loads, decides and saves: what it does not know is as it was."""
    newer = with_newer_fields(json.loads(dumps(replace(FULL, observe_only=False))))
    run = loads(Run, json.dumps(newer))
    assert replace(run, newer_fields="").id == FULL.id
    assert json.loads(dumps(run)) == newer
    decision = decide(run, JobObserved(START + timedelta(hours=4), JOB), Policy())
    assert decision.run != run
    after = json.loads(dumps(decision.run))
    assert after["seal"] is True and after["attempts"][0] == newer["attempts"][0]
    assert after["attempts"][1]["extra"] == newer["attempts"][1]["extra"]
    assert after["stop"] == newer["stop"] and after["incidents"] == newer["incidents"]
    assert loads(Run, dumps(decision.run)) == decision.run


def test_fields_of_a_newer_version_are_bounded_and_never_replace_known_ones():
    newer = {**json.loads(dumps(FULL)), "small": 1, "large": "x" * 30_000, "newer_fields": '{"id": "other"}'}
    run = loads(Run, json.dumps(newer))
    written = json.loads(dumps(run))
    assert (written["small"], written["id"]) == (1, FULL.id)
    assert "large" not in written and "newer_fields" not in written
