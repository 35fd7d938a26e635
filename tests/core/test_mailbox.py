"""The mailbox's objects: what one side writes the other reads, and nothing else in the bucket does any harm."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rerail.model.codec import dumps
from rerail.model.errors import BadMailboxObject
from rerail.model.finding import Finding, Kind, Level
from rerail.model.liveness import Phase
from rerail.model.mailbox import (
    CONTROLS,
    EARLIEST,
    FINDINGS_LIMIT,
    LATEST,
    QUOTED,
    SIZE_LIMIT,
    Command,
    CommandKind,
    Durability,
    Heartbeat,
    Report,
    ReportKind,
    make_bucket_name,
    make_command_key,
    make_heartbeat_key,
    make_report_key,
    read_command,
    read_heartbeat,
    read_report,
    run_of_report,
    serialize,
)
from tests.core.strategies import commands, heartbeats, job_names, json_values, names, reports

NOON, SECOND = datetime(2026, 1, 31, 12, tzinfo=UTC), timedelta(seconds=1)
FINDING = Finding(Kind.STALL, Level.INTERVENE, 60, 50, "no step for 300 s", NOON, NOON)
COMMAND = Command("c1", "gpt", 1, CommandKind.CHECKPOINT, NOON, NOON, "throughput_drop")
ANSWER = "c1", 60, Durability.LOCAL, "/opt/x", "why", (FINDING,), "stacks"
REPORT = Report("r1", "gpt", 1, "gpt", ReportKind.CHECKPOINT, NOON, *ANSWER)
HEARTBEAT = Heartbeat("gpt", 1, "gpt", NOON, Phase.STEP, 60, NOON, 2.5, 0.1, 1000)


def without_controls(text: str) -> str:
    return text.translate(CONTROLS)


def read(text: bytes, kind: type) -> Any:
    if kind is Report:
        return read_report(text, run="gpt", id="r1")
    return (read_command if kind is Command else read_heartbeat)(text, run="gpt")


@given(commands)
def test_a_command_is_read_as_it_was_written(command):
    again = read_command(serialize(command), run=command.run)
    assert dumps(again) == dumps(command).replace(
        json.dumps(command.reason), json.dumps(without_controls(command.reason))
    )


@given(reports)
def test_a_report_is_read_as_it_was_written(report):
    """But for the characters that a terminal would obey."""
    again = read_report(serialize(report), run=report.run, id=report.id)
    assert (again.kind, again.at, again.command, again.step) == (report.kind, report.at, report.command, report.step)
    assert (again.reason, again.evidence) == (without_controls(report.reason), without_controls(report.evidence))
    assert [f.kind for f in again.findings] == [f.kind for f in report.findings]


@given(heartbeats)
def test_a_heartbeat_is_read_as_it_was_written(heartbeat):
    assert read_heartbeat(serialize(heartbeat), run=heartbeat.run) == heartbeat


@given(job_names, names)
def test_a_reports_key_has_its_run_and_its_id(run, id):
    if id[0].isalnum():
        assert run_of_report(make_report_key(run, id)) == (run, id)
    for key in (make_command_key(run), make_heartbeat_key(run)):
        with pytest.raises(BadMailboxObject):
            run_of_report(key)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "runs/gpt/reports/.json",
        "runs/gpt/reports/../r.json",
        "runs/a/b/reports/r.json",
        "runs/-gpt/reports/r.json",
        "runs/gpt/reports/r.json\n",
        "runs/gpt/reports/r.txt",
        f"runs/{'g' * 64}/reports/r.json",
        "x/runs/gpt/reports/r.json",
    ],
)
def test_any_other_key_is_no_report(key):
    with pytest.raises(BadMailboxObject):
        run_of_report(key)


def test_the_buckets_name_lets_training_roles_in():
    """AmazonSageMakerFullAccess grants buckets whose name contains `sagemaker`."""
    assert make_bucket_name("123456789012", "eu-west-1") == "sagemaker-rerail-123456789012-eu-west-1"


OF_A_FINDING = sorted(json.loads(serialize(REPORT))["findings"][0])
values = json_values | st.sampled_from(
    [
        "9999-12-31T23:59:59-23:59",
        "0001-01-01T00:00:00+23:59",
        "2026-01-31T12:00:00",
        "\ud800",
        10**30,
        10**400,
        -1,
        True,
        "x" * 60_000,
        {"type": "Finding"},
        [{}],
        [[]],
        float("nan"),
    ]
)


@given(st.dictionaries(st.sampled_from(OF_A_FINDING), values, min_size=1, max_size=3))
@example({"step": "60"})
@example({"onset_at": "2026-01-31T12:00:00"})
@example({"evidence": 7})
def test_any_finding_is_read_or_refused(changes):
    """Nested fields are looked at like the others: the supervisor reckons with them."""
    table = json.loads(serialize(REPORT))
    table["findings"][0] |= changes
    try:
        (finding,) = read(json.dumps(table).encode(), Report).findings
    except BadMailboxObject:
        return
    assert all(step is None or type(step) is int for step in (finding.step, finding.onset_step))
    assert all(time is None or time.tzinfo for time in (finding.at, finding.onset_at))
    assert isinstance(finding.evidence, str)
    assert (finding.kind, finding.level) in {(k, v) for k in Kind for v in Level}


@pytest.mark.parametrize(
    ("text", "defect"),
    [
        (b" " * (SIZE_LIMIT + 1), "size"),
        (b"{", "json"),
        (b"{}", "schema"),
        (b'{"schema":1,"type":"Command"}', "type"),
        (b'{"schema":1,"type":"Report"}', "field"),
        (serialize(REPORT).replace(b'"run":"gpt"', b'"run":"gpt-2"'), "run"),
        (serialize(REPORT).replace(b'"id":"r1"', b'"id":"r2"'), "id"),
    ],
)
def test_each_kind_of_defect_has_its_name(text, defect):
    """There are few of them, so that people can be told once of each."""
    with pytest.raises(BadMailboxObject) as error:
        read(text, Report)
    assert error.value.defect == defect


@pytest.mark.parametrize(
    ("mail", "field", "allowed", "refused", "problem"),
    [
        (REPORT, "reason", ["x" * 500], ["x" * 501], "has 501 characters; at most 500"),
        (REPORT, "command", ["x" * 128], ["x" * 129], "has 129 characters; at most 128"),
        (REPORT, "path", ["\ud7ff", "\ue000"], ["\ud800", "\udfff"], "it contains half of a surrogate pair"),
        (REPORT, "at", [EARLIEST, LATEST - SECOND], [EARLIEST - SECOND, LATEST], "a time between 2000 and 2200"),
        (REPORT, "step", [0, 10**18 - 1], [-1, 10**18], "it must be a whole number, 0 or more"),
        (HEARTBEAT, "loss", [10**18 - 1, -(10**18) + 1], [10**18, -(10**18)], "the number is too large"),
        (COMMAND, "rate", [0.001, 1000], [0, -1, 1000.5], "it must be a number above 0, at most 1000"),
        (REPORT, "abilities", [("x" * 40,) * 10], [("x" * 41,), ("x",) * 11], "it must be at most 10 words"),
        (REPORT, "findings", [(FINDING,) * FINDINGS_LIMIT], [(FINDING,) * 21], "has 21 entries; at most 20 are read"),
    ],
)
def test_a_field_within_its_range_is_read_and_no_other(mail, field, allowed, refused, problem):
    for value in allowed:
        assert getattr(read(serialize(replace(mail, **{field: value})), type(mail)), field) == value
    for value in refused:
        with pytest.raises(BadMailboxObject, match=f"field '{field}' .*{problem}"):
            read(serialize(replace(mail, **{field: value})), type(mail))


def test_one_report_has_bounded_content():
    assert read(serialize(REPORT).ljust(SIZE_LIMIT), Report) == REPORT

    wordy = Finding(Kind.STALL, Level.WARN, 1, 1, "stack\n" * 1000)
    (finding,) = read(
        serialize(Report("r1", "gpt", 1, "gpt", ReportKind.FINDINGS, NOON, findings=(wordy,))), Report
    ).findings
    assert len(finding.evidence) == QUOTED


def test_what_a_terminal_would_obey_is_taken_out():
    loud = Report(
        "r1", "gpt", 1, "gpt", ReportKind.REFUSED, NOON, reason="\x1b[2Jgone\x07 \u009b1m", evidence="a\tb\nc"
    )
    again = read(serialize(loud), Report)
    assert again.reason == " [2Jgone   1m"
    assert again.evidence == "a\tb\nc"
