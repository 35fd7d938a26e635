"""Estimate the time of a step: computing, the bubble of a pipeline, and what crosses each kind of link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from choices import Choices, Parallel, Precision, TrainingPlan
from instances import has_efa
from memory import count_layers, count_parameters

if TYPE_CHECKING:
    from collections.abc import Iterator

# Dense TFLOP/s in bfloat16 and in float32, from NVIDIA's data sheets; 0 where the GPU lacks the format.
PEAK_TFLOPS = {
    "T4": (0.0, 8.1),
    "V100": (0.0, 15.7),
    "A10G": (70.0, 31.0),
    "L4": (121.0, 30.0),
    "L40S": (362.0, 91.0),
    "A100": (312.0, 19.5),
    "H100": (989.0, 67.0),
    "H200": (989.0, 67.0),
    "B200": (2250.0, 80.0),
}
# The share of the peak that a large model reaches without any communication.
REACHED = 0.5
# GB/s out of one GPU over NVLink; the others have PCIe.
NVLINK = {"V100": 150.0, "A100": 300.0, "H100": 450.0, "H200": 450.0, "B200": 900.0}
PCIE = 12.0
# The share of the gradients' traffic that goes on beside the backward pass.
OVERLAPPED = 0.5


@dataclass(frozen=True)
class LinkClass:
    """One class of connections."""

    name: str
    # Bytes a second: out of one GPU within a machine, out of one machine between machines.
    bandwidth: float
    # Seconds for one message.
    latency: float


@dataclass(frozen=True)
class MachineSpeed:
    """The inputs of a step's time, beside the plan."""

    # FLOP/s of one rank.
    flops: float
    within: LinkClass
    across: LinkClass


@dataclass(frozen=True)
class StepCost:
    """The expected time of one step, in seconds."""

    compute: float
    # The share of the step's computing part in which a rank waits for others of its pipeline.
    bubble: float
    # By the name of the link class; what overlaps with computing is not in it.
    links: dict[str, float]

    @property
    def total(self) -> float:
        return self.compute / (1 - self.bubble) + sum(self.links.values())


@dataclass(frozen=True)
class RankGroup:
    """The groups of one kind that a layout cuts its ranks into: every `stride`-th rank, `size` of them."""

    name: str
    size: int
    stride: int
    ranks_per_node: int

    @property
    def members_per_node(self) -> int:
        return max(1, min(self.size, self.ranks_per_node // self.stride))

    @property
    def crosses(self) -> bool:
        """Return whether a group has ranks on several machines."""
        return self.size > self.members_per_node


def list_groups(choices: Choices, *, ranks: int, shards: int, ranks_per_node: int) -> list[RankGroup]:
    """Return the groups of a layout, neighbours first, as make_mesh() in parallel.py arranges them."""
    across = ranks // choices.model_ranks
    sizes = {
        "tensor": choices.tensor_parallel,
        "shards": shards,
        "replicas": across // shards,
        "pipeline": choices.pipeline_parallel,
    }
    groups, stride = [], 1
    for name, size in sizes.items():
        groups.append(RankGroup(name, size, stride, ranks_per_node))
        stride *= size
    return groups


def describe(plan: TrainingPlan, backend: str) -> str:
    """Return the layout as one line: each kind of group, its size and where it is, and the backend."""
    groups = list_groups(plan.choices, ranks=plan.ranks, shards=plan.shards, ranks_per_node=plan.ranks_per_node)
    parts = [
        f"{group.name} {group.size} {'across machines' if group.crosses else 'within a machine'}"
        for group in groups
        if group.size > 1
    ]
    if plan.choices.pipeline_parallel > 1:
        bubble = compute_bubble(plan.choices)
        parts[-1] += (
            f" ({plan.choices.pipeline_schedule}, {plan.choices.microbatches} microbatches, bubble {bubble:.0%})"
        )
    machines = f"{plan.hosts} x {plan.instance_type or 'this machine'}, {plan.ranks} rank(s)"
    return f"{machines}, {backend}: {plan.choices.parallel}" + "".join(f", {part}" for part in parts)


def compute_bubble(choices: Choices) -> float:
    """Return the share of a step in which a rank waits for the others of its pipeline.

    With p ranks and m microbatches it is (p-1)/(m+p-1); v stages on each rank divide the time to fill by v. No formula
    is known for torch's zero-bubble schedules: they wait about 0.7 of that time (`python -m bench.bubbles`).
    """
    waits = (choices.pipeline_parallel - 1) / choices.pipeline_schedule.stages_per_rank
    if choices.pipeline_schedule.splits_backward:
        waits *= 0.7
    return waits / (choices.microbatches + waits)


def find_machines(plan: TrainingPlan) -> MachineSpeed:
    """Return what is known of the plan's instance type; raise KeyError for an unknown one."""
    if plan.instance is None:
        raise KeyError(f"{plan.instance_type}: not in instances.py; add it there")
    bf16, fp32 = PEAK_TFLOPS[plan.instance.gpu]
    peak = bf16 if plan.choices.precision is Precision.BF16 and bf16 else fp32
    links = NVLINK if plan.instance.gpus > 1 else {}
    nvlink = plan.instance.gpu in links
    within = LinkClass("NVLink" if nvlink else "PCIe", 1e9 * links.get(plan.instance.gpu, PCIE), 1e-5)
    name = "EFA" if has_efa(plan.instance_type) else "network"
    across = LinkClass(name, plan.instance.network_gbit / 8 * 1e9, 3e-5 if name == "EFA" else 1e-4)
    return MachineSpeed(peak * 1e12 * REACHED, within, across)


def estimate_step(plan: TrainingPlan, machines: MachineSpeed) -> StepCost:
    """Estimate the time of a step on these machines."""
    choices, size = plan.choices, plan.size
    block, others = count_parameters(size, plan.vocabulary)
    tokens = plan.batch_size * size.context
    flops = 6 * (size.layers * block + plan.vocabulary * size.width) + 12 * size.layers * size.width * size.context
    again = 4 / 3 if choices.activation_checkpointing else 1.0
    compute = flops * tokens * again / plan.ranks / machines.flops
    links = {machines.within.name: 0.0, machines.across.name: 0.0}
    hidden = OVERLAPPED * compute if choices.pipeline_parallel == 1 else 0.0
    groups = list_groups(choices, ranks=plan.ranks, shards=plan.shards, ranks_per_node=plan.ranks_per_node)
    for group in groups:
        if group.size == 1:
            continue
        link = machines.across if group.crosses else machines.within
        sent, messages = count_traffic(plan, group)
        # Each group's ring leaves a machine once, and all groups share its network.
        share = plan.ranks_per_node / group.members_per_node if group.crosses else 1.0
        seconds = sent * share / link.bandwidth + messages * link.latency
        if group.name in ("shards", "replicas"):
            seconds, hidden = max(0.0, seconds - hidden), max(0.0, hidden - seconds)
        links[link.name] += seconds
    return StepCost(compute, compute_bubble(choices), links)


def count_traffic(plan: TrainingPlan, group: RankGroup) -> tuple[float, int]:
    """Return the bytes that a rank sends to one kind of group in a step, and the number of messages."""
    return next(counted for name, *counted in _list_traffic(plan, group) if name == group.name)  # type: ignore[return-value]


def _list_traffic(plan: TrainingPlan, group: RankGroup) -> Iterator[tuple[str, float, int]]:
    choices, size = plan.choices, plan.size
    width = 2 if choices.precision is Precision.BF16 else 4
    layers = count_layers(plan)
    block, others = count_parameters(size, plan.vocabulary)
    own = layers * block / choices.tensor_parallel + others / choices.pipeline_parallel
    activations = plan.batch_size / plan.data_ranks * size.context * size.width * width
    part = (group.size - 1) / group.size
    # Two all-reduces in a forward pass of a block and two in its backward pass; a second forward pass has them again.
    passes = 6 if choices.activation_checkpointing else 4
    yield (
        "tensor",
        passes * layers * 2 * part * activations,
        passes * layers * choices.microbatches * 2 * (group.size - 1),
    )
    # Layers are gathered for the forward and for the backward pass, or kept from one to the other.
    gathers = 2 if choices.parallel is not Parallel.DDP and choices.pipeline_parallel == 1 else 1
    yield "shards", part * own * (gathers * width + 4), (gathers + 1) * (layers + 1) * (group.size - 1)
    yield "replicas", 2 * part * own / plan.shards * 4, (layers + 1) * 2 * (group.size - 1)
    stages = choices.pipeline_schedule.stages_per_rank
    yield "pipeline", 2 * stages * activations, 2 * stages * choices.microbatches
