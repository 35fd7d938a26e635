"""Real processes on gloo: DDP, fully sharded and two-dimensional states, and a change of their number."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from rerail_agent.checkpoints import Saver, open_store
from tests.agent.checkpoints.ranks import manifest, same
from tests.agent.jobs import Ranks

pytestmark = pytest.mark.slow

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # PyTorch 2.5
    from torch.distributed._composable.fsdp import fully_shard

SLOWEST_S = 120


def test_resharding_from_two_to_three_to_one(tmp_path: Path) -> None:
    """Each number of ranks reads what the one before wrote, bit for bit, and writes it again."""
    for ranks, act in ((2, _write_fresh), (3, _read_and_write)):
        assert Ranks(act, ranks, ranks=ranks, root=tmp_path).answers(SLOWEST_S) == [None] * ranks
    for name in ("fsdp", "mesh"):
        two, three = (_read_by_torch(tmp_path / name / f"step-0000000{step}") for step in (10, 20))
        assert (len(two.pop("random")), len(three.pop("random"))) == (2, 3)
        assert same(two, three), name
        ours = _blank(three)
        assert _saver(tmp_path / name, 0, 1).load(ours, 20).world_size == 3
        assert same(ours, two), name
    assert torch.equal(ours["grid"], torch.arange(60.0).view(10, 6))
    assert float(ours["uneven"].sum()) == 5.0
    names = sorted(path.name for path in (tmp_path / "fsdp" / "step-000000020").iterdir())
    assert names == [".metadata", *(f"__{rank}_0.distcp" for rank in range(3)), "manifest.json"]


def _write_fresh(rank: int, *, say: Any, ranks: int, root: Path) -> None:
    _save(_sharded_model(ranks, steps=3), root / "fsdp", 10, rank, ranks)
    _save(_two_dimensional(ranks), root / "mesh", 10, rank, ranks)
    _check_that_training_goes_on(rank, ranks, root / "ddp")


def _read_and_write(rank: int, *, say: Any, ranks: int, root: Path) -> None:
    for name, blank in (("fsdp", _sharded_model(ranks, steps=1)), ("mesh", _two_dimensional(ranks, fill=0.0))):
        saver = _saver(root / name, rank, ranks)
        assert saver.newest() == 10
        saver.load(blank, 10)
        _save(blank, root / name, 20, rank, ranks)
    dist.barrier()


def _save(state: dict[str, Any], root: Path, step: int, rank: int, ranks: int) -> None:
    saver = _saver(root, rank, ranks)
    saver.prepare(state)
    held = sum(t.to_local().nbytes if isinstance(t, DTensor) else t.nbytes for t in _tensors(state))
    assert saver._plan is not None
    assert saver._plan.staged_bytes <= held
    assert saver.save(state, manifest(step, world_size=ranks))
    [ended] = saver.wait(120)
    assert ended.error is None, ended
    total = sum(t.nbytes if not isinstance(t, DTensor) else t.numel() * t.element_size() for t in _tensors(state))
    together = torch.tensor(saver._plan.staged_bytes)
    dist.all_reduce(together)
    assert int(together) == total + (ranks - 1) * state["random"][str(rank)].nbytes  # no replica twice
    saver.close()


def _saver(root: Path, rank: int, ranks: int) -> Saver:
    return Saver(open_store(root), rank=rank, world_size=ranks)


def _sharded_model(ranks: int, *, steps: int) -> dict[str, Any]:
    """FSDP2 with uneven shards, trained so that the optimizer has a state."""
    torch.manual_seed(steps)
    if torch.__version__ < "2.6":  # its FSDP2 knows GPUs only
        line = init_device_mesh("cpu", (ranks,))
        whole = {"0.weight": torch.rand(13, 17), "0.bias": torch.rand(13), "2.weight": torch.rand(5, 13)}
        sharded = {name: distribute_tensor(tensor, line, [Shard(0)]) for name, tensor in whole.items()}
        return {"model": sharded, "steps": steps, "random": {str(dist.get_rank()): torch.arange(4)}}
    model = nn.Sequential(nn.Linear(17, 13), nn.Tanh(), nn.Linear(13, 5, bias=False))
    mesh = init_device_mesh("cpu", (ranks,))
    for module in (model[0], model[2], model):
        fully_shard(module, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 * steps)
    for _ in range(steps):
        model(torch.rand(4, 17)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "steps": steps,
        "random": {str(dist.get_rank()): torch.arange(4)},
    }


def _two_dimensional(ranks: int, *, fill: float = 1.0) -> dict[str, Any]:
    """A grid on a mesh that shards one way and replicates the other, fewer rows than ranks, and a replica."""
    mesh = init_device_mesh("cpu", (1, ranks) if ranks % 2 else (2, ranks // 2), mesh_dim_names=("replicate", "shard"))
    line = init_device_mesh("cpu", (ranks,))
    return {
        "grid": distribute_tensor(fill * torch.arange(60.0).view(10, 6), mesh, [Replicate(), Shard(0)]),
        "columns": distribute_tensor(fill * torch.rand(3, 7), mesh, [Replicate(), Shard(1)]),
        "uneven": distribute_tensor(fill * torch.full((1, 5), 1.0), line, [Shard(0)]),
        "everywhere": distribute_tensor(fill * torch.arange(9.0), line, [Replicate()]),
        "plain": fill * torch.arange(11.0),
        "random": {str(dist.get_rank()): torch.arange(4)},
    }


def _check_that_training_goes_on(rank: int, ranks: int, root: Path) -> None:
    """Saves under way do not meet the collectives of the loop, which is how torch's async_save can hang."""
    model = nn.parallel.DistributedDataParallel(nn.Linear(300, 300))
    state: dict[str, Any] = {"model": model.module.state_dict(), "random": {str(rank): torch.arange(4)}}
    saver = _saver(root, rank, ranks)
    saver.prepare(state)
    for step in range(1, 31):
        model(torch.rand(8, 300)).sum().backward()
        dist.all_reduce(torch.ones(1))
        assert saver.save(state, manifest(step, world_size=ranks))
    assert all(one.error is None for one in saver.wait(120))
    assert saver.newest() == 30
    saver.close()
    dist.barrier()  # rank 0 has the store from which the others still read


def _read_by_torch(folder: Path) -> dict[str, Any]:
    """All of a checkpoint, as PyTorch reads it into one process without knowing what to expect."""
    found: dict[str, Any] = {}
    reader = dcp.FileSystemReader(folder)
    _load_state_dict(found, reader, no_dist=True, planner=_EmptyStateDictLoadPlanner())
    return found


def _blank(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _blank(value) for key, value in state.items()}
    if isinstance(state, list):
        return [_blank(value) for value in state]
    return torch.zeros_like(state) if isinstance(state, torch.Tensor) else None


def _tensors(state: Any) -> list[torch.Tensor]:
    if isinstance(state, dict | list):
        return [one for value in (state.values() if isinstance(state, dict) else state) for one in _tensors(value)]
    return [state] if isinstance(state, torch.Tensor) else []
