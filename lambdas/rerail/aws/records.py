"""Read and write records of the table: text in the attribute `doc`, compressed if long, in batches."""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from botocore.exceptions import ClientError

from rerail.aws.clients import client
from rerail.aws.validation import validate
from rerail.model.codec import BadRecord, loads
from rerail.model.errors import Throttled

# DynamoDB's limits on items per call.
READ_BATCH, WRITE_BATCH = 100, 25
PLAIN_CHARACTERS = 50_000  # longer records are compressed
# DynamoDB's limit on an item is 409,600 bytes; the rest is for its keys and other attributes.
DOC_BYTES = 400_000
T = TypeVar("T")


def pack(text: str) -> dict[str, Any]:
    """Return the text as a compressed attribute, a third of its length: writes are billed by the kilobyte."""
    return {"B": zlib.compress(text.encode())}


def make_doc(text: str) -> dict[str, Any]:
    """Return the ASCII text as an attribute, compressed if it is long."""
    return {"S": text} if len(text) <= PLAIN_CHARACTERS else pack(text)


def fits(doc: Mapping[str, Any]) -> bool:
    """Return whether an item with this attribute is within DynamoDB's limit."""
    return len(doc.get("B") or doc["S"]) <= DOC_BYTES


def record(cls: type[T], item: Mapping[str, Any]) -> T:
    """Return the record in an item, compressed or not. Raises BadRecord."""
    return loads(cls, read_text(item, cls.__name__))


def find_record(cls: type[T], item: Mapping[str, Any]) -> T | None:
    """Return the record in an item, or None if another version wrote it."""
    try:
        return record(cls, item)
    except BadRecord:
        return None


def read_text(item: Mapping[str, Any], name: str) -> str:
    """Return the text of an item, compressed or not; raise BadRecord, with the kind `name`, if it cannot be read."""
    try:
        doc = item["doc"]
        return zlib.decompress(doc["B"]).decode() if "B" in doc else str(doc["S"])
    except (LookupError, TypeError) as error:
        raise BadRecord(f"a {name} without its text") from error
    except (zlib.error, UnicodeDecodeError) as error:
        raise BadRecord(f"a {name} whose compressed record cannot be read: {error}") from error


def query(table: str, **asked: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the items that a query finds, on all pages."""
    return list_items(client("dynamodb").get_paginator("query").paginate(TableName=table, **asked))


def list_items(pages: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the items of the pages. One without the member `Items` is invalid, not empty: raises InvalidResponse."""
    for page in pages:
        with validate("Query"):
            items = [item for item in page["Items"] if item is not None]
        yield from items


def read(table: str, keys: Sequence[Mapping[str, Any]], *, only: str = "") -> Iterator[Mapping[str, Any]]:
    """Yield the existing items with these keys, which must be distinct; `only` restricts them to one attribute.

    Raises Throttled if the table returns nothing of a request."""
    for start in range(0, len(keys), READ_BATCH):
        wanted: dict[str, Any] = {"Keys": keys[start : start + READ_BATCH]}
        request: Any = {table: {**wanted, "ProjectionExpression": only} if only else wanted}
        while request:
            answer = client("dynamodb").batch_get_item(RequestItems=request)
            yield from answer.get("Responses", {}).get(table, [])
            left = answer.get("UnprocessedKeys", {})
            if left and len(left[table]["Keys"]) == len(request[table]["Keys"]):  # in any order
                raise Throttled("BatchGetItem: the table processed none of the keys")
            request = left


def expect_version(before: int) -> dict[str, Any]:
    """Return the condition of a write that the item has this version, or does not exist if that is 0."""
    if not before:
        return {"ConditionExpression": "attribute_not_exists(pk)"}
    return {"ConditionExpression": "version = :before", "ExpressionAttributeValues": {":before": {"N": str(before)}}}


def put_if(condition: Mapping[str, Any], table: str, item: Mapping[str, Any]) -> bool:
    """Put the item, and return True; return False if the stored item does not meet the condition."""
    try:
        client("dynamodb").put_item(TableName=table, Item=item, **condition)
    except ClientError as error:
        if error.response["Error"]["Code"] == "ConditionalCheckFailedException":
            return False
        raise
    return True


def write(table: str, items: Iterable[Mapping[str, Any]]) -> None:
    """Put the items, replacing existing ones. Raises Throttled if the table accepts nothing of a request."""
    puts = [{"PutRequest": {"Item": item}} for item in items]
    for start in range(0, len(puts), WRITE_BATCH):
        request: Any = {table: puts[start : start + WRITE_BATCH]}
        while request:
            left = client("dynamodb").batch_write_item(RequestItems=request).get("UnprocessedItems", {})
            if left and len(left[table]) == len(request[table]):  # in any order
                raise Throttled("BatchWriteItem: the table processed none of the items")
            request = left
