"""Messages between ranks and keepers, and from keeper to keeper: a JSON object, and bytes behind it if it says so.

Python's own connections carry them (multiprocessing.connection): they frame, and prove on both sides that the other
knows the run's secret. No object is pickled: what comes is JSON of a bounded size, or as many bytes as were agreed on.
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
    """The other side is gone, silent for too long, or not one of this run."""


class Link:
    """One connection. Every method raises Lost."""

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
        """Both sides show that they know the secret; `calls` on the side that has connected."""
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
            raise LinkLost("a message that is no JSON object")
        return message

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a message."""
        self.send(message)
        return self.receive()

    def send_body(self, content: memoryview) -> None:
        """Bytes of which the other side knows how many there are."""
        try:
            while content:
                content = content[os.write(self._connection.fileno(), content[:CHUNK]) :]
        except (OSError, ValueError) as error:
            raise LinkLost(f"{type(error).__name__}: {error}") from error

    def receive_body(self, into: memoryview) -> None:
        """Fills the memory to its end, and goes no farther; there is no other copy of the bytes on their way."""
        try:
            while into:
                count = os.readv(self._connection.fileno(), [into[:CHUNK]])
                if not count:
                    raise EOFError("the other side has gone in the middle")
                into = into[count:]
        except (OSError, EOFError, ValueError) as error:
            raise LinkLost(f"{type(error).__name__}: {error}") from error

    def send_file(self, handle: int) -> None:
        """Gives a file of this process to one on the same machine."""
        try:
            with _socket_of(self._connection) as end:
                socket.send_fds(end, [b"F"], [handle])
        except OSError as error:
            raise LinkLost(f"{type(error).__name__}: {error}") from error

    def receive_file(self) -> int:
        """A file that the other side has given, to be closed by the caller."""
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


def call(address: tuple[str, int], secret: bytes, *, timeout_s: float = TIMEOUT_S) -> Link:
    """A link to the keeper of another node; raises Lost."""
    try:
        link = Link(socket.create_connection(address, timeout=min(5.0, timeout_s)), timeout_s=timeout_s)
    except OSError as error:
        raise LinkLost(f"{address[0]}:{address[1]}: {error}") from error
    link.prove(secret, calls=True)
    return link


def own_address(interface: str, master: str) -> str:
    """This machine's address on the job's interface, or on the one towards the master; without either, to itself."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        if interface in {name for _, name in socket.if_nameindex()}:
            request = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)[20:24])
        probe.connect((master, 1))  # sends nothing: only the route is looked up
        return str(probe.getsockname()[0])
    return "127.0.0.1"


def call_here(path: str) -> Link:
    """A link to the keeper of this node, which may take its time to answer; raises Lost."""
    end = socket.socket(socket.AF_UNIX)
    try:
        end.connect(path)
    except OSError as error:
        end.close()
        raise LinkLost(f"{path}: {error}") from error
    return Link(end, timeout_s=None)
