"""Render the report of a chain of runs as one self-contained HTML page, with links to the runs' own pages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from report_page.page import render_template
from rerail.incident_report.summary import Urgency

BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 190, 48, 50, 16, 4


@dataclass(frozen=True, slots=True)
class ChainTaskRow:
    """One task of a chain."""

    name: str
    run: str
    state: str
    reason: str = ""  # of its state
    reads: tuple[str, ...] = ()  # its channels, and what each has
    after: tuple[str, ...] = ()  # the tasks that it depends on
    attempts: int = 0
    cost: str = ""  # time and dollars
    page: str = ""  # the page of its run, relative to this one
    is_waiting: bool = False  # it has no run yet


@dataclass(frozen=True, slots=True)
class ChainReport:
    """The content of a chain's report."""

    chain: str
    headline: str
    tone: Urgency
    at: datetime  # when the report was made
    tasks: tuple[ChainTaskRow, ...]
    # The names of the tasks in groups: those of a group depend only on earlier groups.
    generations: tuple[tuple[str, ...], ...]
    facts: tuple[tuple[str, str], ...] = ()  # name and value of the key figures
    todo: tuple[str, ...] = ()  # what is left to people, one sentence each
    command: str = ""  # shows how it stands now


@dataclass(frozen=True, slots=True)
class _Box:
    name: str
    state: str
    is_waiting: bool
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class _Graph:
    """The tasks as boxes, a column for each generation, and lines from each to those that depend on it."""

    boxes: Sequence[_Box]
    lines: Sequence[tuple[int, int, int, int]]
    width: int
    height: int
    box_width: int = BOX_WIDTH
    box_height: int = BOX_HEIGHT


def render_chain_page(report: ChainReport) -> str:
    """Return the page as HTML."""
    return render_template("chain.html", report=report, graph=_lay_out(report))


def _lay_out(report: ChainReport) -> _Graph:
    tasks = {task.name: task for task in report.tasks}
    boxes: Mapping[str, _Box] = {
        name: _Box(
            name,
            tasks[name].state,
            tasks[name].is_waiting,
            MARGIN + column * (BOX_WIDTH + GAP_X),
            MARGIN + row * (BOX_HEIGHT + GAP_Y),
        )
        for column, generation in enumerate(report.generations)
        for row, name in enumerate(generation)
    }
    lines = [
        (boxes[one].x + BOX_WIDTH, boxes[one].y + BOX_HEIGHT // 2, boxes[name].x, boxes[name].y + BOX_HEIGHT // 2)
        for name, task in tasks.items()
        for one in task.after
    ]
    rows = max(map(len, report.generations), default=0)
    return _Graph(
        list(boxes.values()),
        lines,
        2 * MARGIN + len(report.generations) * (BOX_WIDTH + GAP_X) - GAP_X,
        2 * MARGIN + rows * (BOX_HEIGHT + GAP_Y) - GAP_Y,
    )
