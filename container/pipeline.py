"""Cut a model into pipeline stages, and run microbatches through them by a schedule of torch.distributed.pipelining.

A rank keeps the layers of its stages only. Their names stay those of the whole model, so a checkpoint of any layout
can be loaded into any other.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules

from choices import Choices, Schedule
from model import GPT, ModelStage, compute_loss

CLASSES = {
    Schedule.GPIPE: "ScheduleGPipe",
    Schedule.ONE_F_ONE_B: "Schedule1F1B",
    Schedule.INTERLEAVED: "ScheduleInterleaved1F1B",
    Schedule.ZERO_BUBBLE: "ScheduleInterleavedZeroBubble",
    Schedule.ZBV: "ScheduleZBVZeroBubble",
}


def find_schedule(schedule: Schedule) -> type:
    """Return torch's class of a schedule; raise ValueError if this release does not have it."""
    found: type | None = getattr(schedules, CLASSES[schedule], None)
    if found is None:
        have = ", ".join(name for name, of in CLASSES.items() if hasattr(schedules, of))
        raise ValueError(f"pipeline_schedule={schedule}: torch {torch.__version__} does not have it; use {have}")
    return found


def list_stages(schedule: Schedule, rank: int, ranks: int) -> list[int]:
    """Return the stages of a rank: every `ranks`-th one, or for ZBV one on the way there and one on the way back."""
    if schedule is Schedule.ZBV:
        return [rank, 2 * ranks - 1 - rank]
    return list(range(rank, ranks * schedule.stages_per_rank, ranks))


def assign_layers(layers: int, stages: int) -> list[range]:
    """Return each stage's layers; the first stages have one more if they do not divide evenly."""
    bounds = [stage * (layers // stages) + min(stage, layers % stages) for stage in range(stages + 1)]
    return [range(first, last) for first, last in zip(bounds, bounds[1:], strict=False)]


def cut(model: GPT, choices: Choices, rank: int) -> dict[int, ModelStage]:
    """Return the stages of a rank by their indices, and remove from `model` what is in none of them."""
    count = choices.pipeline_parallel * choices.pipeline_schedule.stages_per_rank
    layers = assign_layers(len(model.blocks), count)
    indices = list_stages(choices.pipeline_schedule, rank, choices.pipeline_parallel)
    model.keep([layer for index in indices for layer in layers[index]], first=0 in indices, last=count - 1 in indices)
    return {
        index: ModelStage(model, layers[index], is_first=index == 0, is_last=index == count - 1) for index in indices
    }


@dataclass
class Pipeline:
    """This rank's stages; `step` runs the microbatches of one batch through the stages of all ranks."""

    stages: dict[int, ModelStage]
    choices: Choices
    # The ranks of one pipeline, in the order of their first stages.
    group: dist.ProcessGroup
    device: torch.device
    # Of what a stage passes on.
    dtype: torch.dtype
    schedule: Any = None

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Add the gradients of the batch to the stages' parameters; return its mean loss, on every rank."""
        inputs = inputs.contiguous()  # torch 2.5 compares strides too
        if self.schedule is None:
            self.schedule = self._make_schedule(inputs, targets)
        losses: list[torch.Tensor] = []
        given = {"target": targets, "losses": losses} if self._has_last else {}
        args = (inputs,) if 0 in self.stages else ()
        self.schedule.step(*args, **given, **_accepted(self.schedule.step, return_outputs=False))
        total = torch.stack(losses).detach().sum() if losses else torch.zeros((), device=self.device)
        dist.all_reduce(total, group=self.group)  # the other ranks add zeros
        return total

    @property
    def _has_last(self) -> bool:
        return any(stage.is_last for stage in self.stages.values())

    def _make_schedule(self, inputs: torch.Tensor, targets: torch.Tensor) -> Any:
        """Make the schedule for batches of this shape.

        With the shapes given, torch makes no first pass of its own, which would draw random numbers for dropout.
        """
        count = self.choices.microbatches
        tokens = inputs[: len(inputs) // count]
        stages = [self._make_stage(index, tokens) for index in self.stages]
        kind = find_schedule(self.choices.pipeline_schedule)
        # Each loss is a microbatch's part of the mean, so torch need not scale gradients, which 2.5 does not do.
        settings = _accepted(kind, scale_grads=False)
        is_single = self.choices.pipeline_schedule.stages_per_rank == 1

        def loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return compute_loss(logits, target) / count

        return kind(stages[0] if is_single else stages, count, loss_fn=loss, **settings)

    def _make_stage(self, index: int, tokens: torch.Tensor) -> Any:
        stage = self.stages[index]
        count = self.choices.pipeline_parallel * self.choices.pipeline_schedule.stages_per_rank

        def like(width: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(*tokens.shape, width, dtype=dtype, device=self.device, requires_grad=True)

        # Placeholders, of which torch reads shape and type.
        entry = tokens if stage.is_first else like(stage.width, self.dtype)
        result = like(stage.vocabulary, torch.float32) if stage.is_last else like(stage.width, self.dtype)
        return pipelining.PipelineStage(
            stage, index, count, self.device, input_args=(entry,), output_args=(result,), group=self.group
        )


def _accepted(function: Callable[..., Any], **settings: Any) -> dict[str, Any]:
    """Return the settings that this release's function has."""
    known: Iterable[str] = inspect.signature(function).parameters
    return {name: value for name, value in settings.items() if name in known}


def gather_to_first(part: dict[str, torch.Tensor], group: dist.ProcessGroup) -> dict[str, torch.Tensor]:
    """Return the parts of all ranks of a pipeline on its first rank; the others get their own."""
    first = dist.get_rank(group) == 0
    parts: list[Any] | None = [None] * dist.get_world_size(group) if first else None
    dist.gather_object(part, parts, dst=dist.get_global_rank(group, 0), group=group)
    return {name: weight for each in parts or [part] for name, weight in each.items()}
