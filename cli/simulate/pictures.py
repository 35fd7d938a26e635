"""Draws the simulated months: where the time went, by size and way, and what each setting is worth."""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cli.backtest.plots import PACKAGE
from cli.backtest.series import BadInput
from cli.simulate.accounts import Spent
from cli.simulate.report import GOAL, GOAL_IN_PLACE, ReportRow

COLOURS = {
    Spent.LOST: "#d40000",
    Spent.HUMAN: "#e69f00",
    Spent.UNNOTICED: "#b07aa1",
    Spent.REPAIR: "#33658a",
    Spent.MACHINES: "#86bbd8",
    Spent.INIT: "#758e4f",
    Spent.RESTART: "#c5d86d",
    Spent.SAVES: "#2e8b57",
    Spent.SNAPSHOTS: "#9fd8b4",
    Spent.SLOW: "#999999",
    Spent.STOPPING: "#555555",
    Spent.BACKOFF: "#222222",
}
KINDS = (".png", ".svg")


def check(file: Path) -> None:
    """Raise BadInput before any work if nothing can be drawn, or not to that file."""
    if file.suffix not in KINDS:
        raise BadInput(f"cannot draw {file}", f"name a file that ends in {' or '.join(KINDS)}")
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise BadInput(f"drawing needs {PACKAGE}", f"pip install {PACKAGE}, or leave --plot out") from error


def draw(by_size: Mapping[int, Sequence[ReportRow]], sweeps: Mapping[str, Sequence[ReportRow]], file: Path) -> None:
    """Draw one panel for each size and one for each sweep."""
    panels = len(by_size) + len(sweeps)
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(12, 4.2 * panels), layout="constrained")
    axes = iter(figure.subplots(panels, squeeze=False)[:, 0])
    for gpus, rows in by_size.items():
        _where(next(axes), rows, f"{gpus:,} GPUs: what does not train, % of the time")
    for title, rows in sweeps.items():
        _worth(next(axes), rows, title)
    try:
        figure.savefig(file, dpi=110)
    except OSError as error:
        raise BadInput(f"cannot write {file}: {error}", "name another file for --plot") from error


def _where(axes: Any, rows: Sequence[ReportRow], title: str) -> None:
    places = range(len(rows))
    left = [0.0] * len(rows)
    for what, colour in COLOURS.items():
        parts = [100 * row.compute_share(what) for row in rows]
        axes.barh(places, parts, left=left, color=colour, label=what.value)
        left = [a + b for a, b in zip(left, parts, strict=True)]
    for place, row, end in zip(places, rows, left, strict=True):
        axes.text(end, place, f" {100 * row.ettr:.1f} % trains", va="center", fontsize="small")
    for goal in (GOAL, GOAL_IN_PLACE):
        axes.axvline(100 * (1 - goal), color="black", linewidth=0.8, linestyle=":")
    axes.set(title=title, yticks=list(places), yticklabels=[row.name.strip() for row in rows])
    axes.margins(x=0.14)
    axes.invert_yaxis()
    axes.legend(loc="lower right", fontsize="x-small", ncols=2)


def _worth(axes: Any, rows: Sequence[ReportRow], title: str) -> None:
    places = range(len(rows))
    axes.errorbar(
        [100 * row.ettr for row in rows], places, xerr=[100 * row.spread for row in rows], fmt="o", color="#33658a"
    )
    axes.set(title=title, yticks=list(places), yticklabels=[row.name for row in rows], xlabel="ETTR %")
    axes.invert_yaxis()
    axes.grid(alpha=0.2)
