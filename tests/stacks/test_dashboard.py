"""The dashboard shows what is published, and what is published is shown."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from rerail.messages.service_metrics import ALL
from stacks import ROOT
from tests.stacks.template import Template, text
from tests.stacks.test_delivery import dead_letter_queues

SEARCH = re.compile(r"SEARCH\('\{Rerail,(?P<dimension>\w+),service\} MetricName=\"(?P<name>\w+)\"', '\w+', \d+\)")
# Namespaces of AWS's own that the supervisor's health is read from.
OF_AWS = {"AWS/Lambda", "AWS/SQS"}


@pytest.fixture(scope="session")
def widgets(template: Template) -> list[Mapping[str, Any]]:
    """The widgets, from left to right and from top to bottom."""
    (board,) = template.of("CloudWatch::Dashboard").values()
    assert board["DashboardName"] == {"Fn::Join": ["", ["Rerail-", {"Ref": "AWS::Region"}]]}
    found: list[Mapping[str, Any]] = json.loads(text(board["DashboardBody"]))["widgets"]
    return sorted(found, key=lambda widget: (widget["y"], widget["x"]))


def lines(widget: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
    """What a widget draws, each as CloudWatch writes it: namespace, name, dimensions, rendering."""
    return widget["properties"].get("metrics", [])


def shown(widgets: Sequence[Mapping[str, Any]]) -> set[tuple[str, ...]]:
    """Of our own: the function and the name of each measure, with its dimension where it is searched for."""
    found: set[tuple[str, ...]] = set()
    for line in (line for widget in widgets for line in lines(widget)):
        if isinstance(line[0], dict):
            search = SEARCH.fullmatch(line[0]["expression"])
            assert search, line
            found.add((search["name"], search["dimension"]))
        elif line[0] == "Rerail":
            _, name, dimension, function, _ = line
            assert dimension == "service"
            assert name in {measure.name for measure in ALL[function]}, f"{function} publishes no {name}"
            found.add((name, ""))
        else:
            assert line[0] in OF_AWS
    return found


def test_every_measure_on_it_is_published_and_the_other_way_round(widgets):
    """By name and dimension; what is left out is named as such in the guide, which nothing is at present."""
    published = {(measure.name, measure.dimension) for said in ALL.values() for measure in said}
    assert shown(widgets) == published


def test_the_first_row_is_what_on_call_needs(widgets):
    first = [widget["properties"]["title"] for widget in widgets if widget["y"] == 0]
    assert first[:3] == ["Is Rerail well?", "Runs held", "Open incidents"]


def test_the_first_widget_is_the_health_of_all(template, widgets):
    (health,) = template.of("CloudWatch::CompositeAlarm")
    assert widgets[0]["properties"]["alarms"] == [f"<{health}.Arn>"]


def test_every_function_and_every_dead_letter_queue_is_on_it(template, widgets):
    """Errors, throttles and durations of each function, the letters in each queue, and the age of the oldest signal."""
    of_aws = [line for widget in widgets for line in lines(widget) if str(line[0]) in OF_AWS]
    drawn = {(line[1], line[3]) for line in of_aws}
    for function in template.of("Lambda::Function"):
        assert {(name, f"<{function}>") for name in ("Errors", "Throttles", "Duration")} <= drawn
    queues = {name for metric, name in drawn if metric == "ApproximateNumberOfMessagesVisible"}
    assert queues == {f"<{queue}.QueueName>" for queue in dead_letter_queues(template)}
    assert len([metric for metric, _ in drawn if metric == "ApproximateAgeOfOldestMessage"]) == 3


def test_it_links_the_guide(widgets):
    """The last row says where each number is explained, and where to begin when Rerail is unwell."""
    (words,) = [widget["properties"]["markdown"] for widget in widgets if widget["type"] == "text"]
    named = re.findall(r"docs/[\w/-]+\.md", words)
    assert named == ["docs/operations.md", "docs/runbooks/unhealthy.md"]
    assert (ROOT / "docs" / "operations.md").exists()


GUIDE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def test_the_guide_explains_every_measure():
    rows = re.findall(r"^\| `([\w.]+)` \| (\w+) \| (\w*) ?\|", GUIDE, re.MULTILINE)
    assert rows == [(each.name, each.unit, each.dimension) for said in ALL.values() for each in said]


def test_the_guide_states_their_cost():
    """As many metrics as there can be, at CloudWatch's list price of $0.30 a month."""
    bound = sum(len(measure) for said in ALL.values() for measure in said)
    assert re.findall(r"<!-- metrics -->(\d+)<!--", GUIDE) == [str(bound)] * 2
    assert re.findall(r"<!-- dollars -->([\d.]+)<!--", GUIDE) == [f"{bound * 0.3:.2f}"]


def test_the_guide_names_the_runbook_of_every_alarm(template):
    alarms = [*template.of("CloudWatch::Alarm").values(), *template.of("CloudWatch::CompositeAlarm").values()]
    named = {alarm["AlarmDescription"].rpartition("docs/")[2] for alarm in alarms}
    assert named == set(re.findall(r"\((runbooks/[\w-]+\.md)\)", GUIDE))


def test_it_fits(widgets):
    """CloudWatch draws at most 500 metrics a widget and 2,500 in all; a row is 24 wide."""
    bound = sum(len(measure) for said in ALL.values() for measure in said)
    assert bound + sum(len(lines(widget)) for widget in widgets) < 2500
    assert all(widget["x"] + widget["width"] <= 24 for widget in widgets)
