"""Store the detector states of each run in the table of runs: `watch#<run>` with sort key `watch`."""

from collections.abc import Mapping, Sequence
from typing import Any

from rerail.aws.records import find_record, pack, read, write
from rerail.detection.evaluate import RunDetection
from rerail.model.codec import dumps


class DynamoDetections:
    """The port `RunDetections` on one table."""

    def __init__(self, table: str) -> None:
        self._table = table

    def recall(self, run_ids: Sequence[str]) -> Mapping[str, RunDetection]:
        items = read(self._table, [_key(run) for run in sorted(set(run_ids))])
        # Without a state that another version wrote, the detectors relearn within a few rows.
        states = (find_record(RunDetection, item) for item in items)
        return {state.run: state for state in states if state}

    def keep(self, memories: Sequence[RunDetection]) -> None:
        write(self._table, [{**_key(memory.run), "doc": pack(dumps(memory))} for memory in memories])


def _key(run: str) -> dict[str, Any]:
    return {"pk": {"S": f"watch#{run}"}, "sk": {"S": "watch"}}
