"""The minute's round as Lambda calls it: counts out, wake-ups in the queue."""

from datetime import UTC, datetime

import pytest

import supervise
import sweep
from rerail.aws.clients import client
from rerail.model.liveness import Phase
from rerail.model.mailbox import Heartbeat, Report, ReportKind, make_heartbeat_key, make_report_key, serialize
from rerail.model.signatures import sign
from tests.functions.account import Context, sample
from tests.functions.test_supervise import batch

COUNTS = ("OpenRuns", "DueRuns", "DiscoveredJobs", "BlindRuns", "WatchedRuns", "Findings")
COUNTS += ("BeatingRuns", "GarbledHeartbeats")
NOTHING = dict.fromkeys(COUNTS, 0)


def swept() -> dict[str, int]:
    return sweep.handler(sample("schedule"), Context("sweep"))


def test_an_empty_account_has_nothing_to_do(account):
    """All counts are zero, and nobody is woken."""
    assert swept() == NOTHING
    assert account.waiting() == []


def test_the_counts_are_metrics_and_a_log_line(account, logged):
    """The alarm on a missing round watches these, and people read the line."""
    swept()
    lines = logged()
    (metric,) = [line for line in lines if "_aws" in line]
    assert {"OpenRuns", "DueRuns", "DiscoveredJobs", "BlindRuns"} <= set(metric)
    assert [line["OpenRuns"] for line in lines if line.get("message") == "swept"] == [0]


@pytest.mark.parametrize(("text", "counted"), [(None, "BeatingRuns"), (b"{", "GarbledHeartbeats")])
def test_heartbeats_are_counted(account, text, counted):
    """A run whose agent said hello is judged by its heartbeat; one that cannot be read is counted."""
    account.submit("gpt-7b")
    supervise.handler(batch({"source": "rerail.sweep", "detail": {"job": "gpt-7b"}}), Context())
    at = datetime.now(UTC)
    key, name = account.runs.load("gpt-7b").signing_key, make_report_key("gpt-7b", "r1")
    hello = Report("r1", "gpt-7b", 1, "gpt-7b", ReportKind.HELLO, at)
    account.leave(name, sign(serialize(hello), name=name, key=key))
    event = sample("report_filed")
    event["detail"]["object"]["key"] = make_report_key("gpt-7b", "r1")
    assert supervise.handler(batch(event), Context()) == {"batchItemFailures": []}
    name, heartbeat = make_heartbeat_key("gpt-7b"), Heartbeat("gpt-7b", 1, "gpt-7b", at, Phase.STEP, 60)
    account.leave(name, text or sign(serialize(heartbeat), name=name, key=key))
    assert swept()[counted] == 1


def test_a_round_that_cannot_read_fails_aloud(account):
    """A table that is gone is no empty table."""
    client("dynamodb").delete_table(TableName="Rerail-Runs")
    with pytest.raises(Exception, match="ResourceNotFoundException"):
        swept()
