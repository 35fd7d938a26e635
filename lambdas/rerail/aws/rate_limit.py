"""Store the account's recent relaunches in one item of the table of runs, written conditionally.

Key: `account` with sort key `launches`. Jobs are stored as digests of their names, so that an hour fits one item."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import TypeVar

from rerail.aws.clients import client
from rerail.aws.records import expect_version, put_if
from rerail.aws.validation import validate
from rerail.model.codec import dumps, loads
from rerail.model.errors import Throttled
from rerail.model.rate_limit import Admission, Launches, LaunchRequest, admit, claim_adoption_notice, claim_page

KEY = {"pk": {"S": "account"}, "sk": {"S": "launches"}}
TRY_LIMIT = 8

Answer = TypeVar("Answer")


class DynamoRateLimit:
    """The port `RateLimit` on one item of the table of runs."""

    def __init__(self, table: str) -> None:
        self._table = table

    def admit(self, request: LaunchRequest, *, at: datetime, limit: int, window: timedelta) -> Admission:
        request = replace(request, job_name=_digest(request.job_name))
        return self._update(lambda launches: admit(launches, request, at=at, limit=limit, window=window))

    def claim_page(self, run: str, error: str, *, at: datetime) -> str:
        return self._update(lambda launches: claim_page(launches, run, error, at=at))

    def claim_adoption_notice(self, job_name: str, *, at: datetime) -> int:
        try:
            return self._update(lambda launches: claim_adoption_notice(launches, _digest(job_name), at=at))
        except Throttled:
            return 0  # many others send one now: the adoption does not wait for it

    def _update(self, change: Callable[[Launches], tuple[Launches, Answer]]) -> Answer:
        """Store the changed launches and return the answer; raises Throttled after several conflicts in a row."""
        for _ in range(TRY_LIMIT):
            version, launches = self._load()
            after, answer = change(launches)
            if after == launches or self._keep(after, version):
                return answer
        raise Throttled("the count of relaunches changed concurrently at every try; try again later")

    def _load(self) -> tuple[int, Launches]:
        item = client("dynamodb").get_item(TableName=self._table, Key=KEY, ConsistentRead=True).get("Item")
        with validate("GetItem"):
            return (int(item["version"]["N"]), loads(Launches, item["doc"]["S"])) if item else (0, Launches())

    def _keep(self, launches: Launches, version: int) -> bool:
        item = {**KEY, "doc": {"S": dumps(launches)}, "version": {"N": str(version + 1)}}
        return put_if(expect_version(version), self._table, item)


def _digest(job_name: str) -> str:
    return sha256(job_name.encode()).hexdigest()[:12]
