"""Compare where the ranks stand in a hang, and name those that the others wait for.

A rank that makes no progress writes its position into torch.distributed's store again and again, from before any rank
reports the hang. Rank 0 reads all of them. The flight recorder decides where torch has one; else the stacks, if most
ranks wait in one collective. The store may block for as long as a rank is lost, so each access has a thread of its own.
"""

import json
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, astuple, dataclass
from functools import partial
from types import NoneType
from typing import NamedTuple

from rerail_agent import stack_dump
from rerail_agent.agreement import Agreement, get_store
from rerail_agent.fault_isolation import FaultIsolation, print_line
from rerail_agent.progress import Progress

# Positions are JSON instead of pickles, and of limited size: anyone who reaches the store can write to it.
KEY, MOST_BYTES = "rerail/position/", 4 << 20
PAUSE_S, COMPARING_S = 0.1, 5.0
# Operations of the flight recorder that a rank sends: the oldest open ones, and the newest.
SENT_OPERATIONS = 60
# Comparing the records of more ranks takes too long.
RECORDS_LIMIT = 1024
NAMED = 4


@dataclass(frozen=True, slots=True)
class StalledRank:
    """The position of a rank that makes no progress."""

    step: int | None
    # Host and GPU.
    place: str
    # The innermost function of the main thread, and that of the script, each with file and line.
    function: str
    script: str
    # The call of torch.distributed that the main thread is in; empty if it is in none.
    collective: str = ""
    # What torch's flight recorder has, as JSON; empty if it is switched off.
    recorded: str = ""
    # Whether its main thread executes code, it reads or writes files, or its child processes compute.
    works: bool = False

    @classmethod
    def find(cls, step: int | None, place: str, *, after_s: float) -> "StalledRank":
        """Return the position of this process, and whether it has worked for so long."""
        works = not stack_dump.stands_still(after_s)
        function, script, collective = stack_dump.find_functions()
        recorded = _shorten(stack_dump.dump_flight_recorder())
        return cls(step, place, function, script, collective, recorded, works)

    @classmethod
    def read(cls, content: bytes) -> "StalledRank | None":
        """Return the position that a rank has sent; None for any other content, which strangers may have written."""
        try:
            position = cls(**json.loads(zlib.decompressobj().decompress(content, MOST_BYTES)))
        except (zlib.error, ValueError, TypeError, RecursionError):
            return None
        step, *texts, works = astuple(position)
        is_valid = type(step) in (int, NoneType) and isinstance(works, bool)
        return position if is_valid and all(isinstance(text, str) for text in texts) else None

    @property
    def where(self) -> str:
        """Return the function that the rank is in, and the one of the script that called it."""
        return self.function if self.function == self.script else f"{self.function}, called by {self.script}"


class Culprits(NamedTuple):
    """The ranks that the others wait for, in words; empty if none stands out."""

    text: str = ""
    # Whether one of them works, as in an evaluation or a save of its own.
    works: bool = False


def _shorten(dump: bytes) -> str:
    """Return the dump with the operations that tell who waits for whom; "" if there is none."""
    if not dump:
        return ""
    table = json.loads(dump)
    entries = sorted(table["entries"], key=lambda entry: int(entry["record_id"]))
    open_ids = [entry["record_id"] for entry in entries if entry.get("state") != "completed"][:SENT_OPERATIONS]
    kept = {*open_ids, *(entry["record_id"] for entry in entries[-SENT_OPERATIONS:])}
    return json.dumps({**table, "entries": [entry for entry in entries if entry["record_id"] in kept]})


class StallExchange:
    """Send this rank's position to rank 0; there, compare those of all ranks. For the watchdog's thread."""

    def __init__(self, agreement: Agreement, progress: Progress, isolation: FaultIsolation) -> None:
        self._agreement, self._progress, self._isolation = agreement, progress, isolation
        self._writing: threading.Thread | None = None

    def post(self, after_s: float) -> None:
        """Write the position of a rank other than 0 in the background, unless the last write still waits.

        Whether it works is observed for so long.
        """
        is_free = self._writing is None or not self._writing.is_alive()
        if is_free and self._agreement.rank and self._agreement.size > 1:
            self._writing = self._start(lambda: self._write(after_s))

    def find_culprits(self, within_s: float) -> Culprits:
        """Return, on rank 0, which ranks the others wait for.

        Wait for the positions of other ranks for at most this time.
        """
        found: list[Culprits] = []
        if not self._agreement.rank and self._agreement.size > 1:
            self._start(lambda: found.append(self._compare(within_s))).join(within_s + COMPARING_S)
        return found[0] if found else Culprits()

    def _start(self, work: Callable[[], None]) -> threading.Thread:
        run = partial(self._isolation.once, "rank positions", work, None)
        thread = threading.Thread(target=run, name="rerail-positions", daemon=True)
        thread.start()
        return thread

    def _find(self, after_s: float) -> StalledRank:
        return StalledRank.find(self._progress.step, self._agreement.place or "an unknown host", after_s=after_s)

    def _write(self, after_s: float) -> None:
        content = zlib.compress(json.dumps(asdict(self._find(after_s))).encode())
        get_store().set(f"{KEY}{self._agreement.rank}", content)

    def _compare(self, within_s: float) -> Culprits:
        size, store = self._agreement.size, get_store()
        positions: dict[int, StalledRank | None] = {0: self._find(0.0)}
        deadline = time.monotonic() + within_s
        while len(positions) < size:
            for rank in range(1, size):
                if rank not in positions and store.check([f"{KEY}{rank}"]):
                    positions[rank] = StalledRank.read(store.get(f"{KEY}{rank}"))
            if time.monotonic() > deadline:
                break
            time.sleep(PAUSE_S)
        readable = {rank: position for rank, position in positions.items() if position}
        return describe_culprits(readable, size=size, find_place=self._agreement.find_place)


def describe_culprits(positions: Mapping[int, StalledRank], *, size: int, find_place: Callable[[int], str]) -> Culprits:
    """Return the ranks that the others wait for, each with the reason and its place."""
    own = positions[0].step or 0
    # Another step: what the rank wrote is of an earlier standstill.
    known = {rank: position for rank, position in positions.items() if abs((position.step or 0) - own) <= 1}
    silent = range(size) - positions.keys()
    culprits = (known == positions and _find_by_records(known)) or _find_by_stacks(known, silent, size)
    named = []
    for rank, why in list(culprits.items())[:NAMED]:
        position = positions.get(rank)
        here = f"; it {'works' if position.works else 'is'} in {position.where}" if position else ""
        named.append(f"rank {rank} on {position.place if position else find_place(rank)}: {why}{here}")
    if len(culprits) > NAMED:
        named.append(f"the same of {len(culprits) - NAMED} more")
    if named and (waiting := next((rank for rank in sorted(positions) if rank not in culprits), None)) is not None:
        named.append(f"rank {waiting} waits in {positions[waiting].script}")
    return Culprits("; ".join(named), any(rank in known and known[rank].works for rank in culprits))


def _find_by_records(positions: Mapping[int, StalledRank]) -> dict[int, str]:
    """Return the culprits by torch's flight recorder, if each rank that answers has one that can be read."""
    if len(positions) > RECORDS_LIMIT or not all(position.recorded for position in positions.values()):
        return {}
    from rerail.model.flight_recorder import find_culprits, read_dump

    dumps = {}
    for rank, position in positions.items():
        try:
            dumps[rank] = read_dump(position.recorded.encode())
        except ValueError as error:
            print_line(f"the flight recorder of rank {rank} cannot be compared: {error}")
            return {}
    return find_culprits(dumps)


def _find_by_stacks(known: Mapping[int, StalledRank], silent: Collection[int], size: int) -> dict[int, str]:
    """Return the ranks that are in no collective, or send nothing, while most of the others wait in the same one."""
    waiting = {rank: (there.collective, there.script) for rank, there in known.items() if there.collective}
    if not waiting:
        return {}
    (usual, count), *_ = Counter(waiting.values()).most_common(1)
    if 2 * count < size:
        return {}
    first = next(rank for rank, place in waiting.items() if place == usual)
    others = f"rank {first} waits" if count == 1 else f"rank {first} and {count - 1} more wait"
    culprits = dict.fromkeys(silent, f"it does not answer; {others} in {usual[0]}")
    culprits |= dict.fromkeys(known.keys() - waiting.keys(), f"it has not entered {usual[0]}, where {others}")
    return dict(sorted(culprits.items()))
