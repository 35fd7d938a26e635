"""Snapshots between durable saves, in the memory of the nodes: `Snapshots`, for a training script beside its Saver.

A snapshot is the copy that a save stages, and no file is made of it. A process on each node (snapshot_process.py)
has the memory, so it outlives the ranks; the one of the next node has a copy, so it outlives a node. It counts only
while all of it is there, for all ranks.
"""

import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from rerail_agent.checkpoints.link import Link, LinkLost, call_here, own_address
from rerail_agent.checkpoints.manifest import DamagedCheckpoint, Manifest
from rerail_agent.checkpoints.mapped_reader import MappedReader, ShareSurvey, SnapshotIndex, contents_of, with_values
from rerail_agent.checkpoints.plan import SavePlan, Spot
from rerail_agent.checkpoints.rank_exchange import LONGEST_PAUSE_S, SHORTEST_PAUSE_S, RankExchange
from rerail_agent.checkpoints.restore import UnfitState, load_into
from rerail_agent.checkpoints.ring import Ring, SnapshotMove, SnapshotRounds, choose_slot
from rerail_agent.checkpoints.saver import Saver
from rerail_agent.checkpoints.snapshot_choice import ChoiceResult, KeptShare, SnapshotChoice, choose_snapshot
from rerail_agent.checkpoints.snapshot_label import DamagedShare, SnapshotLabel
from rerail_agent.checkpoints.staging_memory import Arena
from rerail_agent.snapshot_keeper import FOLDER, SOCKET, STEPS, snapshot_steps

PATIENCE_S = 300.0  # for a rank that does not say how its snapshot ended
YIELDED_S = 0.005  # to the main thread, which has the interpreter's lock and a step to go on with
RESUME_STEP, ROLLED_BACK = "RERAIL_RESUME_STEP", "RERAIL_ROLLED_BACK"
ROOM_FOR_VALUES = 1 << 20  # plain values may grow by as much, and to twice their size

Damaged = set[tuple[int, int, str]]  # node, rank, snapshot


@dataclass(frozen=True)
class StagedShare:
    """A staged share on its way to the keepers; its plain values are still to be written behind the tensors."""

    number: int
    name: str
    manifest: Manifest
    slot: "StagingSlot"
    plan: SavePlan
    values: bytes
    spots: Mapping[str, Spot]
    keep: str


@dataclass(frozen=True)
class StartOrders:
    """What these ranks were told at their start: the newest step to resume from, None for any, and which restart in
    place told them to go back.

    Ranks that start again without a word go on from their own snapshot, though it is newer than that step. Told to go
    back since it was taken, they must not.
    """

    resume_at_most: int | None = None
    rolled_back: str = ""

    @property
    def name(self) -> str:
        return f"{self.resume_at_most}/{self.rolled_back}"

    def allow(self, label: SnapshotLabel) -> bool:
        return self.resume_at_most is None or label.manifest.step <= self.resume_at_most or label.orders == self.name


class Snapshots:
    """The snapshots of a run, as one rank sees them; off unless `every` is above 0 and each rank has a keeper.

    restore(), prepare() and take() are collective, in the same order on every rank, on the main thread; none uses a
    collective operation of torch.distributed. A rank, a keeper or a node that is lost costs snapshots and nothing else.
    """

    def __init__(
        self,
        saver: Saver,
        *,
        every: int,
        folder: str | os.PathLike[str] = "",
        host: str = "127.0.0.1",
        orders: StartOrders | None = None,
        tell: Callable[[str], None] = print,
        store: Any = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.saver, self.every, self.tell = saver, every, tell
        self.rank, self.world_size = saver.rank, saver.world_size
        self.newest_step = 0  # of the newest snapshot that is whole everywhere, as far as this rank has heard
        self._orders = orders or StartOrders()
        self._folder, self._host, self._patience_s = str(folder), host, patience_s
        self._store = dist.PrefixStore("snapshots", store) if store is not None else None
        self._is_on: bool | None = None if every > 0 else False
        self._was_told: set[str] = set()
        self._plan: SavePlan | None = None
        self._slots: list[StagingSlot] = []
        self._count = 0  # of moves that this rank has made
        self._moves: dict[int, SnapshotMove] = {}  # that it knows of and has not made
        self._posted = 0
        self._swept = 0
        self._rounds = SnapshotRounds()
        self._lock = threading.Condition()
        self._under_way = 0
        self._closing = False
        self._taken: queue.SimpleQueue[StagedShare | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @classmethod
    def from_environment(
        cls,
        saver: Saver,
        *,
        interface: str = "",
        tell: Callable[[str], None] = print,
        environment: Mapping[str, str] = os.environ,
    ) -> "Snapshots":
        """As RERAIL_SNAPSHOT_STEPS asks for them, with the keeper that init has started; `interface` is the job's."""
        host = own_address(interface, environment.get("MASTER_ADDR", "127.0.0.1"))
        steps = snapshot_steps(environment, tell if saver.rank == 0 else lambda line: None)
        asked = environment.get(RESUME_STEP, "")
        orders = StartOrders(int(asked) if asked.isdecimal() else None, environment.get(ROLLED_BACK, ""))
        return cls(saver, every=steps, folder=environment.get(FOLDER, ""), host=host, orders=orders, tell=tell)

    def due(self, step: int) -> bool:
        """Whether this is a step to take a snapshot after."""
        return bool(self._is_on is not False and self.every > 0 and step % self.every == 0)

    def prepare(self, state: Mapping[str, Any]) -> None:
        """Has the keepers make room for snapshots of this state. Call it once the saver is prepared for it."""
        if self._met():
            plan, leaves = self.saver.planned(state)
            self._lay_out(plan, leaves)

    def take(self, state: Mapping[str, Any], manifest: Manifest) -> bool:
        """Stages a snapshot; the training may go on when this returns, and the keepers do the rest.

        False if it is passed over, on every rank: the one before is still on its way, or there are none any more.
        """
        if not self._met():
            return False
        plan, leaves = self.saver.planned(state)
        if plan is not self._plan and not self._lay_out(plan, leaves):
            return False
        move = self._next_move()
        if move.is_last:
            self._is_on = False
            self._tell_once(f"no more snapshots: the last {self._rounds.failures} could not be kept")
        if not move.takes:
            return False
        self._stage(plan, leaves, manifest, keep=move.keep)
        return True

    def restore(
        self, state: dict[str, Any], allowed: Callable[[Manifest], bool] = lambda manifest: True
    ) -> Manifest | None:
        """Fills the state in place from the newest snapshot that is whole, allowed, and newer than any checkpoint.

        None, with the state as it was, where there is no such snapshot: then the newest checkpoint is to be taken, and
        one line says why if there should have been one. What `allowed` says on rank 0 counts.
        """
        if not self._met():
            return None
        durable = self.saver.listed(allowed)
        damaged: Damaged = set()
        kept = self._kept()
        answer = self._elected(kept, allowed, durable, damaged)
        while (choice := answer.choice) is not None:
            try:
                found = self._recalled(choice, state, damaged)
            except UnfitState as error:
                answer = ChoiceResult(None, (*answer.reasons, str(error)))
                break
            if found:
                self._go_on_from(choice)
                return choice.manifest
            answer = self._elected(kept, allowed, durable, damaged)
        self._retain("")
        if self._restarted:
            self._tell_once(f"no snapshot to go on from: {answer.reason}; taking the newest checkpoint")
        return None

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether nothing taken is on its way any more, within the time."""
        with self._lock:
            return self._lock.wait_for(lambda: self._under_way == 0, timeout_s)

    def close(self) -> None:
        """Ends this rank's part; what the keepers have stays with them."""
        self._closing = True
        self._taken.put(None)
        if self._thread is not None:
            self._thread.join(timeout=5)
        for slot in self._slots:
            slot.close()
        self._slots = []
        if self._is_on is not None and self.every > 0:
            for link in (self._link, self._carrier):
                if link is not None:
                    link.close()

    # ------------------------------------------------------------------ meeting

    _link: Link | None = None  # the main thread's
    _carrier: Link | None = None  # the background's
    _restarted = False

    def _met(self) -> bool:
        """Whether there are snapshots; the first call finds out, and who is whose neighbour."""
        if self._is_on is None:
            self._exchange = RankExchange(
                rank=self.rank, world_size=self.world_size, store=self._store, patience_s=self._patience_s
            )
            hellos = self._exchange.share(self._hello())
            problems = [f"rank {rank}: {each['error']}" for rank, each in enumerate(hellos) if "error" in each]
            self._is_on = not problems
            if problems:
                self._tell_once(
                    f"no snapshots: {problems[0]}; {STEPS} needs rerail_agent.init around the job on every node"
                )
            else:
                self._join(hellos)
        return self._is_on

    def _hello(self) -> dict[str, Any]:
        if not self._folder:
            return {"error": "has no keeper"}
        deadline = time.monotonic() + 20.0  # it starts when the ranks do, and does so faster
        while True:
            try:
                self._link = call_here(str(Path(self._folder) / SOCKET))
                self._carrier = call_here(str(Path(self._folder) / SOCKET))
                return self._link.ask({"do": "hello"})
            except LinkLost as lost:
                if time.monotonic() > deadline:
                    return {"error": f"has no keeper ({lost})"}
                time.sleep(LONGEST_PAUSE_S)

    def _join(self, hellos: list[dict[str, Any]]) -> None:
        self._ring = Ring.of([str(each["name"]) for each in hellos])
        self._node = self._ring.node_of(self.rank)
        self._restarted = any(each["starts"] for each in hellos)
        self._life, secret = self._exchange.spread((secrets.token_hex(8), secrets.token_hex(32)))
        joining = {"do": "join", "secret": secret, "host": self._host, "life": self._life}
        address = self._ask(joining).get("address") if self._leads else None
        self._addresses = [each for each in self._exchange.share(address) if each is not None]
        if len(self._addresses) < len(self._ring.nodes):
            self._is_on = False
            self._tell_once("no snapshots: the keeper of a node went away")

    @property
    def _leads(self) -> bool:
        """Of the ranks of a node one asks the keeper for what concerns the node."""
        return self._ring.nodes[self._node][0] == self.rank

    def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The keeper's answer; {"error": ...} also where there is no keeper any more."""
        assert self._link is not None
        try:
            return self._link.ask(message)
        except LinkLost as lost:
            return {"error": f"the keeper of this node is gone: {lost}"}

    # ------------------------------------------------------------------ restoring

    def _kept(self) -> list[KeptShare]:
        """What every node says it has."""
        tables = self._ask({"do": "labels"}).get("labels", []) if self._leads else []
        found: list[KeptShare] = []
        for table in tables:
            with suppress(DamagedShare):
                found.append(KeptShare(self._node, SnapshotLabel.parse(table)))
        return [each for those in self._exchange.share(found) for each in those]

    def _elected(
        self, kept: list[KeptShare], allowed: Callable[[Manifest], bool], durable: int, damaged: Damaged
    ) -> ChoiceResult:
        answer = None
        if self.rank == 0:
            answer = choose_snapshot(
                kept,
                allowed=lambda label: allowed(label.manifest) and self._orders.allow(label),
                newer_than=durable,
                damaged=damaged,
            )
        chosen: ChoiceResult = self._exchange.spread(answer)
        return chosen

    def _recalled(self, choice: SnapshotChoice, state: dict[str, Any], damaged: Damaged) -> bool:
        """Whether the state is now that of the snapshot; what turned out damaged is noted, and then it is as before."""
        texts = self._shared_out(self._contents(choice), damaged)
        if texts is None:
            return False
        catalogue = SnapshotIndex.of([texts[rank] for rank in range(len(choice.holders))])
        survey = ShareSurvey(catalogue)
        unfit: UnfitState | None = None
        try:
            load_into(state, survey, per_rank=self.saver.per_rank, partial=False)
        except UnfitState as error:
            unfit = error
        everyone = self._exchange.share((sorted(survey.ranks), unfit))
        for _, problem in everyone:
            if problem is not None:
                raise problem
        wanted = {each for rank in self._ring.nodes[self._node] for each in everyone[rank][0]}
        wanted |= {rank for rank in self._ring.kept_by(self._node) if rank < len(choice.holders)}
        if self._shared_out(self._brought(choice, sorted(wanted)), damaged) is None:
            return False
        self._load(choice, catalogue, survey.ranks, state)
        return True

    def _contents(self, choice: SnapshotChoice) -> tuple[dict[int, bytes], Damaged]:
        """Of each share that this node answers for, what lies where in it; every byte of those shares is verified."""
        texts: dict[int, bytes] = {}
        failed: Damaged = set()
        for rank, nodes in enumerate(choice.holders) if self._leads else ():
            if nodes[0] == self._node:
                try:
                    with self._opened(rank, choice.snapshot) as share:
                        texts[rank] = share.contents
                except (DamagedShare, LinkLost):
                    failed.add((self._node, rank, choice.snapshot))
        return texts, failed

    def _brought(self, choice: SnapshotChoice, wanted: list[int]) -> tuple[dict[int, bytes], Damaged]:
        """Has the keeper of this node verify or fetch every share that is wanted here."""
        failed: Damaged = set()
        for rank in wanted if self._leads else ():
            ours = (node for node in choice.holders[rank] if node == self._node)
            others = (node for node in choice.holders[rank] if node != self._node)
            for node in (*ours, *others):
                if self._is_here(rank, choice.snapshot, node):
                    break
                failed.add((node, rank, choice.snapshot))
            else:
                continue
            # Another node had it: one bad copy is no reason to give the snapshot up.
            failed -= {(node, rank, choice.snapshot) for node in choice.holders[rank]}
        return {}, failed

    def _is_here(self, rank: int, snapshot: str, node: int) -> bool:
        if node == self._node:
            try:
                self._opened(rank, snapshot).close()
            except (DamagedShare, LinkLost):
                return False
            return True
        fetch = {"do": "fetch", "rank": rank, "snapshot": snapshot, "from": self._addresses[node]}
        return "error" not in self._ask(fetch)

    def _shared_out(self, mine: tuple[dict[int, bytes], Damaged], damaged: Damaged) -> dict[int, bytes] | None:
        """Everybody's finds together; None, and the damages noted, if anybody met one."""
        everyone = self._exchange.share(mine)
        failed = {each for _, those in everyone for each in those}
        damaged |= failed
        return None if failed else {rank: text for texts, _ in everyone for rank, text in texts.items()}

    def _load(self, choice: SnapshotChoice, catalogue: SnapshotIndex, ranks: set[int], state: dict[str, Any]) -> None:
        """Raises DamagedCheckpoint on every rank when one could not load what was verified: the state is mixed then."""
        problem = ""
        shares: dict[int, OpenShare] = {}
        try:
            for rank in ranks:
                shares[rank] = self._opened(rank, choice.snapshot)
            reader = MappedReader(catalogue, {rank: share.view for rank, share in shares.items()})
            load_into(state, reader, per_rank=self.saver.per_rank, partial=False)
        except Exception as error:  # whatever it is, the other ranks must not go on from a snapshot that this one lacks
            problem = f"rank {self.rank}: {type(error).__name__}: {error}"
        problems = [each for each in self._exchange.share(problem) if each]
        for share in shares.values():
            share.close()
        if problems:
            self._retain("")  # so that the next start takes a checkpoint
            raise DamagedCheckpoint(
                f"the snapshot of step {choice.manifest.step} could not be loaded, and the state is partly overwritten:"
                f" start anew ({problems[0]})"
            )

    def _opened(self, rank: int, snapshot: str) -> "OpenShare":
        """A share in this node's memory, every byte of it verified; raises DamagedShare or Lost."""
        answer = self._ask({"do": "open", "rank": rank, "snapshot": snapshot})
        if "error" in answer:
            raise DamagedShare(answer["error"])
        assert self._link is not None
        return OpenShare(SnapshotLabel.parse(answer["label"]), self._link.receive_file())

    def _go_on_from(self, choice: SnapshotChoice) -> None:
        self._retain(choice.snapshot)
        self._rounds.keep = choice.snapshot
        self.newest_step = choice.manifest.step

    def _retain(self, snapshot: str) -> None:
        if self._leads:
            self._ask({"do": "retain", "snapshot": snapshot, "ranks": list(self._ring.kept_by(self._node))})

    # ------------------------------------------------------------------ taking

    def _lay_out(self, plan: SavePlan, leaves: list[Any]) -> bool:
        """Has two slots for this plan's share on every rank, or ends the snapshots; whether there are any."""
        self.wait()
        for slot in self._slots:
            slot.close()
        self._slots = []
        self._contents_text = contents_of(plan)
        values, spots = plan.value_blobs(leaves)
        plain = 2 * (len(values) + len(with_values(self._contents_text, spots)) - len(self._contents_text))
        size = plan.image + plain + len(self._contents_text) + ROOM_FOR_VALUES
        problem = self._get_slots(plan, leaves, size)
        problems = [f"rank {rank}: {each}" for rank, each in enumerate(self._exchange.share(problem)) if each]
        if problems:
            self._is_on = False
            self._tell_once(f"no snapshots: {problems[0]}")
            return False
        self._plan = plan
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rerail-snapshots", daemon=True)
            self._thread.start()
            if self.rank == 0:
                self._post(SnapshotMove(takes=True, keep=self._rounds.keep))
        return True

    def _get_slots(self, plan: SavePlan, leaves: list[Any], size: int) -> str:
        """What went wrong, "" if nothing did."""
        answer = self._ask({"do": "slots", "rank": self.rank, "bytes": size})
        if "error" in answer:
            return str(answer["error"])
        assert self._link is not None
        try:
            for number, inside in answer["slots"]:
                arena = Arena.over(self._link.receive_file(), pinned=self.saver.is_pinned)
                self._slots.append(StagingSlot(number, arena, inside))
        except (LinkLost, OSError) as error:
            return str(error)
        for slot in self._slots:
            if not slot.inside:  # what lies in the other one may be all that there is
                slot.adopt(plan)
                plan.stage(leaves, slot.holes)  # for what a first time has to do besides
        return ""

    def _stage(self, plan: SavePlan, leaves: list[Any], manifest: Manifest, *, keep: str) -> None:
        slot = self._slots[choose_slot(keep, [each.inside for each in self._slots])]
        if not slot.holes and plan.parts:
            slot.adopt(plan)
        plan.stage(leaves, slot.holes)
        values, spots = plan.value_blobs(leaves)
        number = self._count - 1
        slot.inside = f"{self._life}-{number}"
        with self._lock:
            self._under_way += 1
        self._taken.put(StagedShare(number, slot.inside, manifest, slot, plan, values, spots, keep))

    def _next_move(self) -> SnapshotMove:
        number = self._count
        self._count += 1
        if self.rank == 0:
            with self._lock:
                if number not in self._moves:
                    self._tell_once(
                        "a snapshot is passed over, because the one before it is still on its way:"
                        f" {STEPS}={self.every} is less than the machines carry"
                    )
                    self._post(SnapshotMove(takes=False))
                return self._moves.pop(number)
        with self._lock:
            if number in self._moves:
                return self._moves.pop(number)
        self._exchange.await_all([f"move-{number}"], self._patience_s)
        move: SnapshotMove = self._exchange.read(f"move-{number}")
        return move

    def _post(self, move: SnapshotMove) -> None:
        """Rank 0 says what comes next; with the lock, or before there is another thread."""
        self._moves[self._posted] = move
        if self.world_size > 1:
            self._exchange.post(f"move-{self._posted}", move)
        self._posted += 1

    # ------------------------------------------------------------------ in the background

    def _run(self) -> None:
        while (taken := self._taken.get()) is not None and not self._closing:
            time.sleep(YIELDED_S)
            try:
                self._bring(taken)
            except Exception as error:  # a store that is gone with its rank: the job ends, and this says no more
                self._tell_once(f"rank {self.rank}: the snapshot of step {taken.manifest.step}: {error}")
            finally:
                with self._lock:
                    self._under_way -= 1
                    self._lock.notify_all()
            if self.rank:
                self._look_ahead(taken.number + 1)

    def _bring(self, taken: StagedShare) -> None:
        """Has the keepers take a share over, and says how that went; rank 0 then knows of all, and makes a move."""
        problem = self._put(taken)
        store = self._exchange.store
        if problem:
            self._tell_once(f"rank {self.rank}: no snapshot of step {taken.manifest.step}: {problem}")
        else:
            store.add(f"held-{taken.number}", 1)
        store.add(f"done-{taken.number}", 1)
        if self.rank == 0:
            held = self._await_done(taken.number) and store.add(f"held-{taken.number}", 0) == self.world_size
            with self._lock:
                clean = taken.manifest.health == "clean"
                self._post(self._rounds.ended(taken.name, held=held, clean=clean))
                if held and clean:
                    self.newest_step = taken.manifest.step
            self._sweep(taken.number)

    def _put(self, taken: StagedShare) -> str:
        contents = with_values(self._contents_text, taken.spots)
        sizes = (taken.plan.image, len(taken.values), len(contents))
        if sum(sizes) > taken.slot.arena.size:
            return "the plain values of the state have outgrown their room"
        taken.slot.arena.write(taken.plan.image, taken.values + contents)
        label = SnapshotLabel(taken.name, self.rank, taken.manifest, *sizes, orders=self._orders.name)
        neighbour = self._ring.neighbour(self._node)
        to = None if neighbour is None else self._addresses[neighbour]
        message = {"do": "put", "label": label.table(), "slot": taken.slot.number, "to": to, "keep": taken.keep}
        assert self._carrier is not None
        try:
            return str(self._carrier.ask(message).get("error", ""))
        except LinkLost as lost:
            return f"the keeper of this node is gone: {lost}"

    def _await_done(self, number: int) -> bool:
        """Whether every rank has said how it went."""
        started = time.monotonic()
        while (waited := time.monotonic() - started) < self._patience_s and not self._closing:
            if self._exchange.store.add(f"done-{number}", 0) == self.world_size:
                return True
            time.sleep(min(LONGEST_PAUSE_S, max(SHORTEST_PAUSE_S, waited / 10)))
        return False

    def _sweep(self, number: int) -> None:
        """Forgets what every rank has read: all have taken this one."""
        while self._swept < number:
            for name in ("move", "held", "done"):
                self._exchange.store.delete_key(f"{name}-{self._swept}")
            self._swept += 1

    def _look_ahead(self, number: int) -> None:
        """Reads the next move while the training goes on, so that its step need not wait for the store."""
        started = time.monotonic()
        while not self._closing and self._taken.empty():
            with self._lock:
                if number < self._count:
                    return
            with suppress(RuntimeError):
                if self._exchange.is_there([f"move-{number}"]):
                    with self._lock:
                        if number >= self._count:
                            self._moves[number] = self._exchange.read(f"move-{number}")
                    return
            time.sleep(min(LONGEST_PAUSE_S, max(SHORTEST_PAUSE_S, (time.monotonic() - started) / 10)))

    def _tell_once(self, line: str) -> None:
        kind = line[:24]
        if kind not in self._was_told and (self.rank == 0 or line.startswith("rank ")):
            self._was_told.add(kind)
            self.tell(line)


class StagingSlot:
    """One of the two places that a rank stages in; `inside` names the snapshot that lies there."""

    def __init__(self, number: int, arena: Arena, inside: str) -> None:
        self.number, self.arena, self.inside = number, arena, inside
        self.holes: list[torch.Tensor] = []

    def adopt(self, plan: SavePlan) -> None:
        """Makes the place ready for a plan, which destroys what lay there."""
        self.holes = plan.holes(self.arena)

    def close(self) -> None:
        self.holes = []
        self.arena.close()


class OpenShare:
    """A verified share of the keeper's, mapped here to be read."""

    def __init__(self, label: SnapshotLabel, file: int) -> None:
        self.label = label
        self._arena = Arena.over(file)
        self.view = memoryview(self._arena.memory)

    @property
    def contents(self) -> bytes:
        start = self.label.image + self.label.values
        return bytes(self.view[start : start + self.label.contents])

    def close(self) -> None:
        with suppress(BufferError):  # a tensor still looks into it
            self.view.release()
        self._arena.close()

    def __enter__(self) -> "OpenShare":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
