"""Draws logs with what was found in them; the package matplotlib is asked for only here."""

import importlib
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cli.backtest.evaluation import EvaluatedLog
from cli.backtest.scoring import FAMILIES, SCORED_AS, Label
from cli.backtest.series import BadInput
from cli.parallel import spread
from rerail.model.finding import Level
from rerail.model.sample import Sample

PACKAGE = "matplotlib==3.11.2"
ALL_OF = 12  # so many logs are all drawn; of more, those with a finding or a label that counts
MARKS = {Level.WARN: ("v", "#e69f00", "warning"), Level.INTERVENE: ("X", "#d40000", "intervention")}
LOSS = "loss"
SPEEDS = {"step_time_s": "seconds a step", "tokens_per_s": "tokens a second"}
# Beyond this ratio between its largest and smallest value a curve is drawn on a logarithmic scale.
WIDE = 20.0


def check() -> None:
    """Raise BadInput before any work if there is nothing to draw with."""
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise BadInput(f"drawing needs {PACKAGE}", f"pip install {PACKAGE}, or leave --plot out") from error


def select_logs(judged: Sequence[EvaluatedLog]) -> list[EvaluatedLog]:
    if len(judged) <= ALL_OF:
        return list(judged)
    return [log for log in judged if log.findings or any(label.counts for label in _labels(log))]


def draw(judged: Sequence[EvaluatedLog], folder: Path) -> Iterator[Path]:
    """Draw a PNG for each log; yield its path when it is written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot make the folder {folder}: {error}", "name another for --plot") from error
    yield from spread(
        _draw, [(log, folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', log.log.name)}.png") for log in judged]
    )


def _draw(task: tuple[EvaluatedLog, Path]) -> Path:
    judged, file = task
    samples = judged.log.read().samples
    panels = _panels(judged, samples)
    figure = importlib.import_module("matplotlib.figure").Figure(
        figsize=(12, 1 + 3.5 * len(panels)), layout="constrained"
    )
    across, unit = _across(samples)
    for axes, column in zip(figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0], panels, strict=True):
        values = [_finite(getattr(sample, column)) for sample in samples]
        axes.plot(across, values, color="#33658a", linewidth=0.8)
        _scale(axes, [value for value in values if not math.isnan(value)])
        is_speed = column in SPEEDS
        _shade(axes, [label for label in _labels(judged) if _about_speed(label.kind) == is_speed], across)
        found = [(place, finding.level) for place, finding in judged.findings if _about_speed(finding.kind) == is_speed]
        _mark(axes, found, across, values)
        axes.set(ylabel=SPEEDS.get(column, column))
        axes.margins(x=0.01)
        axes.grid(alpha=0.2)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="upper right", fontsize="small")
    axes.set(xlabel=unit)
    figure.suptitle(f"{judged.log.name}: {_summary(judged)}")
    figure.savefig(file, dpi=110)
    return file


def _panels(judged: EvaluatedLog, samples: Sequence[Sample]) -> list[str]:
    """The loss, and the speed where something was said or labelled about it, or where there is nothing else."""
    logged = [column for column in (LOSS, *SPEEDS) if any(getattr(sample, column) is not None for sample in samples)]
    speed = [column for column in logged if column in SPEEDS][:1]
    kinds = [str(finding.kind) for _, finding in judged.findings] + [label.kind for label in _labels(judged)]
    if LOSS not in logged:
        return speed or [LOSS]
    return [LOSS, *speed] if any(_about_speed(kind) for kind in kinds) else [LOSS]


def _about_speed(kind: str) -> bool:
    return FAMILIES.get(SCORED_AS.get(kind, kind)) == "throughput"


def _finite(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else math.nan


def _across(samples: Sequence[Sample]) -> tuple[list[int], str]:
    """Steps where they only grow; rows where launches follow each other in one log."""
    steps = [sample.step for sample in samples if sample.step is not None]
    if len(steps) == len(samples) and all(a < b for a, b in zip(steps, steps[1:], strict=False)):
        return steps, "step"
    return list(range(len(samples))), "row"


def _scale(axes: Any, values: Sequence[float]) -> None:
    if values and min(values) > 0 and max(values) > WIDE * min(values):
        axes.set_yscale("log")


def _shade(axes: Any, labels: Sequence[Label], across: Sequence[int]) -> None:
    """The events that a person labelled."""
    named: set[str] = set()
    for label in labels:
        name = "labelled event" if label.counts else "labelled, need not be found"
        ends = across[min(label.onset, len(across) - 1)], across[min(label.end, len(across) - 1)]
        colour = "#2e8b57" if label.counts else "#999999"
        axes.axvspan(*ends, color=colour, alpha=0.25, linewidth=1.5, label=None if name in named else name)
        named.add(name)


def _mark(axes: Any, said: Sequence[tuple[int, Level]], across: Sequence[int], values: Sequence[float]) -> None:
    """Findings on the curve, or at the foot of the panel where the curve has a hole; interventions with a line."""
    for level, (marker, colour, name) in MARKS.items():
        places = [place for place, how in said if how is level]
        on_curve = [place for place in places if not math.isnan(values[place])]
        rest = [place for place in places if math.isnan(values[place])]
        style = {"marker": marker, "color": colour, "s": 45, "zorder": 3}
        if on_curve:
            axes.scatter([across[p] for p in on_curve], [values[p] for p in on_curve], label=name, **style)
        if rest:
            foot = {"transform": axes.get_xaxis_transform(), "label": None if on_curve else name, "clip_on": False}
            axes.scatter([across[p] for p in rest], [0.0] * len(rest), **style, **foot)
        for place in places if level is Level.INTERVENE else ():
            axes.axvline(across[place], color=colour, linewidth=0.8, alpha=0.6)


def _labels(judged: EvaluatedLog) -> Sequence[Label]:
    return judged.log.labelled.labels if judged.log.labelled else ()


def _summary(judged: EvaluatedLog) -> str:
    warnings, interventions = judged.of(Level.WARN), judged.of(Level.INTERVENE)
    return f"{warnings} warning(s), {interventions} intervention(s)"
