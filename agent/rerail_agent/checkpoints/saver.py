"""Saves and restores training state: `Saver`, what a training script uses."""

import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from rerail_agent.checkpoints.commit_queue import CommitQueue, CommitResult, PendingCheckpoint, SharedDisks
from rerail_agent.checkpoints.manifest import DamagedCheckpoint, Manifest, folder_name
from rerail_agent.checkpoints.plan import FileIndex, SavePlan, make_plan
from rerail_agent.checkpoints.rank_exchange import RankExchange
from rerail_agent.checkpoints.restore import UnfitState, load_into
from rerail_agent.checkpoints.retention import KeptCheckpoint, choose_deletable
from rerail_agent.checkpoints.staging_memory import Arena
from rerail_agent.checkpoints.state_tree import Tree, flatten
from rerail_agent.checkpoints.store import CheckpointStore, LocalStore, make_machine_name
from rerail_agent.checkpoints.writer import Write, Writer

T = TypeVar("T")

REPORT_PATIENCE_S = 900.0  # how long rank 0 waits for the other ranks' files


@dataclass(frozen=True)
class RestoreRefusal:
    """Why a checkpoint that an attempt had saved was not resumed from; `is_certain`: its files are not those listed."""

    attempt: int | None
    reason: str
    is_certain: bool


class Saver:
    """The checkpoints of a run, as one rank sees them.

    prepare(), save(), newest(), load(), quarantine() and prune() are collective: every rank calls them, in the same
    order, on its main thread. None uses a collective operation of torch.distributed, so any backend will do.

    A state is a nested dict of tensors, DTensors and plain values. What several ranks hold under one key is written
    once; what only one holds, such as its random state under `random.<rank>`, is written by it. `per_rank` names the
    top-level keys below which ranks differ, so that another number of ranks may load them in part. `refusals` are the
    steps that newest() and restore() have passed over for what was wrong with them.
    """

    def __init__(
        self,
        place: CheckpointStore,
        *,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | None = None,
        tell: Callable[[str], None] = print,
        per_rank: Sequence[str] = ("random",),
        store: Any = None,
        patience_s: float = REPORT_PATIENCE_S,
    ) -> None:
        self.place, self.tell, self.per_rank = place, tell, tuple(per_rank)
        self.rank, self.world_size = rank, world_size
        self.exchange = RankExchange(rank=rank, world_size=world_size, store=store, patience_s=patience_s)
        self._pinned = device is not None and device.type == "cuda"
        self._patience_s = patience_s
        self._disks: SharedDisks | None = None
        self._courier: CommitQueue | None = None
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

    def prepare(self, state: Mapping[str, Any]) -> None:
        """Plans the saves of this state, and makes all that they need: memory, and the process that writes.

        Call it when the optimizer has its state; a save of another structure than the one prepared for prepares anew,
        which takes as long as this does.
        """
        courier = self._met()
        courier.await_arena()
        leaves = flatten(state)
        self._plan, self._index = make_plan(leaves, self.exchange, file_name=self._file_name())
        if self._arena is None or self._arena.size < self._plan.image or self._writer is None:
            self._renew_arena(self._plan.image)
        assert self._arena is not None
        self._tree = Tree(state)
        self._plan.lay_out(self._arena)
        values = [leaf.value for leaf in leaves]
        self._plan.stage(values)  # for what a first call has to do besides
        spots = self.exchange.collect(self._plan.value_blobs(values)[1])
        if self._index is not None and spots is not None:
            self._index.content(spots)

    def save(
        self, state: Mapping[str, Any], manifest: Manifest, after: Callable[[CommitResult], None] | None = None
    ) -> bool:
        """Stages the state; the training may go on when this returns, and the commit follows in the background.

        False if a whole checkpoint of that step is there already: a replayed step is the same state again. `after` is
        called with the outcome, on every rank, from another thread. An earlier save that is still being written is
        waited for.
        """
        started = time.monotonic()
        courier = self._met()
        if manifest.loss is not None and not math.isfinite(manifest.loss):
            manifest = replace(manifest, loss=None)
        leaves = self._planned(state)
        assert self._plan is not None and self._writer is not None
        if manifest.step in self._seen and not self._made_room(manifest.step):
            return False
        self._seen.add(manifest.step)
        courier.await_arena()
        self._plan.stage(leaves)
        values, spots = self._plan.value_blobs(leaves)
        write = Write(self.place, manifest.step, self._plan.file_name, self._plan.image, values)
        self._writer.hurry(manifest.reason != "periodic")
        self._number += 1
        manifest = replace(manifest, stall_s=round(time.monotonic() - started, 4))
        courier.submit(
            PendingCheckpoint(self._number, manifest, write, spots, self._index, self._writer, started, after)
        )
        return True

    def finished(self) -> list[CommitResult]:
        """The saves that have come to their end since the last call, failed ones too."""
        return self._courier.finished() if self._courier else []

    def wait(self, timeout_s: float | None = None) -> list[CommitResult]:
        """Returns when no save is under way, or when the time is up; what has finished since the last call."""
        if self._courier is None:
            return []
        if self._writer is not None:
            self._writer.hurry(True)
        self._courier.await_end(timeout_s)
        if self._writer is not None:
            self._writer.hurry(False)
        return self._courier.finished()

    def newest(self, allowed: Callable[[Manifest], bool] = lambda manifest: True) -> int:
        """The newest allowed step that is whole, 0 if there is none; tells of each damaged one passed over.

        Every listed file is read and summed up, each by one rank of those that see it. Where nodes have disks of their
        own, a checkpoint counts only if every disk has all of its files: that is so after a start from S3, which gives
        each node a full copy, and not after a restart in place, which then goes back to the last uploaded one. What
        `allowed` says on rank 0 counts.
        """
        self._met()
        listings = self._together(lambda: self._listing() if self._leads else {})
        candidates = iter(()) if self.rank else self._candidates(listings, allowed)
        while True:
            candidate: Manifest | None = self.exchange.spread(next(candidates, None))
            if candidate is None:
                return 0
            damage = self._damage(candidate)
            if not damage:
                return candidate.step
            is_certain = "cannot be read" not in damage  # which says nothing about what is in the file
            self.refusals[candidate.step] = RestoreRefusal(candidate.attempt, damage, is_certain=is_certain)
            self._tell_of_damage(candidate.step, damage)

    def load(self, state: dict[str, Any], step: int, *, partial: bool = False) -> Manifest:
        """Fills the state in place from a checkpoint that newest() has found; plain values are replaced in it.

        Raises UnfitState when the state has another shape, on every rank. Any other failure means that the checkpoint
        is damaged after all: DamagedCheckpoint on every rank, the state is then part old and part new, and newest()
        passes that step over from then on.
        """
        self._met()
        self._restoring = step
        problem: Exception | None = None
        manifest: Manifest | None = None
        try:
            manifest = self.place.manifest(step)
            load_into(state, self.place.reader(step), per_rank=self.per_rank, partial=partial)
        except UnfitState as error:
            problem = error
        except Exception as error:  # what a damaged file makes of the readers is beyond listing
            problem = DamagedCheckpoint(f"rank {self.rank} cannot load it: {type(error).__name__}: {error}")
        problems = self.exchange.share(problem)
        self._restoring = 0
        worst = next((each for each in problems if isinstance(each, UnfitState)), next(filter(None, problems), None))
        if worst is not None:
            if not isinstance(worst, UnfitState):
                self._unloadable.add(step)
            raise worst
        assert manifest is not None
        return manifest

    def restore(
        self, state: dict[str, Any], allowed: Callable[[Manifest], bool] = lambda manifest: True
    ) -> Manifest | None:
        """newest() and load() until one succeeds; None, with the state as it was, if there is nothing to load."""
        while step := self.newest(allowed):
            try:
                return self.load(state, step)
            except DamagedCheckpoint as damage:
                manifest = self._read(step)[0] if self.rank == 0 else None
                saved_by = manifest.attempt if manifest else None
                self.refusals[step] = RestoreRefusal(saved_by, str(damage), is_certain=False)
                self._tell_of_damage(step, str(damage))
        if self._unloadable:
            raise DamagedCheckpoint("no checkpoint could be loaded, and the state is partly overwritten: start anew")
        return None

    def quarantine(self, *, after: int, tainted: Callable[[Manifest], bool]) -> None:
        """Moves tainted checkpoints after a step to `quarantine/a<attempt>-step-<n>/`, and tells of each.

        One whose manifest cannot be read goes too, its attempt unknown. A kill in between leaves the rest to the next
        start. Nothing is deleted, and nothing in quarantine is replaced. What `tainted` says on rank 0 counts.
        """
        self._met()
        chosen = self._together(lambda: [] if self.rank else list(self._tainted(after, tainted)))[0]
        for step, attempt in chosen:
            moved = self._together(partial(self._set_aside, step, attempt))[0]
            if moved and self.rank == 0:
                self.tell(f"{folder_name(step)} of attempt {attempt} comes after step {after}: moved to {moved}")
            self._seen.discard(step)

    def _set_aside(self, step: int, attempt: int | str) -> str | None:
        return self.place.set_aside(step, attempt) if self._leads and step in self.place.steps() else None

    def prune(self, *, keep: int, doublings: int = 4) -> None:
        """Has outdated checkpoints deleted after every commit from now on, by the rule of retention.to_retire()."""
        choose_deletable([], newest=0, keep=keep, doublings=doublings)  # raises if keep makes no sense
        self._retention = (keep, doublings)
        self._met().retire = self._to_retire

    def planned(self, state: Mapping[str, Any]) -> tuple[SavePlan, list[Any]]:
        """The plan for a state, made anew if need be, and the leaves that it is for. Collective, like prepare()."""
        leaves = self._planned(state)
        assert self._plan is not None
        return self._plan, leaves

    def listed(self, allowed: Callable[[Manifest], bool] = lambda manifest: True) -> int:
        """The newest allowed step by the manifests alone, 0 if there is none; its files may yet turn out damaged."""
        self._met()
        own, *others = self._together(lambda: self._listing() if self._leads else {})
        assert self._disks is not None
        elsewhere = [others[leader - 1] for leader in self._disks.other_leaders]
        steps = (
            step
            for step, (manifest, _) in own.items()
            if manifest is not None and step not in self._unloadable and allowed(manifest)
            if all(listing.get(step, (None, None))[0] == manifest for listing in elsewhere)
        )
        return int(self.exchange.spread(None if self.rank else max(steps, default=0)))

    def close(self) -> None:
        """Ends the writer process. What is still under way is lost: wait() first."""
        if self._courier is not None:
            self._courier.close()
        if self._writer is not None:
            self._writer.end()
        if self._arena is not None:
            self._plan = None
            self._arena.close()

    @property
    def is_pinned(self) -> bool:
        """Whether what is staged in should be registered with CUDA."""
        return self._pinned

    @property
    def _leads(self) -> bool:
        assert self._disks is not None
        return self._disks.is_led_by(self.rank)

    def _met(self) -> CommitQueue:
        """The courier, once the ranks have found out who shares a disk with whom and what is there already."""
        if self._courier is None:
            self._disks = self._find_disks()
            self._nonce, seen = self._together(self._look_around)[0]
            self._seen.update(seen)
            self._courier = CommitQueue(
                self.exchange, self.place, self._disks, tell=self.tell, patience_s=self._patience_s
            )  # fmt: skip
        return self._courier

    def _planned(self, state: Mapping[str, Any]) -> list[Any]:
        """The leaves of a state that the plan is for, made anew if need be."""
        leaves = self._tree.leaves(state) if self._tree is not None else None
        if leaves is not None and self._plan is not None and self._plan.fits(leaves):
            return leaves
        if self._plan is not None:
            self.tell(f"rank {self.rank}: the state has changed its structure; preparing its saves anew")
        self.prepare(state)
        return [leaf.value for leaf in flatten(state)]

    def _look_around(self) -> tuple[int, list[int]]:
        if self._leads:
            self.place.sweep_up()
        return secrets.randbits(31), [] if self.rank else self.place.steps()

    def _find_disks(self) -> SharedDisks:
        everyone = tuple(range(self.world_size))
        if self.world_size == 1 or self.place.is_shared or not isinstance(self.place, LocalStore):
            return SharedDisks((everyone,))
        name = self.exchange.spread(f".probe-{secrets.token_hex(8)}")
        probe = Path(self.place.root) / name
        self._together(lambda: self._put(probe))
        seen: list[tuple[bool, str]] = self.exchange.share((probe.exists(), make_machine_name()))
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

    def _file_name(self) -> str:
        return self.place.file_name(self.rank, self._nonce)

    def _renew_arena(self, size: int) -> None:
        if self._writer is not None:
            self._writer.end()
        if self._arena is not None:
            self._arena.close()
        self._arena = Arena(size, pinned=self._pinned)
        self._writer = Writer(self._arena.file, self._arena.memory)
        if self._writer.pid is None:
            self.tell(f"rank {self.rank} cannot start a process to write checkpoints; a thread does its work")

    def _made_room(self, step: int) -> bool:
        """Whether a save may go to a step that had one: not if that is whole. A torn or damaged one makes room."""
        courier = self._met()
        courier.await_end(None)
        manifest, _ = self._together(lambda: self._read(step) if self.rank == 0 else (None, None))[0]
        if manifest is not None and not self._damage(manifest):
            return False
        self._together(lambda: self.place.drop(step) if self._leads else None)
        return True

    def _read(self, step: int) -> tuple[Manifest | None, str | None]:
        try:
            return self.place.manifest(step), None
        except DamagedCheckpoint as damage:
            return None, str(damage)

    def _listing(self) -> dict[int, tuple[Manifest | None, str | None]]:
        return {step: self._read(step) for step in self.place.steps()}

    def _candidates(self, listings: Sequence[Any], allowed: Callable[[Manifest], bool]) -> Any:
        assert self._disks is not None
        elsewhere = [listings[leader] for leader in self._disks.other_leaders]
        for step, (manifest, problem) in listings[0].items():
            if problem is not None:
                self._tell_of_damage(step, problem)
            elif manifest is None or step in self._unloadable or not allowed(manifest):
                continue
            elif any(listing.get(step, (None, None))[0] != manifest for listing in elsewhere):
                self._tell_of_damage(step, "not on the disk of every node")
            else:
                yield manifest

    def _damage(self, manifest: Manifest) -> str:
        """What is wrong with a checkpoint's files, "" if nothing is; each rank reads its share of them."""
        assert self._disks is not None
        group = self._disks.of(self.rank)
        files = sorted(manifest.files, key=lambda entry: (-entry["bytes"], entry["name"]))
        mine = files[group.index(self.rank) :: len(group)]
        return next(filter(None, self._together(lambda: self._first_damage(manifest.step, mine))), "")

    def _first_damage(self, step: int, entries: Sequence[dict[str, Any]]) -> str:
        try:
            for entry in entries:
                self.place.check(step, entry)
        except DamagedCheckpoint as damage:
            return str(damage)
        return ""

    def _together(self, act: Callable[[], T]) -> list[T]:
        """What each rank's act() returns; what it raises on one rank, a lost network say, is raised on all."""
        problem: Exception | None = None
        result: T | None = None
        try:
            result = act()
        except Exception as error:  # raised again below, on every rank
            problem = error
        everyone: list[tuple[T, Exception | None]] = self.exchange.share((result, problem))
        for _, problem in everyone:
            if problem is not None:
                raise problem
        return [each for each, _ in everyone]

    def _tell_of_damage(self, step: int, damage: str) -> None:
        if self.rank == 0:
            self.tell(f"checkpoint {folder_name(step)} is damaged ({damage}); falling back to the one before it")

    def _tainted(self, after: int, tainted: Callable[[Manifest], bool]) -> Any:
        for step in self.place.steps():
            manifest, problem = self._read(step)
            if step > after and (manifest is None or tainted(manifest)):
                yield step, "unknown" if manifest is None else manifest.attempt

    def _to_retire(self, newest: Manifest) -> list[int]:
        assert self._retention is not None
        keep, doublings = self._retention
        saved, torn = [], []
        for step in self.place.steps():
            manifest, _ = (newest, None) if step == newest.step else self._read(step)
            if manifest is not None:
                saved.append(KeptCheckpoint(step, manifest.health == "clean"))
            elif step < newest.step:
                torn.append(step)
        spared = [self._restoring] if self._restoring else []
        return sorted(
            [*torn, *choose_deletable(saved, newest=newest.step, keep=keep, doublings=doublings, spared=spared)]
        )
