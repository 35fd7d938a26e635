"""What the detectors remember of each run, in the table of the runs: `watch#<run>` with sort key `watch`."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rerail.aws.clients import client
from rerail.codec import BadRecord, dumps, loads
from rerail.errors import Throttled
from rerail.watching import Memory

READ_BATCH, WRITE_BATCH = 100, 25


class DynamoMemories:
    """The port `Memories` on one table."""

    def __init__(self, table: str) -> None:
        self._table = table

    def recall(self, run_ids: Sequence[str]) -> Mapping[str, Memory]:
        found = (_memory(item) for item in self._items(sorted(set(run_ids))))
        return {memory.run: memory for memory in found if memory}

    def keep(self, memories: Sequence[Memory]) -> None:
        puts = [{"PutRequest": {"Item": {**_key(memory.run), "doc": {"B": packed(memory)}}}} for memory in memories]
        for start in range(0, len(puts), WRITE_BATCH):
            unwritten = {self._table: puts[start : start + WRITE_BATCH]}
            while unwritten:
                unwritten = client("dynamodb").batch_write_item(RequestItems=unwritten).get("UnprocessedItems", {})

    def _items(self, run_ids: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        for start in range(0, len(run_ids), READ_BATCH):
            asked: dict[str, Any] = {self._table: {"Keys": [_key(run) for run in run_ids[start : start + READ_BATCH]]}}
            while asked:
                answer = client("dynamodb").batch_get_item(RequestItems=asked)
                yield from answer.get("Responses", {}).get(self._table, [])
                left = answer.get("UnprocessedKeys", {})
                if left == asked:
                    raise Throttled("BatchGetItem: the table reads nothing of what is asked now")
                asked = left


def packed(memory: Memory) -> bytes:
    """A third of its text: a write is paid for by the kilobyte, and there is one for each run each minute."""
    return zlib.compress(dumps(memory).encode())


def _memory(item: Mapping[str, Any]) -> Memory | None:
    """One that another version wrote is begun afresh: detectors learn again within some rows."""
    try:
        return loads(Memory, zlib.decompress(item["doc"]["B"]).decode())
    except (BadRecord, zlib.error, KeyError, TypeError, UnicodeDecodeError):
        return None


def _key(run: str) -> dict[str, Any]:
    return {"pk": {"S": f"watch#{run}"}, "sk": {"S": "watch"}}
