"""Load a checkpoint's content into a state, in place, whatever the number of ranks that wrote it."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner
from torch.distributed.checkpoint.default_planner import create_default_local_load_plan
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem

from rerail_agent.checkpoints.safe_load import load_value
from rerail_agent.checkpoints.state_tree import Leaf, flatten

NAMED = 5


class UnfitState(ValueError):
    """The state to load into has another shape than the checkpoint: the code has changed, not the checkpoint."""


class InPlacePlanner(DefaultLoadPlanner):  # type: ignore[misc, unused-ignore]
    """Read into the leaves of a state; a plain value is stored under the very key where it was.

    PyTorch's planner writes values under string keys, beside those of a dict with numbers for keys.
    """

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        super().__init__()
        self.leaves = {leaf.key: leaf for leaf in leaves}

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        return create_default_local_load_plan(self.state_dict, self.metadata)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        leaf = self.leaves[read_item.dest_index.fqn]
        leaf.holder[leaf.name] = load_value(value, leaf.key)


def load_into(state: dict[str, Any], reader: Any, *, per_rank: Sequence[str]) -> None:
    """Fill a state from a torch.distributed.checkpoint reader, without a collective; raises UnfitState.

    What the checkpoint has beyond the state is not read (see require_placed). A key below one of `per_rank`
    (`random.3`) that the checkpoint lacks is left as it is: there were fewer ranks.
    """
    metadata: Metadata = reader.read_metadata()
    known = metadata.state_dict_metadata
    leaves = [leaf for leaf in flatten(state) if leaf.key in known or leaf.key.split(".")[0] not in per_rank]
    _compare({leaf.key: leaf for leaf in leaves}, metadata)
    planner = InPlacePlanner(leaves)
    planner.set_up_planner({leaf.key: leaf.value for leaf in leaves}, metadata, True)
    planner.state_dict = {leaf.key: leaf.value for leaf in leaves}
    reader.set_up_storage_reader(metadata, True)
    plan = planner.finish_plan(reader.prepare_local_plan(planner.create_local_plan()))
    with torch.no_grad():
        reader.read_data(plan, planner).wait()


def list_unplaced(state: dict[str, Any], metadata: Metadata, per_rank: Sequence[str]) -> set[str]:
    """Return the keys of the checkpoint that this rank's state has no place for."""
    held = {leaf.key for leaf in flatten(state)}
    return {key for key in metadata.state_dict_metadata if key not in held and key.split(".")[0] not in per_rank}


def require_placed(unplaced: Sequence[set[str]]) -> None:
    """Raise UnfitState if no rank has a place for a key; with a pipeline each has one for its own layers only."""
    nowhere = sorted(set.intersection(*unplaced))
    if nowhere:
        raise UnfitState(
            f"the state has no place for {_format_keys(nowhere)} of the checkpoint; an optimizer's state, for one,"
            " has to exist before it can be loaded (get_optimizer_state_dict makes it), or pass partial=True"
        )


def _compare(leaves: Mapping[str, Leaf], metadata: Metadata) -> None:
    saved = metadata.state_dict_metadata
    lacking = [key for key in leaves if key not in saved]
    if lacking:
        raise UnfitState(f"the checkpoint has nothing for {_format_keys(lacking)} of the state")
    for key, leaf in leaves.items():
        there = saved[key]
        if isinstance(there, BytesStorageMetadata) == leaf.is_tensor:
            kinds = ("a tensor", "a plain value") if leaf.is_tensor else ("a plain value", "a tensor")
            raise UnfitState(f"{key} is {kinds[0]} in the state and {kinds[1]} in the checkpoint")
        if isinstance(there, TensorStorageMetadata) and there.size != leaf.value.size():
            raise UnfitState(
                f"{key} is {tuple(leaf.value.size())} in the state and {tuple(there.size)} in the checkpoint"
            )


def _format_keys(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - NAMED} more" if len(keys) > NAMED else ""
    return ", ".join(keys[:NAMED]) + more
