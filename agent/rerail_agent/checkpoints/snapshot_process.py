"""Hold snapshots beside the ranks of a node, in a process that outlives them.

    python -m rerail_agent.checkpoints.snapshot_process FOLDER PARENT

The agent's init starts one where RERAIL_SNAPSHOT_STEPS asks for snapshots. It has no torch. The ranks stage in its
memory. It computes the checksum, sends a copy to the process of the next node, and returns shares to restarted ranks.
Ranks connect to it by a socket in a folder of their user, other nodes by TCP with the secret of this start.
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

from rerail_agent.checkpoints.link import Link, LinkLost, connect
from rerail_agent.checkpoints.snapshot_label import DamagedShare, SnapshotLabel
from rerail_agent.checkpoints.snapshot_memory import OutOfMemory, SnapshotMemory, SnapshotShare
from rerail_agent.checkpoints.writer import die_with_parent
from rerail_agent.snapshot_launch import SOCKET

# The training comes first; where it leaves no time, snapshots are skipped.
NICENESS = 19
MOST_CALLERS = 64

Message = Mapping[str, Any]


class SnapshotProcess:
    """Serve one node. Each caller has a thread; requests about one rank's memory are serialized."""

    def __init__(self, memory: SnapshotMemory | None = None) -> None:
        self.memory = memory or SnapshotMemory()
        self.name = secrets.token_hex(8)
        self.starts = 0  # how many times the ranks of this node have started
        self._secret = b""
        self._start_id = ""  # the prefix of the snapshot names since the ranks' start
        self._listener: socket.socket | None = None
        self._unproven: list[socket.socket] = []  # callers that have not proven to be of this run, oldest first
        self._rank_locks: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
        ranks = {"hello": self._hello, "labels": self._labels, "join": self._join, "slots": self._give_slots}
        shares = {"put": self._put, "open": self._open, "fetch": self._fetch, "retain": self._retain}
        self._local_handlers: Mapping[str, Callable[[Link, Message], None]] = ranks | shares
        self._peer_handlers: dict[str, Callable[[Link, Message], None]] = {"store": self._store, "get": self._get}

    def serve(self, folder: Path) -> None:
        """Answer the ranks of this node, until the process is ended."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o077:
            raise PermissionError(f"{folder}: must belong to this user alone; delete it")
        path = folder / SOCKET
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(256)
            while True:
                end, _ = listener.accept()
                _in_background(self._answer, Link(end, timeout_s=None), self._local_handlers)

    def _listen(self, host: str) -> None:
        """Listen for other nodes, only on the job's interface."""
        if self._listener is not None and self._listener.getsockname()[0] == host:
            return
        if self._listener is not None:
            self._listener.close()
        self._listener = socket.create_server((host, 0), backlog=256)
        _in_background(self._accept_peers, self._listener)

    def _accept_peers(self, listener: socket.socket) -> None:
        """Give each caller a thread; close the oldest that has proven nothing where there are too many of them."""
        with suppress(OSError):  # closed: another socket listens
            while True:
                end, _ = listener.accept()
                if len(self._unproven) >= MOST_CALLERS:
                    with suppress(IndexError, OSError):  # it has just proven it, or is gone
                        self._unproven.pop(0).shutdown(socket.SHUT_RDWR)
                self._unproven.append(caller := end.dup())
                _in_background(self._answer_peer, end, caller)

    def _answer_peer(self, end: socket.socket, caller: socket.socket) -> None:
        link = Link(end)
        with suppress(LinkLost):
            try:
                link.prove(self._secret, calls=False)
            finally:
                with caller, suppress(ValueError):  # it was closed for a newer one
                    self._unproven.remove(caller)
            self._answer(link, self._peer_handlers)

    def _answer(self, link: Link, handlers: Mapping[str, Callable[[Link, Message], None]]) -> None:
        """Handle a caller's requests until it disconnects; errors are answered and affect no other caller."""
        with closing(link), suppress(LinkLost):
            while True:
                message = link.receive()
                handler = handlers.get(str(message.get("do")))
                if handler is None:
                    return
                try:
                    handler(link, message)
                except (DamagedShare, OutOfMemory, KeyError, StopIteration, TypeError, ValueError, OSError) as error:
                    link.send({"error": str(error) or type(error).__name__})

    # Requests of the ranks of this node.

    def _hello(self, link: Link, message: Message) -> None:
        link.send({"name": self.name, "starts": self.starts})

    def _labels(self, link: Link, message: Message) -> None:
        link.send({"labels": [label.table() for label in self.memory.list_labels()]})

    def _join(self, link: Link, message: Message) -> None:
        """Take the secret of ranks that have started; shares of before must be verified before they use them."""
        self._secret, self._start_id = bytes.fromhex(message["secret"]), str(message["life"])
        self.starts += 1
        for lock in [*self._rank_locks.values()]:
            with lock:  # pending requests of killed ranks end first
                continue
        self.memory.invalidate()
        self._listen(str(message["host"]))
        assert self._listener is not None
        host, port = self._listener.getsockname()[:2]
        link.send({"address": [host, port]})

    def _give_slots(self, link: Link, message: Message) -> None:
        rank = int(message["rank"])
        with self._rank_locks[rank]:
            slots = self.memory.allocate_staging(rank, int(message["bytes"]))
        link.send({"slots": [[slot.number, inside] for slot, inside in slots]})
        for slot, _ in slots:
            link.send_file(slot.file)

    def _put(self, link: Link, message: Message) -> None:
        """Add a share that a rank has staged; it counts as held once the neighbour has it too."""
        label = SnapshotLabel.parse(message["label"])
        with self._rank_locks[label.rank]:
            self._check_start(label)
            slot = self.memory.slot(label.rank, int(message["slot"]))
            self.memory.drop(label.rank, keep=[str(message["keep"])])
            share = self.memory.add(label.with_checksum(slot.view), slot)
            try:
                if message["to"] is not None:
                    self._send_to_neighbour(share, _address(message["to"]), keep=str(message["keep"]))
            except LinkLost as lost:
                link.send({"error": f"the snapshot process of the next node cannot be reached: {lost}"})
                return
        link.send({"held": True})

    def _check_start(self, label: SnapshotLabel) -> None:
        """Refuse a share of an earlier start, whose slot the restarted rank may be writing to by now."""
        if label.snapshot.rpartition("-")[0] != self._start_id:
            raise DamagedShare("a share of an earlier start")

    def _send_to_neighbour(self, share: SnapshotShare, to: tuple[str, int], *, keep: str) -> None:
        with closing(connect(to, self._secret)) as link:
            answer = link.ask({"do": "store", "label": share.label.table(), "keep": keep})
            if "error" not in answer:
                link.send_body(share.slot.view[: share.label.bytes])
                answer = link.receive()
        if not answer.get("held"):
            raise LinkLost(str(answer.get("error", "no answer")))

    def _open(self, link: Link, message: Message) -> None:
        rank = int(message["rank"])
        with self._rank_locks[rank]:
            share = self.memory.open_verified(rank, str(message["snapshot"]))
        link.send({"label": share.label.table()})
        link.send_file(share.slot.file)

    def _fetch(self, link: Link, message: Message) -> None:
        """Copy a share from another node, which the caller names."""
        rank, snapshot = int(message["rank"]), str(message["snapshot"])
        with self._rank_locks[rank], closing(connect(_address(message["from"]), self._secret)) as other:
            answer = other.ask({"do": "get", "rank": rank, "snapshot": snapshot})
            if "error" in answer:
                raise DamagedShare(answer["error"])
            self._receive(other, SnapshotLabel.parse(answer["label"]), expected=(rank, snapshot))
        link.send({"held": True})

    def _retain(self, link: Link, message: Message) -> None:
        self.memory.retain(str(message["snapshot"]), [int(rank) for rank in message["ranks"]])
        link.send({"held": True})

    # Requests of other nodes.

    def _store(self, link: Link, message: Message) -> None:
        label = SnapshotLabel.parse(message["label"])
        with self._rank_locks[label.rank]:
            self._check_start(label)
            self.memory.drop(label.rank, keep=[str(message["keep"])])
            self._receive(link, label, expected=(label.rank, label.snapshot), announce=True)
        link.send({"held": True})

    def _get(self, link: Link, message: Message) -> None:
        share = self.memory.open_verified(int(message["rank"]), str(message["snapshot"]))
        link.send({"label": share.label.table()})
        link.send_body(share.slot.view[: share.label.bytes])

    def _receive(self, link: Link, label: SnapshotLabel, *, expected: tuple[int, str], announce: bool = False) -> None:
        """Add a share from another node once its bytes are here and match their label."""
        if (label.rank, label.snapshot) != expected:
            raise DamagedShare(f"the share of rank {label.rank} came instead of that of rank {expected[0]}")
        slot = self.memory.allocate(label.rank, label.bytes)
        if announce:
            link.send({"ready": True})
        content = slot.view[: label.bytes]
        link.receive_body(content)
        label.check(content)
        self.memory.add(label, slot)


def _address(pair: Any) -> tuple[str, int]:
    host, port = pair
    return str(host), int(port)


def _in_background(handler: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=handler, args=arguments, daemon=True).start()


def main() -> None:
    """Serve until the process that started this one is gone."""
    folder, parent = Path(sys.argv[1]), int(sys.argv[2])
    # A request to stop is for the ranks, which may want a snapshot until their last moment; init ends this process.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    die_with_parent(parent)
    os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    SnapshotProcess().serve(folder)


if __name__ == "__main__":
    main()
