"""What the ranks tell one another: over torch.distributed's store, never by a collective.

A collective in the background meets those of the training loop in another order on another rank, and then both hang
(seen with torch's async_save on a gloo group); SMDDP allows no second group. A store has no order to keep. Nobody waits
in it either: a client that waits holds a lock that other threads of the process need.
"""

import itertools
import pickle
import time
import zlib
from collections.abc import Sequence
from typing import Any

from torch import distributed as dist

SHORTEST_PAUSE_S = 0.001
LONGEST_PAUSE_S = 0.05
NAMED = 8

_instances = itertools.count()


class RanksSilent(Exception):
    """Some ranks have not said in time what the others wait for; the message names them."""


class RankExchange:
    """Small things from rank to rank. The methods up to `spread_each` are collective and for the main thread."""

    def __init__(self, *, rank: int, world_size: int, store: Any = None, patience_s: float = 300.0) -> None:
        self.rank = rank
        self.world_size = world_size
        self.patience_s = patience_s
        self.store = store or _own_store(world_size)
        self._count = itertools.count()
        self._stale: list[str] = []

    def collect(self, thing: Any) -> list[Any] | None:
        """What every rank has, in the order of the ranks, on rank 0; None on the others."""
        topic = f"collect-{next(self._count)}"
        if self.rank:
            self.post(f"{topic}/{self.rank}", thing)
            return None
        keys = [f"{topic}/{rank}" for rank in range(1, self.world_size)]
        self.await_all(keys, self.patience_s)
        things = [thing, *(self.take(key) for key in keys)]
        self._forget()  # all ranks have come here, so they have read what was spread before
        return things

    def spread(self, thing: Any) -> Any:
        """What rank 0 has, on every rank."""
        topic = f"spread-{next(self._count)}"
        if self.rank:
            return self._awaited(topic)
        self.post(topic, thing)
        self._stale.append(topic)
        return thing

    def spread_each(self, things: Sequence[Any] | None) -> Any:
        """The one of rank 0's things that is this rank's."""
        topic = f"each-{next(self._count)}"
        if self.rank:
            return self.take_when_there(f"{topic}/{self.rank}")
        assert things is not None and len(things) == self.world_size
        for rank in range(1, self.world_size):
            self.post(f"{topic}/{rank}", things[rank])
        return things[0]

    def share(self, thing: Any) -> list[Any]:
        """What every rank has, in the order of the ranks, on every rank."""
        things: list[Any] = self.spread(self.collect(thing))
        return things

    def post(self, key: str, thing: Any) -> None:
        self.store.set(key, zlib.compress(pickle.dumps(thing), 1))

    def is_there(self, keys: Sequence[str]) -> bool:
        return not keys or bool(self.store.check(list(keys)))

    def read(self, key: str) -> Any:
        return pickle.loads(zlib.decompress(self.store.get(key)))  # nosec B301: written by another rank of this job

    def take(self, key: str) -> Any:
        thing = self.read(key)
        self.store.delete_key(key)
        return thing

    def take_when_there(self, key: str) -> Any:
        self.await_all([key], self.patience_s)
        return self.take(key)

    def await_all(self, keys: Sequence[str], patience_s: float) -> None:
        """Returns when all keys are there; raises Silent after `patience_s`."""
        started = time.monotonic()
        while not self.is_there(keys):
            waited = time.monotonic() - started
            if waited > patience_s:
                missing = [key.partition("/") for key in keys if not self.is_there([key])]
                ranks = ", ".join(rank or "0" for _, _, rank in missing[:NAMED])
                more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
                raise RanksSilent(
                    f"nothing heard of rank {ranks}{more} for {patience_s:.0f} s ({keys[0].partition('/')[0]})"
                )
            time.sleep(min(LONGEST_PAUSE_S, max(SHORTEST_PAUSE_S, waited / 10)))

    def _awaited(self, key: str) -> Any:
        self.await_all([key], self.patience_s)
        return self.read(key)

    def _forget(self) -> None:
        for key in self._stale:
            self.store.delete_key(key)
        self._stale.clear()


def _own_store(world_size: int) -> Any:
    """A part of the default group's store; every rank makes its Savers in the same order, so it is the same for all."""
    if world_size == 1:
        return dist.HashStore()
    from torch.distributed.distributed_c10d import _get_default_store

    return dist.PrefixStore(f"rerail-checkpoints-{next(_instances)}", _get_default_store())
