"""Exchange messages between ranks and snapshot processes: a JSON object, followed by bytes if it says so.

Python's own connections carry them (multiprocessing.connection): they frame messages, and prove on both sides that the
other knows the run's secret. No object is pickled: a message is JSON of a bounded size, or an agreed number of bytes.
"""

import fcntl
import json
import os
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

LONGEST_MESSAGE = 1 << 20
CHUNK = 1 << 22
TIMEOUT_S = 30.0
SIOCGIFADDR = 0x8915


class LinkLost(Exception):
    """The other side is gone, silent for too long, or not of this run."""


class Link:
    """One connection. Every method raises LinkLost."""

    def __init__(self, end: socket.socket, *, timeout_s: float | None = TIMEOUT_S) -> None:
        end.setblocking(True)
        if timeout_s is not None:
            limit = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6))
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        if end.family != socket.AF_UNIX:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = Connection(end.detach())

    def prove(self, secret: bytes, *, calls: bool) -> None:
        """Prove on both sides the knowledge of the secret; `calls` on the side that has connected."""
        try:
            first, second = (answer_challenge, deliver_challenge) if calls else (deliver_challenge, answer_challenge)
            first(self._connection, secret)
            second(self._connection, secret)
        except (AuthenticationError, AssertionError, ValueError, EOFError, OSError) as error:
            self.close()
            raise LinkLost(f"not of this run, or gone: {type(error).__name__}") from error

    def send(self, message: Mapping[str, Any]) -> None:
        try:
            self._connection.send_bytes(json.dumps(message).encode())
        except (OSError, ValueError) as error:
            raise LinkLost(f"{type(error).__name__}: {error}") from error

    def receive(self) -> dict[str, Any]:
        try:
            message = json.loads(self._connection.recv_bytes(LONGEST_MESSAGE))
        except (OSError, EOFError, ValueError, RecursionError) as error:
            raise LinkLost(f"{type(error).__name__}: {error}") from error
        if not isinstance(message, dict):
            raise LinkLost("the message is not a JSON object")
        return message

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a message and return the answer."""
        self.send(message)
        return self.receive()

    def send_body(self, content: memoryview) -> None:
        """Send bytes whose number the other side knows."""
        try:
            while content:
                content = content[os.write(self._connection.fileno(), content[:CHUNK]) :]
        except (OSError, ValueError) as error:
            raise LinkLost(f"{type(error).__name__}: {error}") from error

    def receive_body(self, into: memoryview) -> None:
        """Fill the memory to its end; the bytes are not copied elsewhere."""
        try:
            while into:
                count = os.readv(self._connection.fileno(), [into[:CHUNK]])
                if not count:
                    raise EOFError("the other side has gone in the middle")
                into = into[count:]
        except (OSError, EOFError, ValueError) as error:
            raise LinkLost(f"{type(error).__name__}: {error}") from error

    def send_file(self, handle: int) -> None:
        """Pass an open file to a process on the same machine."""
        try:
            with _socket_of(self._connection) as end:
                socket.send_fds(end, [b"F"], [handle])
        except OSError as error:
            raise LinkLost(f"{type(error).__name__}: {error}") from error

    def receive_file(self) -> int:
        """Return a file that the other side has passed; the caller closes it."""
        try:
            with _socket_of(self._connection) as end:
                _, handles, _, _ = socket.recv_fds(end, 1, 1)
        except OSError as error:
            raise LinkLost(f"{type(error).__name__}: {error}") from error
        if not handles:
            raise LinkLost("no file came")
        return handles[0]

    def close(self) -> None:
        with suppress(OSError):
            self._connection.close()


def _socket_of(connection: Connection) -> socket.socket:
    return socket.socket(fileno=os.dup(connection.fileno()))


def connect(address: tuple[str, int], secret: bytes, *, timeout_s: float = TIMEOUT_S) -> Link:
    """Return a link to the snapshot process of another node; raises LinkLost."""
    try:
        link = Link(socket.create_connection(address, timeout=min(5.0, timeout_s)), timeout_s=timeout_s)
    except OSError as error:
        raise LinkLost(f"{address[0]}:{address[1]}: {error}") from error
    link.prove(secret, calls=True)
    return link


def find_own_address(interface: str, master: str) -> str:
    """Return this machine's address on the job's interface, else on the route to the master, else loopback."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        if interface in {name for _, name in socket.if_nameindex()}:
            request = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)[20:24])
        probe.connect((master, 1))  # sends nothing: only the route is looked up
        return str(probe.getsockname()[0])
    return "127.0.0.1"


def connect_locally(path: str) -> Link:
    """Return a link to the snapshot process of this node, without a timeout; raises LinkLost."""
    end = socket.socket(socket.AF_UNIX)
    try:
        end.connect(path)
    except OSError as error:
        end.close()
        raise LinkLost(f"{path}: {error}") from error
    return Link(end, timeout_s=None)
