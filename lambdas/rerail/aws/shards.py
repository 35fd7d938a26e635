"""Shares of a round: other invocations of the function, and what they saw, in the table of the runs.

Key: `round#<first part>` with sort key `round`; the newest round of a share takes the place of the one before."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from rerail.aws.clients import client
from rerail.aws.records import pack, read, record, write
from rerail.model.codec import BadRecord, dumps
from rerail.model.errors import CallFailed
from rerail.sweep.shards import PARTITIONS, Shard, as_event
from rerail.sweep.sweep import SweepReport

KEPT_FOR = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ShardReport:
    """What one invocation saw of its parts, and when."""

    parts: tuple[int, ...]
    at: datetime
    report: SweepReport


class InvokedShards:
    """The port `Shards` on Lambda's asynchronous invocations and one table."""

    def __init__(self, table: str) -> None:
        self._table = table

    def hand_on(self, share: Shard, *, to: str) -> None:
        event = json.dumps(as_event(share), separators=(",", ":")).encode()
        try:
            client("lambda").invoke(FunctionName=to, InvocationType="Event", Payload=event)
        except (ClientError, BotoCoreError) as error:
            raise CallFailed(f"Invoke of {to} for the parts {share.parts}: {error}") from error

    def keep(self, parts: Sequence[int], report: SweepReport, *, at: datetime) -> None:
        expires = {"N": str(int((at + KEPT_FOR).timestamp()))}
        told = ShardReport(tuple(parts), at, report)
        write(self._table, [{**_key(parts[0]), "doc": pack(dumps(told)), "expires": expires}])

    def reports(self) -> Mapping[tuple[int, ...], tuple[datetime, SweepReport]]:
        found = map(_told, read(self._table, [_key(part) for part in range(PARTITIONS)]))
        return {told.parts: (told.at, told.report) for told in found if told}


def _told(item: Mapping[str, Any]) -> ShardReport | None:
    """One that another version wrote is as good as none: the next is a minute away."""
    try:
        return record(ShardReport, item)
    except BadRecord:
        return None


def _key(part: int) -> dict[str, Any]:
    return {"pk": {"S": f"round#{part}"}, "sk": {"S": "round"}}
