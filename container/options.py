"""Define every hyperparameter of the job, with its default: `python train.py --help` lists them."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

import choices
from model import SIZES, ModelSize
from update_filter import SkipMode


class OptionParser(argparse.ArgumentParser):
    """Raise instead of exiting, so that a mistyped hyperparameter is written to the failure file."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"hyperparameters: {message}")


def read_options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse each hyperparameter of the job as one option; `--step-seconds` and `--step_seconds` are the same."""
    options = OptionParser(description="Trains a small GPT and can be killed at any moment.", allow_abbrev=False)

    def add(name: str, **settings: Any) -> None:
        options.add_argument(*dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}")), **settings)

    add("steps", type=int, default=1000, help="optimizer steps of the whole run")
    add("batch-size", type=int, default=16, help="samples a step, over all ranks")
    add("learning-rate", type=float, default=3e-3, help="at its peak, after the warm-up")
    add("warmup-steps", type=int, default=20, help="steps of linear warm-up; a cosine to a tenth follows")
    add("weight-decay", type=float, default=0.1)
    add("clip", type=float, default=1.0, help="the largest norm of the gradient")
    add(
        "skip-bad-updates",
        type=SkipMode,
        choices=list(SkipMode),
        default=SkipMode.OFF,
        help="leave them out: see update_filter.py",
    )
    add("seed", type=int, default=1)
    add("model-size", choices=SIZES, default="demo")
    add("dropout", type=float, help="in place of the model size's")
    choices.add_options(add)
    add("checkpoint-every", type=int, default=50, help="steps between checkpoints")
    add("start-from", default="", help="checkpoints of another run, whose weights a new run starts with")
    add("keep", type=int, default=3, help="checkpoints to keep, beside ever fewer of the older ones")
    add("log-every", type=int, default=1, help="steps between metric lines")
    add("step-seconds", type=float, default=0.0, help="the least a step takes, for a demo to watch")
    add("collective-timeout-seconds", type=float, default=600.0, help="how long a rank waits for a hung one")
    chosen = options.parse_args(argv)
    for name in ("steps", "batch_size", "checkpoint_every", "keep", "log_every"):
        if getattr(chosen, name) < 1:
            options.error(f"{name} must be at least 1")
    if not 0 <= (chosen.dropout or 0.0) < 1:
        options.error(f"dropout={chosen.dropout}: must be at least 0 and less than 1")
    return chosen


def find_size(options: argparse.Namespace) -> ModelSize:
    """Return the size of the model that the options ask for."""
    size = SIZES[options.model_size]
    return size if options.dropout is None else replace(size, dropout=options.dropout)
