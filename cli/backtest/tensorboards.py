"""Reads the scalars of a TensorBoard run; the package tensorboard is asked for only here."""

import importlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cli.backtest.series import METRICS, BadInput, LogSeries, find_columns, make_sample, make_series, parse_time

PACKAGE = "tensorboard==2.21.0"
_VALIDATIONS = ("val", "valid", "validation", "eval", "test")


def find_runs(folder: Path) -> list[Path]:
    """Return the folders with event files at or below this one, or this file; no `validation` beside a `train`."""
    files = (file for file in folder.rglob("*tfevents*") if file.is_file())
    runs = [folder] if folder.is_file() else sorted({file.parent for file in files})
    trained = {run.parent for run in runs if run.name in ("train", "training")}
    return [run for run in runs if run.parent not in trained or run.name not in _VALIDATIONS]


def read(folder: Path, *, loss: str = "") -> list[LogSeries]:
    """Return a series for each run that has a loss or a speed; each writer in a folder is a run."""
    loader = _loader()
    found, problem = [], None
    for run in find_runs(folder):
        try:
            name = str(run.relative_to(folder)) if run != folder else folder.name
            found.append(_series(loader, run, name=name, loss=loss))
        except BadInput as error:
            problem = error
    if not found:
        raise problem or BadInput(f"{folder} holds no event file", "give the folder that SummaryWriter wrote to")
    return found


def _loader() -> Any:
    try:
        module = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    except ImportError as error:
        raise BadInput(f"reading event files needs {PACKAGE}", f"pip install {PACKAGE}") from error
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    return module


def _series(loader: Any, run: Path, *, name: str, loss: str) -> LogSeries:
    # All points, and the steps of a launch before a restart too: they happened.
    sizes = {loader.SCALARS: 0, loader.TENSORS: 0}
    events = loader.EventAccumulator(str(run), size_guidance=sizes, purge_orphaned_data=False)
    try:
        events.Reload()
        points = dict(_points(events))
    except Exception as error:
        raise BadInput(f"{run} cannot be read: {error}", "give the folder that SummaryWriter wrote to") from error
    columns = find_columns(points, where=f"the TensorBoard run {run}", loss=loss)
    rows: dict[tuple[int, int], dict[str, float | None]] = {}
    times: dict[tuple[int, int], float] = {}
    for column, tag in columns.items():
        if column == "epoch":
            continue  # each point has its step
        seen: dict[int, int] = {}
        for step, wall_time, value in points[tag]:
            launch = seen[step] = seen.get(step, -1) + 1
            rows.setdefault((launch, step), {"step": float(step)})[column] = value
            times.setdefault((launch, step), wall_time)
    kept = sorted((key for key in rows if any(metric in rows[key] for metric in METRICS)), key=lambda key: times[key])
    samples = [make_sample(rows[key], at=parse_time(str(times[key]))) for key in kept]
    return make_series(name, samples, columns)


def _points(events: Any) -> Iterator[tuple[str, list[tuple[int, float, float]]]]:
    """Tag -> its points as step, time and value, from either of the two ways in which scalars are stored."""
    tags = events.Tags()
    for tag in tags["scalars"]:
        yield tag, [(event.step, event.wall_time, event.value) for event in events.Scalars(tag)]
    if any(_is_scalar(events, tag) for tag in tags["tensors"]):
        as_array = importlib.import_module("tensorboard.util.tensor_util").make_ndarray
        for tag in (tag for tag in tags["tensors"] if _is_scalar(events, tag)):
            tensors = events.Tensors(tag)
            yield tag, [(event.step, event.wall_time, float(as_array(event.tensor_proto))) for event in tensors]


def _is_scalar(events: Any, tag: str) -> bool:
    return bool(events.SummaryMetadata(tag).plugin_data.plugin_name == "scalars")
