"""Seed, save and restore all random generators, so that every run draws the same numbers."""

import os
import random
from typing import Any

import numpy as np
import torch


def make_repeatable(seed: int) -> None:
    """Make every run draw the same numbers: one thread, deterministic kernels, equal first weights on all ranks."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=torch.cuda.is_available())
    seed_everything(seed)


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def capture() -> tuple[Any, ...]:
    """Return the state of every generator that a training script may use, as one plain value."""
    name, keys, *rest = np.random.get_state()
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return (
        random.getstate(),
        (str(name), np.asarray(keys).tolist(), *rest),
        _bytes(torch.get_rng_state()),
        None if cuda is None else _bytes(cuda),
    )


def restore(saved: tuple[Any, ...]) -> None:
    python, of_numpy, of_torch, cuda = saved
    random.setstate(python)
    np.random.set_state(of_numpy)
    torch.set_rng_state(_tensor(of_torch))
    if cuda is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(_tensor(cuda))


def _bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.numpy().data)


def _tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
