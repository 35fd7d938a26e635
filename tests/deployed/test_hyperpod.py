"""HyperPod in the deployed stack: SageMaker's own event on the bus, and the page with the run that it touches."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rerail.requests.relaunch import CLUSTER_TAG
from tests.deployed.jobs import Account, NotificationQueue

pytestmark = pytest.mark.slow
EVENTS = Path(__file__).parents[1] / "events"
CLUSTER = "pod-of-the-suite"


@pytest.fixture(scope="module")
def queue(account: Account) -> NotificationQueue:
    """A queue that hears both topics."""
    return NotificationQueue(account, "on-call-for-hyperpod", "PageTopicArn", "InformTopicArn")


@pytest.fixture
def run(account: Account) -> Iterator[str]:
    """A run that says that it needs the cluster, under way."""
    name = account.submit("needs-a-pod", steps=10_000, tags={CLUSTER_TAG: CLUSTER})
    account.run_in(name, "watching")
    yield name
    account.sagemaker.stop_training_job(TrainingJobName=name)
    account.run_in(name, "stopped")


def happens(account: Account, name: str) -> None:
    """SageMaker says so of our cluster."""
    text = (EVENTS / f"hyperpod_{name}.json").read_text().replace("sample-cluster", CLUSTER)
    event = json.loads(text)
    account.inject("event", DetailType=event["detail-type"], Detail=event["detail"], Resources=event["resources"])


def test_a_broken_node_pages_with_the_run_that_needs_it_until_it_is_well(
    account: Account, queue: NotificationQueue, run: str
):
    """From SageMaker's event to the pager, once; the all-clear when the node is healthy; the job is never touched."""

    def subjects() -> list[str]:
        return [message["Subject"] for message in queue.received(about=CLUSTER)]

    happens(account, "node_unhealthy")
    account.wait("a page", subjects)
    happens(account, "node_unhealthy")
    page = queue.received(about=CLUSTER)[0]
    assert page["TopicArn"] == account.aws.outputs["PageTopicArn"]
    assert page["Subject"].startswith(f"HyperPod cluster {CLUSTER}: node i-12345678abcdefghi is unhealthy")
    assert "NvidiaErrorTerminate" in page["Message"]
    assert f"Runs that depend on this cluster: {run}" in page["Message"]
    assert "batch-replace-cluster-nodes" in page["Message"]
    assert "runbooks/hyperpod" in page["Message"]

    happens(account, "node_healthy")
    account.wait("an all-clear", lambda: any("is healthy" in subject for subject in subjects()))
    assert subjects()[1:] == [f"HyperPod cluster {CLUSTER}: all clear: node i-12345678abcdefghi is healthy"]
    assert queue.received(about=CLUSTER)[1]["MessageAttributes"]["severity"]["Value"] == "clear"
    assert account.run_in(run, "watching").current.number == 1
    assert account.dead_letters() == []
