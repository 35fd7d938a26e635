"""The watcher watched: a sweep that stops is told to a person, with what to do, and so is its return."""

import json
from typing import Any

import pytest

from rerail.messages import service_metrics
from tests.deployed.jobs import Account, NotificationQueue, no_sweeps

pytestmark = pytest.mark.slow
UNHEALTHY = "RerailUnhealthy"


class Subscriber:
    """Somebody who subscribed to a topic, and all that they were told of alarms."""

    def __init__(self, account: Account, topic: str) -> None:
        self._queue = NotificationQueue(account, f"on-call-{topic}", topic)

    def received(self, alarm: str, state: str) -> list[dict[str, Any]]:
        """What was said so far of that alarm's change to that state."""
        texts = [message["Message"] for message in self._queue.received()]
        said = [json.loads(text) for text in texts if '"AlarmName"' in text]
        return [message for message in said if message["AlarmName"] == alarm and message["NewStateValue"] == state]


def states(account: Account) -> dict[str, str]:
    """Every alarm of the account's stack, and whether it is well."""
    kinds = ["MetricAlarm", "CompositeAlarm"]
    found = account.aws.client("cloudwatch").describe_alarms(AlarmTypes=kinds, AlarmNamePrefix="Rerail", MaxRecords=100)
    return {alarm["AlarmName"]: alarm["StateValue"] for alarm in [*found["MetricAlarms"], *found["CompositeAlarms"]]}


def test_a_missing_sweep_pages_once_and_its_return_clears(account: Account, disturbing: None):
    """The dead man's alarm wakes somebody, by its name and with its runbook; RerailUnhealthy only informs."""
    (dead_man,) = [name for name in states(account) if "NoSweep" in name]
    account.wait("all to be well", lambda: "ALARM" not in states(account).values())
    paged, informed = Subscriber(account, "PageTopicArn"), Subscriber(account, "InformTopicArn")
    with no_sweeps(account):
        page = account.wait("the page", lambda: paged.received(dead_man, "ALARM"))[-1]
        word = account.wait("the word", lambda: informed.received(UNHEALTHY, "ALARM"))[-1]
        # A round that had begun before may end late, and quiet the alarm once more.
        account.wait("alarm", lambda: {states(account)[name] for name in (dead_man, UNHEALTHY)} == {"ALARM"})
    assert page["AlarmDescription"].endswith("docs/runbooks/no-sweep.md")
    assert [child["Arn"].rpartition(":")[2] for child in word["TriggeringChildren"]] == [dead_man]
    account.wait("the all-clear", lambda: paged.received(dead_man, "OK") and informed.received(UNHEALTHY, "OK"))
    account.wait("quiet", lambda: {states(account)[name] for name in (dead_man, UNHEALTHY)} == {"OK"})
    counts = lambda: [len(paged.received(dead_man, state)) for state in ("ALARM", "OK")]  # noqa: E731
    account.wait("an all-clear for each page", lambda: len(set(counts())) == 1)
    assert not paged.received(UNHEALTHY, "ALARM")


def test_what_the_functions_print_of_a_real_run_becomes_metrics(account: Account):
    """A job that dies and is mended: its state, its time and its decisions can be read in CloudWatch, and no name of
    its is a dimension."""
    name = account.submit_struck("measured", "internal_error")
    account.run_in(name, "completed")
    pages = account.aws.client("cloudwatch").get_paginator("list_metrics").paginate(Namespace="Rerail")
    found = [metric for page in pages for metric in page["Metrics"]]
    words = {dimension["Value"] for metric in found for dimension in metric["Dimensions"]}
    assert {"watching", "infrastructure", "machines", "create", "inform"} <= words
    assert not [word for word in words if name in word]
    declared = {measure.name for said in service_metrics.ALL.values() for measure in said}
    assert {metric["MetricName"] for metric in found} <= declared
    assert {"GoodputSeconds", "MeanTimeToDecide", "DollarsLost", "SignalToDecision", "HeldRuns"} <= {
        metric["MetricName"] for metric in found
    }
    assert len(found) <= sum(len(measure) for said in service_metrics.ALL.values() for measure in said)
    (board,) = account.aws.client("cloudwatch").list_dashboards()["DashboardEntries"]
    assert board["DashboardName"].startswith("Rerail-")
