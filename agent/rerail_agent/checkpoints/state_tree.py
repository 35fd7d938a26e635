"""Flatten a nested state, under the same keys as torch.distributed.checkpoint."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(slots=True)
class Leaf:
    """One tensor or value of a state at `holder[name]`, reached by `path`."""

    key: str
    path: tuple[str | int, ...]
    value: Any
    holder: Any
    name: Any

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.value, torch.Tensor)


def flatten(state: Mapping[str, Any]) -> list[Leaf]:
    """Return the leaves of a state. A list is one value unless it contains a tensor or a mapping.

    This is the rule of torch.distributed.checkpoint since 2.4 (its _traverse.py). With other keys no reader but ours
    would find the values again.
    """
    return list(_walk(state, ()))


def _walk(holder: Any, path: tuple[str | int, ...]) -> Iterator[Leaf]:
    is_mapping = isinstance(holder, Mapping)
    for name, value in holder.items() if is_mapping else enumerate(holder):
        here = (*path, str(name) if is_mapping else name)
        if is_branch(value):
            yield from _walk(value, here)
        else:
            yield Leaf(".".join(map(str, here)), here, value, holder, name)


def is_branch(value: Any) -> bool:
    """Return whether a value has leaves and is not one itself."""
    if isinstance(value, torch.Tensor):
        return False
    return isinstance(value, Mapping) or (isinstance(value, list) and any(map(_has_leaves, value)))


def _has_leaves(entry: Any) -> bool:
    return isinstance(entry, (Mapping, torch.Tensor)) or (isinstance(entry, list) and any(map(_has_leaves, entry)))


class Tree:
    """The branches of a state: collect its leaves again many times faster than flatten(), because keys stay."""

    def __init__(self, state: Any) -> None:
        self.is_mapping = isinstance(state, Mapping)
        self.names = list(state) if self.is_mapping else list(range(len(state)))
        values = state.values() if self.is_mapping else state
        self.branches = [Tree(value) if is_branch(value) else None for value in values]

    def leaves(self, state: Any) -> list[Any] | None:
        """Return the values in the order of flatten(), None if the state has other branches by now."""
        found: list[Any] = []
        return found if self._collect(state, found) else None

    def _collect(self, state: Any, found: list[Any]) -> bool:
        if self.is_mapping:
            if not isinstance(state, Mapping) or list(state) != self.names:
                return False
            values: Any = state.values()
        else:
            if not isinstance(state, list) or len(state) != len(self.names):
                return False
            values = state
        for branch, value in zip(self.branches, values, strict=True):
            if branch is None:
                found.append(value)
            elif not branch._collect(value, found):
                return False
        return True
