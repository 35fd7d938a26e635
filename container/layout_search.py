"""Search the layouts that a model can have on some machines, by expected step time: `python plan.py --layouts`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from choices import Choices, Parallel, Schedule, TrainingPlan, count_shard_ranks
from cost_model import MachineSpeed, StepCost, estimate_step, find_machines
from memory import estimate, usable_gib
from plan import find_errors, list_degrees

SHOWN = 10
# Microbatches for each rank of a pipeline.
ROUNDS = (1, 2, 4, 8)
# Degrees of a pipeline that are tried.
MOST_STAGES = 64


@dataclass(frozen=True)
class Candidate:
    """One layout: its cost if it can be used, and otherwise why not."""

    plan: TrainingPlan
    cost: StepCost | None = None
    excluded: str = ""


def search(plan: TrainingPlan, machines: MachineSpeed | None = None) -> list[Candidate]:
    """Return all candidates, the usable ones first and by expected step time.

    Of layouts that differ in activation checkpointing alone, the one with it is used only if the other does not fit.
    """
    machines = machines or find_machines(plan)
    candidates = []
    for choices in list_choices(plan):
        lean, checkpointed = (
            evaluate(replace(plan, choices=replace(choices, activation_checkpointing=again)), machines)
            for again in (False, True)
        )
        candidates.append(lean if lean.cost or checkpointed.excluded else checkpointed)
    return sorted(candidates, key=lambda candidate: candidate.cost.total if candidate.cost else float("inf"))


def list_choices(plan: TrainingPlan) -> Iterator[Choices]:
    """Yield every combination of strategies; the precision and the offload are the plan's."""
    for tensor in list_degrees(plan.ranks_per_node):
        for stages in range(1, min(MOST_STAGES, plan.ranks // tensor) + 1):
            if plan.ranks % (tensor * stages):
                continue
            base = replace(plan.choices, tensor_parallel=tensor, pipeline_parallel=stages, microbatches=1, shard_size=0)
            for parallel, cut in ((Parallel.DDP, False), (Parallel.DDP, True), (Parallel.FSDP, False)):
                # In a pipeline the two ways to shard are the same: see parallel.py.
                if stages == 1 or not cut:
                    yield from _list_pipelines(replace(base, parallel=parallel, shard_optimizer=cut))
            hybrid = replace(base, parallel=Parallel.HYBRID, shard_optimizer=False)
            across = plan.ranks // (tensor * stages)
            if 1 < count_shard_ranks(hybrid, plan.ranks, plan.ranks_per_node) < across:
                yield from _list_pipelines(hybrid)


def _list_pipelines(choices: Choices) -> Iterator[Choices]:
    if choices.pipeline_parallel == 1:
        yield choices
        return
    for schedule in (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.ZBV):
        for rounds in ROUNDS:
            yield replace(choices, pipeline_schedule=schedule, microbatches=rounds * choices.pipeline_parallel)


def evaluate(plan: TrainingPlan, machines: MachineSpeed) -> Candidate:
    """Return the layout with its cost, or with the reason why it cannot be used."""
    errors = find_errors(plan)
    if errors:
        return Candidate(plan, excluded=f"{errors[0].what} {errors[0].why}")
    needed, usable = estimate(plan).total, usable_gib(plan)
    if needed > usable:
        return Candidate(plan, excluded=f"needs {needed:.0f} GiB of {usable:.0f}")
    return Candidate(plan, estimate_step(plan, machines))


def format_candidates(candidates: list[Candidate]) -> str:
    """Format the fastest layouts as a table, and how many were excluded for which reason."""
    usable = [(candidate.plan, candidate.cost) for candidate in candidates if candidate.cost]
    names = list(usable[0][1].links) if usable else []
    head = ["layout", "GiB", "step s", "ratio", "computes", "bubble", *(f"{name} s" for name in names)]
    rows = [
        [
            format_choices(plan.choices),
            f"{estimate(plan).total:.1f}",
            f"{cost.total:.3f}",
            f"{cost.total / usable[0][1].total:.2f}",
            f"{cost.compute:.3f}",
            f"{cost.bubble:.0%}",
            *(f"{seconds:.3f}" for seconds in cost.links.values()),
        ]
        for plan, cost in usable[:SHOWN]
    ]
    lines = (
        ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]] if rows else ["no layout fits"]
    )
    excluded = [candidate for candidate in candidates if candidate.excluded]
    kinds = Counter("memory" if each.excluded.startswith("needs") else each.excluded.split("=")[0] for each in excluded)
    lines += ["", f"{len(usable)} layouts can be used, {len(excluded)} cannot:"]
    for kind, count in kinds.most_common():
        example = next(each for each in excluded if each.excluded.startswith("needs" if kind == "memory" else kind))
        lines.append(f"  {count} for {kind}, such as {format_choices(example.plan.choices)}: {example.excluded}")
    return "\n".join(lines)


def format_choices(choices: Choices) -> str:
    """Format what differs from plain DDP."""
    sharded = "shard_optimizer" if choices.shard_optimizer else str(choices.parallel)
    tensor = f" x tensor {choices.tensor_parallel}" if choices.tensor_parallel > 1 else ""
    schedule = f"{choices.pipeline_schedule}, {choices.microbatches} microbatches"
    stages = f" x pipeline {choices.pipeline_parallel} ({schedule})" if choices.pipeline_parallel > 1 else ""
    return sharded + tensor + stages + (", checkpointed" if choices.activation_checkpointing else "")
