"""Whoever may only put events: what becomes of each event that they make up, in the deployed stack."""

import json
from typing import Any

import pytest

from tests.deployed.jobs import Account

pytestmark = pytest.mark.slow


def alarm(job: str) -> dict[str, Any]:
    metric = {"metricStat": {"metric": {"dimensions": {"TrainingJobName": job}}}}
    return {"alarmName": "made-up", "state": {"value": "ALARM"}, "configuration": {"metrics": [metric]}}


def grave(job: str) -> dict[str, Any]:
    """What the sweep says of a loss that is no number: from the sweep it would have the job stopped."""
    finding = {"kind": "non_finite", "level": "intervene", "step": 9, "onset_step": 9, "evidence": "made up"}
    return {"run": job, "job": job, "findings": [{**finding, "at": None, "onset_at": None}]}


def forged(job: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Source, detail-type and detail of events that would mean something if they were what they say."""
    failed = {"TrainingJobName": job, "TrainingJobStatus": "Failed", "FailureReason": "InternalServerError: made up"}
    command = {"run": job, "verb": "stop", "who": "nobody", "why": "made up"}
    return [
        ("aws.sagemaker", "SageMaker Training Job State Change", failed),
        ("aws.cloudwatch", "CloudWatch Alarm State Change", alarm(job)),
        ("aws.s3", "Object Created", {"bucket": {"name": "x"}, "object": {"key": f"runs/{job}/reports/r1.json"}}),
        ("rerail.sweep", "Rerail Wake", grave(job)),
        ("rerail.sweep", "Rerail Command", grave(job)),
        ("rerail.operator", "Rerail Wake", command),
        ("my.app", "SageMaker Training Job State Change", failed),
        ("my.app", "Rerail Command", command),
    ]


@pytest.mark.parametrize("bus", ["default", "rerail"])
def test_events_that_somebody_makes_up_move_nothing(account: Account, bus: str):
    """AWS refuses its own names from anybody else, and no rule lets the others pass: nobody is even woken."""
    name = account.submit(f"forged-on-{bus}", steps=10_000)
    account.run_in(name, "watching")
    before, events = len(account.runs.timeline(name)), account.aws.client("events")
    received = forged(name)
    if bus == "default":  # on our own bus this one is what it says: see below
        received.append(("rerail.operator", "Rerail Command", {"run": name, "verb": "stop", "who": "x", "why": ""}))
    entries = [
        {"Source": source, "DetailType": kind, "Detail": json.dumps(detail), "EventBusName": bus}
        for source, kind, detail in received
    ]
    answer = events.put_events(Entries=entries)["Entries"]
    refused = [source for (source, *_), entry in zip(received, answer, strict=True) if entry.get("ErrorCode")]
    assert refused == ["aws.sagemaker", "aws.cloudwatch", "aws.s3"]
    neighbour = account.submit(f"neighbour-on-{bus}", steps=20)  # whatever was on its way has arrived by then
    account.run_in(neighbour, "completed")
    assert len(account.runs.timeline(name)) == before
    assert account.jobs(name) == [name]
    assert account.dead_letters() == []
    account.sagemaker.stop_training_job(TrainingJobName=name)
    account.run_in(name, "stopped")


def test_whoever_may_put_onto_our_bus_may_command(account: Account):
    """That is what the bus is for, and why only operators may be allowed to: see docs/security.md."""
    name = account.submit("told-by-anybody", steps=10_000)
    account.run_in(name, "watching")
    command = {"run": name, "verb": "hold", "who": "somebody", "why": "made up"}
    entry = {"Source": "rerail.operator", "DetailType": "Rerail Command", "Detail": json.dumps(command)}
    account.aws.client("events").put_events(Entries=[{**entry, "EventBusName": "rerail"}])
    assert account.run_in(name, "held").hold_reason == "somebody said hold (made up)"
    account.sagemaker.stop_training_job(TrainingJobName=name)
    account.run_in(name, "stopped")
