"""Store the detector states of each run in the table of runs: `watch#<run>` with sort key `watch`."""

from collections.abc import Mapping, Sequence
from typing import Any

from rerail.aws.records import pack, read, record, write
from rerail.detection.evaluate import RunDetection
from rerail.model.codec import BadRecord, dumps


class DynamoDetections:
    """The port `RunDetections` on one table."""

    def __init__(self, table: str) -> None:
        self._table = table

    def recall(self, run_ids: Sequence[str]) -> Mapping[str, RunDetection]:
        states = map(_read_state, read(self._table, [_key(run) for run in sorted(set(run_ids))]))
        return {state.run: state for state in states if state}

    def keep(self, memories: Sequence[RunDetection]) -> None:
        write(self._table, [{**_key(memory.run), "doc": pack(dumps(memory))} for memory in memories])


def _read_state(item: Mapping[str, Any]) -> RunDetection | None:
    """Return the state, or None if another version wrote it: detectors relearn within a few rows."""
    try:
        return record(RunDetection, item)
    except BadRecord:
        return None


def _key(run: str) -> dict[str, Any]:
    return {"pk": {"S": f"watch#{run}"}, "sk": {"S": "watch"}}
