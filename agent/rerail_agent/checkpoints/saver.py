"""Save and restore training state: `Saver`, for a training script."""

import math
import secrets
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from rerail_agent.checkpoints.commit_queue import CommitQueue, CommitResult, PendingCheckpoint, SharedDisks
from rerail_agent.checkpoints.manifest import UNREADABLE, DamagedCheckpoint, Manifest, make_folder_name
from rerail_agent.checkpoints.plan import FileIndex, SavePlan, make_plan
from rerail_agent.checkpoints.rank_exchange import RankExchange, RanksTimedOut
from rerail_agent.checkpoints.restore import UnfitState, list_unplaced, load_into, require_placed
from rerail_agent.checkpoints.retention import KeptCheckpoint, choose_deletable
from rerail_agent.checkpoints.safe_load import UnsafeValue, find_unsafe_value
from rerail_agent.checkpoints.staging_memory import Arena
from rerail_agent.checkpoints.state_tree import Tree, flatten
from rerail_agent.checkpoints.store import CheckpointStore, LocalStore, make_machine_name
from rerail_agent.checkpoints.trust import UNTRUSTED, ManifestTrust
from rerail_agent.checkpoints.writer import Write, Writer

T = TypeVar("T")

REPORT_PATIENCE_S = 900.0  # for rank 0 to wait for the other ranks' files


@dataclass(frozen=True)
class RestoreRefusal:
    """The reason for not resuming from a checkpoint that an attempt had saved."""

    attempt: int | None
    reason: str
    # Whether its files differ from those in its manifest.
    is_certain: bool


class CannotReplace(Exception):
    """A checkpoint that cannot be read, moved or deleted lies where another is to be saved."""


class Saver:
    """The checkpoints of a run, as one rank uses them.

    prepare(), save(), newest(), load(), quarantine() and prune() are collective: every rank calls them, in the same
    order, on its main thread. None uses a collective operation of torch.distributed, so any backend will do.

    A state is a nested dict of tensors, DTensors and plain values. A key that several ranks hold is written once. A key
    that only one holds, such as its random state under `random.<rank>`, is written by it. `per_rank` names the
    top-level keys below which ranks differ, so that another number of ranks may load them in part. `refusals` are the
    steps that newest() and restore() have passed over as damaged.
    """

    def __init__(
        self,
        place: CheckpointStore,
        *,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | None = None,
        log: Callable[[str], None] = print,
        per_rank: Sequence[str] = ("random",),
        store: Any = None,
        patience_s: float = REPORT_PATIENCE_S,
    ) -> None:
        self.place, self.log, self.per_rank = place, log, tuple(per_rank)
        self.rank, self.world_size = rank, world_size
        self.exchange = RankExchange(rank=rank, world_size=world_size, store=store, patience_s=patience_s)
        self._pinned = device is not None and device.type == "cuda"
        self._patience_s = patience_s
        self._disks: SharedDisks | None = None
        self._commit_queue: CommitQueue | None = None
        self._plan: SavePlan | None = None
        self._tree: Tree | None = None
        self._index: FileIndex | None = None
        self._arena: Arena | None = None
        self._writer: Writer | None = None
        self._nonce = 0
        self._number = 0
        self._seen: set[int] = set()  # the steps that have or may have a checkpoint; the same on every rank
        self._unloadable: set[int] = set()
        self.refusals: dict[int, RestoreRefusal] = {}
        self._restoring = 0
        self._retention: tuple[int, int] | None = None
        self._trust = ManifestTrust.from_environment()
        self._chosen: Manifest | None = None  # the last result of newest()

    def prepare(self, state: Mapping[str, Any]) -> None:
        """Plan the saves of this state, and make what they need: memory, and the process that writes.

        Call it when the optimizer has its state. A save of another structure than the prepared one prepares again,
        which takes as long as this does.
        """
        commit_queue = self._connect()
        commit_queue.await_arena()
        leaves = flatten(state)
        self._plan, self._index = make_plan(
            leaves, self.exchange, file_name=self.place.file_name(self.rank, self._nonce)
        )
        if self._arena is None or self._arena.size < self._plan.image or self._writer is None:
            self._replace_arena(self._plan.image)
        assert self._arena is not None
        self._tree = Tree(state)
        self._plan.lay_out(self._arena)
        values = [leaf.value for leaf in leaves]
        self._plan.stage(values)  # a first call allocates and loads kernels
        for leaf in leaves:
            if problem := find_unsafe_value(leaf.key, leaf.value):
                self.log(f"rank {self.rank}: {problem}; as it is, the checkpoints of this state cannot be restored")
        spots = self.exchange.gather(self._plan.make_value_blobs(values)[1])
        if self._index is not None and spots is not None:
            self._index.content(spots)

    def save(
        self, state: Mapping[str, Any], manifest: Manifest, after: Callable[[CommitResult], None] | None = None
    ) -> bool:
        """Stage the state; the training may go on when this returns, and the commit follows in the background.

        Return False if a complete checkpoint of that step exists: a replayed step is the same state again. `after` is
        called with the result, on every rank, from another thread; where a step cannot be replaced, from this one.
        Waits for an earlier save that is still being written.
        """
        started = time.monotonic()
        commit_queue = self._connect()
        loss = manifest.loss
        manifest = replace(manifest, loss=None if loss is None or not math.isfinite(loss) else float(loss))
        leaves = self._plan_leaves(state)
        assert self._plan is not None and self._writer is not None
        self._number += 1  # of every call, so that ranks agree on it whatever becomes of their saves
        try:
            with self.exchange.count_apart(self._number):
                if manifest.step in self._seen and not self._make_room(manifest.step, manifest.run):
                    return False
        except (CannotReplace, RanksTimedOut) as error:  # this save fails, and the training goes on
            problem = f"the checkpoint at this step was not replaced: {error}"
            commit_queue.give_up(self._number, commit_queue.make_failed(manifest, started, problem), after)
            return True
        self._seen.add(manifest.step)
        commit_queue.await_arena()
        self._plan.stage(leaves)
        values, spots = self._plan.make_value_blobs(leaves)
        write = Write(self.place, manifest.step, self._plan.file_name, self._plan.image, values)
        self._writer.set_urgent(manifest.reason != "periodic")
        manifest = replace(manifest, stall_s=round(time.monotonic() - started, 4))
        commit_queue.submit(
            PendingCheckpoint(self._number, manifest, write, spots, self._index, self._writer, started, after)
        )
        return True

    def finished(self) -> list[CommitResult]:
        """Return the saves that have ended since the last call, failed ones too."""
        return self._commit_queue.finished() if self._commit_queue else []

    def wait(self, timeout_s: float | None = None) -> list[CommitResult]:
        """Return when no save is pending, or when the time is over; the result is that of finished()."""
        if self._commit_queue is None:
            return []
        if self._writer is not None:
            self._writer.set_urgent(True)
        self._commit_queue.await_end(timeout_s)
        if self._writer is not None:
            self._writer.set_urgent(False)
        return self._commit_queue.finished()

    def newest(self, allowed: Callable[[Manifest], bool] = lambda manifest: True) -> int:
        """Return the newest allowed step that is complete, 0 if there is none; log each damaged one passed over.

        Every listed file is read and its checksum compared, each by one rank of those that see it. Where nodes have
        disks of their own, a checkpoint counts only if every disk has all of its files. That is so after a start from
        S3, which gives each node a full copy. It is not so after a restart in place, which then uses the last uploaded
        one. Rank 0's result of `allowed` counts.
        """
        self._connect()
        listings = self._run_on_every_rank(lambda: self._listing() if self._leads else {})
        candidates = iter(()) if self.rank else self._candidates(listings, allowed)
        while True:
            candidate: Manifest | None = self.exchange.broadcast(next(candidates, None))
            if candidate is None:
                return 0
            damage = self._damage(candidate)
            if not damage:
                self._chosen = candidate
                return candidate.step
            is_certain = "cannot be read" not in damage  # an unreadable file may still be undamaged
            self.refusals[candidate.step] = RestoreRefusal(candidate.attempt, damage, is_certain=is_certain)
            self._log_damage(candidate.step, damage)

    def load(self, state: dict[str, Any], step: int, *, partial: bool = False) -> Manifest:
        """Fill the state in place from a checkpoint that newest() has found; plain values are replaced in it.

        The states of all ranks together must have a place for everything in the checkpoint, unless `partial`.

        Raises UnfitState when the state has another shape, on every rank. Any other failure means that the checkpoint
        is damaged after all: DamagedCheckpoint on every rank. The state is then part old and part new, and newest()
        passes that step over from then on.
        """
        self._connect()
        self._restoring = step
        problem: Exception | None = None
        manifest: Manifest | None = None
        unplaced: set[str] = set()
        try:
            manifest = self.place.manifest(step)
            if manifest is None or (self._chosen and self._chosen.step == step and manifest != self._chosen):
                raise DamagedCheckpoint("its manifest has changed since it was chosen")
            reader = self.place.reader(manifest)
            if not partial:
                unplaced = list_unplaced(state, reader.read_metadata(), self.per_rank)
            load_into(state, reader, per_rank=self.per_rank)
        except (UnfitState, UnsafeValue) as error:
            problem = error if isinstance(error, UnfitState) else UnfitState(str(error))
        except Exception as error:  # a damaged file may cause any error in the readers
            problem = DamagedCheckpoint(f"rank {self.rank} cannot load it: {type(error).__name__}: {error}")
        everyone: list[tuple[Exception | None, set[str]]] = self.exchange.all_gather((problem, unplaced))
        problems = [problem for problem, _ in everyone]
        self._restoring = 0
        worst = next((error for error in problems if isinstance(error, UnfitState)), next(filter(None, problems), None))
        if worst is not None:
            if not isinstance(worst, UnfitState):
                self._unloadable.add(step)
            raise worst
        require_placed([unplaced for _, unplaced in everyone])
        assert manifest is not None
        return manifest

    def restore(
        self, state: dict[str, Any], allowed: Callable[[Manifest], bool] = lambda manifest: True
    ) -> Manifest | None:
        """Call newest() and load() until one succeeds; None, with the state unchanged, if there is nothing to load."""
        while step := self.newest(allowed):
            try:
                return self.load(state, step)
            except DamagedCheckpoint as damage:
                manifest = self._read(step)[0] if self.rank == 0 else None
                saved_by = manifest.attempt if manifest else None
                self.refusals[step] = RestoreRefusal(saved_by, str(damage), is_certain=False)
                self._log_damage(step, str(damage))
        if self._unloadable:
            raise DamagedCheckpoint("no checkpoint could be loaded, and the state is partly overwritten: start again")
        return None

    def quarantine(self, *, after: int, tainted: Callable[[Manifest], bool]) -> None:
        """Move tainted checkpoints after a step to `quarantine/a<attempt>-step-<n>/`, and log each.

        One whose manifest cannot be read is moved too, its attempt unknown. After a kill the next start moves the rest.
        Nothing is deleted, and nothing in quarantine is replaced. Rank 0's result of `tainted` counts.
        """
        self._connect()
        chosen = self._run_on_every_rank(lambda: [] if self.rank else list(self._tainted(after, tainted)))[0]
        for step, attempt in chosen:
            moved = self._run_on_every_rank(partial(self._quarantine_step, step, attempt))[0]
            if moved and self.rank == 0:
                self.log(f"{make_folder_name(step)} of attempt {attempt} comes after step {after}: moved to {moved}")
            self._seen.discard(step)

    def _quarantine_step(self, step: int, attempt: int | str) -> str | None:
        return self.place.quarantine(step, attempt) if self._leads and step in self.place.steps() else None

    def prune(self, *, keep: int, doublings: int = 4) -> None:
        """Delete outdated checkpoints after every commit from now on, by the rule of retention.choose_deletable()."""
        choose_deletable([], newest=0, keep=keep, doublings=doublings)  # raises if keep makes no sense
        self._retention = (keep, doublings)
        self._connect().find_outdated = self._find_outdated

    def plan_for(self, state: Mapping[str, Any]) -> tuple[SavePlan, list[Any]]:
        """Return the plan for a state, made again if necessary, and its leaves. Collective, like prepare()."""
        leaves = self._plan_leaves(state)
        assert self._plan is not None
        return self._plan, leaves

    def find_newest_listed(self, allowed: Callable[[Manifest], bool] = lambda manifest: True) -> int:
        """Return the newest allowed step by the manifests alone, 0 if none; its files may still be damaged."""
        self._connect()
        own, *others = self._run_on_every_rank(lambda: self._listing() if self._leads else {})
        assert self._disks is not None
        elsewhere = [others[leader - 1] for leader in self._disks.other_leaders]
        steps = (
            step
            for step, (manifest, _) in own.items()
            if manifest is not None and step not in self._unloadable and allowed(manifest)
            if all(listing.get(step, (None, None))[0] == manifest for listing in elsewhere)
        )
        return int(self.exchange.broadcast(None if self.rank else max(steps, default=0)))

    def close(self) -> None:
        """End the writer process. A pending save is lost: wait() first."""
        if self._commit_queue is not None:
            self._commit_queue.close()
        if self._writer is not None:
            self._writer.end()
        if self._arena is not None:
            self._plan = None
            self._arena.close()

    @property
    def is_pinned(self) -> bool:
        """Return whether staging memory should be registered with CUDA."""
        return self._pinned

    @property
    def _leads(self) -> bool:
        assert self._disks is not None
        return self._disks.is_led_by(self.rank)

    def _connect(self) -> CommitQueue:
        """Return the commit queue, once the ranks know which of them share a disk and what exists there."""
        if self._commit_queue is None:
            self._disks = self._find_disks()
            self._nonce, seen = self._run_on_every_rank(self._scan)[0]
            self._seen.update(seen)
            self._commit_queue = CommitQueue(
                self.exchange, self.place, self._disks, log=self.log, patience_s=self._patience_s
            )  # fmt: skip
        return self._commit_queue

    def _plan_leaves(self, state: Mapping[str, Any]) -> list[Any]:
        """Return the leaves of a state, in the order of the plan, which is made again if necessary."""
        leaves = self._tree.leaves(state) if self._tree is not None else None
        if leaves is not None and self._plan is not None and self._plan.fits(leaves):
            return leaves
        if self._plan is not None:
            self.log(f"rank {self.rank}: the state has changed its structure; preparing its saves again")
        self.prepare(state)
        return [leaf.value for leaf in flatten(state)]

    def _scan(self) -> tuple[int, list[int]]:
        if self._leads:
            self.place.delete_leftovers()
        return secrets.randbits(31), [] if self.rank else self.place.steps()

    def _find_disks(self) -> SharedDisks:
        everyone = tuple(range(self.world_size))
        if self.world_size == 1 or self.place.is_shared or not isinstance(self.place, LocalStore):
            return SharedDisks((everyone,))
        name = self.exchange.broadcast(f".probe-{secrets.token_hex(8)}")
        probe = Path(self.place.root) / name
        self._run_on_every_rank(lambda: self._put(probe))
        seen: list[tuple[bool, str]] = self.exchange.all_gather((probe.exists(), make_machine_name()))
        if self.rank == 0:
            probe.unlink()
        groups: dict[str, list[int]] = {"": []}
        for rank, (is_there, name) in enumerate(seen):
            groups.setdefault("" if is_there else name, []).append(rank)
        return SharedDisks(tuple(tuple(group) for group in groups.values()))

    def _put(self, probe: Path) -> None:
        probe.parent.mkdir(parents=True, exist_ok=True)
        if self.rank == 0:
            probe.touch()

    def _replace_arena(self, size: int) -> None:
        if self._writer is not None:
            self._writer.end()
        if self._arena is not None:
            self._arena.close()
        self._arena = Arena(size, pinned=self._pinned)
        self._writer = Writer(self._arena.file, self._arena.memory)
        if self._writer.pid is None:
            self.log(f"rank {self.rank} cannot start a process to write checkpoints; a thread does its work")

    def _make_room(self, step: int, run: str) -> bool:
        """Return whether a save may replace a step: not if that is complete.

        What this run has left there is deleted. Any other checkpoint that may be another run's is moved to quarantine;
        raises CannotReplace for one that S3 refuses to read, and therefore to copy.
        """
        commit_queue = self._connect()
        commit_queue.await_end(None)
        listed = self._refuse_on_every_rank(lambda: {} if self.rank else self._listing())[0]
        manifest, problem = listed.get(step, (None, None))
        if manifest is not None and not self._damage(manifest):
            return False
        if problem == UNREADABLE:
            raise CannotReplace(problem)
        if problem is not None or (manifest is not None and manifest.run != run):
            moved = self._refuse_on_every_rank(partial(self._quarantine_step, step, "unknown"))[0]
            if moved and self.rank == 0:
                self.log(f"{make_folder_name(step)} may be another run's: moved to {moved}")
        self._refuse_on_every_rank(partial(self._drop, step))
        return True

    def _drop(self, step: int) -> None:
        if self._leads:
            self.place.drop(step)

    def _refuse_on_every_rank(self, handler: Callable[[], T]) -> list[T]:
        """Return the handler's result on each rank; raise CannotReplace for its errors, not for the exchange's."""

        def refuse() -> T:
            try:
                return handler()
            except Exception as error:
                raise CannotReplace(str(error)) from error

        return self._run_on_every_rank(refuse)

    def _read(self, step: int) -> tuple[Manifest | None, str | None]:
        try:
            return self.place.manifest(step), None
        except DamagedCheckpoint as damage:
            return None, str(damage)

    def _listing(self, among: Container[int] | None = None) -> dict[int, tuple[Manifest | None, str | None]]:
        listed = {step: self._read(step) for step in self.place.steps() if among is None or step in among}
        untrusted = self._trust.find_untrusted(manifest for manifest, _ in listed.values() if manifest)
        return listed | dict.fromkeys(untrusted, (None, UNTRUSTED))

    def _candidates(self, listings: Sequence[Any], allowed: Callable[[Manifest], bool]) -> Any:
        assert self._disks is not None
        elsewhere = [listings[leader] for leader in self._disks.other_leaders]
        for step, (manifest, problem) in listings[0].items():
            if problem is not None:
                self._log_damage(step, problem)
            elif manifest is None or step in self._unloadable or not allowed(manifest):
                continue
            elif any(listing.get(step, (None, None))[0] != manifest for listing in elsewhere):
                self._log_damage(step, "not on the disk of every node")
            else:
                yield manifest

    def _damage(self, manifest: Manifest) -> str:
        """Return what is wrong with the files of a checkpoint, "" if nothing is; each rank reads its share."""
        assert self._disks is not None
        group = self._disks.of(self.rank)
        files = sorted(manifest.files, key=lambda entry: (-entry["bytes"], entry["name"]))
        mine = files[group.index(self.rank) :: len(group)]
        return next(filter(None, self._run_on_every_rank(lambda: self._first_damage(manifest.step, mine))), "")

    def _first_damage(self, step: int, entries: Sequence[dict[str, Any]]) -> str:
        try:
            for entry in entries:
                self.place.check(step, entry)
        except DamagedCheckpoint as damage:
            return str(damage)
        return ""

    def _run_on_every_rank(self, handler: Callable[[], T]) -> list[T]:
        """Return what each rank's act() returns; an exception on one rank is raised on all."""
        problem: Exception | None = None
        result: T | None = None
        try:
            result = handler()
        except Exception as error:  # raised again below, on every rank
            problem = error
        everyone: list[tuple[T, Exception | None]] = self.exchange.all_gather((result, problem))
        for _, problem in everyone:
            if problem is not None:
                raise problem
        return [result for result, _ in everyone]

    def _log_damage(self, step: int, damage: str) -> None:
        if self.rank == 0:
            self.log(f"checkpoint {make_folder_name(step)} is damaged ({damage}); falling back to the one before it")

    def _tainted(self, after: int, tainted: Callable[[Manifest], bool]) -> Any:
        for step in self.place.steps():
            manifest, problem = self._read(step)
            if step > after and problem != UNREADABLE and (manifest is None or tainted(manifest)):
                yield step, "unknown" if manifest is None else manifest.attempt

    def _find_outdated(self, newest: Manifest) -> list[int]:
        assert self._retention is not None
        keep, doublings = self._retention
        saved, torn = [], []
        # Other runs may share the folder: a manifest names its run, and they may be saving what appeared later.
        for step, (manifest, problem) in (self._listing(self._seen) | {newest.step: (newest, None)}).items():
            if manifest is not None:
                if manifest.run == newest.run:
                    saved.append(KeptCheckpoint(step, manifest.health == "clean"))
            elif step < newest.step and problem not in (UNREADABLE, UNTRUSTED):
                torn.append(step)
        spared = [self._restoring] if self._restoring else []
        return sorted(
            [*torn, *choose_deletable(saved, newest=newest.step, keep=keep, doublings=doublings, spared=spared)]
        )
