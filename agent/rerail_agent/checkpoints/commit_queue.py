"""Write staged saves, report them to rank 0, and commit each once every rank is done.

Each rank has one thread, which mostly waits. Rank 0's gathers the reports and commits. A rank that does not report in
time costs this checkpoint and nothing else.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from rerail_agent.checkpoints.manifest import Manifest, make_folder_name
from rerail_agent.checkpoints.plan import FileIndex, Spot
from rerail_agent.checkpoints.rank_exchange import RankExchange, RanksTimedOut
from rerail_agent.checkpoints.store import CheckpointStore
from rerail_agent.checkpoints.writer import Commit, Reveal, Task, Write, Writer, WriterGone


@dataclass(frozen=True)
class CommitResult:
    """The result of a save."""

    step: int
    path: str
    # "remote" when it outlives the machine, "local" when it still has to be uploaded.
    durability: str
    # From the call of save() to the end.
    seconds: float
    manifest: Manifest
    # The error that prevented the checkpoint; None: it is at `path`.
    error: str | None = None


@dataclass(frozen=True)
class SharedDisks:
    """The groups of ranks that see the same files."""

    # The first group is rank 0's; the lowest rank of each group leads it.
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
    """One staged save that is not committed yet."""

    number: int
    manifest: Manifest
    write: Write
    spots: dict[str, Spot]
    index: FileIndex | None
    writer: Writer
    started: float
    after: Callable[[CommitResult], None] | None


class CommitQueue:
    """Write and commit saves, one after the other, in a thread."""

    def __init__(
        self,
        exchange: RankExchange,
        place: CheckpointStore,
        disks: SharedDisks,
        *,
        log: Callable[[str], None],
        patience_s: float,
    ) -> None:
        self.exchange, self.place, self.disks, self.log = exchange, place, disks, log
        self.patience_s = patience_s
        self.find_outdated: Callable[[Manifest], Iterable[int]] = lambda newest: ()
        self._saves: queue.Queue[PendingCheckpoint | None] = queue.Queue()
        self._outdated: deque[int] = deque()
        self._finished: deque[CommitResult] = deque()
        self._posted: deque[int] = deque()
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
        """Return the seconds it took, once nothing staged is still to be written."""
        started = time.monotonic()
        with self._lock:
            self._lock.wait_for(lambda: self._in_arena == 0)
        return time.monotonic() - started

    def await_end(self, timeout_s: float | None) -> bool:
        """Return whether every save has ended within the time."""
        with self._lock:
            return self._lock.wait_for(lambda: self._under_way == 0, timeout_s)

    def finished(self) -> list[CommitResult]:
        with self._lock:
            ended = list(self._finished)
            self._finished.clear()
        return ended

    def close(self) -> None:
        self._outdated.clear()
        self._closing = True
        self._saves.put(None)
        self._thread.join(timeout=5)

    _closing = False

    def _run(self) -> None:
        while not self._closing:
            try:
                save = self._saves.get(block=not self._outdated)
            except queue.Empty:
                self._delete(self._outdated.popleft())
                continue
            if save is not None:
                self._process(save)

    def _process(self, save: PendingCheckpoint) -> None:
        try:
            report = self._write(save)
        finally:
            with self._lock:
                self._in_arena -= 1
                self._lock.notify_all()
        try:
            ended = (
                self._commit_as_leader(save, report) if self.exchange.rank == 0 else self._report_and_wait(save, report)
            )
        except Exception as error:  # no error may end this thread: a later save would never be written
            ended = self._failed(save, f"{type(error).__name__}: {error}")
        self._finish(ended, save.after)
        with self._lock:
            self._under_way -= 1
            self._lock.notify_all()

    def give_up(self, number: int, ended: CommitResult, after: Callable[[CommitResult], None] | None) -> None:
        """End a save that this rank does not submit; the others may, and then need its report."""
        if self.exchange.rank:
            self.exchange.post(self._key("report", number, self.exchange.rank), {"error": ended.error})
        self._finish(ended, after)

    def _finish(self, ended: CommitResult, after: Callable[[CommitResult], None] | None) -> None:
        if after is not None:
            try:
                after(ended)
            except Exception as error:  # the caller's own code
                self.log(f"after the save of {make_folder_name(ended.step)}: {type(error).__name__}: {error}")
        with self._lock:
            self._finished.append(ended)

    def _write(self, save: PendingCheckpoint) -> dict[str, Any]:
        """Return this rank's report: its file and the positions of its values, or the error."""
        try:
            return {"file": self._perform(save, save.write), "spots": save.spots}
        except Exception as error:  # a full disk, no route to S3: the other ranks need the error
            return {"error": str(error) or type(error).__name__}

    def _perform(self, save: PendingCheckpoint, task: Task) -> Any:
        try:
            return save.writer.perform(task)
        except WriterGone as gone:
            self.log(
                f"the process that writes checkpoints for rank {self.exchange.rank} is gone ({gone});"
                " from now on a thread of the training process does its work"
            )
            return save.writer.perform(task)

    def _commit_as_leader(self, save: PendingCheckpoint, report: dict[str, Any]) -> CommitResult:
        try:
            ended = self._commit(save, report)
        except Exception as error:  # the other ranks wait for an outcome
            ended = self._failed(save, f"{type(error).__name__}: {error}")
        outdated = self._find_outdated(ended)
        self.exchange.post(self._key("outcome", save.number), (ended, outdated))
        self._posted.append(save.number)
        if len(self._posted) > 2:  # everyone has read it by now
            number = self._posted.popleft()
            for kind in ("outcome", "go"):
                self.exchange.store.delete_key(self._key(kind, number))
        self._outdated.extend(step for step in outdated if step not in self._outdated)
        return ended

    def _find_outdated(self, ended: CommitResult) -> list[int]:
        try:
            return list(self.find_outdated(ended.manifest)) if ended.error is None else []
        except OSError as error:
            self.log(f"outdated checkpoints could not be looked for: {error}")
            return []

    def _commit(self, save: PendingCheckpoint, report: dict[str, Any]) -> CommitResult:
        try:
            reports = [report, *self._reports(save)]
            errors = [f"rank {rank}: {report['error']}" for rank, report in enumerate(reports) if "error" in report]
            if self.disks.other_leaders:
                errors += self._reveal_on_other_disks(save, go=not errors)
        except RanksTimedOut as silent:
            errors = [str(silent)]
        if errors:
            self.place.discard(save.manifest.step, save.write.name)
            return self._failed(save, "; ".join(errors[:4]))
        assert save.index is not None
        write_s = round(time.monotonic() - save.started, 4)
        manifest = replace(save.manifest, files=tuple(report["file"] for report in reports), write_s=write_s)
        metadata = save.index.content([report["spots"] for report in reports])
        try:
            complete = self._perform(save, Commit(self.place, manifest, metadata))
        except OSError as error:
            self.place.discard(save.manifest.step, save.write.name)
            return self._failed(save, str(error))
        seconds = time.monotonic() - save.started
        return CommitResult(complete.step, self.place.path(complete.step), self.place.durability, seconds, complete)

    def _reports(self, save: PendingCheckpoint) -> list[dict[str, Any]]:
        keys = [self._key("report", save.number, rank) for rank in range(1, self.exchange.world_size)]
        self.exchange.await_all(keys, self.patience_s)
        return [self.exchange.take(key) for key in keys]

    def _reveal_on_other_disks(self, save: PendingCheckpoint, *, go: bool) -> list[str]:
        """Make the ranks that lead other nodes' disks move their files in place, before the manifest lists them."""
        self.exchange.post(self._key("go", save.number), go)
        keys = [self._key("placed", save.number, leader) for leader in self.disks.other_leaders]
        self.exchange.await_all(keys, self.patience_s)
        return [error for key in keys if (error := self.exchange.take(key))]

    def _report_and_wait(self, save: PendingCheckpoint, report: dict[str, Any]) -> CommitResult:
        rank, exchange = self.exchange.rank, self.exchange
        exchange.post(self._key("report", save.number, rank), report)
        if rank in self.disks.other_leaders:
            go = self._key("go", save.number)
            exchange.await_all([go], self.patience_s)
            exchange.post(self._key("placed", save.number, rank), self._reveal(save, go=exchange.read(go)))
        outcome = self._key("outcome", save.number)
        exchange.await_all([outcome], 2 * self.patience_s)
        ended, outdated = exchange.read(outcome)
        if rank in self.disks.other_leaders:
            self._outdated.extend(outdated)
        return ended if isinstance(ended, CommitResult) else self._failed(save, "an outcome that cannot be read")

    def _reveal(self, save: PendingCheckpoint, *, go: bool) -> str:
        if not go:
            self.place.discard(save.manifest.step, save.write.name)
            return ""
        try:
            self._perform(save, Reveal(self.place, save.manifest.step))
        except OSError as error:
            return f"rank {self.exchange.rank}: {error}"
        return ""

    def _failed(self, save: PendingCheckpoint, error: str) -> CommitResult:
        return self.make_failed(save.manifest, save.started, error)

    def make_failed(self, manifest: Manifest, started: float, error: str) -> CommitResult:
        """Return the result of a save that has failed."""
        step, seconds = manifest.step, time.monotonic() - started
        return CommitResult(step, self.place.path(step), self.place.durability, seconds, manifest, error)

    def _delete(self, step: int) -> None:
        try:
            self.place.drop(step)
        except OSError as error:
            self.log(f"{make_folder_name(step)} is out of date and could not be deleted: {error}")

    @staticmethod
    def _key(kind: str, number: int, rank: int | None = None) -> str:
        return f"{kind}-{number}" if rank is None else f"{kind}-{number}/{rank}"
