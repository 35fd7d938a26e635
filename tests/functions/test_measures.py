"""What the functions really print for CloudWatch is what is declared: each measure, its unit and its one dimension."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import notify
import observability
import report
import supervise
import sweep
from rerail.messages.service_metrics import ALL
from rerail.model.causes import Cause
from rerail.model.run import Attempt, Incident, JobStatus, Run, RunState
from tests.functions.account import Context, sample
from tests.functions.test_supervise import batch, due, fail

NOW = datetime.now(UTC)


def ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


def a_record() -> Run:
    """A run that died once, was mended, and died again: its second incident is open."""
    machine = {"instance_type": "ml.p4d.24xlarge", "status": JobStatus.FAILED}
    first = {"created_at": ago(100), "training_started_at": ago(95), "ended_at": ago(60), "last_step": 500}
    second = {"created_at": ago(55), "training_started_at": ago(50), "resumed_from_step": 400}
    facts = {"cause": Cause.HANG, "reason": "", "evidence": ""}
    return Run(
        id="gpt-7b",
        policy="default",
        state=RunState.WATCHING,
        created_at=ago(100),
        attempts=(
            Attempt(1, "gpt-7b", **machine, **first),
            Attempt(2, "gpt-7b-a002", **{**machine, "status": JobStatus.IN_PROGRESS}, **second),
        ),
        incidents=(
            Incident(
                1, "stall", 1, **facts, happened_at=ago(65), decided_at=ago(60), closed_at=ago(40), recovered=True
            ),
            Incident(2, "stall", 2, **facts, happened_at=ago(10), decided_at=ago(5)),
        ),
        version=1,
    )


def of_cloudwatch(lines: Iterable[Mapping[str, Any]]) -> set[tuple[str, str, frozenset[tuple[str, str]]]]:
    """Every metric that CloudWatch makes of these lines: its name, its unit, its dimensions."""
    return {
        (metric["Name"], metric["Unit"], frozenset((name, line[name]) for name in names))
        for line in lines
        for directive in line.get("_aws", {}).get("CloudWatchMetrics", [])
        for names in directive["Dimensions"]
        for metric in directive["Metrics"]
    }


def declared(function: str) -> set[tuple[str, str, frozenset[tuple[str, str]]]]:
    """Every metric that the function may ever make."""
    return {
        (metric.name, metric.unit, frozenset({("service", function), *({(metric.dimension, word)} if word else ())}))
        for metric in ALL[function]
        for word in (metric.words if metric.by else ("",))
    }


@pytest.fixture
def named(monkeypatch):
    """Functions are named by their environment; the metrics were made with that of their import."""

    def name(function: str) -> None:
        monkeypatch.setattr(observability.metrics.provider, "service", function)

    return name


def is_what_is_declared(function: str, printed: set[tuple[str, str, frozenset[tuple[str, str]]]]) -> None:
    """Nothing else was printed, and nothing of it was left out."""
    assert printed <= declared(function)
    assert {name for name, _, _ in printed} == {measure.name for measure in ALL[function]}


def test_a_sweep_publishes_what_is_declared(account, logged, named):
    """With a run that has an incident behind it, every measure has a value."""
    named("sweep")
    account.submit("gpt-7b-a002")
    account.runs.save(a_record())
    sweep.handler(sample("schedule"), Context("sweep"))
    is_what_is_declared("sweep", of_cloudwatch(logged()))


def test_a_failed_sweep_does_not_count_as_completed(account, logged, named):
    """Whatever it had published by then: the alarm on missing sweeps fires."""
    named("sweep")
    account.sqs.delete_queue(QueueUrl=account.queue)
    account.submit("gpt-7b")
    with pytest.raises(Exception, match="NonExistentQueue"):
        sweep.handler(sample("schedule"), Context("sweep"))
    assert "SweepsCompleted" not in {name for name, _, _ in of_cloudwatch(logged())}


def test_supervise_publishes_what_is_declared(account, logged, named):
    """A job is adopted, dies, and is mended."""
    named("supervise")
    account.submit("gpt-7b")
    supervise.handler(batch(sample("training_job_state_change")), Context())
    fail(account, "gpt-7b")
    supervise.handler(batch(due("gpt-7b")), Context())
    is_what_is_declared("supervise", of_cloudwatch(logged()))


@pytest.mark.parametrize("severity", ["page", "inform"])
def test_notify_publishes_what_is_declared(account, logged, named, severity):
    """One of each severity that was told."""
    named("notify")
    notify.handler(sample(f"notice_{severity}"), Context("notify"))
    printed = of_cloudwatch(logged())
    assert printed <= declared("notify")
    assert {name for name, _, _ in printed} == {f"Notices.{severity}"}


def test_report_publishes_what_is_declared(account, logged, named):
    """Also of a run that nobody knows."""
    named("report")
    report.handler(batch(sample("notice_page")), Context("report"))
    is_what_is_declared("report", of_cloudwatch(logged()))
