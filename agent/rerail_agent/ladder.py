"""Carry out what a rollback asks of a training loop: skip samples, and scale the learning rate.

    guard = Guard.from_env(save=save, abilities=("skip", "rate"))
    scale_learning_rate(optimizer)
    for consumed, batch in skip_batches(batches, samples=64, consumed=consumed):
        ...                                         # commit(..., consumed_samples=consumed)

Rerail sets RERAIL_SKIP_SAMPLES and RERAIL_LR_SCALE for each attempt; without them nothing changes.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer

from rerail_agent.fault_isolation import print_line
from rerail_agent.manifests import get_rank
from rerail_agent.settings import read_rate, read_skipped_samples

T = TypeVar("T")


def skip_batches(
    batches: Iterable[T], *, samples: int, consumed: int = 0, environment: Mapping[str, str] = os.environ
) -> Iterator[tuple[int, T]]:
    """Yield each batch to train on with the id of the sample after it; leave out those with a sample to skip.

    `batches` are in the run's data order, from the sample `consumed` on, which is that of the checkpoint or 0.
    `samples` is the number of samples in one batch, on all ranks together. Every epoch counts on from the one before.
    """
    ranges = read_skipped_samples(environment)
    for batch in batches:
        first, consumed = consumed, consumed + samples
        if not any(start < consumed and first <= end for start, end in ranges):
            yield consumed, batch


def scale_learning_rate(*optimizers: Any, environment: Mapping[str, str] = os.environ) -> float:
    """Make each step of the optimizers use RERAIL_LR_SCALE times the learning rate that is set; return the factor.

    The rate is scaled before a step and put back after it. So schedulers and checkpoints only know the rate without
    the factor, and a resume neither applies it twice nor keeps it. Raise ValueError for an optimizer without rates.
    """
    rate = read_rate(environment)
    for optimizer in optimizers:
        if obstacle := find_rate_obstacle(optimizer):
            raise ValueError(f"the learning rate cannot be scaled: {obstacle}")
        inner = _unwrap(optimizer)
        if inner in _scalings:
            _scalings[inner].rate = rate
        elif rate != 1.0:
            _scalings[inner] = RateScaling(inner, rate)
    return rate


def find_rate_obstacle(optimizer: Any) -> str:
    """Return why the learning rate of an optimizer cannot be scaled, or an empty string."""
    inner = _unwrap(optimizer)
    if not isinstance(inner, Optimizer) or not hasattr(inner, "_optimizer_step_pre_hooks"):
        return f"{type(inner).__name__} does not call the step hooks of torch.optim.Optimizer"
    if not all(isinstance(group.get("lr"), int | float | torch.Tensor) for group in inner.param_groups):
        return f"{type(inner).__name__} computes its own learning rate"
    return ""


def prepare_rate(optimizers: Sequence[Any]) -> tuple[bool, float]:
    """Scale the learning rate if all optimizers allow it; return whether they do and the factor, or log why not."""
    obstacle = next(filter(None, map(find_rate_obstacle, optimizers)), "")
    if not obstacle:
        return True, scale_learning_rate(*optimizers)
    if get_rank() == 0:
        is_set = read_rate(os.environ) != 1.0
        start = "RERAIL_LR_SCALE is ignored" if is_set else "a rollback cannot lower the learning rate"
        print_line(f"{start}: {obstacle}")
    return False, 1.0


class RateScaling:
    """Multiply an optimizer's learning rates by a factor, for the duration of each step."""

    def __init__(self, optimizer: Optimizer, rate: float) -> None:
        self.rate = rate
        self._scheduled: list[Any] = []
        optimizer.register_step_pre_hook(self._scale)
        optimizer.register_step_post_hook(self._put_back)

    def _scale(self, optimizer: Optimizer, *_: Any) -> None:
        self._put_back(optimizer)  # after a step that raised
        for group in optimizer.param_groups:
            rate = group["lr"]
            if isinstance(rate, torch.Tensor):  # a compiled step keeps using the same tensor
                self._scheduled.append(rate.clone())
                rate.mul_(self.rate)
            else:
                self._scheduled.append(rate)
                group["lr"] = rate * self.rate

    def _put_back(self, optimizer: Optimizer, *_: Any) -> None:
        scheduled, self._scheduled = self._scheduled, []
        for group, rate in zip(optimizer.param_groups, scheduled, strict=False):
            if isinstance(rate, torch.Tensor):
                group["lr"].copy_(rate)
            else:
                group["lr"] = rate


_scalings: WeakKeyDictionary[Optimizer, RateScaling] = WeakKeyDictionary()


def _unwrap(optimizer: Any) -> Any:
    """Return the optimizer inside the wrappers of Accelerate, DeepSpeed and others."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer) or hasattr(inner, "param_groups"):
        optimizer = inner
    return optimizer
