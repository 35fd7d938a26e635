"""Reads the `trainer_state.json` that a Hugging Face Trainer writes into each checkpoint."""

import json
from pathlib import Path
from typing import Any

from cli.backtest.series import BadInput, LogSeries, make_sample
from cli.text_files import read_text

STATE = "trainer_state.json"


def find_newest_state(folder: Path) -> Path | None:
    """Return the state file of the Trainer's last checkpoint, which has the history of all earlier ones."""
    if (folder / STATE).exists():
        return folder / STATE
    states = [file for file in folder.glob(f"checkpoint-*/{STATE}") if _number(file.parent) is not None]
    return max(states, key=lambda file: _number(file.parent) or 0, default=None)


def read(file: Path) -> LogSeries:
    """Return the training entries of `log_history`, without evaluations and the final summary."""
    try:
        state: Any = json.loads(read_text(file))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{file} is not JSON: {error}", f"give the {STATE} of a checkpoint") from error
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list):
        raise BadInput(f"{file} has no field log_history", f"give the {STATE} of a checkpoint")
    rows = [(place, entry) for place, entry in enumerate(history) if isinstance(entry, dict) and "loss" in entry]
    if not rows:
        raise BadInput(
            f"{file}: no entry of log_history has a loss", "train with logging_steps, or give a later checkpoint"
        )
    samples = tuple(make_sample(_values(entry, file, place)) for place, entry in rows)
    return LogSeries(file.parent.name or file.stem, samples, rows=tuple(place for place, _ in rows))


def _values(entry: dict[str, Any], file: Path, place: int) -> dict[str, float | None]:
    names = {"step": "step", "loss": "loss", "grad_norm": "grad_norm", "lr": "learning_rate"}
    values: dict[str, float | None] = {}
    for column, name in names.items():
        value = entry.get(name)
        try:
            values[column] = None if value is None else float(value)  # a NaN may stand there as text
        except (TypeError, ValueError, OverflowError) as error:
            problem = f"{file}: log_history[{place}].{name} is {value!r:.100}"
            raise BadInput(problem, "write a number") from error
    return values


def _number(checkpoint: Path) -> int | None:
    text = checkpoint.name.rpartition("-")[2]
    return int(text) if text.isdecimal() else None
