"""Estimate how much of its accelerator's memory a rank needs, from the shapes in model.py, to about a fifth."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

from choices import VOCABULARY, Choices, Parallel, Precision, Schedule, TrainingPlan

if TYPE_CHECKING:  # model.py imports torch, which is not needed for numbers
    from model import ModelSize

GIB = float(1 << 30)
CONTEXT_GIB = 1.5  # used by CUDA and NCCL
USABLE = 0.92  # of the rest: torch's allocator leaves gaps


@dataclass(frozen=True)
class Memory:
    """The memory that one rank needs on its accelerator at the peak of a step, in GiB."""

    parameters: float
    gradients: float
    optimizer: float
    # Parameters and gradients of sharded layers while they are gathered.
    layers_at_work: float
    activations: float
    # Logits, their float copy and its gradient.
    loss: float

    @property
    def total(self) -> float:
        return float(sum(astuple(self)))


def count_parameters(size: ModelSize, vocabulary: int = VOCABULARY) -> tuple[int, int]:
    """Return how many parameters one block has, and all others together."""
    return 12 * size.width**2 + 4 * size.width, (2 * vocabulary + size.context + 2) * size.width


def count_layers(plan: TrainingPlan) -> int:
    """Return the layers of the rank that has the most."""
    return -(-plan.size.layers // plan.choices.pipeline_parallel)


def count_ends(plan: TrainingPlan) -> int:
    """Return the parameters outside the blocks, of the rank that has the most: a pipeline divides them."""
    size = plan.size
    if plan.choices.pipeline_parallel == 1:
        return count_parameters(size, plan.vocabulary)[1]
    return (plan.vocabulary + max(size.context, 2)) * size.width


def count_parts_at_once(choices: Choices) -> float:
    """Return of how many microbatches a rank keeps activations at the same time, in layers of the whole rank."""
    ranks, parts = choices.pipeline_parallel, choices.microbatches
    if choices.pipeline_schedule is Schedule.GPIPE or ranks == 1:
        return parts
    # Interleaved ranks start some microbatches more in their first stage before the last stage returns the first one.
    more = (ranks - 1) / ranks if choices.pipeline_schedule.stages_per_rank > 1 else 0
    return min(parts, ranks * (1 + more))


def estimate(plan: TrainingPlan) -> Memory:
    """Estimate for AdamW on fp32 weights: 4 bytes for a parameter, 4 for its gradient, 8 for its moments."""
    choices, size = plan.choices, plan.size
    layers, others = count_layers(plan), count_ends(plan)
    degree = choices.tensor_parallel
    # Tensor parallelism cuts up linear layers of blocks; norms, embeddings and the head are whole on every rank.
    own_block = 12 * size.width**2 // degree + 4 * size.width
    own = layers * own_block + others
    width = 2 if choices.precision is Precision.BF16 else 4
    held = own / plan.shards
    if choices.is_whole:
        at_work = 2.0 * own if width == 2 else 0.0  # in bf16 autocast keeps its copies for a step
    elif plan.data_ranks == 1:
        at_work = 0.0  # nothing to gather
    elif choices.pipeline_parallel > 1:
        # Layers and their gradients stay whole until the last microbatch; one rank alone has no second copy in fp32.
        at_work = (width if plan.shards > 1 or width == 2 else 0) * own + 4.0 * own
    elif choices.parallel is Parallel.DDP:
        at_work = width * own + 4 * own_block
    else:
        # One layer computes while the next is on its way, beside what is in no block; the gradients of one.
        at_work = width * (2 * own_block + others) + (width + 4) * own_block
    return Memory(
        parameters=4 * held / GIB,
        gradients=4 * held / GIB,
        optimizer=8 * held / GIB,
        layers_at_work=at_work / GIB,
        activations=_activations(plan, width) / GIB,
        # Logits, as floats, and in the backward pass the gradients of both.
        loss=_tokens(plan) * plan.vocabulary * (12 + width) / GIB,
    )


def _tokens(plan: TrainingPlan) -> float:
    """Return the tokens that a rank works on at a time: those of a microbatch."""
    return plan.batch_size / plan.data_ranks / plan.choices.microbatches * plan.size.context


def _activations(plan: TrainingPlan, width: int) -> float:
    """Estimate a block: 17 numbers for each token and channel, 13 of them sharded by tensor parallelism, and dropout.

    They are the inputs of the two norms (2), of the projections to heads and to the wide layer (2), queries, keys and
    values (3), attention's result twice (2), the wide layer before and after its gelu (8). Scores do not count:
    attention is computed piece by piece.
    """
    choices, size = plan.choices, plan.size
    entry = _tokens(plan) * size.width
    block = entry * ((4 + 13 / choices.tensor_parallel) * width + 2 * bool(size.dropout))
    layers, parts = count_layers(plan), count_parts_at_once(choices)
    if not choices.activation_checkpointing:
        return layers * parts * block
    group = min(choices.checkpoint_group, layers)
    return group * block + entry * width * (1 if choices.activation_offload else layers * parts / group)


def usable_gib(plan: TrainingPlan) -> float:
    """Return what training may use of one accelerator; infinite if it is not known."""
    return (plan.instance.memory_gib - CONTEXT_GIB) * USABLE if plan.instance else float("inf")


def fits(plan: TrainingPlan) -> bool:
    return estimate(plan).total <= usable_gib(plan)
