"""Join the ranks of a job by a backend, and spread a model over them."""

import ctypes
import functools
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, distribute_module
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

import pipeline
import plan
from choices import Choices, Parallel, Precision, count_shard_ranks
from job import TrainingCluster, find_base_folder

try:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
except ImportError:  # until torch 2.5
    from torch.distributed._composable.fsdp import MixedPrecisionPolicy, fully_shard

# SMDDP exists only for these, and since 2.3.0 it cannot be imported anywhere else.
SMDDP_INSTANCES = ("ml.p4d.24xlarge", "ml.p4de.24xlarge")
DEFAULT_PORT = "7777"  # the port that AWS's toolkit uses between the hosts of a job


@dataclass(frozen=True)
class DistributedWorld:
    """This rank and its peers; with one rank there is no process group and every method is local."""

    rank: int
    size: int
    device: torch.device
    backend: str
    local_rank: int = 0
    # Ranks on this machine.
    local_size: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def wrap(self, model: nn.Module, example: tuple[torch.Tensor, ...]) -> nn.Module:
        """Average the model's gradients over the ranks; `example` is an input for a first pass."""
        if self.size == 1:
            return model
        devices = [self.device.index] if self.device.type == "cuda" else None
        replica = nn.parallel.DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)
        # DDP regroups its buckets after its first backward pass, and with three or more ranks the grouping decides the
        # order of summation: a resumed run would differ in its last bits. So do it before the first step.
        replica(*(tensor.to(self.device) for tensor in example)).backward()
        model.zero_grad(set_to_none=True)
        return replica

    def gather(self, thing: Any) -> list[Any]:
        """Return the values of all ranks, in the order of the ranks, on every rank. For small values."""
        if self.size == 1:
            return [thing]
        things: list[Any] = [None] * self.size
        dist.all_gather_object(things, thing)
        return things

    def wait_for_all(self) -> None:
        """Return when every rank has called this, so that none leaves while another still needs it."""
        if self.size > 1:
            dist.barrier()


@dataclass(frozen=True)
class ParallelLayout:
    """The distribution of a model over the ranks, by the names of the options in choices.py.

    Ranks with the same `data_rank` compute the same samples together: deal out the batch over `data_size`. Those that
    share every layer (tensor parallelism) must draw the same dropout: seed by `random_rank`.

    | | parameters | gradients, optimizer state | made with |
    |---|---|---|---|
    | ddp | whole | whole | DistributedDataParallel |
    | ddp, shard_optimizer | whole while a step computes | cut up | fully_shard, not resharded after the forward |
    | fsdp | whole one layer at a time | cut up over all ranks | fully_shard |
    | hybrid | whole one layer at a time | cut up within shard_size ranks | fully_shard on replicas x shards |
    | tensor_parallel | linear layers cut up, always | as the parameters | parallelize_module, then the above |
    | pipeline_parallel | some of the layers | as the parameters | pipeline.py, then the above for each stage |

    Why shard_optimizer is not torch's ZeroRedundancyOptimizer: the state of that one lies with whichever rank owns a
    parameter, and no other number of ranks can read it from a checkpoint. fully_shard's DTensors can be resharded, cost
    the same traffic (reduce-scatter and all-gather for an all-reduce), and the gradients are cut up as well.
    """

    choices: Choices
    world: DistributedWorld
    mesh: DeviceMesh | None = None

    @classmethod
    def of(cls, options: Any, world: DistributedWorld) -> "ParallelLayout":
        """Make the layout; raise ValueError naming the option that these ranks cannot have, and the remedy."""
        choices = Choices.of(options)
        plan.raise_errors(plan.check_ranks(choices, ranks=world.size, ranks_per_node=world.local_size))
        if world.backend == "smddp" and choices.needs_groups:
            raise ValueError(
                f"parallel={choices.parallel}, tensor_parallel={choices.tensor_parallel}: SMDDP has no groups of ranks"
                " (new_group), which these need; use parallel=ddp or fsdp, or the image without SMDDP"
            )
        choices = replace(choices, shard_size=count_shard_ranks(choices, world.size, world.local_size))
        sharded = world.size > 1 and not choices.is_whole
        if sharded and choices.model_ranks < world.size:
            require_fully_shard(world.device)
        return cls(choices, world, make_mesh(choices, world) if sharded else None)

    @property
    def data_rank(self) -> int:
        return self.world.rank // self.choices.tensor_parallel % self.data_size

    @property
    def data_size(self) -> int:
        """Return the number of ranks over which a batch is dealt out."""
        return self.world.size // self.choices.model_ranks

    @property
    def pipeline_rank(self) -> int:
        return self.world.rank // (self.choices.tensor_parallel * self.data_size)

    @property
    def random_rank(self) -> int:
        """Return a number that ranks have in common if they share every layer, and so draw the same random numbers."""
        return self.world.rank // self.choices.tensor_parallel

    @property
    def random_key(self) -> str:
        """Return the name of this rank's random numbers in a checkpoint."""
        stages = f"-stage-{self.pipeline_rank}-of-{self.choices.pipeline_parallel}" if self.is_pipelined else ""
        return f"{self.data_rank}-of-{self.data_size}{stages}"

    @property
    def is_pipelined(self) -> bool:
        return self.choices.pipeline_parallel > 1

    @property
    def is_replicated(self) -> bool:
        """Return whether every rank has plain tensors, the same on all, as with DDP or one rank."""
        return self.mesh is None

    def apply(
        self,
        model: nn.Module,
        make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
        *,
        example: tuple[torch.Tensor, ...],
    ) -> tuple[Any, torch.optim.Optimizer]:
        """Return what computes a step's gradients, and the optimizer; `model` itself stays the one to save.

        `model` may be on the CPU, where a large one has room: layers move to the device as they are cut up. It needs
        `blocks`, the layers that are cut up and checkpointed one by one. `example` is an input for a first pass.
        """
        stages = pipeline.cut(model, self.choices, self.pipeline_rank) if self.is_pipelined else {}
        if self.choices.activation_checkpointing:
            for part in stages.values() or [model]:
                checkpoint_activations(part, self.choices)
        if self.choices.tensor_parallel > 1:
            split_layers(model, self._dimensions("tensor"))
        if self._is_fully_sharded:
            self._shard(model, list(stages.values()) or [model])
        model.to(self.world.device)
        if self._computes_in_autocast:
            for part in stages.values() or [model]:
                # Around forward itself, so that callers of the model need not know of it.
                part.forward = torch.autocast(self.world.device.type, torch.bfloat16)(part.forward)
        replica: Any = self.world.wrap(model, example) if self.is_replicated else model
        if self.mesh is not None and stages:
            halves = self.choices.precision is Precision.BF16 and self._is_fully_sharded
            passed = torch.bfloat16 if halves else torch.float32
            group = self.mesh.get_group("pipeline")
            replica = pipeline.Pipeline(stages, self.choices, group, self.world.device, passed)
        optimizer = make_optimizer(model.parameters())
        initialize_optimizer(optimizer)
        return replica, optimizer

    def compute_gradients(
        self, replica: Any, inputs: torch.Tensor, targets: torch.Tensor, *, parts: int = 1
    ) -> torch.Tensor:
        """Compute the gradients of this rank's samples with what `apply` has returned; return their mean loss.

        `parts` microbatches come one after the other. Each is averaged over the ranks, so that any wrapper will do.
        """
        inputs, targets = inputs.to(self.world.device), targets.to(self.world.device)
        if self.is_pipelined:
            return replica.step(inputs, targets)
        losses = []
        for samples, labels in zip(inputs.chunk(parts), targets.chunk(parts), strict=True):
            loss = replica(samples, labels) * (len(samples) / len(inputs))
            loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum()

    @property
    def _is_fully_sharded(self) -> bool:
        return self.mesh is not None and self.data_size > 1

    @property
    def _computes_in_autocast(self) -> bool:
        return self.choices.precision is Precision.BF16 and not self._is_fully_sharded

    def _dimensions(self, *names: str) -> DeviceMesh:
        assert self.mesh is not None
        return self.mesh if self.mesh.mesh_dim_names == names else self.mesh[names]

    def _shard(self, model: nn.Module, roots: Sequence[nn.Module]) -> None:
        assert self.mesh is not None
        used = [name for name in ("replicas", "shards") if name in self.mesh.mesh_dim_names]
        # Gradients are summed in fp32: bfloat16 would lose the contributions of many ranks.
        bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        settings = {
            "mesh": self._dimensions(*used),
            "mp_policy": bf16 if self.choices.precision is Precision.BF16 else MixedPrecisionPolicy(),
            # A pipeline would gather every layer again for each of its microbatches.
            "reshard_after_forward": self.choices.parallel is not Parallel.DDP and not self.is_pipelined,
        }
        for block in list_blocks(model):
            fully_shard(block, **settings)
        for root in roots:
            fully_shard(root, **settings)

    def clip(self, model: nn.Module, limit: float) -> torch.Tensor:
        """Scale the gradients to a norm of at most `limit`, over all ranks; return the norm before."""
        if self.is_replicated:
            return nn.utils.clip_grad_norm_(model.parameters(), limit)
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        others = self.mesh.get_group("pipeline") if self.mesh is not None and self.is_pipelined else None
        return clip_sharded(gradients, limit, others)

    def state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return what a checkpoint holds: tensors, DTensors and plain values by the names of the parameters.

        The tensors are the live ones, not copies: loading into them in place is most of a restore, and `restore` does
        the rest. The names do not depend on the layout, so that any layout can load what another has saved.
        """
        weights, moments = get_state_dict(model, optimizer)
        for group in moments["param_groups"] if self.is_pipelined else ():
            group["params"] = []  # no rank knows those of all stages, and restore() needs none
        return {"model": weights, "optimizer": moments}

    def weights(self, model: nn.Module) -> dict[str, Any]:
        """Return the weights as `state` does, without the optimizer."""
        weights: dict[str, Any] = get_model_state_dict(model)
        return weights

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Apply a state that a checkpoint was loaded into; the parameters of a group are those of this rank's model."""
        _, own = get_state_dict(model, optimizer)
        for group, mine in zip(state["optimizer"]["param_groups"], own["param_groups"], strict=True):
            group["params"] = mine["params"]
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

    def gather_weights(self, model: nn.Module) -> dict[str, torch.Tensor]:
        """Return all weights as plain tensors on the CPU, on rank 0 (empty elsewhere). Collective."""
        if self.mesh is not None and self.is_pipelined:
            held = model.state_dict().items()
            part = {name: (value.full_tensor() if isinstance(value, DTensor) else value).cpu() for name, value in held}
            whole = pipeline.gather_to_first(part, self.mesh.get_group("pipeline"))
            return whole if self.world.is_first else {}
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights: dict[str, torch.Tensor] = get_model_state_dict(model, options=options)
        return weights if self.world.is_first else {}


def make_mesh(choices: Choices, world: DistributedWorld) -> DeviceMesh:
    """Arrange ranks in rows, the last dimension running fastest: tensor-parallel ranks are neighbours, on one machine.

    The stages of a pipeline are farthest apart: they exchange the least, and only with the next. Only used dimensions
    are in the mesh: a mesh of one takes the group of all ranks, which is the only one SMDDP has.
    """
    across = world.size // choices.model_ranks
    shape: dict[str, int] = {}
    if choices.pipeline_parallel > 1:
        shape["pipeline"] = choices.pipeline_parallel
    if choices.shard_size < across:
        shape["replicas"] = across // choices.shard_size
    if across > 1:
        shape["shards"] = choices.shard_size
    if choices.tensor_parallel > 1:
        shape["tensor"] = choices.tensor_parallel
    return init_device_mesh(world.device.type, tuple(shape.values()), mesh_dim_names=tuple(shape))


def require_fully_shard(device: torch.device) -> None:
    """Raise ValueError if this torch cannot shard on this device."""
    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if device.type != "cuda" and release < (2, 6):
        raise ValueError(
            f"parallel: torch {torch.__version__} cuts up models on GPUs alone, and this is a {device.type}; use"
            " parallel=ddp without tensor_parallel and shard_optimizer, or torch 2.6"
        )


def list_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a model that this rank has; pipeline.py has put an nn.Identity in place of the others."""
    return [block for block in model.blocks if not isinstance(block, nn.Identity)]


def checkpoint_activations(model: nn.Module, choices: Choices) -> None:
    """Keep only the input of every group of blocks, and compute the rest again in the backward pass.

    Larger groups keep less between the passes, and more while one of them is computed again. With `activation_offload`
    the inputs are kept on the CPU. The function replaces `forward`, within the hooks that a block gets later, and
    without another name in the checkpoint as torch's checkpoint_wrapper would have.
    """
    offload = choices.activation_offload
    if choices.checkpoint_group > 1:
        blocks = list(model.blocks)
        groups = [blocks[at : at + choices.checkpoint_group] for at in range(0, len(blocks), choices.checkpoint_group)]
        model.blocks.forward = functools.partial(_run_groups, groups, offload)
        return
    for block in list_blocks(model):
        block.forward = functools.partial(_run_again, block.forward, offload)


def _run_groups(groups: Sequence[Sequence[nn.Module]], offload: bool, x: torch.Tensor) -> torch.Tensor:
    for group in groups:
        x = _run_again(functools.partial(_run_all, group), offload, x)
    return x


def _run_all(blocks: Sequence[nn.Module], x: torch.Tensor) -> torch.Tensor:
    for block in blocks:
        x = block(x)
    return x


def _run_again(forward: Callable[..., torch.Tensor], offload: bool, x: torch.Tensor) -> torch.Tensor:
    if not offload:
        return checkpoint(forward, x, use_reentrant=False)
    with torch.autograd.graph.save_on_cpu(pin_memory=x.is_cuda):
        return checkpoint(forward, x, use_reentrant=False)


# mypy does not read torch (see pyproject.toml), so ParallelStyle is Any to it.
class Replicated(ParallelStyle):  # type: ignore[misc]
    """A layer that every rank computes in full.

    Its weights become DTensors too, because optimizers and FSDP accept no mixture of those and plain tensors.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def take_in(module: nn.Module, inputs: tuple[torch.Tensor, ...], mesh: DeviceMesh) -> tuple[DTensor, ...]:
            return tuple(DTensor.from_local(tensor, mesh, [Replicate()], run_check=False) for tensor in inputs)

        def give_out(module: nn.Module, output: DTensor, mesh: DeviceMesh) -> torch.Tensor:
            return output.to_local()

        return distribute_module(module, device_mesh, input_fn=take_in, output_fn=give_out)


def split_layers(model: nn.Module, mesh: DeviceMesh) -> None:
    """Split attention by heads and the feed-forward layer by width; one all-reduce ends each of the two."""
    first, second = ColwiseParallel(), RowwiseParallel()
    pairs = {"queries_keys_values": first, "projection": second, "up": first, "down": second}
    for block in list_blocks(model):
        parallelize_module(block, mesh, {**pairs, "norm_1": Replicated(), "norm_2": Replicated()})
    ends = [name for name in ("tokens", "places", "norm", "head") if getattr(model, name) is not None]
    parallelize_module(model, mesh, {name: Replicated() for name in ends})


def clip_sharded(gradients: list[torch.Tensor], limit: float, others: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Clip as torch's clip_grad_norm_, but with a few collectives for all gradients instead of one for each.

    `others` are the ranks that have the other layers, in a pipeline.
    """
    parts: dict[tuple[DeviceMesh | None, tuple[int, ...]], list[torch.Tensor]] = {}
    for gradient in gradients:
        if not isinstance(gradient, DTensor):
            parts.setdefault((None, ()), []).append(gradient)
            continue
        cut = tuple(i for i, placement in enumerate(gradient.placements) if not placement.is_replicate())
        parts.setdefault((gradient.device_mesh, cut), []).append(gradient.to_local())
    squares = []
    for (mesh, cut), tensors in parts.items():
        norms = [torch.linalg.vector_norm(tensor, dtype=torch.float32) for tensor in tensors]
        square = torch.stack(norms).square().sum()
        for dimension in cut:
            dist.all_reduce(square, group=mesh.get_group(dimension))
        squares.append(square)
    total = torch.stack(squares).sum()
    if others is not None:
        dist.all_reduce(total, group=others)
    norm = total.sqrt()
    scale = torch.clamp(limit / (norm + 1e-6), max=1.0)  # as torch does it
    for tensors in parts.values():
        torch._foreach_mul_(tensors, scale)
    return norm


def initialize_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Make the optimizer's state before the first step, all zeros, so that it can be saved and loaded into.

    torch's get_state_dict would make it by a step of its own and leave Adam's count at 1.
    """
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                value.zero_()


def join(*, timeout: timedelta, options: Any = None) -> DistributedWorld:
    """Join the process group of all ranks (see `find_rank_position`); with one rank there is none.

    `options` decide about the backend too: SMDDP cannot do all that choices.py offers.
    """
    die_with_launcher()
    seat = find_rank_position()
    choices = Choices.of(options)
    device = choose_device(seat.local_rank)
    instance = os.environ.get("RERAIL_INSTANCE_TYPE") or seat.instance_type
    backend = choose_backend(device.type, instance, needs_groups=choices.needs_groups)
    if seat.size > 1:
        os.environ.setdefault("MASTER_ADDR", seat.master)
        os.environ.setdefault("MASTER_PORT", DEFAULT_PORT)
        if backend == "smddp":
            load_smddp(choices)
        dist.init_process_group(backend, timeout=timeout, rank=seat.rank, world_size=seat.size)
    here = {"local_rank": seat.local_rank, "local_size": seat.local_size}
    return DistributedWorld(rank=seat.rank, size=seat.size, device=device, backend=backend, **here)


@dataclass(frozen=True)
class RankPosition:
    """The rank of a process among the others of its job; `launcher` says which launcher set it."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    launcher: str
    master: str = "127.0.0.1"
    instance_type: str = ""


def find_rank_position(environment: Mapping[str, str] = os.environ, base: Path | None = None) -> RankPosition:
    """Read torchrun's or launch.py's variables (RANK), else mpirun's (OMPI_COMM_WORLD_RANK), else the file.

    In this order, because mpirun may have started one torchrun on each host, and then torchrun knows more. SageMaker's
    resourceconfig.json alone means one process on each host; without it too, this process is the only one.
    """
    cluster = TrainingCluster.read(base or find_base_folder(environment))
    hosts = len(cluster.hosts)
    place: dict[str, Any] = {
        "master": cluster.hosts[0] if hosts > 1 else "127.0.0.1",
        "instance_type": cluster.instance_type,
    }
    for launcher, (rank, size, local_rank, local_size) in LAUNCHERS.items():
        if rank in environment or size in environment:
            found = _numbers(environment, rank, size)
            # Started by hand, these two may be missing: then all machines have the same number.
            here = int(environment.get(local_size) or max(1, found[1] // hosts))
            return RankPosition(*found, int(environment.get(local_rank) or found[0] % here), here, launcher, **place)
    return RankPosition(cluster.node_rank, hosts, 0, 1, "resourceconfig.json" if hosts > 1 else "none", **place)


LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "mpirun": tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
}


def _numbers(environment: Mapping[str, str], rank: str, size: str) -> tuple[int, int]:
    """Return both numbers; one of them alone would make a rank that waits for ever, or trains alone."""
    missing = [name for name in (rank, size) if not environment.get(name, "").isdigit()]
    if missing:
        raise ValueError(f"{' and '.join(missing)}: not a number; set {rank} and {size}, or neither")
    found = int(environment[rank]), int(environment[size])
    if found[0] >= found[1]:
        raise ValueError(f"{rank}={found[0]}: must be less than {size}={found[1]}")
    return found


def leave(code: int) -> NoReturn:
    """End this process at once, without running Python's finalizers.

    Destroying a gloo group takes a lock while it holds the GIL, and a gloo thread that releases its last tensor takes
    the two in the other order. With torch 2.13 a finished rank then hangs for ever, so the group is never destroyed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def choose_device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def choose_backend(device_type: str, instance_type: str, *, needs_groups: bool = False) -> str:
    """Return smddp where it exists and is enough, else nccl on GPUs, else gloo."""
    if device_type != "cuda":
        return "gloo"
    return "smddp" if instance_type in SMDDP_INSTANCES and not needs_groups and is_smddp_installed() else "nccl"


def load_smddp(choices: Choices) -> None:
    """Register the backend. It has its own AllReduce or its own AllGather, never both, and NCCL does the rest.

    Its AllReduce, for DDP, exists under mpirun only. Its AllGather, for FSDP, is the default under torchrun; under
    mpirun it must be requested before the import.
    """
    if not choices.is_whole:
        os.environ.setdefault("SMDATAPARALLEL_OPTIMIZE_SDP", "true")
    importlib.import_module("smdistributed.dataparallel.torch.torch_smddp")


def is_smddp_installed() -> bool:
    # SMP is in the package `smdistributed` too, so that one alone proves nothing.
    try:
        return importlib.util.find_spec("smdistributed.dataparallel") is not None
    except ModuleNotFoundError:
        return False


def die_with_launcher() -> None:
    """End this process with its launcher: it must not write beside the successor of a killed torchrun.

    Inside a container nothing outlives PID 1; this is for everywhere else.
    """
    launcher = int(os.environ.get("RERAIL_LAUNCHER_PID", os.getpid()))
    if launcher == os.getpid() or not sys.platform.startswith("linux"):
        return
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != launcher:  # it ended before the call above
        os._exit(128 + signal.SIGKILL)
