"""HyperPod clusters: what their events say, and what people are told of it, once, with the runs that need them."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.hyperpod.clusters import MOST_PARTS
from rerail.messages.cluster_events import ClusterEventReceived, clean_text
from rerail.messages.messages import JobStateChanged, parse_message
from rerail.model.actions import Severity
from rerail.model.codec import dumps
from rerail.model.errors import BadMessage, Conflict
from rerail.model.notice import Notice
from rerail.model.policy import ClusterPolicy, WhichClusters
from rerail.model.run import JobStatus
from rerail.model.runbooks import Runbook
from rerail.requests.relaunch import CLUSTER_TAG
from tests.fakes import DEFAULT, World
from tests.raising import raising

EVENTS = Path(__file__).parents[1] / "events"
CLUSTER = "sample-cluster"
ARN = f"arn:aws:sagemaker:us-west-2:111122223333:cluster/{CLUSTER}"
NODE = "node i-12345678abcdefghi"
MINUTE = timedelta(minutes=1)


def sample(name: str) -> dict[str, Any]:
    event: dict[str, Any] = json.loads((EVENTS / f"hyperpod_{name}.json").read_text())
    return event


def parse_event(event: dict[str, Any]) -> ClusterEventReceived:
    message = parse_message(json.dumps(event))
    assert isinstance(message, ClusterEventReceived)
    return message


def health(
    status: str, repair: str = "None", *, minute: float = 0, node: str = "i-0123456789abcdef0"
) -> ClusterEventReceived:
    event = sample("node_unhealthy")
    event["time"] = (datetime(2026, 1, 31, tzinfo=UTC) + minute * MINUTE).isoformat()
    event["detail"]["InstanceId"] = node
    event["detail"]["HealthSummary"] |= {"HealthStatus": status, "RepairAction": repair}
    return parse_event(event)


class ClusterWorld(World):
    """A world that hears clusters."""

    def receive(self, *events: ClusterEventReceived) -> list[Notice]:
        """What people are told of these, in order."""
        before = len(self.bus.notices)
        for event in events:
            self.hyperpod_watch().handle(event)
        return self.bus.notices[before:]

    def with_policy(self, **hyperpod: Any) -> "ClusterWorld":
        self.policies.by_name["default"] = replace(DEFAULT, hyperpod=ClusterPolicy(**hyperpod))
        return self

    def with_run(self, name: str = "gpt", cluster: str = CLUSTER) -> "ClusterWorld":
        self.sagemaker.submit(name)
        self.sagemaker.job_tags[name][CLUSTER_TAG] = cluster
        self.supervisor().handle(JobStateChanged(name))
        return self


@pytest.mark.parametrize(
    ("name", "signs"),
    [
        ("node_unhealthy", [(NODE, "broken", "is unhealthy, and HyperPod does not repair it")]),
        ("node_replaced", [(NODE, "recovering", "is unhealthy and being replaced by HyperPod")]),
        ("node_healthy", [(NODE, "healthy", "is healthy")]),
        (
            "cluster_state",
            [("cluster", "healthy", "is in service"), ("group example instance group name", "broken", "has failed")],
        ),
        (
            "cluster_failed",
            [("cluster", "broken", "has failed"), ("group example instance group name", "broken", "has failed")],
        ),
        ("cluster_event", [("node i-0391f86fa0fe0d465", "noted", "has an error")]),
        ("replacement_failed", [("node i-0391f86fa0fe0d465", "broken", "has an error")]),
    ],
)
def test_every_sample_gives_the_condition_of_a_part(name, signs):
    event = parse_event(sample(name))
    assert (event.cluster, event.arn) == (CLUSTER, ARN)
    assert [(sign.part, sign.condition.value, sign.what) for sign in event.signs] == signs


def test_the_time_is_the_events_own():
    """To the millisecond where the event has it, else that of its envelope."""
    assert parse_event(sample("cluster_event")).at == datetime(2025, 6, 1, 16, 20, 25, 350000, UTC)
    assert parse_event(sample("node_unhealthy")).at == datetime(2021, 10, 25, 1, 52, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("detail", "ClusterName"), "$(reboot)", "ClusterName"),
        (("detail", "ClusterName"), None, "ClusterName"),
        (("detail", "ClusterArn"), "arn:aws:s3:::cluster", "ClusterArn"),
        (("detail", "InstanceId"), "i-1;rm", "InstanceId"),
        (("detail", "HealthSummary"), "fine", "HealthSummary"),
        (("time",), "yesterday", "time"),
    ],
)
def test_what_is_malformed_is_named(path, value, named):
    """Names become commands that people paste: only real ones are taken."""
    event = sample("node_unhealthy")
    table = event
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value
    with pytest.raises(BadMessage, match=named):
        parse_event(event)


@given(st.text(max_size=2000))
def test_cleaned_text_is_one_line_of_bounded_length(text):
    assert len(clean_text(text)) <= 500
    assert clean_text(text).isprintable()


@pytest.mark.parametrize("status", ["Creating", "Updating", "SystemUpdating", "SomethingNew"])
def test_a_cluster_at_work_is_no_news(status):
    """What somebody does to a cluster on purpose, or what nobody knows yet, says nothing."""
    event = sample("cluster_failed")
    event["detail"] |= {"ClusterStatus": status, "InstanceGroups": "none"}
    assert parse_event(event).signs == ()


def test_a_broken_node_pages_with_the_runs_that_need_the_cluster():
    """Who is woken reads what is broken, whom it touches, what to type, and that Rerail leaves nodes alone."""
    world = ClusterWorld().with_run("gpt").with_run("bert", cluster=ARN).with_run("other", cluster="another")
    (notice,) = world.receive(parse_event(sample("node_unhealthy")))
    assert notice.severity is Severity.PAGE
    assert notice.title == f"HyperPod cluster {CLUSTER}: {NODE} is unhealthy, and HyperPod does not repair it"
    assert "NvidiaErrorTerminate" in notice.body
    assert "Runs that depend on this cluster: bert, gpt." in notice.body
    assert "other" not in notice.body
    assert notice.todo.startswith("Replace the node: aws sagemaker batch-replace-cluster-nodes --cluster-name sample-")
    assert "left to HyperPod" in notice.did
    assert notice.runbook is Runbook.HYPERPOD
    assert notice.since == parse_event(sample("node_unhealthy")).at


def test_a_run_that_has_ended_depends_on_nothing():
    world = ClusterWorld().with_run("gpt")
    world.sagemaker.end("gpt", JobStatus.COMPLETED)
    world.supervisor().handle(JobStateChanged("gpt"))
    (notice,) = world.receive(parse_event(sample("node_unhealthy")))
    assert (notice.severity, notice.run) == (Severity.PAGE, f"hyperpod/{CLUSTER}")
    assert "No open run is tagged as depending on this cluster" in notice.body


@pytest.mark.parametrize("days", [0, 90])
def test_a_repeated_event_is_reported_once(days):
    """HyperPod may send an event several times, and an operator may redrive it months later."""
    world = ClusterWorld()
    world.clock.pass_by(timedelta(days=days))
    assert len(world.receive(*[health("Unhealthy", minute=minute) for minute in (0, 0, 1, 2)])) == 1


def test_parts_are_forgotten_after_a_month():
    world = ClusterWorld()
    world.receive(health("Unhealthy"))
    world.clock.pass_by(timedelta(days=31))
    world.receive(health("Unhealthy", minute=31 * 24 * 60, node="i-0123456789abcdef1"))
    assert list(world.hyperpods.recall(CLUSTER).parts) == ["node i-0123456789abcdef1"]


def test_a_lasting_condition_is_reported_again():
    """With the same key, so that a pager adds it to the incident that it has open."""
    world = ClusterWorld().with_policy(again=timedelta(hours=4))
    (first,) = world.receive(health("Unhealthy"))
    world.clock.pass_by(timedelta(hours=4))
    (again,) = world.receive(health("Unhealthy", minute=240))
    assert (again.severity, again.key) == (Severity.PAGE, first.key)
    assert again.since == first.since
    world.with_policy(again=timedelta(0))
    world.clock.pass_by(timedelta(days=2))
    assert world.receive(health("Unhealthy", minute=4000)) == []


def test_a_node_that_hyperpod_gives_up_pages_at_once():
    notices = ClusterWorld().receive(health("Unhealthy", "Replace"), health("Unhealthy", "None", minute=1))
    assert [notice.severity for notice in notices] == [Severity.INFORM, Severity.PAGE]


def test_all_clear_ends_the_page():
    """Whoever was paged hears that it is over, by the key of that page; after that a new trouble is a new page."""
    page, clear, again = ClusterWorld().receive(
        health("Unhealthy"), health("Healthy", minute=9), health("Unhealthy", minute=20), health("Unhealthy", minute=21)
    )
    assert (clear.severity, clear.clears) == (Severity.CLEAR, page.key)
    assert clear.title == f"HyperPod cluster {CLUSTER}: all clear: node i-0123456789abcdef0 is healthy"
    assert clear.since == page.since
    assert (again.severity, again.key) == (Severity.PAGE, page.key)
    assert again.since > page.since


def test_who_was_informed_is_informed_of_the_end():
    notices = ClusterWorld().receive(health("Unhealthy", "Replace"), health("Healthy", minute=1))
    assert [notice.severity for notice in notices] == [Severity.INFORM, Severity.INFORM]
    assert notices[1].title.endswith("is healthy")
    assert notices[1].clears == ""


def test_a_node_that_leaves_the_cluster_is_over_too():
    """A replaced node never becomes healthy: it is terminated."""
    event = sample("cluster_event")
    detail = event["detail"]["EventDetails"]
    detail |= {"EventLevel": "Info", "InstanceId": "i-0123456789abcdef0", "EventTime": 1893456000000}
    detail["Description"] = "Termination of EC2 Instance i-0123456789abcdef0 is currently in progress in Cluster c"
    page, clear = ClusterWorld().receive(health("Unhealthy"), parse_event(event))
    assert (clear.severity, clear.clears) == (Severity.CLEAR, page.key)
    assert "has left the cluster" in clear.title


def test_healthy_nodes_are_no_news_and_leave_no_trace():
    world = ClusterWorld()
    assert world.receive(health("Healthy")) == []
    assert world.hyperpods.records == {}


def test_an_old_event_does_not_undo_a_newer_one():
    """Events come in any order: that a node was unhealthy an hour ago is no news when it is healthy now."""
    world = ClusterWorld()
    world.receive(health("Unhealthy", minute=0))
    assert len(world.receive(health("Healthy", minute=10), health("Unhealthy", minute=5))) == 1
    assert world.receive(health("Healthy", minute=7)) == []


@pytest.mark.threat("T10")
def test_an_event_from_the_future_hides_no_later_one():
    world = ClusterWorld()
    world.receive(health("Unhealthy", "Replace", minute=1e6))
    world.clock.pass_by(timedelta(minutes=11))
    assert [notice.severity for notice in world.receive(health("Unhealthy", minute=11))] == [Severity.PAGE]


def test_a_large_cluster_in_trouble_fits_into_its_record():
    """DynamoDB takes 400 KB; what stood longest is forgotten."""
    world = ClusterWorld()
    for minute in range(12):
        at = health("Unhealthy", minute=minute)
        signs = (replace(at.signs[0], part=f"node i-{minute:02}{node:030}") for node in range(100))
        world.receive(replace(at, signs=tuple(signs)))
    record = world.hyperpods.recall(CLUSTER)
    assert len(record.parts) == MOST_PARTS and len(dumps(record)) < 400_000
    assert f"node i-11{0:030}" in record.parts


def test_many_events_are_reported_in_few_notices():
    """When half a cluster goes, somebody is woken and not buried; the last notice says that there is more."""
    world = ClusterWorld().with_policy(most=3)
    notices = world.receive(*[health("Unhealthy", node=f"i-0123456789abcde{n:02}") for n in range(20)])
    assert len(notices) == 3
    assert "until 01:00 UTC other parts are not reported" in notices[2].body
    states = [parse_event(sample(name)) for name in ("cluster_failed", "cluster_state")]
    pages = [n.title for n in world.receive(*(states * 20)) if n.severity is Severity.PAGE]
    assert pages == [f"HyperPod cluster {CLUSTER} has failed"] * 3, "also where its state changes back and forth"
    world.clock.pass_by(timedelta(hours=1))
    assert len(world.receive(health("Unhealthy", minute=60, node="i-0123456789abcde19"))) == 1


def test_clusters_do_not_share_a_cap():
    world = ClusterWorld().with_policy(most=1)
    here = health("Unhealthy")
    there = replace(here, cluster="elsewhere", arn=ARN.replace(CLUSTER, "elsewhere"))
    assert len(world.receive(here, there)) == 2


@pytest.mark.parametrize(
    ("which", "needed", "notices"),
    [
        (WhichClusters.ALL, False, 1),
        (WhichClusters.NEEDED, False, 0),
        (WhichClusters.NEEDED, True, 1),
        (WhichClusters.NONE, True, 0),
    ],
)
def test_the_policy_selects_the_clusters(which, needed, notices):
    world = ClusterWorld().with_policy(notify_for=which)
    if needed:
        world.with_run()
    assert len(world.receive(health("Unhealthy"))) == notices


def test_an_unreported_condition_is_reported_when_a_run_needs_the_cluster():
    world = ClusterWorld().with_policy(notify_for=WhichClusters.NEEDED)
    assert world.receive(health("Unhealthy")) == []
    assert len(world.with_run().receive(health("Unhealthy", minute=1))) == 1


def test_a_deleted_cluster_is_reported_when_a_run_needs_it():
    """Somebody deletes it on purpose; unless a run depends on it, that is their own affair."""
    event = sample("cluster_failed")
    event["detail"] |= {"ClusterStatus": "Deleting", "InstanceGroups": []}
    assert ClusterWorld().receive(parse_event(event)) == []
    (notice,) = ClusterWorld().with_run().receive(parse_event(event))
    assert (notice.severity, notice.run) == (Severity.INFORM, "gpt")
    assert "is being deleted" in notice.title


def test_a_long_repair_pages_when_a_run_needs_the_cluster():
    """Informed first; when HyperPod has been at it for two hours, the sweep sees to it that somebody with a run that
    needs the cluster is paged, once; and the all-clear ends that page."""
    world = ClusterWorld().with_run()
    world.receive(health("Unhealthy", "Replace"))
    world.minutes(119)
    assert [notice.severity for notice in world.bus.notices] == [Severity.INFORM]
    world.minutes(30)
    assert [notice.severity for notice in world.bus.notices] == [Severity.INFORM, Severity.PAGE]
    page = world.bus.notices[-1]
    assert page.title == f"HyperPod cluster {CLUSTER}: node i-0123456789abcdef0 is still being repaired by HyperPod"
    assert page.todo.startswith(f"Check what it waits for: aws sagemaker list-cluster-events --cluster-name {CLUSTER}")
    (clear,) = world.receive(health("Healthy", minute=150))
    assert (clear.severity, clear.clears) == (Severity.CLEAR, page.key)


def test_a_long_repair_pages_no_one_where_no_run_needs_the_cluster():
    world = ClusterWorld()
    world.receive(health("Unhealthy", "Replace"))
    world.minutes(200)
    assert [notice.severity for notice in world.bus.notices] == [Severity.INFORM, Severity.INFORM]
    assert world.bus.notices[-1].key.endswith("/late")
    (over,) = world.receive(health("Healthy", minute=210))
    assert over.severity is Severity.INFORM


@pytest.mark.parametrize("repair", ["Replace", "None"])
def test_a_repair_in_time_or_paged_already_is_not_late(repair):
    """Nor anything at all where the policy has no end of patience."""
    world = ClusterWorld().with_run()
    world.receive(health("Unhealthy", repair))
    if repair == "Replace":
        world.minutes(100)
        world.receive(health("Healthy", minute=100))
    notices = len(world.bus.notices)
    world.minutes(60)
    assert len(world.bus.notices) == notices
    patient = ClusterWorld().with_run().with_policy(patience=timedelta(0))
    patient.receive(health("Unhealthy", "Replace"))
    patient.minutes(300)
    assert len(patient.bus.notices) == 1


class Dies(Exception):
    """The function ends here."""


def test_an_unpublished_notice_is_published_when_the_message_returns():
    """It is recorded before it is said: neither lost, nor told twice, when the bus refuses or the function dies."""
    world = ClusterWorld()
    publish, refusing = world.bus.publish, True

    def refuse(notice: Notice) -> None:
        if refusing:
            raise Dies
        publish(notice)

    world.bus.publish = refuse  # type: ignore[method-assign]
    with pytest.raises(Dies):
        world.receive(health("Unhealthy"))
    refusing = False
    assert len(world.receive(health("Unhealthy"))) == 1
    assert world.receive(health("Unhealthy")) == []


def test_two_instances_at_once_report_once():
    """Somebody else hears of it between our look and our write: we look again."""
    world = ClusterWorld()
    watch, recall = world.hyperpod_watch(), world.hyperpods.recall
    others = iter([health("Unhealthy")])

    def late(cluster: str):
        before = recall(cluster)
        for event in others:
            world.hyperpod_watch().handle(event)
        return before

    world.hyperpods.recall = late  # type: ignore[method-assign]
    watch.handle(health("Unhealthy"))
    assert len(world.bus.notices) == 1


def test_a_memory_that_never_stands_still_is_asked_for_later():
    world = ClusterWorld()

    world.hyperpods.keep = raising(Conflict("again"))  # type: ignore[method-assign]
    with pytest.raises(Conflict, match="try later"):
        world.receive(health("Unhealthy"))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["i-0123456789abcdef0", "i-0123456789abcdef1"]),
            st.sampled_from([("Unhealthy", "None"), ("Unhealthy", "Replace"), ("Healthy", "None")]),
            st.integers(0, 300),
        ),
        max_size=25,
    )
)
def test_every_page_ends_once_and_no_all_clear_comes_alone(events):
    """In whatever order and however often events come: pages and all-clears of a node alternate, as far as repetitions
    go; and when all are healthy at last, nothing stands."""
    world = ClusterWorld()
    for node, (status, repair), minute in events:
        world.receive(health(status, repair, node=node, minute=minute))
    for node in ("i-0123456789abcdef0", "i-0123456789abcdef1"):
        world.receive(health("Healthy", node=node, minute=301))
        notices = [n for n in world.bus.notices if node in n.title and n.severity is not Severity.INFORM]
        stands = False
        for notice in notices:
            assert stands or notice.severity is Severity.PAGE
            stands = notice.severity is Severity.PAGE
        assert not stands


def test_an_invalid_cluster_tag_is_reported():
    world = ClusterWorld().with_run(cluster="my cluster!")
    assert world.run().hyperpod == ""
    (notice,) = world.bus.notices
    assert "neither the name nor the ARN" in notice.body
    assert CLUSTER_TAG in notice.todo


def test_a_notice_names_ten_runs_at_most():
    world = ClusterWorld()
    for number in range(13):
        world.with_run(f"run-{number:02}")
    (notice,) = world.receive(health("Unhealthy"))
    assert "run-09 and 3 more" in notice.body
    assert "run-10" not in notice.body


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00", "1970-01-01T00:00:00Z", 7])
def test_a_time_out_of_range_is_refused(time):
    """In a notice it could not be written in UTC, and the notice would never be told."""
    event = sample("node_unhealthy") | {"time": time}
    with pytest.raises(BadMessage, match="field 'time' is"):
        parse_event(event)
    event = sample("cluster_event")
    event["detail"]["EventDetails"]["EventTime"] = 1e15
    with pytest.raises(BadMessage, match="field 'time' is 1000000000000000.0"):
        parse_event(event)
