"""Start a run with the weights of another run's checkpoint: `start_from`, a folder or s3://bucket/prefix."""

import contextlib
from collections.abc import Callable

from torch import nn

from parallel import ParallelLayout
from rerail_agent.checkpoints import Saver, open_store


def load_weights(source: str, layout: ParallelLayout, model: nn.Module, log: Callable[[str], None]) -> None:
    """Load what the model has of the newest clean checkpoint; optimizer, data position and random numbers stay new.

    Any layout and number of ranks may have saved it. Raise ValueError if there is none, and UnfitState if a weight of
    the model is missing in it or has another shape.
    """
    world = layout.world
    saver = Saver(open_store(source), rank=world.rank, world_size=world.size, device=world.device, log=log)
    with contextlib.closing(saver):
        step = saver.newest(lambda manifest: manifest.health == "clean")
        if not step:
            raise ValueError(f"start_from={source}: has no clean checkpoint; name the folder of a run's checkpoints")
        saver.load({"model": layout.weights(model)}, step, partial=True)
        if world.is_first:
            log(f"starts with the weights of step {step} in {source}")
