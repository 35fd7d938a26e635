"""What the detectors remember, in the table: many at once, and one of another version begins afresh."""

import zlib
from datetime import UTC, datetime

import pytest

from rerail.aws.clients import client
from rerail.aws.detector_states import DynamoDetections
from rerail.aws.records import READ_BATCH
from rerail.detection.detectors import DetectorState, evaluate_sample
from rerail.detection.evaluate import RunDetection
from rerail.model.metrics import Cursor
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds
from tests.aws.places import TABLE

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
def memories(table) -> DynamoDetections:
    return DynamoDetections(table)


def learnt(rows: int) -> DetectorState:
    watch = DetectorState()
    for row in range(rows):
        watch, _ = evaluate_sample(
            watch, Sample(step=row, at=NOON, loss=2.0 + row % 7 / 100, step_time_s=0.5), Thresholds()
        )
    return watch


def test_stored_detectors_are_loaded_and_find_the_same(memories):
    """A state that went through the table says the same of the next sample as one that did not."""
    watch = learnt(120)
    memories.keep([RunDetection("gpt", Cursor("gpt-a002", read_to=NOON, step=119), watch)])
    recalled = memories.recall(["gpt", "llama"])
    assert list(recalled) == ["gpt"]
    assert recalled["gpt"].cursor == Cursor("gpt-a002", read_to=NOON, step=119)
    spike = Sample(step=120, at=NOON, loss=20.0, step_time_s=0.5)
    assert (
        evaluate_sample(recalled["gpt"].detectors, spike, Thresholds())[1]
        == evaluate_sample(watch, spike, Thresholds())[1]
        != ()
    )


def test_more_than_a_batch_is_kept_and_recalled(memories):
    names = [f"run-{number}" for number in range(READ_BATCH + 7)]
    memories.keep([RunDetection(name, Cursor(name)) for name in names])
    assert sorted(memories.recall(names)) == sorted(names)


def test_a_memory_of_another_version_begins_afresh(memories):
    """It is a cache of what the metrics said: learnt again within some rows."""
    memories.keep([RunDetection("gpt", Cursor("gpt"))])
    key = {"pk": {"S": "watch#gpt"}, "sk": {"S": "watch"}}
    client("dynamodb").put_item(TableName=TABLE, Item={**key, "doc": {"B": zlib.compress(b'{"schema": 99}')}})
    assert memories.recall(["gpt"]) == {}
