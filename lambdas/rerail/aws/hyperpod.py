"""Store the state of HyperPod clusters in the table of runs: `hyperpod#<cluster>` with sort key `hyperpod`."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from rerail.aws.clients import client
from rerail.aws.dynamodb import INDEX, query_index
from rerail.aws.records import expect_version, find_record, put_if, record
from rerail.aws.validation import validate
from rerail.hyperpod.clusters import ClusterRecord
from rerail.model.codec import BadRecord, dumps
from rerail.model.errors import Conflict

# Partition of the index of open runs with the clusters that the sweep has to check.
WAITING = "open#hyperpod"


class DynamoClusters:
    """The port `ClusterRecords` on one table: one item per cluster, written conditionally."""

    def __init__(self, table: str) -> None:
        self._table = table

    def recall(self, cluster: str) -> ClusterRecord:
        """Return the record; one that another version wrote is replaced by an empty one, which may repeat a notice."""
        item = client("dynamodb").get_item(TableName=self._table, Key=_key(cluster), ConsistentRead=True).get("Item")
        if item is None:
            return ClusterRecord(cluster)
        try:
            return record(ClusterRecord, item)
        except BadRecord:
            with validate("GetItem"):
                return ClusterRecord(cluster, version=int(item["version"]["N"]))

    def waiting(self) -> Iterator[ClusterRecord]:
        """Yield the clusters to check; records that another version wrote wait for the cluster's next event."""
        found = (find_record(ClusterRecord, item) for item in query_index(self._table, WAITING))
        yield from filter(None, found)

    def keep(self, memory: ClusterRecord, *, until: datetime) -> None:
        before = memory.version - 1
        item = {
            **_key(memory.cluster),
            "doc": {"S": dumps(memory)},
            "version": {"N": str(memory.version)},
            "expires": {"N": str(int(until.timestamp()))},
        }
        if memory.waits:
            item[INDEX] = {"S": WAITING}
        if not put_if(expect_version(before), self._table, item):
            raise Conflict(f"the record of the cluster {memory.cluster} has another version than {before}")


def _key(cluster: str) -> dict[str, Any]:
    return {"pk": {"S": f"hyperpod#{cluster}"}, "sk": {"S": "hyperpod"}}
