"""What is known of HyperPod clusters, in DynamoDB: one item a cluster; nobody overwrites what somebody else wrote."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from rerail.aws.clients import client
from rerail.aws.dynamodb import DynamoRuns
from rerail.aws.hyperpod import DynamoClusters
from rerail.hyperpod.clusters import ClusterPart, ClusterRecord
from rerail.messages.cluster_events import Condition
from rerail.model.actions import Severity
from rerail.model.errors import Conflict
from rerail.model.notice import Notice

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
LATER = NOON + timedelta(days=30)
NOTICE = Notice(run="", severity=Severity.PAGE, title="a node is broken", body="It is.", key="hyperpod/pod/node/i-1")
MEMORY = ClusterRecord(
    cluster="pod",
    parts={"node i-1": ClusterPart(Condition.BROKEN, NOON, NOON, NOON, paged=True)},
    notified={Severity.PAGE: (NOON,)},
    pending=(NOTICE,),
    version=1,
)


def test_a_memory_comes_back_as_it_was(table):
    DynamoClusters(table).keep(MEMORY, until=LATER)
    assert DynamoClusters(table).recall("pod") == MEMORY


def test_of_an_unknown_cluster_nothing_is_known(table):
    assert DynamoClusters(table).recall("pod") == ClusterRecord("pod")


def test_it_is_forgotten_in_time(table):
    DynamoClusters(table).keep(MEMORY, until=LATER)
    (item,) = client("dynamodb").scan(TableName=table)["Items"]
    assert item["pk"] == {"S": "hyperpod#pod"}
    assert item["expires"] == {"N": str(int(LATER.timestamp()))}


@pytest.mark.parametrize("version", [1, 3])
def test_who_comes_late_is_refused(table, version):
    """Another function has written since: look again."""
    memories = DynamoClusters(table)
    memories.keep(MEMORY, until=LATER)
    with pytest.raises(Conflict, match="another version than"):
        memories.keep(replace(MEMORY, version=version), until=LATER)
    memories.keep(replace(MEMORY, pending=(), version=2), until=LATER)
    assert memories.recall("pod").pending == ()


def test_the_sweep_finds_clusters_under_repair(table):
    """In the index of open runs, and only for as long as there is something to wait for; it is no open run."""
    memories, mending = DynamoClusters(table), ClusterPart(Condition.RECOVERING, NOON, NOON, NOON)
    memories.keep(replace(MEMORY, parts={"node i-1": mending}), until=LATER)
    memories.keep(replace(MEMORY, cluster="well"), until=LATER)
    assert [memory.cluster for memory in memories.waiting()] == ["pod"]
    assert list(DynamoRuns(table).open_runs()) == []
    memories.keep(replace(MEMORY, parts={"node i-1": replace(mending, late=True)}, version=2), until=LATER)
    assert list(memories.waiting()) == []


def test_what_another_version_wrote_is_begun_afresh(table):
    """At worst something is told twice; the item can be written again."""
    item = {"pk": {"S": "hyperpod#pod"}, "sk": {"S": "hyperpod"}, "doc": {"S": '{"schema": 99}'}, "version": {"N": "7"}}
    client("dynamodb").put_item(TableName=table, Item=item)
    memories = DynamoClusters(table)
    assert memories.recall("pod") == ClusterRecord("pod", version=7)
    memories.keep(replace(MEMORY, version=8), until=LATER)
    assert memories.recall("pod").parts == MEMORY.parts
