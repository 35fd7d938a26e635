"""The groups that a layout divides its ranks into: where each is, and how long a pipeline's ranks wait."""

from __future__ import annotations

from dataclasses import dataclass

from choices import Choices, TrainingPlan


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
    """Return the layout as one line: the machines, the backend, and the groups."""
    machines = f"{plan.hosts} x {plan.instance_type or 'this machine'}, {plan.ranks} rank(s)"
    return f"{machines}, {backend}: {describe_groups(plan)}"


def describe_groups(plan: TrainingPlan) -> str:
    """Return each kind of group, its size and where it is, and the bubble of a pipeline."""
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
    return ", ".join([str(plan.choices.parallel), *parts])


def compute_bubble(choices: Choices) -> float:
    """Return the share of a step in which a rank waits for the others of its pipeline.

    With p ranks and m microbatches it is (p-1)/(m+p-1); v stages on each rank divide the time to fill by v. No formula
    is known for torch's zero-bubble schedules: they wait about 0.7 of that time (`python -m bench.bubbles`).
    """
    waits = (choices.pipeline_parallel - 1) / choices.pipeline_schedule.stages_per_rank
    if choices.pipeline_schedule.splits_backward:
        waits *= 0.7
    return waits / (choices.microbatches + waits)
