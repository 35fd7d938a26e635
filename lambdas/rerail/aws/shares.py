"""Shares of a round: other invocations of the function, and what they saw, in the table of the runs.

Key: `round#<first part>` with sort key `round`; the newest round of a share takes the place of the one before."""

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from rerail.aws.clients import client
from rerail.codec import BadRecord, dumps, loads
from rerail.errors import Unanswered
from rerail.rounds import RoundReport
from rerail.shares import PARTS, Share, as_event

KEPT_FOR = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Told:
    """What one invocation saw of its parts, and when."""

    parts: tuple[int, ...]
    at: datetime
    report: RoundReport


class InvokedShares:
    """The port `Shares` on Lambda's asynchronous invocations and one table."""

    def __init__(self, table: str) -> None:
        self._table = table

    def hand_on(self, share: Share, *, to: str) -> None:
        event = json.dumps(as_event(share), separators=(",", ":")).encode()
        try:
            client("lambda").invoke(FunctionName=to, InvocationType="Event", Payload=event)
        except (ClientError, BotoCoreError) as error:
            raise Unanswered(f"Invoke of {to} for the parts {share.parts}: {error}") from error

    def keep(self, parts: Sequence[int], report: RoundReport, *, at: datetime) -> None:
        expires = {"N": str(int((at + KEPT_FOR).timestamp()))}
        doc = {"B": zlib.compress(dumps(Told(tuple(parts), at, report)).encode())}
        unwritten: Any = {self._table: [{"PutRequest": {"Item": {**_key(parts[0]), "doc": doc, "expires": expires}}}]}
        while unwritten:
            unwritten = client("dynamodb").batch_write_item(RequestItems=unwritten).get("UnprocessedItems", {})

    def reports(self) -> Mapping[tuple[int, ...], tuple[datetime, RoundReport]]:
        return {told.parts: (told.at, told.report) for told in map(_told, self._items()) if told}

    def _items(self) -> Iterator[Mapping[str, Any]]:
        asked: Any = {self._table: {"Keys": [_key(part) for part in range(PARTS)]}}
        while asked:
            answer = client("dynamodb").batch_get_item(RequestItems=asked)
            yield from answer["Responses"].get(self._table, [])
            asked = answer.get("UnprocessedKeys", {})


def _told(item: Mapping[str, Any]) -> Told | None:
    """One that another version wrote is as good as none: the next is a minute away."""
    try:
        return loads(Told, zlib.decompress(item["doc"]["B"]).decode())
    except (BadRecord, LookupError, TypeError, ValueError, zlib.error):
        return None


def _key(part: int) -> dict[str, Any]:
    return {"pk": {"S": f"round#{part}"}, "sk": {"S": "round"}}
