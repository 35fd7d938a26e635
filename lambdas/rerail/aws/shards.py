"""Invoke the function for the shards of a sweep, and store their reports in the table of runs.

Key: `round#<first part>` with sort key `round`; the newest report of a shard replaces the previous one."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from rerail.aws.clients import client
from rerail.aws.records import find_record, pack, read, write
from rerail.model.codec import dumps
from rerail.model.errors import CallFailed
from rerail.model.partitions import PARTITIONS
from rerail.sweep.shards import Shard, format_event
from rerail.sweep.sweep import SweepReport

KEPT_FOR = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ShardReport:
    """The report of one shard."""

    parts: tuple[int, ...]  # partitions of the index of open runs
    at: datetime
    report: SweepReport


class InvokedShards:
    """The port `Shards` on Lambda's asynchronous invocations and one table."""

    def __init__(self, table: str) -> None:
        self._table = table

    def hand_on(self, share: Shard, *, to: str) -> None:
        event = json.dumps(format_event(share), separators=(",", ":")).encode()
        try:
            client("lambda").invoke(FunctionName=to, InvocationType="Event", Payload=event)
        except (ClientError, BotoCoreError) as error:
            raise CallFailed(f"Invoke of {to} for the parts {share.parts}: {error}") from error

    def keep(self, parts: Sequence[int], report: SweepReport, *, at: datetime) -> None:
        expires = {"N": str(int((at + KEPT_FOR).timestamp()))}
        shard_report = ShardReport(tuple(parts), at, report)
        write(self._table, [{**_key(parts[0]), "doc": pack(dumps(shard_report)), "expires": expires}])

    def reports(self) -> Mapping[tuple[int, ...], tuple[datetime, SweepReport]]:
        items = read(self._table, [_key(part) for part in range(PARTITIONS)])
        # A report of another version is left out: the next one comes within a minute.
        stored = (find_record(ShardReport, item) for item in items)
        return {shard.parts: (shard.at, shard.report) for shard in stored if shard}


def _key(part: int) -> dict[str, Any]:
    return {"pk": {"S": f"round#{part}"}, "sk": {"S": "round"}}
