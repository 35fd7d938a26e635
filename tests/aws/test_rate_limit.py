"""The count of the account's relaunches in DynamoDB: one item, and nobody overwrites what somebody else has counted."""

from datetime import UTC, datetime, timedelta

import pytest

from rerail.aws.clients import client
from rerail.aws.rate_limit import DynamoRateLimit
from rerail.model.errors import Throttled
from rerail.model.rate_limit import LaunchRequest

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def ask(table: str, name: str, limit: int = 2):
    return DynamoRateLimit(table).admit(LaunchRequest(name), at=NOON, limit=limit, window=HOUR)


def test_launches_are_counted_over_all_functions(table):
    """Each call is another process: what counts lies in the table, in one item."""
    assert [ask(table, name).granted for name in ("gpt-a002", "gpt-a002", "bert-a002", "moe-a002")] == [
        True,
        True,
        True,
        False,
    ]
    assert client("dynamodb").scan(TableName=table)["Count"] == 1


def test_an_error_is_shared_over_all_functions(table):
    """Five runs that failed with it are relaunched; the sixth waits, and the first that pages does so for all."""
    for number in range(6):
        request = LaunchRequest(f"run{number}-a002", f"run{number}", "error")
        answer = DynamoRateLimit(table).admit(request, at=NOON, limit=9, window=HOUR)
    assert (answer.granted, sorted(answer.tries), answer.paged_at) == (False, [f"run{n}" for n in range(5)], NOON)
    for minutes, paged_by in ((1, "run5"), (59, "run5"), (120, "run0")):
        assert DynamoRateLimit(table).claim_page("run0", "error", at=NOON + minutes * HOUR / 60) == paged_by


def test_two_at_once_are_not_both_the_last_one(table, monkeypatch):
    """Somebody counts between our look and our write: we look again."""
    rate_limit, load = DynamoRateLimit(table), DynamoRateLimit._load
    others = iter(["bert-a002"])

    def late(self):
        before = load(self)
        for name in others:
            ask(table, name, limit=1)
        return before

    monkeypatch.setattr(DynamoRateLimit, "_load", late)
    answer = rate_limit.admit(LaunchRequest("gpt-a002"), at=NOON, limit=1, window=HOUR)
    assert (answer.granted, answer.count) == (False, 1)


def test_a_count_that_never_stands_still_is_asked_for_later(table, monkeypatch):
    """The launch stays owed."""
    monkeypatch.setattr(DynamoRateLimit, "_keep", lambda self, launches, version: False)
    with pytest.raises(Throttled, match="try again later"):
        ask(table, "gpt-a002")


def test_an_hour_of_relaunches_fits_into_one_item(table):
    """As many as CreateTrainingJob takes in an hour at two a second would be three times this: 400 KB is the limit."""
    rate_limit = DynamoRateLimit(table)
    for number in range(150):
        rate_limit.admit(LaunchRequest(f"{'x' * 55}-a{number:05d}"), at=NOON, limit=1000, window=HOUR)
    (item,) = client("dynamodb").scan(TableName=table)["Items"]
    assert len(item["doc"]["S"]) / 150 * 7200 < 400_000
