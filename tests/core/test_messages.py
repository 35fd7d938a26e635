"""Messages on the queue: hints by name, whoever sends them, and one clear error for all else."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given

from rerail.messages.messages import (
    AlarmStateChanged,
    CommandReceived,
    FindingsReceived,
    JobStateChanged,
    ReportFiled,
    RunDue,
    UnrelatedObject,
    parse_message,
)
from rerail.model.codec import to_plain
from rerail.model.errors import BadMessage
from rerail.model.finding import Finding, Kind, Level
from rerail.model.signals import OperatorVerb
from tests.core.strategies import job_names

EVENTS = Path(__file__).parents[1] / "events"
COMMAND = {"id": "c1", "source": "rerail.operator", "detail": {"run": "gpt", "verb": "hold", "who": "ada"}}


def sample(name: str) -> str:
    return (EVENTS / f"{name}.json").read_text()


def refusal(message: object) -> str:
    with pytest.raises(BadMessage) as error:
        parse_message(message if isinstance(message, str) else json.dumps(message))
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("training_job_state_change", JobStateChanged("gpt-7b")),
        ("training_job_state_change_documented", JobStateChanged("kmeans-1")),
        ("training_job_failed", JobStateChanged("gpt-7b")),
        ("sweep_run_due", RunDue("gpt-7b")),
        ("sweep_job_heard", JobStateChanged("gpt-7b-a002")),
        (
            "operator_command",
            CommandReceived(
                "1f0e9a52-0f0b-4a1c-9d57-3a0a7c1b2d3e",
                "gpt-7b",
                OperatorVerb.RELEASE,
                "ada",
                "the node is out of the pool",
                asked_at=datetime(2026, 1, 31, 3, 0, 2, tzinfo=UTC),
            ),
        ),
    ],
)
def test_every_sample_is_read_right(name, expected):
    assert parse_message(sample(name)) == expected


@pytest.mark.threat("T10")
def test_an_event_is_believed_in_nothing_but_the_name():
    """A status in an event may be hours old: it is not even read."""
    event = json.loads(sample("training_job_failed"))
    event["detail"] = {"TrainingJobName": "gpt-7b", "TrainingJobStatus": ["nonsense"], "Tags": [{"Key": 1}]}
    assert parse_message(json.dumps(event)) == JobStateChanged("gpt-7b")


@pytest.mark.parametrize(
    ("status", "tags", "is_routine"),
    [
        ("InProgress", {"team": "nlp"}, True),
        ("InProgress", None, True),
        ("InProgress", {"rerail:policy": "default"}, False),
        ("Failed", {}, False),
        ("Completed", None, False),
        (["InProgress"], {}, False),
    ],
)
def test_a_job_that_goes_on_without_a_policy_is_routine(status, tags, is_routine):
    event = json.loads(sample("training_job_failed"))
    event["detail"] = {"TrainingJobName": "gpt-7b", "TrainingJobStatus": status, "Tags": tags}
    assert parse_message(json.dumps(event)) == JobStateChanged("gpt-7b", is_routine)


@given(job_names)
def test_every_name_that_sagemaker_allows_is_accepted(name):
    assert parse_message(json.dumps({"source": "rerail.sweep", "detail": {"job": name}})) == JobStateChanged(name)


@pytest.mark.threat("T6")
@pytest.mark.parametrize(
    "name", ["", "-gpt", "gpt-", "gpt_7b", "a" * 64, f"a{'-' * 62}b", "gpt\n", "../x", 7, None, ["gpt"], {}]
)
def test_what_is_no_name_is_refused(name):
    message = refusal({"source": "aws.sagemaker", "detail": {"TrainingJobName": name}})
    assert message.startswith("field 'detail.TrainingJobName' is ")
    assert message.endswith("; it must be the name of a training job or run")


@pytest.mark.parametrize("source", ["aws.ec2", "rerail", "", None, 7, ["aws.sagemaker"]])
def test_an_unknown_source_is_refused_with_the_known_ones(source):
    message = refusal({"source": source, "detail": {"TrainingJobName": "gpt", "run": "gpt"}})
    sources = "aws.sagemaker, aws.cloudwatch, aws.s3, rerail.sweep, rerail.operator"
    assert message == f"field 'source' is {source!r}; it must be one of {sources}"


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ("", "the message is not JSON"),
        ("{", "the message is not JSON"),
        ("[" * 100_000, "the message is not JSON"),
        ([], "the message must be a JSON object"),
        ({}, "field 'detail' must be a JSON object"),
        ({"source": "aws.sagemaker", "detail": "{}"}, "field 'detail' must be a JSON object"),
    ],
)
def test_what_is_no_envelope_is_refused(message, complaint):
    assert refusal(message).startswith(complaint)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"verb": "explode"}, "field 'detail.verb' is 'explode'; it must be one of hold, release, stop, restart"),
        ({"verb": None}, "field 'detail.verb' is None"),
        ({"verb": "check"}, "field 'detail.check' is None; it must be 32 hexadecimal digits"),
        ({"verb": "check", "check": "ab" * 17}, "field 'detail.check' is 'abab"),
        ({"verb": {}}, "field 'detail.verb' is {}"),
        ({"run": "no/run"}, "field 'detail.run' is 'no/run'"),
        ({"who": None}, "field 'who' must be text of at most 500 characters"),
        ({"why": "x" * 501}, "field 'why' must be text of at most 500 characters"),
        ({"why": 7}, "field 'why' must be text"),
        ({"verb": "rollback"}, "field 'detail.step' is None; it must be a whole number, 0 or more"),
        ({"verb": "rollback", "step": -1}, "field 'detail.step' is -1"),
        ({"verb": "rollback", "step": True}, "field 'detail.step' is True"),
        ({"verb": "rollback", "step": "300"}, "field 'detail.step' is '300'"),
        ({"verb": "drill", "step": 10**30}, "field 'detail.step' is 1000"),
    ],
)
def test_a_command_that_is_not_one_names_its_field(change, complaint):
    assert refusal({**COMMAND, "detail": {**COMMAND["detail"], **change}}).startswith(complaint)


def test_what_is_quoted_is_text_that_aws_takes():
    """Half of a surrogate pair would stay in the record, and be in each later notice."""
    command = parse_message(json.dumps({**COMMAND, "detail": {**COMMAND["detail"], "why": "\ud800 bad data"}}))
    assert command.why == "? bad data"
    alarm = json.loads(sample("alarm_on_a_job"))
    alarm["detail"]["state"]["reason"] = "\udfff"
    assert parse_message(json.dumps(alarm)).reason == "?"


def test_a_command_needs_an_id_and_no_reason():
    """Without its id a repetition could not be told from a second wish; a reason is welcome, not demanded."""
    assert refusal({**COMMAND, "id": None}).startswith("field 'id' must be text")
    assert parse_message(json.dumps(COMMAND)) == CommandReceived("c1", "gpt", OperatorVerb.HOLD, "ada", "")


def test_a_rollback_names_its_step_and_a_drill_may():
    for verb, step in (("rollback", 0), ("rollback", 300), ("drill", 300), ("drill", None)):
        given = parse_message(json.dumps({**COMMAND, "detail": {**COMMAND["detail"], "verb": verb, "step": step}}))
        assert isinstance(given, CommandReceived) and (given.verb, given.step) == (verb, step)


def test_a_report_is_named_by_its_key():
    """Which bucket is the mailbox we know ourselves; nothing else in the event is read."""
    key = "runs/gpt-7b/reports/a001-000003-checkpoint.json"
    assert parse_message(sample("report_filed")) == ReportFiled("gpt-7b", "a001-000003-checkpoint", key)


@pytest.mark.threat("T8")
@pytest.mark.parametrize("key", ["runs/gpt/heartbeat.json", "runs/a/b/reports/x.json", "runs/gpt/reports/a b.json", ""])
def test_an_object_that_is_no_report_is_let_lie(key):
    """Whoever may write into the bucket must not be able to fill the dead-letter queue."""
    event = json.loads(sample("report_filed"))
    event["detail"]["object"]["key"] = key
    stray = parse_message(json.dumps(event))
    assert isinstance(stray, UnrelatedObject) and repr(key) in stray.why


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"detail-type": "Object Deleted"}, "field 'detail-type' is 'Object Deleted'; it must be 'Object Created'"),
        ({"detail": {}}, "field 'detail.object' must be a JSON object"),
        ({"detail": {"object": {"key": 7}}}, "field 'detail.object.key' must be text"),
    ],
)
def test_an_event_of_s3_that_is_no_new_object_is_refused(change, complaint):
    assert refusal({**json.loads(sample("report_filed")), **change}) == complaint


def test_an_alarm_names_its_job_in_a_dimension():
    """Custom metrics carry TrainingJobName, machine metrics Host, which is the job and its machine."""
    sources = parse_message((EVENTS / "alarm_on_a_job.json").read_text())
    went_off, namespace = datetime(2026, 1, 31, 3, tzinfo=UTC), "/aws/sagemaker/TrainingJobs"
    assert sources == AlarmStateChanged("gpt", "gpu-idle", "ALARM", sources.reason, namespace, went_off)
    assert "less than the threshold" in sources.reason


@pytest.mark.parametrize("host", [None, "ip-10-0-0-1.ec2.internal", "web_1", "", ["gpt"]])
def test_an_alarm_of_other_people_is_ignored(host):
    """Every alarm on a metric of hosts comes to the queue; it is no malformed message, which would page."""
    event = json.loads((EVENTS / "other_alarm.json").read_text())
    if host is not None:
        event["detail"]["configuration"]["metrics"] = [{"metricStat": {"metric": {"dimensions": {"Host": host}}}}]
    unrelated = parse_message(json.dumps(event))
    assert isinstance(unrelated, UnrelatedObject) and "name no training job" in unrelated.why


def test_what_the_detectors_found_travels_whole():
    """The sweep's findings reach the supervisor as they were; a torn one is refused with the field's name."""
    finding = Finding(Kind.STALL, Level.INTERVENE, 70, 60, "no step for 12 minutes")
    detail = {"run": "gpt", "job": "gpt-a002", "findings": [to_plain(finding)]}
    body = {"source": "rerail.sweep", "detail-type": "Rerail Wake", "detail": detail}
    assert parse_message(json.dumps(body)) == FindingsReceived("gpt", "gpt-a002", (finding,))
    torn_ones = [{**to_plain(finding), "step": "70"}], [{**to_plain(finding), "onset_at": "2026-01-31T03:00:00"}]
    for torn in ("x", [1], [{"kind": "melting"}], [{}], None, *torn_ones):
        with pytest.raises(BadMessage, match=r"detail\.findings"):
            parse_message(json.dumps({**body, "detail": {**detail, "findings": torn}}))
