"""Exchange small values between ranks over torch.distributed's store, never by a collective.

A collective in the background meets those of the training loop in another order on another rank, and then both hang
(seen with torch's async_save on a gloo group); SMDDP allows no second group. A store has no order to keep. No rank
waits inside the store either: a waiting client holds a lock that other threads of the process need.
"""

import io
import itertools
import pickle
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import Any

from torch import distributed as dist

SHORTEST_PAUSE_S = 0.001
LONGEST_PAUSE_S = 0.05
NAMED = 8
MOST_BYTES = 1 << 28  # of one value, uncompressed: the positions of a million tensors

_instances = itertools.count()


class RanksTimedOut(Exception):
    """Some ranks have not sent in time what the others wait for; the message names them."""


class _Unpickler(pickle.Unpickler):
    """An unpickler for the agent's records and errors and Python's errors; any other type becomes RuntimeError."""

    def find_class(self, module: str, name: str) -> Any:
        is_ours = module.startswith("rerail_agent.checkpoints.")
        found = super().find_class(module, name) if is_ours or module == "builtins" else None
        # By a name with dots, or an imported one, a module reaches classes of others.
        if not isinstance(found, type) or (found.__module__, found.__qualname__) != (module, name):
            return RuntimeError
        return found if issubclass(found, Exception) or (is_ours and is_dataclass(found)) else RuntimeError


class RankExchange:
    """Exchange small values between ranks.

    The methods up to `scatter` are collective and for the main thread.
    """

    def __init__(self, *, rank: int, world_size: int, store: Any = None, patience_s: float = 300.0) -> None:
        self.rank = rank
        self.world_size = world_size
        self.patience_s = patience_s
        self.store = store or _own_store(world_size)
        self._count: Iterator[Any] = itertools.count()
        self._stale: list[str] = []

    @contextmanager
    def count_apart(self, number: int) -> Iterator[None]:
        """Number the exchanges in the block apart, so that a rank that leaves it early agrees on the later ones."""
        outer, self._count = self._count, (f"{number}.{place}" for place in itertools.count())
        try:
            yield
        finally:
            self._count = outer

    def gather(self, value: Any) -> list[Any] | None:
        """Return the values of all ranks, in the order of the ranks, on rank 0; None on the others."""
        topic = f"collect-{next(self._count)}"
        if self.rank:
            self.post(f"{topic}/{self.rank}", value)
            return None
        keys = [f"{topic}/{rank}" for rank in range(1, self.world_size)]
        self.await_all(keys, self.patience_s)
        values = [value, *(self.take(key) for key in keys)]
        self._delete_stale()  # all ranks have come here, so they have read what was broadcast before
        return values

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value, on every rank."""
        topic = f"spread-{next(self._count)}"
        if self.rank:
            self.await_all([topic], 2 * self.patience_s)  # rank 0 may wait for others first
            return self.read(topic)
        self.post(topic, value)
        self._stale.append(topic)
        return value

    def scatter(self, values: Sequence[Any] | None) -> Any:
        """Return this rank's one of rank 0's values."""
        topic = f"each-{next(self._count)}"
        if self.rank:
            self.await_all([f"{topic}/{self.rank}"], self.patience_s)
            return self.take(f"{topic}/{self.rank}")
        assert values is not None and len(values) == self.world_size
        for rank in range(1, self.world_size):
            self.post(f"{topic}/{rank}", values[rank])
        return values[0]

    def all_gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in the order of the ranks, on every rank.

        If one is missing, every rank raises RanksTimedOut, the missing one when it arrives.
        """
        try:
            gathered: Any = self.gather(value)
        except RanksTimedOut as silent:
            gathered = silent
        values: list[Any] | RanksTimedOut = self.broadcast(gathered)
        if isinstance(values, RanksTimedOut):
            raise values
        return values

    def post(self, key: str, value: Any) -> None:
        self.store.set(key, zlib.compress(pickle.dumps(value), 1))

    def is_there(self, keys: Sequence[str]) -> bool:
        return not keys or bool(self.store.check(list(keys)))

    def read(self, key: str) -> Any:
        stream = zlib.decompressobj()
        content = stream.decompress(self.store.get(key), MOST_BYTES)
        if not stream.eof:
            raise ValueError(f"{key}: cut off, or more than {MOST_BYTES} bytes, which no rank sends")
        return _Unpickler(io.BytesIO(content)).load()

    def take(self, key: str) -> Any:
        value = self.read(key)
        self.store.delete_key(key)
        return value

    def await_all(self, keys: Sequence[str], patience_s: float) -> None:
        """Return when all keys exist; raises RanksTimedOut after `patience_s`."""
        started = time.monotonic()
        while not self.is_there(keys):
            waited = time.monotonic() - started
            if waited > patience_s:
                missing = [key.partition("/") for key in keys if not self.is_there([key])]
                ranks = ", ".join(rank or "0" for _, _, rank in missing[:NAMED])
                more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
                raise RanksTimedOut(
                    f"nothing received from rank {ranks}{more} for {patience_s:.0f} s ({keys[0].partition('/')[0]})"
                )
            time.sleep(min(LONGEST_PAUSE_S, max(SHORTEST_PAUSE_S, waited / 10)))

    def _delete_stale(self) -> None:
        for key in self._stale:
            self.store.delete_key(key)
        self._stale.clear()


def _own_store(world_size: int) -> Any:
    """Return a part of the default group's store.

    Every rank makes its Savers in the same order, so the part is the same for all.
    """
    if world_size == 1:
        return dist.HashStore()
    from torch.distributed.distributed_c10d import _get_default_store

    return dist.PrefixStore(f"rerail-checkpoints-{next(_instances)}", _get_default_store())
