"""Records in the one table: a text in the attribute `doc`, long ones compressed; many items with few calls."""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from rerail.aws.clients import client
from rerail.model.codec import BadRecord, loads
from rerail.model.errors import Throttled

# What DynamoDB takes with one call.
READ_BATCH, WRITE_BATCH = 100, 25
T = TypeVar("T")


def pack(text: str) -> dict[str, Any]:
    """The text as an attribute, at a third of its length: a write is paid for by the kilobyte."""
    return {"B": zlib.compress(text.encode())}


def record(cls: type[T], item: Mapping[str, Any]) -> T:
    """The record in an item, packed or not; raises BadRecord."""
    try:
        doc = item["doc"]
        text = zlib.decompress(doc["B"]).decode() if "B" in doc else str(doc["S"])
    except (LookupError, TypeError) as error:
        raise BadRecord(f"a {cls.__name__} without its text") from error
    except (zlib.error, UnicodeDecodeError) as error:
        raise BadRecord(f"a {cls.__name__} whose compressed record cannot be read: {error}") from error
    return loads(cls, text)


def read(table: str, keys: Sequence[Mapping[str, Any]], *, only: str = "") -> Iterator[Mapping[str, Any]]:
    """The items that are there of those with these keys, none of which may be asked for twice; `only` names the one
    attribute that matters."""
    for start in range(0, len(keys), READ_BATCH):
        wanted: dict[str, Any] = {"Keys": keys[start : start + READ_BATCH]}
        asked: Any = {table: {**wanted, "ProjectionExpression": only} if only else wanted}
        while asked:
            answer = client("dynamodb").batch_get_item(RequestItems=asked)
            yield from answer.get("Responses", {}).get(table, [])
            left = answer.get("UnprocessedKeys", {})
            if left == asked:
                raise Throttled("BatchGetItem: the table reads nothing of what is asked now")
            asked = left


def write(table: str, items: Iterable[Mapping[str, Any]]) -> None:
    """Put the items, each in the place of what was there."""
    puts = [{"PutRequest": {"Item": item}} for item in items]
    for start in range(0, len(puts), WRITE_BATCH):
        asked: Any = {table: puts[start : start + WRITE_BATCH]}
        while asked:
            left = client("dynamodb").batch_write_item(RequestItems=asked).get("UnprocessedItems", {})
            if left == asked:
                raise Throttled("BatchWriteItem: the table writes nothing of what is asked now")
            asked = left
