"""Define how a model may be spread over machines: the options by name, and the numbers that follow from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from instances import INSTANCES, Instance

if TYPE_CHECKING:  # model.py imports torch, which is not needed for numbers
    from model import ModelSize

VOCABULARY = 256  # model.py's


class Parallel(StrEnum):
    """How the ranks share the work on a batch."""

    DDP = "ddp"  # every rank has the whole model, gradients are averaged
    FSDP = "fsdp"  # parameters, gradients and optimizer state are cut up over all ranks
    HYBRID = "hybrid"  # cut up within groups of `shard_size` ranks, each group has all of it


class Schedule(StrEnum):
    """The order in which a pipeline's ranks work on microbatches."""

    GPIPE = "gpipe"  # all forward passes, then all backward passes
    ONE_F_ONE_B = "1f1b"  # as gpipe, but at most as many microbatches at a time as there are ranks
    INTERLEAVED = "interleaved"  # 1f1b with two stages on each rank, which halves the bubble
    ZERO_BUBBLE = "zero_bubble"  # interleaved, and gradients of weights are computed where a rank would wait
    ZBV = "zbv"  # the same with the stages laid out as a V

    @property
    def stages_per_rank(self) -> int:
        return 1 if self in (Schedule.GPIPE, Schedule.ONE_F_ONE_B) else 2

    @property
    def splits_backward(self) -> bool:
        return self in (Schedule.ZERO_BUBBLE, Schedule.ZBV)


class Precision(StrEnum):
    """The number format in which a layer computes; weights and optimizer state are kept in fp32 in both cases."""

    FP32 = "fp32"
    BF16 = "bf16"


def parse_bool(text: str) -> bool:
    """Parse a hyperparameter, which is a string: `true` and `1`, `false` and `0`, in any case."""
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in known:
        raise ValueError(f"{text!r} is not a boolean: use true or false")
    return known[text.lower()]


@dataclass(frozen=True)
class Choices:
    """The distribution of a model over the ranks, and its number format."""

    parallel: Parallel = Parallel.DDP
    tensor_parallel: int = 1
    # Ranks that have some of the layers each.
    pipeline_parallel: int = 1
    pipeline_schedule: Schedule = Schedule.ONE_F_ONE_B
    # Parts of a rank's batch, which follow each other through the pipeline.
    microbatches: int = 1
    # 0 for as many ranks as a machine has.
    shard_size: int = 0
    shard_optimizer: bool = False
    activation_checkpointing: bool = False
    activation_offload: bool = False
    # Blocks of which only the first one's input is kept.
    checkpoint_group: int = 1
    precision: Precision = Precision.FP32

    @classmethod
    def of(cls, options: Any) -> Choices:
        """Read the choices from a namespace; an option that it lacks keeps its default."""
        given = {name: getattr(options, name) for name in cls.__dataclass_fields__ if hasattr(options, name)}
        chosen = cls(**given)
        kinds: dict[str, type[StrEnum]] = {
            "parallel": Parallel,
            "precision": Precision,
            "pipeline_schedule": Schedule,
        }
        for name, kind in kinds.items():
            if getattr(chosen, name) not in list(kind):
                raise ValueError(f"{name}={getattr(chosen, name)}: must be one of {', '.join(kind)}")
        return cls(**given | {name: kind(getattr(chosen, name)) for name, kind in kinds.items()})

    @property
    def is_whole(self) -> bool:
        """Return whether every rank always has all parameters: plain DDP."""
        return self.parallel is Parallel.DDP and self.model_ranks == 1 and not self.shard_optimizer

    @property
    def model_ranks(self) -> int:
        """Return how many ranks together compute one sample."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def needs_groups(self) -> bool:
        """Return whether process groups are needed beside the one of all ranks."""
        return self.model_ranks > 1 or self.parallel is Parallel.HYBRID


def add_options(add: Callable[..., None]) -> None:
    """Add each choice to a parser: `add` takes a name without its dashes, and argparse's settings."""
    add("parallel", choices=list(Parallel), type=Parallel, default=Parallel.DDP, help="how the ranks share a batch")
    add("tensor-parallel", type=int, default=1, help="ranks of one machine that share every layer")
    add("pipeline-parallel", type=int, default=1, help="ranks that have some of the layers each")
    add(
        "pipeline-schedule",
        choices=list(Schedule),
        type=Schedule,
        default=Schedule.ONE_F_ONE_B,
        help="the order in which they work",
    )
    add("microbatches", type=int, default=1, help="parts of a rank's batch in the pipeline")
    add("shard-size", type=int, default=0, help="hybrid: ranks that hold one copy together; 0 for those of a machine")
    add("shard-optimizer", type=parse_bool, default=False, help="ddp: cut up gradients and optimizer state")
    add("activation-checkpointing", type=parse_bool, default=False, help="compute layers again in the backward pass")
    add("checkpoint-group", type=int, default=1, help="layers that are computed again together")
    add("activation-offload", type=parse_bool, default=False, help="keep the inputs of layers in the CPU's memory")
    add("precision", choices=list(Precision), type=Precision, default=Precision.FP32, help="what layers compute in")


def count_shard_ranks(choices: Choices, ranks: int, ranks_per_node: int) -> int:
    """Return how many ranks with the same part of the layers cut up its parameters between them."""
    across = ranks // choices.model_ranks
    if choices.parallel is Parallel.HYBRID:
        return choices.shard_size or max(1, min(ranks_per_node // choices.tensor_parallel, across))
    return across if choices.parallel is Parallel.FSDP or choices.shard_optimizer else 1


@dataclass(frozen=True)
class TrainingPlan:
    """A model and a batch on machines."""

    choices: Choices
    hosts: int
    instance_type: str
    ranks_per_node: int
    size: ModelSize
    # In samples a step, over all ranks.
    batch_size: int
    vocabulary: int = VOCABULARY

    @property
    def ranks(self) -> int:
        return self.hosts * self.ranks_per_node

    @property
    def data_ranks(self) -> int:
        return max(1, self.ranks // self.choices.model_ranks)

    @property
    def instance(self) -> Instance | None:
        return INSTANCES.get(self.instance_type)

    @property
    def shards(self) -> int:
        return count_shard_ranks(self.choices, self.ranks, self.ranks_per_node)
