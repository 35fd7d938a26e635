"""Store runs, their requests and timelines in one DynamoDB table.

Keys: `run#<run>` with sort keys `run`, `request` and `timeline#<version>`; `job#<job>` with sort key `job`;
`check#<id>` with sort key `check`, for an event that was sent to see whether it arrives. The sparse index `open` holds
the runs that the sweep checks, spread over as many partitions as a sweep has shards.
"""

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError

from rerail.aws.clients import client
from rerail.aws.records import expect_version, fits, list_items, make_doc, put_if, query, read, read_text, record
from rerail.aws.validation import validate
from rerail.model.codec import BadRecord, dumps
from rerail.model.errors import Conflict, RequestRefused, RequestTooLarge
from rerail.model.partitions import PARTITIONS, find_partition
from rerail.model.run import Run, TimelineEntry

INDEX = "open"
MAX_REASON_CHARS = 10_000
MOST_UNPUBLISHED = 100  # in a record that is too large
# A transaction has a hundred items at most.
MOST_NEW_ATTEMPTS = 90


class DynamoRuns:
    """The port `Runs` on one table."""

    def __init__(self, table: str, clock: Callable[[], float] = time.time) -> None:
        """`clock` returns the seconds since 1970."""
        self._table, self._clock = table, clock

    def load(self, run_id: str) -> Run | None:
        item = self._get(f"run#{run_id}", "run")
        return _run(item) if item else None

    def save(self, run: Run, entry: TimelineEntry | None = None, request: Mapping[str, Any] | None = None) -> None:
        before = run.version - 1
        writes = [{"Put": {"TableName": self._table, "Item": _run_item(run), **expect_version(before)}}]
        # A new record that was rebuilt from the tags of a relaunched job has earlier attempts, whose events come too.
        attempts = run.attempts[-1:] if before else (*run.attempts[:1], *run.attempts[1:][-MOST_NEW_ATTEMPTS:])
        writes += [self._put(f"job#{attempt.job_name}", "job", run={"S": run.id}) for attempt in attempts]
        if entry:
            writes.append(self._put(f"run#{run.id}", f"timeline#{entry.version:06d}", doc=_make_entry_doc(entry)))
        if request is not None:
            writes.append(self._put(f"run#{run.id}", "request", doc=_make_request_doc(request)))
        try:
            client("dynamodb").transact_write_items(TransactItems=writes)
        except ClientError as error:
            if _is_conflict(error):
                raise Conflict(f"run {run.id} has another version than {before}") from error
            raise

    def request(self, run_id: str) -> Mapping[str, Any]:
        item = self._get(f"run#{run_id}", "request")
        if item is None:
            raise RequestRefused(f"no request is stored for run {run_id!r}; start the job again by hand")
        with validate(f"the stored request of {run_id}"):
            request: dict[str, Any] = json.loads(read_text(item, "request"))
        return request

    def run_of(self, job_name: str) -> str | None:
        item = self._get(f"job#{job_name}", "job")
        with validate("GetItem"):
            return str(item["run"]["S"]) if item and "run" in item else None

    def ignore(self, job_name: str, reason: str, *, until: datetime) -> bool:
        expires = str(int(until.timestamp()))
        item = {**_key(f"job#{job_name}", "job"), "ignored": {"S": reason}, "expires": {"N": expires}}
        # DynamoDB deletes what has expired within days.
        free = "attribute_not_exists(pk) OR expires < :now"
        now = {":now": {"N": str(int(self._clock()))}}
        return put_if({"ConditionExpression": free, "ExpressionAttributeValues": now}, self._table, item)

    def is_ignored(self, job_name: str) -> bool:
        item = self._get(f"job#{job_name}", "job")
        with validate("GetItem"):
            return item is not None and "ignored" in item and int(item["expires"]["N"]) > self._clock()

    def confirm_delivery(self, id: str, *, until: datetime) -> None:
        expires = {"N": str(int(until.timestamp()))}
        client("dynamodb").put_item(**self._put(f"check#{id}", "check", expires=expires)["Put"])

    def find_unknown_jobs(self, job_names: Collection[str]) -> set[str]:
        names = set(job_names)
        with validate("BatchGetItem"):
            found = read(self._table, [_key(f"job#{name}", "job") for name in sorted(names)], only="pk, expires")
            known = (item for item in found if "expires" not in item or int(item["expires"]["N"]) > self._clock())
            return names - {item["pk"]["S"].removeprefix("job#") for item in known}

    def open_runs(self, parts: Iterable[int] = range(PARTITIONS)) -> Iterator[tuple[str, Run | None]]:
        for part in parts:
            yield from map(_named_run, query_index(self._table, f"open#{part}"))

    def all_runs(self) -> Iterator[tuple[str, Run | None]]:
        """Yield name and record of every run, open or ended; the record is None if another version wrote it.

        This scans the table: it is for the command line, not for the functions."""
        values = {":run": {"S": "run"}}
        scan = client("dynamodb").get_paginator("scan")
        pages = scan.paginate(TableName=self._table, FilterExpression="sk = :run", ExpressionAttributeValues=values)
        yield from map(_named_run, list_items(pages))

    def timeline(self, run_id: str) -> Sequence[TimelineEntry]:
        """Return the run's decisions, oldest first."""
        entries = query(
            self._table,
            KeyConditionExpression="pk = :run AND begins_with(sk, :timeline)",
            ExpressionAttributeValues={":run": {"S": f"run#{run_id}"}, ":timeline": {"S": "timeline#"}},
        )
        return [record(TimelineEntry, item) for item in entries]

    def _get(self, pk: str, sk: str) -> Mapping[str, Any] | None:
        answer = client("dynamodb").get_item(TableName=self._table, Key=_key(pk, sk), ConsistentRead=True)
        item: Mapping[str, Any] | None = answer.get("Item")
        return item

    def _put(self, pk: str, sk: str, **attributes: Mapping[str, str]) -> dict[str, Any]:
        return {"Put": {"TableName": self._table, "Item": {**_key(pk, sk), **attributes}}}


def query_index(table: str, partition: str) -> Iterator[Mapping[str, Any]]:
    """Yield the items in one partition of the sparse index."""
    yield from query(
        table,
        IndexName=INDEX,
        KeyConditionExpression="#open = :part",
        ExpressionAttributeNames={"#open": INDEX},
        ExpressionAttributeValues={":part": {"S": partition}},
    )


def _run_item(run: Run) -> dict[str, Any]:
    item = {
        **_key(f"run#{run.id}", "run"),
        "doc": run_doc(run),
        "version": {"N": str(run.version)},
        "state": {"S": run.state.value},
    }
    if run.is_swept:
        item[INDEX] = {"S": f"open#{find_partition(run.id)}"}
    return item


def _named_run(item: Mapping[str, Any]) -> tuple[str, Run | None]:
    """Return name and record; the record is None if another version wrote it, so that the sweep can go on."""
    name = ""
    try:
        name = str(item["pk"]["S"]).removeprefix("run#")
        return name, _run(item)
    except (BadRecord, LookupError, TypeError):
        return name, None


def _run(item: Mapping[str, Any]) -> Run:
    run = record(Run, item)
    if not run.attempts:
        raise BadRecord(f"Run.attempts: the run {run.id:.100} has none")
    return run


def run_doc(run: Run) -> dict[str, Any]:
    """Return the record as an attribute; a long one is compressed (each attempt adds a thousand bytes or more).

    One that is too large loses the texts of earlier attempts, and the oldest events that the bus has not taken: if it
    could not be recorded, nothing would be done for the run any more.
    """
    doc = make_doc(dumps(run))
    return doc if fits(doc) else make_doc(dumps(_without_earlier_texts(run)))


def _without_earlier_texts(run: Run) -> Run:
    return replace(
        run,
        attempts=(*(replace(attempt, failure_reason="") for attempt in run.attempts[:-1]), run.current),
        incidents=(
            *(replace(incident, reason="", evidence="", actions=()) for incident in run.incidents[:-1]),
            *run.incidents[-1:],
        ),
        unpublished=run.unpublished[-MOST_UNPUBLISHED:],
    )


def _make_entry_doc(entry: TimelineEntry) -> dict[str, Any]:
    """Return the entry as an attribute; one that is too large loses its signal and its facts, then its actions.

    A signal may list all checkpoints of a large folder. The decision is recorded in any case.
    """
    bare = replace(entry, signal={}, inputs={}, reason=entry.reason[:MAX_REASON_CHARS])
    docs = (make_doc(dumps(variant)) for variant in (entry, bare, replace(bare, actions=())))
    return next((doc for doc in docs if fits(doc)), {"S": dumps(replace(bare, actions=(), finding=""))})


def _make_request_doc(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request as an attribute; raise RequestTooLarge if it does not fit, even compressed."""
    doc = make_doc(json.dumps(request, default=_json))
    if not fits(doc):
        raise RequestTooLarge("its request is too long to be stored, even compressed; shorten its HyperParameters")
    return doc


def _key(pk: str, sk: str) -> dict[str, Any]:
    return {"pk": {"S": pk}, "sk": {"S": sk}}


def _is_conflict(error: ClientError) -> bool:
    if error.response["Error"]["Code"] != "TransactionCanceledException":
        return False
    reasons = error.response.get("CancellationReasons", [])
    return any(reason.get("Code") in ("ConditionalCheckFailed", "TransactionConflict") for reason in reasons)


def _json(value: Any) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    raise TypeError(f"a request contains a {type(value).__name__}, which JSON cannot represent")
