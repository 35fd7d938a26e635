"""What happens to a save after it is staged: written, reported, and committed once every rank is done.

One thread in each rank, which mostly waits. Rank 0's gathers the reports and commits; a rank that does not report in
time costs this checkpoint and nothing else.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from rerail_agent.checkpoints.manifest import Manifest, folder_name
from rerail_agent.checkpoints.plan import FileIndex, Spot
from rerail_agent.checkpoints.rank_exchange import RankExchange, RanksSilent
from rerail_agent.checkpoints.store import CheckpointStore
from rerail_agent.checkpoints.writer import Commit, Reveal, Task, Write, Writer, WriterGone


@dataclass(frozen=True)
class CommitResult:
    """How a save ended. `error` says why there is no checkpoint; without it there is one at `path`.

    `durability`: "remote" when it outlives the machine, "local" when it has still to be uploaded. `seconds`: from the
    call of save() until then.
    """

    step: int
    path: str
    durability: str
    seconds: float
    manifest: Manifest
    error: str | None = None


@dataclass(frozen=True)
class SharedDisks:
    """Which ranks see the same files: `groups` of them, the first one rank 0's, led by the lowest rank of each."""

    groups: tuple[tuple[int, ...], ...]

    def of(self, rank: int) -> tuple[int, ...]:
        return next(group for group in self.groups if rank in group)

    def is_led_by(self, rank: int) -> bool:
        return any(group[0] == rank for group in self.groups)

    @property
    def other_leaders(self) -> list[int]:
        return [group[0] for group in self.groups[1:]]


@dataclass(frozen=True)
class PendingCheckpoint:
    """One staged save on its way."""

    number: int
    manifest: Manifest
    write: Write
    spots: dict[str, Spot]
    index: FileIndex | None
    writer: Writer
    started: float
    after: Callable[[CommitResult], None] | None


class CommitQueue:
    """Brings saves to their end, one after the other, in a thread of its own."""

    def __init__(
        self,
        exchange: RankExchange,
        place: CheckpointStore,
        disks: SharedDisks,
        *,
        tell: Callable[[str], None],
        patience_s: float,
    ) -> None:
        self.exchange, self.place, self.disks, self.tell = exchange, place, disks, tell
        self.patience_s = patience_s
        self.retire: Callable[[Manifest], Iterable[int]] = lambda newest: ()
        self._saves: queue.Queue[PendingCheckpoint | None] = queue.Queue()
        self._retired: deque[int] = deque()
        self._finished: deque[CommitResult] = deque()
        self._lock = threading.Condition()
        self._under_way = 0
        self._in_arena = 0
        self._thread = threading.Thread(target=self._run, name="rerail-checkpoints", daemon=True)
        self._thread.start()

    def submit(self, save: PendingCheckpoint) -> None:
        with self._lock:
            self._under_way += 1
            self._in_arena += 1
        self._saves.put(save)

    def await_arena(self) -> float:
        """Returns when nothing staged is still to be written; the seconds that took."""
        started = time.monotonic()
        with self._lock:
            self._lock.wait_for(lambda: self._in_arena == 0)
        return time.monotonic() - started

    def await_end(self, timeout_s: float | None) -> bool:
        """Whether every save has come to its end within the time."""
        with self._lock:
            return self._lock.wait_for(lambda: self._under_way == 0, timeout_s)

    def finished(self) -> list[CommitResult]:
        with self._lock:
            ended = list(self._finished)
            self._finished.clear()
        return ended

    def close(self) -> None:
        self._retired.clear()
        self._closing = True
        self._saves.put(None)
        self._thread.join(timeout=5)

    _closing = False

    def _run(self) -> None:
        while not self._closing:
            try:
                save = self._saves.get(block=not self._retired)
            except queue.Empty:
                self._drop(self._retired.popleft())
                continue
            if save is not None:
                self._bring(save)

    def _bring(self, save: PendingCheckpoint) -> None:
        try:
            report = self._written(save)
        finally:
            with self._lock:
                self._in_arena -= 1
                self._lock.notify_all()
        try:
            ended = self._lead(save, report) if self.exchange.rank == 0 else self._follow(save, report)
        except Exception as error:  # nothing may end this thread: a later save would never be written
            ended = self._failed(save, f"{type(error).__name__}: {error}")
        self._conclude(save, ended)

    def _conclude(self, save: PendingCheckpoint, ended: CommitResult) -> None:
        if save.after is not None:
            try:
                save.after(ended)
            except Exception as error:  # the caller's own code
                self.tell(f"after the save of {folder_name(ended.step)}: {type(error).__name__}: {error}")
        with self._lock:
            self._finished.append(ended)
            self._under_way -= 1
            self._lock.notify_all()

    def _written(self, save: PendingCheckpoint) -> dict[str, Any]:
        """This rank's report: its file and where its values lie in it, or what went wrong."""
        try:
            return {"file": self._perform(save, save.write), "spots": save.spots}
        except Exception as error:  # a full disk, no route to S3: the other ranks have to hear of it
            return {"error": str(error) or type(error).__name__}

    def _perform(self, save: PendingCheckpoint, task: Task) -> Any:
        try:
            return save.writer.perform(task)
        except WriterGone as gone:
            self.tell(
                f"the process that writes checkpoints for rank {self.exchange.rank} is gone ({gone});"
                " from now on a thread of the training process does its work"
            )
            return save.writer.perform(task)

    def _lead(self, save: PendingCheckpoint, report: dict[str, Any]) -> CommitResult:
        try:
            ended = self._commit(save, report)
        except Exception as error:  # the other ranks wait for an outcome
            ended = self._failed(save, f"{type(error).__name__}: {error}")
        retired = self._to_retire(ended)
        self.exchange.post(self._key("outcome", save.number), (ended, retired))
        for kind in ("outcome", "go"):
            self.exchange.store.delete_key(self._key(kind, save.number - 2))  # everyone has read it by now
        self._retired.extend(step for step in retired if step not in self._retired)
        return ended

    def _to_retire(self, ended: CommitResult) -> list[int]:
        try:
            return list(self.retire(ended.manifest)) if ended.error is None else []
        except OSError as error:
            self.tell(f"outdated checkpoints could not be looked for: {error}")
            return []

    def _commit(self, save: PendingCheckpoint, report: dict[str, Any]) -> CommitResult:
        try:
            reports = [report, *self._reports(save)]
            errors = [f"rank {rank}: {each['error']}" for rank, each in enumerate(reports) if "error" in each]
            if self.disks.other_leaders:
                errors += self._place_elsewhere(save, go=not errors)
        except RanksSilent as silent:
            errors = [str(silent)]
        if errors:
            self.place.discard(save.manifest.step)
            return self._failed(save, "; ".join(errors[:4]))
        assert save.index is not None
        write_s = round(time.monotonic() - save.started, 4)
        manifest = replace(save.manifest, files=tuple(each["file"] for each in reports), write_s=write_s)
        metadata = save.index.content([each["spots"] for each in reports])
        try:
            complete = self._perform(save, Commit(self.place, manifest, metadata))
        except OSError as error:
            self.place.discard(save.manifest.step)
            return self._failed(save, str(error))
        seconds = time.monotonic() - save.started
        return CommitResult(complete.step, self.place.path(complete.step), self.place.durability, seconds, complete)

    def _reports(self, save: PendingCheckpoint) -> list[dict[str, Any]]:
        keys = [self._key("report", save.number, rank) for rank in range(1, self.exchange.world_size)]
        self.exchange.await_all(keys, self.patience_s)
        return [self.exchange.take(key) for key in keys]

    def _place_elsewhere(self, save: PendingCheckpoint, *, go: bool) -> list[str]:
        """Has the files on other nodes' disks put in their place before the manifest says that they are there."""
        self.exchange.post(self._key("go", save.number), go)
        keys = [self._key("placed", save.number, leader) for leader in self.disks.other_leaders]
        self.exchange.await_all(keys, self.patience_s)
        return [error for key in keys if (error := self.exchange.take(key))]

    def _follow(self, save: PendingCheckpoint, report: dict[str, Any]) -> CommitResult:
        rank, exchange = self.exchange.rank, self.exchange
        exchange.post(self._key("report", save.number, rank), report)
        if rank in self.disks.other_leaders:
            go = self._key("go", save.number)
            exchange.await_all([go], self.patience_s)
            exchange.post(self._key("placed", save.number, rank), self._placed(save, go=exchange.read(go)))
        outcome = self._key("outcome", save.number)
        exchange.await_all([outcome], 2 * self.patience_s)
        ended, retired = exchange.read(outcome)
        if rank in self.disks.other_leaders:
            self._retired.extend(retired)
        return ended if isinstance(ended, CommitResult) else self._failed(save, "an outcome that cannot be read")

    def _placed(self, save: PendingCheckpoint, *, go: bool) -> str:
        if not go:
            self.place.discard(save.manifest.step)
            return ""
        try:
            self._perform(save, Reveal(self.place, save.manifest.step))
        except OSError as error:
            return f"rank {self.exchange.rank}: {error}"
        return ""

    def _failed(self, save: PendingCheckpoint, error: str) -> CommitResult:
        step, seconds = save.manifest.step, time.monotonic() - save.started
        return CommitResult(step, self.place.path(step), self.place.durability, seconds, save.manifest, error)

    def _drop(self, step: int) -> None:
        try:
            self.place.drop(step)
        except OSError as error:
            self.tell(f"{folder_name(step)} is out of date and could not be deleted: {error}")

    @staticmethod
    def _key(kind: str, number: int, rank: int | None = None) -> str:
        return f"{kind}-{number}" if rank is None else f"{kind}-{number}/{rank}"
