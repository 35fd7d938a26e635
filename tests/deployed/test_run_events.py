"""What other systems are told of a run: its events on both buses, over a crash of its job."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from local.pace import Pace
from local.stack import ROOT
from rerail_agent.waiting import RunWaiter
from tests.deployed.conftest import ASSEMBLIES
from tests.deployed.jobs import BUCKET, Account, apart_with

pytestmark = pytest.mark.slow
CONTEXT = {"forwardRunEvents": True}


@pytest.fixture(scope="module")
def forwarding(tmp_path_factory: pytest.TempPathFactory, pace: Pace) -> Iterator[Account]:
    """A deployment that forwards the runs' events to the default bus."""
    with apart_with(tmp_path_factory.mktemp("forwarding"), CONTEXT, ASSEMBLIES, pace) as account:
        yield account


class EventQueue:
    """A queue that receives the run events of a bus, as a rule of the account's own would."""

    def __init__(self, account: Account, name: str, bus: str) -> None:
        events, self._sqs = account.aws.client("events"), account.aws.client("sqs")
        self._url = account.listen(name)
        arn = self._sqs.get_queue_attributes(QueueUrl=self._url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        pattern = {"source": ["rerail"], "detail-type": ["Rerail Run State Change"]}
        events.put_rule(Name=name, EventBusName=bus, EventPattern=json.dumps(pattern))
        events.put_targets(Rule=name, EventBusName=bus, Targets=[{"Id": "queue", "Arn": arn}])
        self._received: list[dict[str, Any]] = []

    def received(self, run: str) -> list[dict[str, Any]]:
        """Return the details of the run's events so far, without repetitions, in their order."""
        while new := self._sqs.receive_message(QueueUrl=self._url, MaxNumberOfMessages=10).get("Messages", []):
            for message in new:
                self._received.append(json.loads(message["Body"])["detail"])
                self._sqs.delete_message(QueueUrl=self._url, ReceiptHandle=message["ReceiptHandle"])
        distinct = {detail["id"]: detail for detail in self._received if detail["run"] == run}
        return sorted(distinct.values(), key=lambda detail: detail["sequence"])


def test_a_run_whose_job_crashes_has_one_end_on_both_buses(forwarding: Account):
    """The event of the end names the job that succeeded, its model, and the report that exists."""
    from jsonschema import validate  # takes seconds of each worker that collects this file

    account = forwarding
    own = EventQueue(account, "own-events", account.aws.outputs["BusName"])
    default = EventQueue(account, "default-events", "default")
    name = account.submit_struck("told-to-others", "internal_error")
    result = RunWaiter(boto3.Session()).wait(Run=name, WaiterConfig={"Delay": 0.2})
    assert (result.job, result.attempts) == (f"{name}-a002", 2)
    is_over = lambda queue: any(detail["is_end"] for detail in queue.received(name))  # noqa: E731
    account.wait("the end on both buses", lambda: is_over(own) and is_over(default))
    events = own.received(name)
    schema = json.loads((Path(ROOT) / "docs" / "run.schema.json").read_text())
    for detail in events:
        validate(detail, schema)
    assert [detail["previous_state"] for detail in events] == ["", *(detail["state"] for detail in events[:-1])]
    assert default.received(name) == events
    (end,) = [detail for detail in events if detail["is_end"]]
    assert (end["state"], end["job"], end["first_job"], end["attempts"]) == ("completed", f"{name}-a002", name, 2)
    assert end["artifacts"] == result.artifacts == f"s3://{BUCKET}/output/{name}-a002/output/model.tar.gz"
    bucket, key = end["report"].removeprefix("s3://").split("/", 1)
    assert bucket == account.aws.outputs["ReportsBucket"] and bucket != BUCKET
    s3 = account.aws.client("s3")
    account.wait("the report", lambda: s3.list_objects_v2(Bucket=bucket, Prefix=key).get("KeyCount"))
