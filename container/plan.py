"""Check whether these machines can do what is asked of them.

By hand: `python plan.py --instance ml.p4d.24xlarge --count 2`. It estimates whether the layout fits in memory, and
names the rules of thumb that it breaks. They and the order of the advice are those of SageMaker's guidance on model
parallelism, as code. The speed of a layout is not estimated.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from choices import VOCABULARY, Choices, Parallel, Precision, Schedule, TrainingPlan, add_options, count_shard_ranks
from instances import INSTANCES
from job import TrainingCluster
from memory import count_parameters, estimate, fits, usable_gib
from rank_groups import compute_bubble, describe_groups

if TYPE_CHECKING:  # model.py imports torch, which is not needed for rules
    from model import ModelSize

WITHOUT_BF16 = ("T4", "V100")
# The share of a step that a rank of a pipeline may wait; four microbatches a rank stay below it in every schedule.
LONGEST_WAIT = 0.2


class PlanLevel(StrEnum):
    """How much a finding matters."""

    ERROR = "error"  # the plan cannot start like this
    WARNING = "warning"  # it may fail, or waste most of its machines
    NOTE = "note"


@dataclass(frozen=True)
class PlanFinding:
    """One problem of a plan: what it is, why it matters, and what to do."""

    level: PlanLevel
    what: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: {self.why}; {self.remedy}"


def raise_errors(findings: Iterable[PlanFinding]) -> None:
    """Raise ValueError with every error among the findings."""
    errors = [str(finding) for finding in findings if finding.level is PlanLevel.ERROR]
    if errors:
        raise ValueError(" | ".join(errors))


def check_ranks(choices: Choices, *, ranks: int, ranks_per_node: int) -> list[PlanFinding]:
    """Return what these ranks cannot do, whatever the model."""
    findings = [*_check_tensor_parallel(choices, ranks, ranks_per_node), *_check_activations(choices)]
    findings = findings or list(_check_pipeline(choices, ranks))
    return findings or list(_check_shards(choices, ranks, ranks_per_node))


def _check_tensor_parallel(choices: Choices, ranks: int, ranks_per_node: int) -> Iterator[PlanFinding]:
    degree = choices.tensor_parallel
    what = f"tensor_parallel={degree}"
    remedy = f"choose one of {', '.join(map(str, list_degrees(ranks_per_node)))}"
    if degree < 1 or degree & (degree - 1):
        yield PlanFinding(
            PlanLevel.ERROR, what, "must be a power of two, for heads and layers to be halved evenly", remedy
        )
    elif degree > ranks_per_node:
        why = f"a machine has {ranks_per_node} rank(s): activations of every layer would cross the network"
        yield PlanFinding(PlanLevel.ERROR, what, why, remedy)
    elif degree not in list_degrees(ranks_per_node) or ranks % degree:
        why = f"does not divide the {ranks_per_node} ranks of a machine: a group would span two machines"
        yield PlanFinding(PlanLevel.ERROR, what, why, remedy)


def _check_pipeline(choices: Choices, ranks: int) -> Iterator[PlanFinding]:
    stages, parts, schedule = choices.pipeline_parallel, choices.microbatches, choices.pipeline_schedule
    what = f"microbatches={parts}"
    if stages < 1 or ranks % (stages * max(1, choices.tensor_parallel)):
        why = f"does not divide the {ranks} rank(s), with tensor_parallel={choices.tensor_parallel}"
        degrees = [str(degree) for degree in range(1, ranks + 1) if ranks % (degree * choices.tensor_parallel) == 0]
        remedy = f"choose one of {', '.join(degrees)}" if degrees else "lower tensor_parallel too"
        yield PlanFinding(PlanLevel.ERROR, f"pipeline_parallel={stages}", why, remedy)
    elif stages == 1 and parts != 1:
        why = "is for a pipeline, and this has one stage"
        yield PlanFinding(PlanLevel.ERROR, what, why, "leave it out, or choose pipeline_parallel of 2 or more")
    elif parts < 1 or (stages > parts and schedule is not Schedule.GPIPE and stages > 1):
        why = f"{schedule} keeps {stages} ranks busy with a microbatch each"
        yield PlanFinding(PlanLevel.ERROR, what, why, f"choose at least {stages}, better {4 * stages}")
    elif schedule.stages_per_rank > 1 and schedule is not Schedule.ZBV and parts % max(1, parts // stages):
        why = f"{schedule} takes them in {parts // stages} equal rounds"
        yield PlanFinding(PlanLevel.ERROR, what, why, f"choose {parts // stages * stages}")


def list_degrees(ranks_per_node: int) -> list[int]:
    """Return the degrees of tensor parallelism that a machine can have."""
    return [1 << power for power in range(ranks_per_node.bit_length()) if ranks_per_node % (1 << power) == 0]


def _check_shards(choices: Choices, ranks: int, ranks_per_node: int) -> Iterator[PlanFinding]:
    what = f"shard_size={choices.shard_size}"
    across = ranks // choices.model_ranks
    if choices.shard_size and choices.parallel is not Parallel.HYBRID:
        why = f"is for parallel=hybrid, and this is {choices.parallel}"
        yield PlanFinding(PlanLevel.ERROR, what, why, "leave it out, or choose parallel=hybrid")
    elif choices.shard_size < 0 or across % max(1, count_shard_ranks(choices, ranks, ranks_per_node)):
        why = f"does not divide the {across} rank(s) that the data is dealt out to"
        yield PlanFinding(PlanLevel.ERROR, what, why, f"choose a divisor of {across}")


def _check_activations(choices: Choices) -> Iterator[PlanFinding]:
    if choices.activation_offload and not choices.activation_checkpointing:
        why = "without activation_checkpointing everything between two layers would go to the CPU and back"
        yield PlanFinding(PlanLevel.ERROR, "activation_offload=true", why, "add activation_checkpointing=true")
    if choices.checkpoint_group < 1 or (choices.checkpoint_group > 1 and not choices.activation_checkpointing):
        what = f"checkpoint_group={choices.checkpoint_group}"
        why = "counts layers that are computed again together, from 1 on"
        yield PlanFinding(PlanLevel.ERROR, what, why, "leave it out, or add activation_checkpointing=true")


def check(
    options: Any,
    cluster: TrainingCluster,
    size: ModelSize,
    *,
    ranks_per_node: int | None = None,
    vocabulary: int = VOCABULARY,
) -> list[PlanFinding]:
    """Return all findings before the first step, errors first; `raise_errors` makes them an exception.

    `options` has those of `add_options` and `batch_size`. Without `ranks_per_node` it is one for each accelerator.
    """
    return check_plan(make_plan(options, cluster, size, ranks_per_node=ranks_per_node, vocabulary=vocabulary))


def make_plan(
    options: Any,
    cluster: TrainingCluster,
    size: ModelSize,
    *,
    ranks_per_node: int | None = None,
    vocabulary: int = VOCABULARY,
) -> TrainingPlan:
    instance = INSTANCES.get(cluster.instance_type)
    return TrainingPlan(
        choices=Choices.of(options),
        hosts=len(cluster.hosts),
        instance_type=cluster.instance_type,
        ranks_per_node=ranks_per_node or (instance.gpus if instance else 1),
        size=size,
        batch_size=options.batch_size,
        vocabulary=vocabulary,
    )


def check_plan(plan: TrainingPlan) -> list[PlanFinding]:
    if errors := find_errors(plan):  # what follows computes with these numbers
        return errors
    rules = (_check_memory, _check_machines, _check_network, _check_bubble, _check_excess)
    rest = [finding for rule in rules for finding in rule(plan)]
    return sorted(rest, key=lambda finding: list(PlanLevel).index(finding.level))


def find_errors(plan: TrainingPlan) -> list[PlanFinding]:
    """Return what these ranks, this model and this batch cannot have, whatever the memory."""
    errors = check_ranks(plan.choices, ranks=plan.ranks, ranks_per_node=plan.ranks_per_node)
    return errors or [*_check_heads(plan), *_check_stages(plan), *_check_batch(plan)]


def _check_heads(plan: TrainingPlan) -> Iterator[PlanFinding]:
    degree, heads = plan.choices.tensor_parallel, plan.size.heads
    if heads % max(1, degree):
        allowed = [number for number in list_degrees(plan.ranks_per_node) if heads % number == 0]
        why = f"does not divide the model's {heads} heads, and a head is not cut up"
        yield PlanFinding(
            PlanLevel.ERROR, f"tensor_parallel={degree}", why, f"choose one of {', '.join(map(str, allowed))}"
        )


def _check_stages(plan: TrainingPlan) -> Iterator[PlanFinding]:
    degree, each = plan.choices.pipeline_parallel, plan.choices.pipeline_schedule.stages_per_rank
    if degree > 1 and degree * each > plan.size.layers:
        why = f"{plan.choices.pipeline_schedule} has {degree * each} stages, and the model {plan.size.layers} layers"
        yield PlanFinding(
            PlanLevel.ERROR, f"pipeline_parallel={degree}", why, f"choose at most {plan.size.layers // each}"
        )


def _check_batch(plan: TrainingPlan) -> Iterator[PlanFinding]:
    unit = plan.data_ranks * plan.choices.microbatches
    if plan.batch_size % unit or not plan.batch_size:
        below = plan.batch_size // unit * unit
        choices = [str(number) for number in (below, below + unit) if number]
        parts = f" and their {plan.choices.microbatches} microbatches" if plan.choices.microbatches > 1 else ""
        why = f"must be a multiple of the {plan.data_ranks} ranks that it is dealt out to{parts}"
        yield PlanFinding(PlanLevel.ERROR, f"batch_size={plan.batch_size}", why, f"choose {' or '.join(choices)}")


def _check_memory(plan: TrainingPlan) -> Iterator[PlanFinding]:
    if plan.instance is None:
        if plan.instance_type:
            why = "is not in instances.py, so it is not known whether the model fits"
            yield PlanFinding(PlanLevel.NOTE, plan.instance_type, why, "add it there")
        return
    needed, usable = estimate(plan).total, usable_gib(plan)
    what = f"memory={needed:.1f} GiB"
    of = f"{usable:.1f} GiB of {plan.instance.memory_gib} ({plan.instance.gpu})"
    if needed > usable:
        why = f"more than the usable {of}"
        # An estimate: what is a little too much may well run.
        level = PlanLevel.ERROR if needed > 1.25 * usable else PlanLevel.WARNING
        yield PlanFinding(level, what, why, format_advice(plan))
    elif needed > 0.9 * usable:
        yield PlanFinding(
            PlanLevel.WARNING, what, f"hardly less than the usable {of}", "if it runs out: " + format_advice(plan)
        )
    elif (fewest := count_fewest_hosts(plan)) > 1 and fewest == plan.hosts:
        why = f"optimizer state is cut up over {plan.ranks} ranks; {plan.hosts - 1} machine(s) would not hold it"
        yield PlanFinding(
            PlanLevel.NOTE, f"hosts={plan.hosts}", why, "do not relaunch it on fewer without another layout"
        )


def count_fewest_hosts(plan: TrainingPlan) -> int:
    """Return the fewest machines on which the plan fits, with the batch of each rank unchanged."""
    samples = plan.batch_size // plan.data_ranks

    def on(hosts: int) -> TrainingPlan:
        smaller = replace(plan, hosts=hosts)
        return replace(smaller, batch_size=samples * smaller.data_ranks)

    whole = (hosts for hosts in range(1, plan.hosts) if hosts * plan.ranks_per_node % plan.choices.model_ranks == 0)
    return next((hosts for hosts in whole if fits(on(hosts))), plan.hosts)


def format_advice(plan: TrainingPlan) -> str:
    """Return what to change, one change after the other and each on top of those before, until the plan fits."""
    steps = []
    for name, changed in _remedies(plan):
        if estimate(changed).total < estimate(plan).total:
            plan = changed
            steps.append(f"{name} ({estimate(plan).total:.1f} GiB)")
        if fits(plan) and steps:
            return "in this order: " + ", ".join(steps)
    larger = [name for name in INSTANCES if fits(replace(plan, instance_type=name)) and INSTANCES[name].gpus > 1]
    then = f"take {larger[0]}" if larger else "take more machines with parallel=fsdp, or a smaller model"
    return ", ".join([*steps, then])


def _remedies(plan: TrainingPlan) -> Iterator[tuple[str, TrainingPlan]]:
    """Yield changes in the order of the guidance: shard, checkpoint, a smaller batch, tensor parallelism, offload.

    Precision comes where it costs least. A pipeline is not among them: sharding cuts up the same state without one.
    """

    def having(**changes: Any) -> tuple[str, TrainingPlan]:
        nonlocal plan
        plan = replace(plan, choices=replace(plan.choices, **changes))
        return next(f"{name}={str(value).lower()}" for name, value in changes.items()), plan

    if plan.choices.is_whole:
        yield having(shard_optimizer=True)
    if plan.choices.parallel is not Parallel.FSDP:
        yield having(parallel=Parallel.FSDP, shard_optimizer=False, shard_size=0)
    yield having(activation_checkpointing=True)
    if plan.instance and plan.instance.gpu not in WITHOUT_BF16:
        yield having(precision=Precision.BF16)
    while plan.batch_size % (2 * plan.data_ranks) == 0:
        plan = replace(plan, batch_size=plan.batch_size // 2)
        yield f"batch_size={plan.batch_size}", plan
    for degree in list_degrees(plan.ranks_per_node):
        if degree > plan.choices.tensor_parallel and plan.size.heads % degree == 0:
            yield having(tensor_parallel=degree)
    yield having(activation_offload=True)


def _check_machines(plan: TrainingPlan) -> Iterator[PlanFinding]:
    if plan.instance is None:
        return
    if plan.ranks_per_node < plan.instance.gpus:
        why = f"{plan.instance.gpus - plan.ranks_per_node} of {plan.instance.gpus} GPUs of each machine stand idle"
        yield PlanFinding(
            PlanLevel.WARNING, f"ranks_per_node={plan.ranks_per_node}", why, "leave RERAIL_PROCESSES_PER_NODE out"
        )
    if plan.choices.precision is Precision.BF16 and plan.instance.gpu in WITHOUT_BF16:
        why = f"a {plan.instance.gpu} has no bfloat16 and computes it slowly"
        yield PlanFinding(
            PlanLevel.WARNING, "precision=bf16", why, "choose fp32, or an instance from the G5 and P4d on"
        )


def _check_network(plan: TrainingPlan) -> Iterator[PlanFinding]:
    """Find slow networks: layers are gathered in every step, over NVLink or PCIe within a machine."""
    if plan.hosts == 1 or plan.choices.is_whole:
        return
    across = plan.ranks_per_node // plan.choices.tensor_parallel
    if plan.choices.parallel is Parallel.HYBRID:
        if across % plan.shards:
            why = f"a copy is spread over more than one machine, of which each has {across}"
            yield PlanFinding(
                PlanLevel.WARNING, f"shard_size={plan.shards}", why, f"choose {across} or a divisor of it"
            )
        return
    hybrid = replace(plan, choices=replace(plan.choices, parallel=Parallel.HYBRID, shard_size=0, shard_optimizer=False))
    if fits(hybrid) and plan.instance and plan.instance.network_gbit <= 100:
        speed = plan.instance.network_gbit
        why = f"every layer comes over a network of {speed} Gbit/s, and one machine could hold it all"
        yield PlanFinding(PlanLevel.WARNING, f"parallel={plan.choices.parallel}", why, "choose parallel=hybrid")


def _check_bubble(plan: TrainingPlan) -> Iterator[PlanFinding]:
    """Find pipelines with few microbatches, in which ranks wait for each other."""
    parts, stages = plan.choices.microbatches, plan.choices.pipeline_parallel
    waits = compute_bubble(plan.choices)
    if waits > LONGEST_WAIT and parts < 4 * stages:
        why = f"a rank waits for the others of its pipeline in {waits:.0%} of a step"
        remedy = f"choose {4 * stages}, if the batch of a rank has as many samples"
        yield PlanFinding(PlanLevel.NOTE, f"microbatches={parts}", why, remedy)


def _check_excess(plan: TrainingPlan) -> Iterator[PlanFinding]:
    """Find options that the model does not need, which make it slower."""
    if plan.instance is None or not fits(plan):
        return
    costs = {
        "activation_offload": (False, "copies over PCIe that the step waits for"),
        "tensor_parallel": (1, "two all-reduces in every layer"),
        "activation_checkpointing": (False, "a third more computing"),
    }
    for name, (without, cost) in costs.items():
        leaner: dict[str, Any] = {name: without} | (
            {"activation_offload": False} if name == "activation_checkpointing" else {}
        )
        changed = replace(plan, choices=replace(plan.choices, **leaner))
        asked = getattr(plan.choices, name)
        if asked != without and changed.batch_size % changed.data_ranks == 0 and fits(changed):
            what = f"{name}={str(asked).lower()}"
            yield PlanFinding(PlanLevel.NOTE, what, f"costs {cost}, and the model fits without", "leave it out")


def format_plan(plan: TrainingPlan) -> str:
    """Format a plan for people."""
    gpu = f"{plan.instance.gpu}, {plan.instance.memory_gib} GiB" if plan.instance else "no accelerator that is known"
    block, others = count_parameters(plan.size, plan.vocabulary)
    head = [
        f"{plan.hosts} x {plan.instance_type} ({gpu}), {plan.ranks} ranks, a batch over {plan.data_ranks} of them",
        f"{(plan.size.layers * block + others) / 1e6:,.0f} million parameters",
        "",
    ]
    findings = check_plan(plan)
    if not find_errors(plan):
        head[-1:] = [f"layout: {describe_groups(plan)}", ""]
    if not any(finding.level is PlanLevel.ERROR and not finding.what.startswith("memory") for finding in findings):
        needed = estimate(plan)
        rows = {field.name.replace("_", " "): getattr(needed, field.name) for field in fields(needed)}
        head += [f"{name:<16}{gib:>9.2f} GiB" for name, gib in rows.items()]
        answer = "of unknown memory" if plan.instance is None else "fits" if fits(plan) else "does not fit"
        head += [f"{'of a rank':<16}{needed.total:>9.2f} GiB of {usable_gib(plan):.1f} usable: {answer}", ""]
    lines = [
        f"{finding.level.upper():<8} {finding.what}\n  why     {finding.why}\n  do      {finding.remedy}"
        for finding in findings
    ]
    return "\n".join(head + (lines or ["nothing to object to"]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the plan; return 1 if it cannot start."""
    from model import SIZES

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)

    def add(name: str, **settings: Any) -> None:
        parser.add_argument(*dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}")), **settings)

    add("instance", required=True, help="such as ml.p4d.24xlarge")
    add("count", type=int, default=1, help="machines")
    add("model-size", choices=SIZES, default="gpt2")
    for name in ("layers", "heads", "width", "context"):
        add(name, type=int, help="in place of the model size's")
    add("vocabulary", type=int, default=VOCABULARY)
    add("batch-size", type=int, default=16, help="samples a step, over all ranks")
    add("ranks-per-node", type=int, help="without it one for each GPU")
    add_options(add)
    options = parser.parse_args(arguments)
    known = SIZES[options.model_size]
    own = {name: getattr(options, name) for name in ("layers", "heads", "width", "context") if getattr(options, name)}
    hosts = tuple(f"algo-{number + 1}" for number in range(options.count))
    cluster = TrainingCluster(hosts=hosts, current_host=hosts[0], instance_type=options.instance, network_interface="")
    size: ModelSize = replace(known, **own)
    plan = make_plan(options, cluster, size, ranks_per_node=options.ranks_per_node, vocabulary=options.vocabulary)
    print(format_plan(plan))
    return int(any(finding.level is PlanLevel.ERROR for finding in check_plan(plan)))


if __name__ == "__main__":
    raise SystemExit(main())
