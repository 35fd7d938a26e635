"""A log as it was read: samples with the rows they came from, and the columns that its names mean."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise

from cli.backtest.corpus import BadCorpus
from cli.training_logs.numbers import parse
from rerail.model.sample import Sample
from rerail.notices.notice import truncate

# What other people call our columns; compared in small letters, with every run of other characters as one underscore.
NAMES: Mapping[str, tuple[str, ...]] = {
    "step": (
        *("step", "global_step", "iteration", "iterations", "iter", "iters", "it", "steps", "update", "num_updates"),
        *("batch", "current_steps", "total_timesteps", "num_timesteps", "timesteps", "global_batch"),
        *("train_global_step", "trainer_global_step", "train_step", "batch_id", "batch_idx", "time_total_timesteps"),
    ),
    # Counts where there is no step, or where the steps begin again with each.
    "epoch": ("epoch", "epochs", "current_epoch", "train_epoch"),
    "loss": (
        *("loss", "train_loss", "training_loss", "loss_train", "train_loss_step", "loss_step", "lm_loss"),
        "train_lm_loss",
        *("batch_loss", "train_batch_loss", "total_loss", "train_total_loss", "loss_total", "nll_loss", "ce_loss"),
        "rmse_trn",  # DeePMD-kit
        "train_box_loss",  # ultralytics: the first of several, as in its text
    ),
    "grad_norm": ("grad_norm", "gradient_norm", "gnorm", "train_grad_norm", "total_norm", "grad_norm_total", "norm"),
    "step_time_s": (
        *("step_time_s", "step_time", "seconds_per_step", "sec_per_step", "time_per_step", "iteration_time"),
        *("iter_time", "train_step_time", "batch_time", "elapsed_time_per_iteration", "step_duration"),
        *("batch_cost", "avg_batch_cost"),  # PaddlePaddle
    ),
    "step_time_ms": (
        *("step_time_ms", "iter_time_ms", "iteration_time_ms", "elapsed_time_per_iteration_ms", "ms_per_step"),
    ),
    "lr": ("lr", "learning_rate", "train_lr", "train_learning_rate", "lr_group_0"),
    "tokens_per_s": (
        *("tokens_per_s", "tokens_per_sec", "tokens_per_second", "tok_per_sec", "tokens_s", "tok_s"),
        *("tokens_sec", "tok_sec"),
        *("train_tokens_per_second", "samples_per_second", "samples_per_sec"),
    ),
    "nonfinite": ("nonfinite", "non_finite"),
    "at": ("at", "timestamp", "time", "wall_time", "datetime", "date"),
}
METRICS = ("loss", "step_time_s", "step_time_ms", "tokens_per_s")
MOST_LISTED = 500  # characters, in an error
# A loss of one of these is not the loss that is trained on.
_SPLITS = "val|valid|validation|eval|test|dev"
NOT_TRAINING = re.compile(rf"(^|_)({_SPLITS}|best|min|max|avg|mean|ema|epoch)(_|$)")
_OF_TRAINING, _OF_VALIDATION = re.compile("(^|_)train(ing)?_"), re.compile(f"(^|_)({_SPLITS})(_|$)")
# Names with the word loss that are not a loss.
_NO_LOSS = re.compile(
    r"loss_(?:scale|scaler|scaling|weight|fn|function|type|coef|tokens)|num_|number|(?:^|_)(?:best|min|max)_"
    r"|_py$"  # a file in a traceback or a warning: `/src/losses.py:12: UserWarning`
    r"|_(?:mon|tue|wed|thu|fri|sat|sun)_[a-z]{3}$"  # a heading with a date: `Training Loss (Sat Jun  6 16:47:21 2020)`
)


class BadInput(BadCorpus):
    """The user's logs cannot be read: what is the matter, and what to do."""


@dataclass(frozen=True, slots=True)
class LogSeries:
    """One log. `rows` says where each sample stood in it, where that is not simply its place."""

    name: str
    samples: tuple[Sample, ...]
    rows: tuple[int, ...] | None = None
    # What to know about how it was read.
    notes: tuple[str, ...] = ()

    def find_row(self, place: int) -> int:
        return self.rows[place] if self.rows else place


def find_columns(names: Iterable[str], *, where: str, loss: str = "") -> dict[str, str]:
    """Return the name that each of our columns has in this log; `loss` is one that is given.

    Raise BadInput if there is nothing to evaluate, or if several may be the loss.
    """
    named = {normalize_name(name): name for name in names}
    known = {column: next((named[n] for n in aliases if n in named), None) for column, aliases in NAMES.items()}
    found = {column: name for column, name in known.items() if name is not None}
    if loss and normalize_name(loss) not in named:
        raise BadInput(
            f"{where} has no column {loss!r:.100} (it has {_listed(named.values())})", "give --loss one of these"
        )
    if loss:
        found["loss"] = named[normalize_name(loss)]
    elif "loss" not in found and (guess := _only_loss(named, where=where)):
        found["loss"] = guess
    if not set(METRICS) & set(found):
        have = _listed(named.values()) or "none at all"
        raise BadInput(f"{where} has no column loss (it has {have})", "name the training loss: --loss NAME")
    return found


def _only_loss(named: Mapping[str, str], *, where: str) -> str | None:
    losses = find_losses(named)
    if len(losses) > 1:
        several = _listed(named[name] for name in losses)
        raise BadInput(f"{where} has several losses: {several}", "say which is trained on: --loss NAME")
    return named[losses[0]] if losses else None


def is_loss(name: str) -> bool:
    return bool(re.search(r"(?:^|_)(?:loss|losses|nll|cross_entropy)(?:_|$)", name)) and not _NO_LOSS.search(name)


def find_losses(names: Iterable[str]) -> list[str]:
    """Return which of some normalized names may be of the loss that is trained on."""
    losses = [name for name in names if is_loss(name)]
    # Beside `t_loss`, `v_loss` is of a validation; elsewhere it may be of a value function.
    losses = [name for name in losses if not (name.startswith("v_") and f"t_{name[2:]}" in losses)]
    training = [name for name in losses if not NOT_TRAINING.search(name)]
    training = training or [name for name in losses if _OF_TRAINING.search(name) and not _OF_VALIDATION.search(name)]
    return training or [name for name in losses if not _OF_VALIDATION.search(name)]  # `epoch_loss` of Keras


def _listed(names: Iterable[str]) -> str:
    """Names of columns, as far as one reads on."""
    return truncate(", ".join(" ".join(name.split()) for name in names), MOST_LISTED)


def normalize_name(name: str) -> str:
    """Return the column's name in lower case, with underscores between the words."""
    return re.sub(r"[^a-z0-9]+", "_", name.strip().lower()).strip("_")


def make_sample(values: Mapping[str, float | None], *, at: datetime | None = None) -> Sample:
    """Return a sample from values by column."""
    step, milliseconds = values.get("step"), values.get("step_time_ms")
    seconds = values.get("step_time_s")
    return Sample(
        step=int(step) if step is not None and math.isfinite(step) else None,
        at=at,
        loss=values.get("loss"),
        grad_norm=values.get("grad_norm"),
        step_time_s=milliseconds / 1000 if seconds is None and milliseconds is not None else seconds,
        lr=values.get("lr"),
        tokens_per_s=values.get("tokens_per_s"),
        nonfinite=bool(values.get("nonfinite")),
    )


def count_epochs_on(rows: Sequence[dict[str, float | None]]) -> None:
    """Make the steps of these rows those of the run, in place, where its log has epochs.

    Steps that begin again with each epoch count on. Where there are no steps, epochs count, if each row is one.
    """
    epochs = [row.pop("epoch", None) for row in rows]
    if any(epoch is None or not math.isfinite(epoch) or epoch != int(epoch) for epoch in epochs):
        return
    if all(row.get("step") is None for row in rows):
        if all(before != after for before, after in pairwise(epochs)):
            for row, epoch in zip(rows, epochs, strict=True):
                row["step"] = epoch
        return
    steps = [row.get("step") or 0.0 for row in rows]
    begins_again = any(
        after <= before and earlier < later  # type: ignore[operator]
        for (before, after), (earlier, later) in zip(pairwise(steps), pairwise(epochs), strict=True)
    )
    if begins_again:
        # Epochs may count from 1; another launch is known by steps that begin again near 0.
        longest, first = count_longest(steps), min(1.0, *epochs)  # type: ignore[type-var]
        for row, step, epoch in zip(rows, steps, epochs, strict=True):
            row["step"] = step + longest * (epoch - first)  # type: ignore[operator]


def make_series(
    name: str, samples: Sequence[Sample], columns: Mapping[str, str], *, rows: tuple[int, ...] | None = None
) -> LogSeries:
    """Return a log with the step times of its rows, and a note of the loss if it has another name."""
    judged = columns.get("loss", "loss").strip()
    notes = () if judged == "loss" else (f"the column {judged} was judged as the loss",)
    return LogSeries(name, add_step_times(samples), rows=rows, notes=notes)


def count_longest(steps: Sequence[float]) -> float:
    """Return how many steps the longest epoch has, whose steps count from 0 or from 1."""
    return max(steps, default=0.0) + 1 - min(1.0, *steps, 1.0)


def are_durations(texts: Iterable[str | None]) -> bool:
    """Return whether each time is the duration of a step, as in mmcv and detectron2: a clock does not fall so often."""
    times = [time for text in texts if text and (time := parse(text)) is not None]
    falls = sum(later < before for before, later in pairwise(times))
    # A countdown, such as the time that is left, falls nearly always.
    return 0.2 * len(times) < falls <= 0.9 * len(times)


def add_step_times(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """Derive the step times from the times of the rows, if the log has no step times."""
    if not samples or any(sample.step_time_s is not None for sample in samples):
        return tuple(samples)
    seconds = [None, *(_seconds_a_step(before, sample) for before, sample in zip(samples, samples[1:], strict=False))]
    return tuple(
        replace(sample, step_time_s=seconds_a_step) for sample, seconds_a_step in zip(samples, seconds, strict=True)
    )


def _seconds_a_step(before: Sample, sample: Sample) -> float | None:
    if before.at is None or sample.at is None or before.step is None or sample.step is None:
        return None
    steps = sample.step - before.step
    return max(0.0, (sample.at - before.at).total_seconds()) / steps if steps > 0 else None


def parse_time(text: str) -> datetime | None:
    """Return a time from seconds since 1970 or ISO 8601; None if the text is neither."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            return None
        return at if at.tzinfo else at.replace(tzinfo=UTC)
    # Smaller numbers count from the start of the run: as good, for only differences are looked at.
    return datetime.fromtimestamp(seconds, UTC) if 0 <= seconds < 1e11 else None
