"""Hostile messages about a job that is well: it goes on, nothing is lost, and who stands behind them is served.

The function `supervise` itself is called, on a pretend world: a batch of bad messages with a good one at its end. Then
the sweep comes by, and reads what lies in the mailbox."""

import json
import sys
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rerail.messages.messages import CommandReceived, FindingsReceived, ReportFiled, parse_message
from rerail.model.errors import BadMailboxObject, BadMessage
from rerail.model.finding import Finding, Kind, Level
from rerail.model.mailbox import CommandKind, ReportKind, make_heartbeat_key, read_report
from rerail.model.run import JobStatus, RunState
from rerail.model.signatures import sign
from tests.fakes import KEY, Agent, World

ROOT = Path(__file__).resolve().parents[3]
REPORT = "runs/gpt/reports/r1.json"
FILED = {"source": "aws.s3", "detail-type": "Object Created", "detail": {"object": {"key": REPORT}}}
GOOD = {"source": "aws.sagemaker", "detail": {"TrainingJobName": "bert"}}
MOST = 10


class Unwell(Exception):
    """A promise to a healthy job, or to who waits behind a bad message, was broken."""


def batch(data: bytes) -> None:
    """The input: `messages` of the queue, a `report` and a `heartbeat` of the job; texts, or JSON to be made text."""
    try:
        table = json.loads(data)
    except (ValueError, RecursionError):
        table = {"messages": [data.decode(errors="replace")]}
    table = table if isinstance(table, dict) else {"messages": table}
    messages = table.get("messages")
    bodies = [_text(message) for message in (messages if isinstance(messages, list) else [messages])][:MOST]
    world = deepcopy(_world())
    for key, name in ((REPORT, "report"), (make_heartbeat_key("gpt"), "heartbeat")):
        if name in table:
            text = _text(table[name]).encode(errors="replace")
            # An object is signed as the job's own agent would: unsigned, it would be read no further.
            is_object = text.startswith(b"{") and text.endswith(b"}")
            world.mailbox.put(key, sign(text, name=key, key=KEY) if is_object else text)
    before = world.run("bert").version
    failed, said = _supervised(world, [*bodies, json.dumps(GOOD)])
    if str(len(bodies)) in failed:
        raise Unwell("the good message behind the bad ones was not handled")
    if world.run("bert").version == before:
        raise Unwell("the good message behind the bad ones came to nothing")
    if said < len(failed):
        raise Unwell(f"{len(failed)} messages went back, and the log says why of {said}")
    world.minutes(1)
    if not any(_is_authorised(body, world) for body in bodies):
        _is_well(world)


def _is_well(world: World) -> None:
    jobs = [job for job in world.sagemaker.jobs.values() if job.name == "gpt" or job.name.startswith("gpt-a")]
    if len(jobs) != 1 or jobs[0].status is not JobStatus.IN_PROGRESS:
        raise Unwell(f"the healthy job is {jobs[0].status}, and there are {len(jobs)} jobs of its run")
    run = world.run()
    if run.stop is not None or run.state is not RunState.WATCHING:
        raise Unwell(f"the healthy run is {run.state}, and its job is to be stopped: {run.stop and run.stop.reason}")
    if any(command.kind is CommandKind.RESTART and command.run == "gpt" for command in world.mailbox.commands):
        raise Unwell("the processes of the healthy job are to be restarted")


def _is_authorised(body: str, world: World) -> bool:
    """Whether this is a word of somebody who may have the job stopped: an operator, the sweep, or the job's agent."""
    try:
        message = parse_message(body)
        match message:
            case CommandReceived():
                return message.run == "gpt"
            case FindingsReceived():
                return (message.run, message.job_name) == ("gpt", "gpt") and _is_grave(message.findings)
            case ReportFiled() if message.key == REPORT and REPORT in world.mailbox.objects:
                report = read_report(world.mailbox.objects[REPORT][0], run="gpt", id="r1")
                return report.job == "gpt" and (report.kind is ReportKind.CRASHED or _is_grave(report.findings))
            case _:
                return False
    except (BadMessage, BadMailboxObject):
        return False


def _is_grave(findings: Sequence[Finding]) -> bool:
    return any(finding.level is Level.INTERVENE for finding in findings)


def _supervised(world: World, bodies: list[str]) -> tuple[set[str], int]:
    """The numbers of the messages that went back, and how many lines of the log are about errors."""
    function, observability = _function()
    at = str(int(world.clock().timestamp() * 1000))
    sent = {
        "SentTimestamp": at,
        "ApproximateFirstReceiveTimestamp": at,
        "ApproximateReceiveCount": "1",
        "SenderId": "EVENTS",
    }
    records = [
        {"messageId": str(number), "body": body, "attributes": sent, "eventSource": "aws:sqs", "eventSourceARN": ""}
        for number, body in enumerate(bodies)
    ]
    log = TextIOWrapper(BytesIO(), encoding="utf-8", errors="strict")
    handler, metrics = observability.logger.registered_handler, observability.metrics.provider
    with (
        patch.multiple(
            function,
            make_supervisor=world.supervisor,
            make_cluster_monitor=world.hyperpod_watch,
            read_message=lambda body, queue: parse_message(body),  # as if it came by the queue of commands
            now=world.clock,
        ),
        patch.multiple(handler, stream=log, handleError=_unwritten),
        patch.object(metrics, "namespace", "Rerail"),
    ):
        answer = function.handler({"Records": records}, _Context())
    log.seek(0)
    lines = [json.loads(line) for line in log]
    errors = [line for line in lines if line.get("level") in ("ERROR", "WARNING")]
    if any(len(str(line.get("message", ""))) > 3_000 for line in errors):
        raise Unwell("a line of the log that nobody reads to its end")
    return {failure["itemIdentifier"] for failure in answer["batchItemFailures"]}, len(errors)


class _Context:
    """What Lambda tells a function of itself."""

    function_name = "supervise"
    memory_limit_in_mb = 512
    invoked_function_arn = "arn:aws:lambda:eu-west-1:123456789012:function:supervise"
    aws_request_id = "52fdfc07-2182-454f-963f-5f0f9a621d72"

    def get_remaining_time_in_millis(self) -> int:
        return 60_000


@cache
def _function() -> tuple[Any, Any]:
    """The handler's module and that of its log."""
    import observability
    import supervise

    return supervise, observability


def _unwritten(record: Any) -> None:
    raise Unwell("a line of the log cannot be written") from sys.exc_info()[1]


@cache
def _world() -> World:
    """A run that trains, with an agent that beats; another whose job has failed a moment ago."""
    world = World().with_saves()
    agent = Agent(world)
    agent.hello()
    agent.beats(500, moved_at=world.clock())
    world.sagemaker.submit("bert", uri="s3://bucket/bert/")
    world.supervisor().handle(parse_message(json.dumps(GOOD)))
    world.minutes(2)
    agent.beats(502, moved_at=world.clock())
    world.sagemaker.fail("bert", "InternalServerError: We encountered an internal error.")
    return world


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def samples() -> list[dict[str, Any]]:
    """Batches that are hostile already: each source speaks of the healthy job, the mailbox holds something odd."""
    at, later = "2026-01-31T00:52:00+00:00", "2026-01-31T00:53:00+00:00"
    mail = {"schema": 1, "run": "gpt", "attempt": 1, "job": "gpt", "at": at}
    finding: dict[str, Any] = {
        "type": "Finding",
        "kind": Kind.LOSS_SPIKE.value,
        "level": Level.WARN.value,
        "evidence": "a spike",
    }
    finding |= {"step": 500, "onset_step": 499, "at": at, "onset_at": at}
    metric = {"metricStat": {"metric": {"dimensions": {"TrainingJobName": "gpt"}}}}
    alarm = {"alarmName": "loss", "state": {"value": "ALARM", "reason": "high"}, "configuration": {"metrics": [metric]}}
    event = {"TrainingJobName": "gpt", "TrainingJobStatus": "Failed", "FailureReason": "InternalServerError"}
    operator = {"run": "gpt", "verb": "hold", "who": "ada", "why": "the cluster moves"}
    heartbeat = {**mail, "type": "Heartbeat", "phase": "step", "step": 3, "loss": float("nan"), "moved_at": at}
    report = {**mail, "type": "Report", "id": "r1"}
    return [
        {"messages": [{"source": "aws.sagemaker", "account": "1", "time": later, "detail": event}]},
        {"messages": [{"source": "aws.cloudwatch", "detail": alarm}], "heartbeat": heartbeat},
        {"messages": [{"source": "rerail.sweep", "detail": {"run": "gpt", "job": "gpt", "findings": [finding]}}]},
        {"messages": [{"source": "rerail.operator", "id": "c1", "detail": operator}]},
        {"messages": [{"source": "rerail.sweep", "detail": {"run": "gpt"}}, "{", ""], "heartbeat": {**heartbeat}},
        {"messages": [FILED], "report": {**report, "kind": "findings", "findings": [finding]}},
        {"messages": [FILED], "report": {**report, "kind": "checkpoint", "command": "c1", "step": 510, "path": "p"}},
        {"messages": [FILED], "report": {**report, "kind": "damaged", "step": 500, "saved_by": 1, "reason": "torn"}},
        {"messages": [FILED], "report": {**report, "kind": "refused", "command": "c1", "reason": "no"}},
        {"messages": [FILED], "report": {**report, "kind": "restarted", "restart": 1, "step": 3}},
        {"messages": [json.loads((ROOT / "tests/events/hyperpod_node_unhealthy.json").read_text())]},
    ]
