"""What the functions log: a line of ours for each message, whatever others have written into it."""

from datetime import UTC, datetime

import pytest

import supervise
from rerail.model.finding import Finding, Kind, Level
from rerail.model.mailbox import Report, ReportKind, make_report_key, serialize
from tests.functions.account import Context
from tests.functions.test_supervise import batch
from tests.hostile import HOSTILE

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
each_text = pytest.mark.parametrize("text", HOSTILE.values(), ids=list(HOSTILE))


@pytest.mark.threat("T15")
@each_text
def test_a_log_line_stays_one_line_of_ours(account, logged, text):
    """What an operator, a job or a report says is quoted in our own JSON: it starts no line, and counts nothing."""
    account.submit("gpt-7b")
    message = text.encode(errors="replace").decode()
    event = {"source": "aws.sagemaker", "detail-type": "x", "detail": {"TrainingJobName": "gpt-7b"}}
    order = {"verb": "hold", "run": "gpt-7b", "who": message[:500], "why": message[:500]}
    finding = Finding(Kind.LOSS_SPIKE, Level.WARN, 6, 5, message[:900])
    report = Report("r1", "gpt-7b", 1, "gpt-7b", ReportKind.FINDINGS, NOON, reason=message[:500], findings=(finding,))
    key, origin = make_report_key("gpt-7b", "r1"), {"source": "rerail.operator", "detail-type": "Rerail Command"}
    account.leave(key, serialize(report))
    filed = {"source": "aws.s3", "detail-type": "Object Created", "detail": {"object": {"key": key}}}
    strange = {**filed, "detail": {"object": {"key": message[:900]}}}
    commanded = {**origin, "id": message[:400] or "c", "detail": order}
    supervise.handler(batch(event, filed, strange, commanded, message), Context())
    for line in logged():
        assert isinstance(line, dict)
        spaces = [metric["Namespace"] for metric in line.get("_aws", {}).get("CloudWatchMetrics", [])]
        assert set(spaces) <= {"Rerail"}
        assert "Completed" not in line, "the round's own metric, from which the alarm on the sweep is made"
        assert line.get("run") != "forged" and line.get("message") != "forged"
