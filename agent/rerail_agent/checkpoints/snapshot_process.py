"""The process that keeps snapshots beside the ranks of a node, and outlives them: `python -m ...keeper FOLDER`.

The agent's init starts one where RERAIL_SNAPSHOT_STEPS asks for snapshots. It has no torch. The ranks stage in memory
of its own; it sums that up, hands a copy to the keeper of the next node, and gives back what ranks that start again ask
for. Ranks reach it by a socket in a folder of their user, other keepers by TCP with the secret of this start.
"""

import os
import secrets
import signal
import socket
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from rerail_agent.checkpoints.link import Link, LinkLost, call
from rerail_agent.checkpoints.snapshot_label import DamagedShare, SnapshotLabel
from rerail_agent.checkpoints.snapshot_memory import OutOfMemory, SnapshotMemory, SnapshotShare
from rerail_agent.checkpoints.writer import die_with
from rerail_agent.snapshot_keeper import SOCKET

NICENESS = 19  # the training comes first; where it leaves no time, snapshots are passed over
MOST_CALLERS = 64

Message = Mapping[str, Any]


class SnapshotProcess:
    """Serves one node. Each caller has a thread, and what concerns one rank's memory is done one after the other."""

    def __init__(self, shelf: SnapshotMemory | None = None) -> None:
        self.shelf = shelf or SnapshotMemory()
        self.name = secrets.token_hex(8)
        self.starts = 0  # how many times ranks have come
        self._secret = b""
        self._life = ""  # what the snapshots of these ranks' start are called by
        self._door: socket.socket | None = None
        self._callers = threading.Semaphore(MOST_CALLERS)
        self._turns: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
        self._here: dict[str, Callable[[Link, Message], None]] = {
            "hello": self._hello,
            "labels": self._labels,
            "join": self._join,
            "slots": self._give_slots,
            "put": self._put,
            "open": self._open,
            "fetch": self._fetch,
            "retain": self._retain,
        }
        self._elsewhere: dict[str, Callable[[Link, Message], None]] = {"store": self._store, "get": self._get}

    def serve(self, folder: Path) -> None:
        """Answers the ranks of this node, until the process is ended."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o077:
            raise PermissionError(f"{folder}: must belong to this user alone; delete it")
        path = folder / SOCKET
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(path))
            door.listen(256)
            while True:
                end, _ = door.accept()
                _in_background(self._answer, Link(end, timeout_s=None), self._here)

    def _listen(self, host: str) -> None:
        """Opens the door for other keepers, on the job's interface alone."""
        if self._door is not None and self._door.getsockname()[0] == host:
            return
        if self._door is not None:
            self._door.close()
        self._door = socket.create_server((host, 0), backlog=256)
        _in_background(self._welcome, self._door)

    def _welcome(self, door: socket.socket) -> None:
        with suppress(OSError):  # closed: another door is open
            while True:
                end, _ = door.accept()
                if self._callers.acquire(blocking=False):
                    _in_background(self._hear_out, end)
                else:
                    end.close()

    def _hear_out(self, end: socket.socket) -> None:
        try:
            with suppress(LinkLost):
                link = Link(end)
                link.prove(self._secret, calls=False)
                self._answer(link, self._elsewhere)
        finally:
            self._callers.release()

    def _answer(self, link: Link, verbs: Mapping[str, Callable[[Link, Message], None]]) -> None:
        """Does what a caller asks for, until it goes; what cannot be done is said, and breaks nothing else."""
        with closing(link), suppress(LinkLost):
            while True:
                message = link.receive()
                act = verbs.get(str(message.get("do")))
                if act is None:
                    return
                try:
                    act(link, message)
                except (DamagedShare, OutOfMemory, KeyError, StopIteration, TypeError, ValueError, OSError) as error:
                    link.send({"error": str(error) or type(error).__name__})

    # What the ranks of this node ask for.

    def _hello(self, link: Link, message: Message) -> None:
        link.send({"name": self.name, "starts": self.starts})

    def _labels(self, link: Link, message: Message) -> None:
        link.send({"labels": [each.table() for each in self.shelf.labels()]})

    def _join(self, link: Link, message: Message) -> None:
        """The ranks have started, with a new secret; what they find here they may not trust unread."""
        self._secret, self._life = bytes.fromhex(message["secret"]), str(message["life"])
        self.starts += 1
        for turn in [*self._turns.values()]:
            with turn:  # what killed ranks had asked for and is under way comes to its end first
                continue
        self.shelf.doubt()
        self._listen(str(message["host"]))
        assert self._door is not None
        host, port = self._door.getsockname()[:2]
        link.send({"address": [host, port]})

    def _give_slots(self, link: Link, message: Message) -> None:
        rank = int(message["rank"])
        with self._turns[rank]:
            slots = self.shelf.staging(rank, int(message["bytes"]))
        link.send({"slots": [[slot.number, inside] for slot, inside in slots]})
        for slot, _ in slots:
            link.send_file(slot.file)

    def _put(self, link: Link, message: Message) -> None:
        """A rank has staged: the share is filed, and counts as held once the neighbour has it too."""
        label = SnapshotLabel.parse(message["label"])
        with self._turns[label.rank]:
            self._insist_on_now(label)
            slot = self.shelf.slot(label.rank, int(message["slot"]))
            self.shelf.forget(label.rank, keep=[str(message["keep"])])
            share = self.shelf.put(label.sealed(slot.view), slot)
            try:
                if message["to"] is not None:
                    self._pass_on(share, _address(message["to"]), keep=str(message["keep"]))
            except LinkLost as lost:
                link.send({"error": f"the keeper of the next node cannot be reached: {lost}"})
                return
        link.send({"held": True})

    def _insist_on_now(self, label: SnapshotLabel) -> None:
        """A killed rank may have asked at its last moment, and the next one may be writing in its place by now."""
        if label.snapshot.rpartition("-")[0] != self._life:
            raise DamagedShare("a share of an earlier start")

    def _pass_on(self, share: SnapshotShare, to: tuple[str, int], *, keep: str) -> None:
        with closing(call(to, self._secret)) as link:
            answer = link.ask({"do": "store", "label": share.label.table(), "keep": keep})
            if "error" not in answer:
                link.send_body(share.slot.view[: share.label.bytes])
                answer = link.receive()
        if not answer.get("held"):
            raise LinkLost(str(answer.get("error", "no answer")))

    def _open(self, link: Link, message: Message) -> None:
        rank = int(message["rank"])
        with self._turns[rank]:
            share = self.shelf.opened(rank, str(message["snapshot"]))
        link.send({"label": share.label.table()})
        link.send_file(share.slot.file)

    def _fetch(self, link: Link, message: Message) -> None:
        """Brings a share from another node; the caller names where it may be."""
        rank, snapshot = int(message["rank"]), str(message["snapshot"])
        with self._turns[rank], closing(call(_address(message["from"]), self._secret)) as other:
            answer = other.ask({"do": "get", "rank": rank, "snapshot": snapshot})
            if "error" in answer:
                raise DamagedShare(answer["error"])
            self._receive(other, SnapshotLabel.parse(answer["label"]), expected=(rank, snapshot))
        link.send({"held": True})

    def _retain(self, link: Link, message: Message) -> None:
        self.shelf.retain(str(message["snapshot"]), [int(rank) for rank in message["ranks"]])
        link.send({"held": True})

    # What other keepers ask for.

    def _store(self, link: Link, message: Message) -> None:
        label = SnapshotLabel.parse(message["label"])
        with self._turns[label.rank]:
            self._insist_on_now(label)
            self.shelf.forget(label.rank, keep=[str(message["keep"])])
            self._receive(link, label, expected=(label.rank, label.snapshot), announce=True)
        link.send({"held": True})

    def _get(self, link: Link, message: Message) -> None:
        share = self.shelf.opened(int(message["rank"]), str(message["snapshot"]))
        link.send({"label": share.label.table()})
        link.send_body(share.slot.view[: share.label.bytes])

    def _receive(self, link: Link, label: SnapshotLabel, *, expected: tuple[int, str], announce: bool = False) -> None:
        """Files a share from elsewhere once its bytes are here, and are the ones that were labelled."""
        if (label.rank, label.snapshot) != expected:
            raise DamagedShare(f"the share of rank {label.rank} came instead of that of rank {expected[0]}")
        slot = self.shelf.vacant(label.rank, label.bytes)
        if announce:
            link.send({"ready": True})
        content = slot.view[: label.bytes]
        link.receive_body(content)
        label.check(content)
        self.shelf.put(label, slot)


def _address(pair: Any) -> tuple[str, int]:
    host, port = pair
    return str(host), int(port)


def _in_background(act: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=act, args=arguments, daemon=True).start()


def main() -> None:
    """Serves until the process that started this one is gone."""
    folder, parent = Path(sys.argv[1]), int(sys.argv[2])
    # A request to stop is for the ranks, which may want a snapshot until their last moment; init ends this process.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    die_with(parent)
    os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    SnapshotProcess().serve(folder)


if __name__ == "__main__":
    main()
