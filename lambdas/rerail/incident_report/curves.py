"""Make the curves of a report, reduced to a bounded number of points with their extremes kept."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil, inf, isfinite

from rerail.incident_report.facts import Facts
from rerail.model.run import Attempt
from rerail.model.sample import Sample

# Limits on the points of one line, and of all lines of a chart together.
LINE_POINT_LIMIT, CHART_POINT_LIMIT = 600, 4_000
# Limit on the marked non-finite values of a chart.
GAP_LIMIT = 60
# The window around an incident spans at least so many steps, and less than this share of the run.
MIN_WINDOW_STEPS, MAX_WINDOW_SHARE = 20, 0.4
# Lines of several ranks arrive out of order by so many steps; a greater fall is a new start.
DISORDER_STEPS = 2

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class CurveLine:
    """A part of an attempt's curve."""

    attempt: int  # its number
    points: tuple[Point, ...]
    kept: bool = True  # whether the run builds on this part; False if it was rolled back


@dataclass(frozen=True, slots=True)
class Curve:
    """One quantity over training steps, or over seconds since the run began."""

    lines: tuple[CurveLine, ...] = ()
    gaps: tuple[float, ...] = ()  # positions at which the value was not finite

    @property
    def is_drawable(self) -> bool:
        """Return whether any line has at least two points."""
        return any(len(line.points) > 1 for line in self.lines)


Window = tuple[float, float]
EVERYTHING: Window = (-inf, inf)


def draw_loss(known: Facts, within: Window = EVERYTHING) -> Curve:
    """Return the loss by step of each attempt, for the steps within the window."""
    lines, gaps = [], []
    for number, series in known.series.items():
        rows = [row for row in series if row.step is not None and within[0] <= row.step <= within[1]]
        points = [(float(r.step), r.loss) for r in rows if r.step is not None and r.loss is not None]
        lines += _split_line(known, number, [(x, y) for x, y in points if isfinite(y)])
        gaps += [float(r.step) for r in rows if r.step is not None and _is_nonfinite(r)]
    return Curve(_limit_points(lines), tuple(_sample_evenly(sorted(set(gaps)), GAP_LIMIT)))


def draw_speed(known: Facts) -> tuple[Curve, str]:
    """Return the throughput by step and its unit: tokens/s if the job logs tokens, otherwise steps/s."""
    tokens = any(row.tokens_per_s for rows in known.series.values() for row in rows)
    lines: list[CurveLine] = []
    for number, rows in known.series.items():
        lines += _split_line(known, number, list(_tokens_per_second(rows) if tokens else _steps_per_second(rows)))
    return Curve(_limit_points(lines)), "tokens/s" if tokens else "steps/s"


def draw_progress(known: Facts) -> Curve:
    """Return the step over seconds since the run began."""
    lines, start = [], began(known)
    for number, rows in known.series.items():
        points = [(elapsed(start, r.at), float(r.step)) for r in rows if r.step is not None and r.at is not None]
        lines += [CurveLine(number, tuple(passed)) for passed in _split_passes(points, lambda point: point[1])]
    return Curve(_limit_points(lines))


def draw_loss_by_time(known: Facts) -> Curve:
    """Return the loss over seconds since the run began, for a job that logs no steps."""
    lines, gaps, start = [], [], began(known)
    for number, rows in known.series.items():
        at = [(elapsed(start, row.at), row) for row in rows if row.at is not None]
        lines.append(CurveLine(number, tuple((x, r.loss) for x, r in at if r.loss is not None and isfinite(r.loss))))
        gaps += [x for x, row in at if _is_nonfinite(row)]
    return Curve(_limit_points(lines), tuple(_sample_evenly(gaps, GAP_LIMIT)))


def select_window(known: Facts) -> Window | None:
    """Return the steps around the newest incident; None if they are unknown or too large a share of the run."""
    incident = known.run.incidents[-1] if known.run.incidents else None
    steps = [row.step for rows in known.series.values() for row in rows if row.step is not None]
    if incident is None or not steps:
        return None
    number = incident.attempt
    resumed = [known.run.find_start(attempt) for attempt in known.run.attempts if attempt.number == number + 1]
    last = [row.step for row in known.series.get(number, ())[-1:]]
    relevant = [step for step in (incident.onset_step, incident.step, *resumed, *last) if step is not None]
    if not relevant:
        return None
    low, high = min(relevant), max(relevant)
    span = max(high - low, MIN_WINDOW_STEPS)
    window = (low - span / 2, high + span)
    covered = min(window[1], max(steps)) - max(window[0], min(steps))
    return window if covered < MAX_WINDOW_SHARE * (max(steps) - min(steps)) else None


def elapsed(start: datetime, at: datetime) -> float:
    """Return the seconds from `start`, when the run began, to `at`."""
    return (at - start).total_seconds()


def began(known: Facts) -> datetime:
    """Return when the run's first job was created, or when the run was first recorded if that is earlier."""
    return min([known.run.created_at, *(a.created_at for a in known.run.attempts if a.created_at)])


def _is_nonfinite(row: Sample) -> bool:
    return row.nonfinite or (row.loss is not None and not isfinite(row.loss))


def _tokens_per_second(rows: Sequence[Sample]) -> Iterable[Point]:
    for row in rows:
        if row.step is not None and row.tokens_per_s is not None and isfinite(row.tokens_per_s):
            yield float(row.step), row.tokens_per_s


def _steps_per_second(rows: Sequence[Sample]) -> Iterable[Point]:
    """Yield the rate over stretches of rows; log lines arrive in bursts and are timestamped on arrival."""
    stamped = [(row.at, row.step) for row in rows if row.at is not None and row.step is not None]
    stretch = max(1, len(stamped) // 120)
    for (at, step), (next_at, next_step) in zip(stamped[::stretch], stamped[stretch::stretch], strict=False):
        seconds = (next_at - at).total_seconds()
        if seconds > 0 and next_step > step:
            yield float(next_step), (next_step - step) / seconds


def find_first_step(known: Facts, attempt: Attempt) -> int | None:
    """Return the step that an attempt began at; of a script that resumes by itself, the first that it reported."""
    if (start := known.run.find_start(attempt)) is not None:
        return start
    return next((row.step for row in known.series.get(attempt.number, ()) if row.step is not None), None)


def _split_line(known: Facts, number: int, points: list[Point]) -> list[CurveLine]:
    """Split an attempt's curve where its step falls, and where what followed resumed behind its end."""
    following = [a for a in known.run.attempts if a.number > number and a.exists]
    starts = [find_first_step(known, attempt) for attempt in following]
    resumed = [float(start) for start in starts if start is not None]
    passes = _split_passes(points, lambda point: point[0])
    orders = [order for order in known.run.attempts[number - 1].in_place_restarts if order.restarted_at]
    known_starts = [order.began_step for order in orders] if len(orders) == len(passes) - 1 else []
    lines: list[CurveLine] = []
    for count, passed in reversed(list(enumerate(passes))):  # the last first: those before it end where it began
        lines = [*_split_rolled_back(number, passed, min(resumed, default=None)), *lines]
        began = known_starts[count - 1] if count and known_starts else None
        resumed.append(passed[0][0] if began is None else float(began))
    return lines


def _split_passes(points: Sequence[Point], step_of: Callable[[Point], float]) -> list[list[Point]]:
    """Return the stretches of points between which the step falls."""
    passes: list[list[Point]] = []
    for point in points:
        if passes and step_of(point) >= step_of(passes[-1][-1]) - DISORDER_STEPS:
            passes[-1].append(point)
        else:
            passes.append([point])
    return passes


def _split_rolled_back(number: int, points: list[Point], split: float | None) -> list[CurveLine]:
    """Return the part up to the step that was resumed from, and the part beyond it, which was rolled back."""
    kept = [point for point in points if split is None or point[0] <= split]
    rolled_back = points[len(kept) :]
    if split is None or not rolled_back:
        return [CurveLine(number, tuple(kept))]
    joint = kept[-1:]
    if kept and kept[-1][0] < split:  # points by the minute are far apart
        (x, y), (next_x, next_y) = kept[-1], rolled_back[0]
        joint = [(float(split), y + (next_y - y) * (split - x) / (next_x - x))]
        kept = [*kept, *joint]
    return [CurveLine(number, tuple(kept)), CurveLine(number, tuple(joint + rolled_back), kept=False)]


def _limit_points(lines: Iterable[CurveLine]) -> tuple[CurveLine, ...]:
    """Return the lines that have points, each within an equal share of the chart's point limit."""
    drawn = [line for line in lines if line.points]
    share = max(4, min(LINE_POINT_LIMIT, CHART_POINT_LIMIT // max(1, len(drawn))))
    return tuple(CurveLine(line.attempt, thin_points(line.points, share), line.kept) for line in drawn)


def thin_points(points: Sequence[Point], most: int) -> tuple[Point, ...]:
    """Return at most `most` points: the first, the last, and the minimum and maximum of each stretch between."""
    if len(points) <= most:
        return tuple(points)
    inner = points[1:-1]
    size = ceil(len(inner) / max(1, (most - 2) // 2))
    thinned = [points[0]]
    for start in range(0, len(inner), size):
        stretch = range(start, min(start + size, len(inner)))
        extremes = {min(stretch, key=lambda i: inner[i][1]), max(stretch, key=lambda i: inner[i][1])}
        thinned += [inner[index] for index in sorted(extremes)]
    return (*thinned, points[-1])


def _sample_evenly(values: Sequence[float], most: int) -> Sequence[float]:
    """Return at most `most` evenly spaced values, including the first and the last."""
    if len(values) <= most:
        return values
    return [values[round(index * (len(values) - 1) / (most - 1))] for index in range(most)]
