"""Keep snapshots between durable saves, in the memory of the nodes: `Snapshots`, for a script with a Saver.

A snapshot is the copy that a save stages, without a file. A process on each node (snapshot_process.py) holds the
memory, so it outlives the ranks. The process of the next node has a copy, so it outlives a node. It counts only while
all of it exists, for all ranks.
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

from rerail_agent.checkpoints.link import Link, LinkLost, connect_locally, find_own_address
from rerail_agent.checkpoints.manifest import DamagedCheckpoint, Manifest
from rerail_agent.checkpoints.mapped_reader import (
    MappedReader,
    ShareSurvey,
    SnapshotIndex,
    add_values,
    describe_contents,
)
from rerail_agent.checkpoints.plan import SavePlan, Spot
from rerail_agent.checkpoints.rank_exchange import LONGEST_PAUSE_S, SHORTEST_PAUSE_S, RankExchange
from rerail_agent.checkpoints.restore import UnfitState, list_unplaced, load_into, require_placed
from rerail_agent.checkpoints.ring import Ring, SnapshotHistory, SnapshotMove, choose_slot
from rerail_agent.checkpoints.saver import Saver
from rerail_agent.checkpoints.snapshot_choice import ChoiceResult, KeptShare, SnapshotChoice, choose_snapshot
from rerail_agent.checkpoints.snapshot_label import DamagedShare, SnapshotLabel
from rerail_agent.checkpoints.staging_memory import Arena
from rerail_agent.snapshot_launch import FOLDER, SOCKET, STEPS, read_snapshot_steps

# For a rank that does not report how its snapshot ended.
PATIENCE_S = 300.0
# To the main thread, which needs the interpreter's lock for its next step.
YIELDED_S = 0.005
RESUME_STEP, ROLLED_BACK = "RERAIL_RESUME_STEP", "RERAIL_ROLLED_BACK"
ROOM_FOR_VALUES = 1 << 20  # plain values may grow by as much, and to twice their size

Damaged = set[tuple[int, int, str]]  # node, rank, snapshot


@dataclass(frozen=True)
class StagedShare:
    """A staged share that is to be sent; its plain values are still to be written behind the tensors."""

    number: int
    name: str
    manifest: Manifest
    slot: "StagingSlot"
    plan: SavePlan
    values: bytes
    spots: Mapping[str, Spot]
    keep: str


@dataclass(frozen=True)
class ResumeLimits:
    """The limits from which ranks may resume, as set at their start.

    Ranks that start again without a command continue from their own snapshot, though it is newer than that step. After
    a command to go back since it was taken, they must not.
    """

    # The newest step to resume from, None for any.
    resume_at_most: int | None = None
    # The restart in place that went back to it.
    rolled_back: str = ""

    @property
    def name(self) -> str:
        return f"{self.resume_at_most}/{self.rolled_back}"

    def allow(self, label: SnapshotLabel) -> bool:
        return self.resume_at_most is None or label.manifest.step <= self.resume_at_most or label.orders == self.name


class Snapshots:
    """The snapshots of a run, as one rank uses them; off unless `every` is above 0 and each node has its process.

    restore(), prepare() and take() are collective, in the same order on every rank, on the main thread. None uses a
    collective operation of torch.distributed. A lost rank, snapshot process or node costs snapshots and nothing else.
    """

    def __init__(
        self,
        saver: Saver,
        *,
        every: int,
        folder: str | os.PathLike[str] = "",
        host: str = "127.0.0.1",
        resume_limits: ResumeLimits | None = None,
        log: Callable[[str], None] = print,
        store: Any = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.saver, self.every, self.log = saver, every, log
        self.rank, self.world_size = saver.rank, saver.world_size
        self.newest_step = 0  # of the newest snapshot that is complete everywhere, as far as this rank knows
        self._resume_limits = resume_limits or ResumeLimits()
        self._folder, self._host, self._patience_s = str(folder), host, patience_s
        self._store = dist.PrefixStore("snapshots", store) if store is not None else None
        self._is_on: bool | None = None if every > 0 else False
        self._logged: set[str] = set()
        self._plan: SavePlan | None = None
        self._slots: list[StagingSlot] = []
        self._count = 0  # of moves that this rank has made
        self._moves: dict[int, SnapshotMove] = {}  # that it knows of and has not made
        self._posted = 0
        self._swept = 0
        self._history = SnapshotHistory()
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
        log: Callable[[str], None] = print,
        environment: Mapping[str, str] = os.environ,
    ) -> "Snapshots":
        """Make them as RERAIL_SNAPSHOT_STEPS asks, with the process that init started; `interface` is the job's."""
        host = find_own_address(interface, environment.get("MASTER_ADDR", "127.0.0.1"))
        steps = read_snapshot_steps(environment, log if saver.rank == 0 else lambda line: None)
        asked = environment.get(RESUME_STEP, "")
        limits = ResumeLimits(int(asked) if asked.isdecimal() else None, environment.get(ROLLED_BACK, ""))
        return cls(saver, every=steps, folder=environment.get(FOLDER, ""), host=host, resume_limits=limits, log=log)

    def due(self, step: int) -> bool:
        """Return whether to take a snapshot after this step."""
        return bool(self._is_on is not False and self.every > 0 and step % self.every == 0)

    def prepare(self, state: Mapping[str, Any]) -> None:
        """Allocate memory for snapshots of this state. Call it once the saver is prepared for it."""
        if self._connect():
            plan, leaves = self.saver.plan_for(state)
            self._lay_out(plan, leaves)

    def take(self, state: Mapping[str, Any], manifest: Manifest) -> bool:
        """Stage a snapshot; the training may go on when this returns, and the snapshot processes do the rest.

        Return False if it is skipped, on every rank: the one before is still pending, or snapshots have ended.
        """
        if not self._connect():
            return False
        plan, leaves = self.saver.plan_for(state)
        if plan is not self._plan and not self._lay_out(plan, leaves):
            return False
        move = self._next_move()
        if move.is_last:
            self._is_on = False
            self._log_once(f"no more snapshots: the last {self._history.failures} could not be kept")
        if not move.takes:
            return False
        self._stage(plan, leaves, manifest, keep=move.keep)
        return True

    def restore(
        self, state: dict[str, Any], allowed: Callable[[Manifest], bool] = lambda manifest: True
    ) -> Manifest | None:
        """Fill the state in place from the newest snapshot that is complete, allowed, and newer than any checkpoint.

        Return None and leave the state unchanged if there is no such snapshot. Then the newest checkpoint is to be
        taken, and one line says why if there should have been one. Rank 0's result of `allowed` counts.
        """
        if not self._connect():
            return None
        durable = self.saver.find_newest_listed(allowed)
        damaged: Damaged = set()
        kept = self._collect_labels()
        answer = self._choose(kept, allowed, durable, damaged)
        while (choice := answer.choice) is not None:
            try:
                found = self._restore_choice(choice, state, damaged)
            except UnfitState as error:
                answer = ChoiceResult(None, (*answer.reasons, str(error)))
                break
            if found:
                self._adopt(choice)
                return choice.manifest
            answer = self._choose(kept, allowed, durable, damaged)
        self._retain("")
        if self._restarted:
            self._log_once(f"no snapshot to go on from: {answer.reason}; taking the newest checkpoint")
        return None

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return whether no snapshot is pending any more, within the time."""
        with self._lock:
            return self._lock.wait_for(lambda: self._under_way == 0, timeout_s)

    def close(self) -> None:
        """End this rank's part; the snapshot processes keep what they have."""
        self._closing = True
        self._taken.put(None)
        if self._thread is not None:
            self._thread.join(timeout=5)
        for slot in self._slots:
            slot.close()
        self._slots = []
        if self._is_on is not None and self.every > 0:
            for link in (self._link, self._background_link):
                if link is not None:
                    link.close()

    # ------------------------------------------------------------------ meeting

    _link: Link | None = None  # the main thread's
    _background_link: Link | None = None  # the background's
    _restarted = False

    def _connect(self) -> bool:
        """Return whether there are snapshots; the first call connects, and finds out which nodes are neighbours."""
        if self._is_on is None:
            self._exchange = RankExchange(
                rank=self.rank, world_size=self.world_size, store=self._store, patience_s=self._patience_s
            )
            answers = self._exchange.all_gather(self._hello())
            problems = [f"rank {rank}: {answer['error']}" for rank, answer in enumerate(answers) if "error" in answer]
            self._is_on = not problems
            if problems:
                self._log_once(
                    f"no snapshots: {problems[0]}; {STEPS} needs rerail_agent.init around the job on every node"
                )
            else:
                self._join(answers)
        return self._is_on

    def _hello(self) -> dict[str, Any]:
        if not self._folder:
            return {"error": "has no snapshot process"}
        deadline = time.monotonic() + 20.0  # it starts when the ranks do, and does so faster
        while True:
            try:
                self._link = connect_locally(str(Path(self._folder) / SOCKET))
                self._background_link = connect_locally(str(Path(self._folder) / SOCKET))
                return self._link.ask({"do": "hello"})
            except LinkLost as lost:
                if time.monotonic() > deadline:
                    return {"error": f"has no snapshot process ({lost})"}
                time.sleep(LONGEST_PAUSE_S)

    def _join(self, answers: list[dict[str, Any]]) -> None:
        self._ring = Ring.of([str(answer["name"]) for answer in answers])
        self._node = self._ring.find_node(self.rank)
        self._restarted = any(answer["starts"] for answer in answers)
        self._start_id, secret = self._exchange.broadcast((secrets.token_hex(8), secrets.token_hex(32)))
        joining = {"do": "join", "secret": secret, "host": self._host, "life": self._start_id}
        address = self._ask(joining).get("address") if self._leads else None
        self._addresses = [
            node_address for node_address in self._exchange.all_gather(address) if node_address is not None
        ]
        if len(self._addresses) < len(self._ring.nodes):
            self._is_on = False
            self._log_once("no snapshots: the snapshot process of a node has ended")

    @property
    def _leads(self) -> bool:
        """Return whether this rank sends the requests that concern its whole node."""
        return self._ring.nodes[self._node][0] == self.rank

    def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return the snapshot process's answer; {"error": ...} also if the process is gone."""
        assert self._link is not None
        try:
            return self._link.ask(message)
        except LinkLost as lost:
            return {"error": f"the snapshot process of this node is gone: {lost}"}

    # ------------------------------------------------------------------ restoring

    def _collect_labels(self) -> list[KeptShare]:
        """Return the shares that every node reports to have."""
        tables = self._ask({"do": "labels"}).get("labels", []) if self._leads else []
        found: list[KeptShare] = []
        for table in tables:
            with suppress(DamagedShare):
                found.append(KeptShare(self._node, SnapshotLabel.parse(table)))
        return [share for shares in self._exchange.all_gather(found) for share in shares]

    def _choose(
        self, kept: list[KeptShare], allowed: Callable[[Manifest], bool], durable: int, damaged: Damaged
    ) -> ChoiceResult:
        answer = None
        if self.rank == 0:
            answer = choose_snapshot(
                kept,
                allowed=lambda label: allowed(label.manifest) and self._resume_limits.allow(label),
                newer_than=durable,
                damaged=damaged,
            )
        chosen: ChoiceResult = self._exchange.broadcast(answer)
        return chosen

    def _restore_choice(self, choice: SnapshotChoice, state: dict[str, Any], damaged: Damaged) -> bool:
        """Return whether the state is now that of the snapshot; if not, note the damage and keep the state."""
        texts = self._merge(self._contents(choice), damaged)
        if texts is None:
            return False
        catalogue = SnapshotIndex.of([texts[rank] for rank in range(len(choice.holders))])
        survey = ShareSurvey(catalogue)
        unfit: UnfitState | None = None
        unplaced: set[str] = set()
        try:
            load_into(state, survey, per_rank=self.saver.per_rank)
            unplaced = list_unplaced(state, survey.read_metadata(), self.saver.per_rank)
        except UnfitState as error:
            unfit = error
        everyone = self._exchange.all_gather((sorted(survey.ranks), unfit, unplaced))
        for _, problem, _ in everyone:
            if problem is not None:
                raise problem
        require_placed([keys for *_, keys in everyone])
        wanted = {needed for rank in self._ring.nodes[self._node] for needed in everyone[rank][0]}
        wanted |= {rank for rank in self._ring.list_kept_ranks(self._node) if rank < len(choice.holders)}
        if self._merge(self._fetch_shares(choice, sorted(wanted)), damaged) is None:
            return False
        self._load(choice, catalogue, survey.ranks, state)
        return True

    def _contents(self, choice: SnapshotChoice) -> tuple[dict[int, bytes], Damaged]:
        """Return the description of each share that this node answers for, after verifying all of its bytes."""
        texts: dict[int, bytes] = {}
        failed: Damaged = set()
        for rank, nodes in enumerate(choice.holders) if self._leads else ():
            if nodes[0] == self._node:
                try:
                    with self._open_share(rank, choice.snapshot) as share:
                        texts[rank] = share.contents
                except (DamagedShare, LinkLost):
                    failed.add((self._node, rank, choice.snapshot))
        return texts, failed

    def _fetch_shares(self, choice: SnapshotChoice, wanted: list[int]) -> tuple[dict[int, bytes], Damaged]:
        """Make this node's process verify or fetch every share that is wanted here."""
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
            # Another node had it: one bad copy does not make the snapshot unusable.
            failed -= {(node, rank, choice.snapshot) for node in choice.holders[rank]}
        return {}, failed

    def _is_here(self, rank: int, snapshot: str, node: int) -> bool:
        if node == self._node:
            try:
                self._open_share(rank, snapshot).close()
            except (DamagedShare, LinkLost):
                return False
            return True
        fetch = {"do": "fetch", "rank": rank, "snapshot": snapshot, "from": self._addresses[node]}
        return "error" not in self._ask(fetch)

    def _merge(self, mine: tuple[dict[int, bytes], Damaged], damaged: Damaged) -> dict[int, bytes] | None:
        """Return the texts of all ranks; None, with the damage noted, if any rank found damage."""
        everyone = self._exchange.all_gather(mine)
        failed = {share for _, shares in everyone for share in shares}
        damaged |= failed
        return None if failed else {rank: text for texts, _ in everyone for rank, text in texts.items()}

    def _load(self, choice: SnapshotChoice, catalogue: SnapshotIndex, ranks: set[int], state: dict[str, Any]) -> None:
        """Load verified shares; raise DamagedCheckpoint on every rank if one fails, because the state is mixed then."""
        problem = ""
        shares: dict[int, OpenShare] = {}
        try:
            for rank in ranks:
                shares[rank] = self._open_share(rank, choice.snapshot)
            reader = MappedReader(catalogue, {rank: share.view for rank, share in shares.items()})
            load_into(state, reader, per_rank=self.saver.per_rank)
        except Exception as error:  # of any kind: the other ranks must not continue from a snapshot that this one lacks
            problem = f"rank {self.rank}: {type(error).__name__}: {error}"
        problems = [text for text in self._exchange.all_gather(problem) if text]
        for share in shares.values():
            share.close()
        if problems:
            self._retain("")  # so that the next start takes a checkpoint
            raise DamagedCheckpoint(
                f"the snapshot of step {choice.manifest.step} could not be loaded, and the state is partly overwritten:"
                f" start again ({problems[0]})"
            )

    def _open_share(self, rank: int, snapshot: str) -> "OpenShare":
        """Return a share in this node's memory, every byte verified; raises DamagedShare or LinkLost."""
        answer = self._ask({"do": "open", "rank": rank, "snapshot": snapshot})
        if "error" in answer:
            raise DamagedShare(answer["error"])
        assert self._link is not None
        return OpenShare(SnapshotLabel.parse(answer["label"]), self._link.receive_file())

    def _adopt(self, choice: SnapshotChoice) -> None:
        self._retain(choice.snapshot)
        self._history.keep = choice.snapshot
        self.newest_step = choice.manifest.step

    def _retain(self, snapshot: str) -> None:
        if self._leads:
            self._ask({"do": "retain", "snapshot": snapshot, "ranks": list(self._ring.list_kept_ranks(self._node))})

    # ------------------------------------------------------------------ taking

    def _lay_out(self, plan: SavePlan, leaves: list[Any]) -> bool:
        """Allocate two slots for this plan's share on every rank, or end snapshots; return whether there are any."""
        self.wait()
        for slot in self._slots:
            slot.close()
        self._slots = []
        self._contents_text = describe_contents(plan)
        values, spots = plan.make_value_blobs(leaves)
        plain = 2 * (len(values) + len(add_values(self._contents_text, spots)) - len(self._contents_text))
        size = plan.image + plain + len(self._contents_text) + ROOM_FOR_VALUES
        problem = self._get_slots(plan, leaves, size)
        problems = [f"rank {rank}: {text}" for rank, text in enumerate(self._exchange.all_gather(problem)) if text]
        if problems:
            self._is_on = False
            self._log_once(f"no snapshots: {problems[0]}")
            return False
        self._plan = plan
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rerail-snapshots", daemon=True)
            self._thread.start()
            if self.rank == 0:
                self._post(SnapshotMove(takes=True, keep=self._history.keep))
        return True

    def _get_slots(self, plan: SavePlan, leaves: list[Any], size: int) -> str:
        """Return what went wrong, "" if nothing did."""
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
            if not slot.inside:  # the other one may hold the only snapshot
                slot.adopt(plan)
                plan.stage(leaves, slot.holes)  # a first call allocates and loads kernels
        return ""

    def _stage(self, plan: SavePlan, leaves: list[Any], manifest: Manifest, *, keep: str) -> None:
        slot = self._slots[choose_slot(keep, [staging_slot.inside for staging_slot in self._slots])]
        if not slot.holes and plan.parts:
            slot.adopt(plan)
        plan.stage(leaves, slot.holes)
        values, spots = plan.make_value_blobs(leaves)
        number = self._count - 1
        slot.inside = f"{self._start_id}-{number}"
        with self._lock:
            self._under_way += 1
        self._taken.put(StagedShare(number, slot.inside, manifest, slot, plan, values, spots, keep))

    def _next_move(self) -> SnapshotMove:
        number = self._count
        self._count += 1
        if self.rank == 0:
            with self._lock:
                if number not in self._moves:
                    self._log_once(
                        "a snapshot is skipped, because the one before it is still pending:"
                        f" {STEPS}={self.every} is more often than the machines can take them"
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
        """Publish rank 0's next move; call it with the lock, or before there is another thread."""
        self._moves[self._posted] = move
        if self.world_size > 1:
            self._exchange.post(f"move-{self._posted}", move)
        self._posted += 1

    # ------------------------------------------------------------------ in the background

    def _run(self) -> None:
        while (taken := self._taken.get()) is not None and not self._closing:
            time.sleep(YIELDED_S)
            try:
                self._deliver(taken)
            except Exception as error:  # a store that has ended with its rank: the job ends too
                self._log_once(f"rank {self.rank}: the snapshot of step {taken.manifest.step}: {error}")
            finally:
                with self._lock:
                    self._under_way -= 1
                    self._lock.notify_all()
            if self.rank:
                self._prefetch_move(taken.number + 1)

    def _deliver(self, taken: StagedShare) -> None:
        """Send a share to the snapshot processes and post the result; rank 0 then makes a move."""
        problem = self._put(taken)
        store = self._exchange.store
        if problem:
            self._log_once(f"rank {self.rank}: no snapshot of step {taken.manifest.step}: {problem}")
        else:
            store.add(f"held-{taken.number}", 1)
        store.add(f"done-{taken.number}", 1)
        if self.rank == 0:
            held = self._await_done(taken.number) and store.add(f"held-{taken.number}", 0) == self.world_size
            with self._lock:
                clean = taken.manifest.health == "clean"
                self._post(self._history.advance(taken.name, held=held, clean=clean))
                if held and clean:
                    self.newest_step = taken.manifest.step
            self._sweep(taken.number)

    def _put(self, taken: StagedShare) -> str:
        contents = add_values(self._contents_text, taken.spots)
        sizes = (taken.plan.image, len(taken.values), len(contents))
        if sum(sizes) > taken.slot.arena.size:
            return "the plain values of the state have outgrown their memory"
        taken.slot.arena.write(taken.plan.image, taken.values + contents)
        label = SnapshotLabel(taken.name, self.rank, taken.manifest, *sizes, orders=self._resume_limits.name)
        neighbour = self._ring.find_neighbour(self._node)
        to = None if neighbour is None else self._addresses[neighbour]
        message = {"do": "put", "label": label.table(), "slot": taken.slot.number, "to": to, "keep": taken.keep}
        assert self._background_link is not None
        try:
            return str(self._background_link.ask(message).get("error", ""))
        except LinkLost as lost:
            return f"the snapshot process of this node is gone: {lost}"

    def _await_done(self, number: int) -> bool:
        """Return whether every rank has posted its result."""
        started = time.monotonic()
        while (waited := time.monotonic() - started) < self._patience_s and not self._closing:
            if self._exchange.store.add(f"done-{number}", 0) == self.world_size:
                return True
            time.sleep(min(LONGEST_PAUSE_S, max(SHORTEST_PAUSE_S, waited / 10)))
        return False

    def _sweep(self, number: int) -> None:
        """Delete what every rank has read: all have taken this snapshot."""
        while self._swept < number:
            for name in ("move", "held", "done"):
                self._exchange.store.delete_key(f"{name}-{self._swept}")
            self._swept += 1

    def _prefetch_move(self, number: int) -> None:
        """Read the next move while the training goes on, so that its step need not wait for the store."""
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

    def _log_once(self, line: str) -> None:
        kind = line[:24]
        if kind not in self._logged and (self.rank == 0 or line.startswith("rank ")):
            self._logged.add(kind)
            self.log(line)


class StagingSlot:
    """One of the two slots that a rank stages in; `inside` names the snapshot in it."""

    def __init__(self, number: int, arena: Arena, inside: str) -> None:
        self.number, self.arena, self.inside = number, arena, inside
        self.holes: list[torch.Tensor] = []

    def adopt(self, plan: SavePlan) -> None:
        """Prepare the slot for a plan, which destroys its content."""
        self.holes = plan.holes(self.arena)

    def close(self) -> None:
        self.holes = []
        self.arena.close()


class OpenShare:
    """A verified share of the snapshot process, mapped here to be read."""

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
