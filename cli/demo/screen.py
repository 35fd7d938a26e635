"""The live picture: progress, attempts, the loss curve, and each decision with its reason."""

import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from cli.demo.stage import REFERENCE, Stage
from cli.runs import format_clock, format_state, make_attempts_table, make_timeline_table

BLOCKS = "▁▂▃▄▅▆▇█"
DECISIONS_SHOWN = 8
# Elsewhere than on a terminal the step is printed after so many seconds in which nothing was decided.
SAY_AFTER_S = 10.0


class DemoScreen:
    """Show the demo: redrawn in place on a terminal, line by line elsewhere."""

    def __init__(self, console: Console, *, steps: int) -> None:
        self.console = console
        self._progress = Progress(
            TextColumn("{task.description:<24}"),
            BarColumn(bar_width=50),
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
        )
        self._mine: TaskID = self._progress.add_task("supervised run", total=steps)
        self._twins: TaskID = self._progress.add_task("reference run", total=steps)
        self._live = Live(console=console, refresh_per_second=8, transient=True) if console.is_terminal else None
        self._printed = 0
        self._printed_at = time.monotonic()

    def __enter__(self) -> "DemoScreen":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._live.stop()

    def show(self, stage: Stage) -> None:
        self._progress.update(self._mine, completed=stage.steps_done)
        self._progress.update(
            self._twins, completed=stage.curves[REFERENCE].last_step if REFERENCE in stage.curves else 0
        )
        if self._live:
            self._live.update(self.draw(stage))
        else:
            self._print_news(stage)

    def _print_news(self, stage: Stage) -> None:
        where = f"step {stage.steps_done}/{stage.scenario.steps}"
        if len(stage.timeline) > self._printed or time.monotonic() - self._printed_at >= SAY_AFTER_S:
            self._printed_at = time.monotonic()
            if len(stage.timeline) == self._printed:
                self.console.print(f"  {where}")
        for entry in stage.timeline[self._printed :]:
            self.console.print(f"{format_clock(entry.at)} {where} {entry.after}: {entry.reason}", markup=False)
        self._printed = len(stage.timeline)

    def draw(self, stage: Stage) -> RenderableType:
        """Return the current picture."""
        if stage.run is None:
            return Group(self._progress, Text("waiting for the supervisor to adopt the job ..."))
        state = Text.from_markup(f"{stage.run.id} is {format_state(stage.run.state)}")
        curve = Panel(draw_sparkline(stage), title="loss of the supervised run", height=3)
        timeline = make_timeline_table(stage.timeline, newest=DECISIONS_SHOWN)
        return Group(state, self._progress, curve, make_attempts_table(stage.run), timeline)


def draw_sparkline(stage: Stage, *, width: int = 100) -> Text:
    """Return the loss by step as one line of blocks, with one colour for each attempt."""
    colours = ("cyan", "yellow", "magenta", "green")
    line = Text()
    losses = stage.merge_curves()
    if not losses:
        return line
    low, high = min(losses.values()), max(losses.values())
    owner = {
        step: n for n, a in enumerate(stage.run.attempts if stage.run else ()) for step in _steps(stage, a.job_name)
    }
    for step in sorted(losses)[:: max(1, len(losses) // width)]:
        height = (losses[step] - low) / ((high - low) or 1.0)
        line.append(BLOCKS[round(height * (len(BLOCKS) - 1))], style=colours[owner[step] % len(colours)])
    return line


def _steps(stage: Stage, job: str) -> list[int]:
    return list(stage.curves[job].loss) if job in stage.curves else []
