"""States to save, and several ranks to save them: as threads of this process that share a store."""

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import distributed as dist

from rerail_agent.checkpoints import Manifest, Saver, open_store

T = TypeVar("T")
PATIENCE_S = 120.0


def manifest(step: int, **changes: Any) -> Manifest:
    fields = {"run": "night", "attempt": 1, "consumed_samples": step * 12, "world_size": 1, "loss": 2.5}
    return Manifest(**{**fields, "step": step, "reason": "periodic", **changes})


def state(seed: int, rank: int = 0) -> dict[str, Any]:
    """A small state with something of every kind; all of it follows from the seed."""
    draw = torch.Generator().manual_seed(seed)
    weights = {f"layer.{number}.weight": torch.randn(40, 30, generator=draw) for number in range(3)}
    return {
        "model": {**weights, "half": torch.randn(7, generator=draw).bfloat16(), "count": torch.tensor(seed)},
        "optimizer": {
            "state": {0: {"step": torch.tensor(float(seed)), "nothing": None}, 1: {"flags": torch.ones(3) > seed % 2}},
            "param_groups": [{"lr": seed / 7, "betas": (0.9, 0.95), "params": [0, 1]}],
        },
        "empty": torch.zeros(0, 3),
        "step": seed,
        "random": {str(rank): {"python": random.Random(seed + rank).getstate(), "torch": torch.arange(rank + 2)}},
    }


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal bit for bit, types and all."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and one == other


class LoggedLines(list[str]):
    """What a Saver has said."""

    def containing(self, words: str) -> list[str]:
        return [line for line in self if words in line]


class Ranks:
    """The Savers of a few ranks, each used in a thread of its own."""

    def __init__(self, roots: Sequence[Path | str], **options: Any) -> None:
        self.logged = LoggedLines()
        store = dist.HashStore()
        options = {"store": store, "log": self.logged.append, "patience_s": PATIENCE_S, **options}
        self.savers = [
            Saver(open_store(root), rank=rank, world_size=len(roots), **options) for rank, root in enumerate(roots)
        ]
        self._threads = ThreadPoolExecutor(len(roots))

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *_: object) -> None:
        for saver in self.savers:
            saver.close()
        self._threads.shutdown()

    def all(self, act: Callable[[Saver, int], T]) -> list[T]:
        """What act(saver, rank) returns on every rank, done at the same time."""
        futures = [self._threads.submit(act, saver, rank) for rank, saver in enumerate(self.savers)]
        return [future.result(timeout=3 * PATIENCE_S) for future in futures]

    def save(self, step: int, make: Callable[[int, int], dict[str, Any]] = state, **changes: Any) -> list[Any]:
        """Saves on every rank and waits; each rank's outcomes."""
        changes = {"world_size": len(self.savers), **changes}

        def act(saver: Saver, rank: int) -> Any:
            saver.save(make(step, rank), manifest(step, **changes))
            return saver.wait(PATIENCE_S)

        return self.all(act)

    def restored(self, make: Callable[[int, int], dict[str, Any]] = state) -> list[tuple[int, bool]]:
        """The step that each rank restores, and whether its state is what was saved there."""

        def act(saver: Saver, rank: int) -> tuple[int, bool]:
            found = make(99, rank)
            step = saver.newest()
            if step:
                saver.load(found, step)
            return step, step > 0 and same(found, make(step, rank))

        return self.all(act)


def settle(condition: Callable[[], bool], within_s: float = PATIENCE_S) -> bool:
    """Whether something comes true in time."""
    pause = threading.Event()
    for _ in range(int(within_s / 0.01)):
        if condition():
            return True
        pause.wait(0.01)
    return condition()
