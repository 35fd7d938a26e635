"""Curves that a page can carry: thinned to so many points, with their extremes and what is not finite kept."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil, inf, isfinite

from rerail.incident_report.facts import Facts
from rerail.model.sample import Sample

# Of one line, and of all lines of a chart together.
POINTS, POINTS_OF_A_CHART = 600, 4_000
GAPS = 60
# Around an incident so many steps are shown at least; where that is most of the run, the whole picture will do.
FEW_STEPS, CLOSE = 20, 0.4

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class CurveLine:
    """A part of an attempt's curve; `kept` says that the run stands on it, and did not go back behind it."""

    attempt: int
    points: tuple[Point, ...]
    kept: bool = True


@dataclass(frozen=True, slots=True)
class Curve:
    """One quantity over steps, or over seconds since the run began; `gaps` are where its value was not finite."""

    lines: tuple[CurveLine, ...] = ()
    gaps: tuple[float, ...] = ()

    @property
    def is_drawable(self) -> bool:
        """There are two points of something at least."""
        return any(len(line.points) > 1 for line in self.lines)


Window = tuple[float, float]
EVERYTHING: Window = (-inf, inf)


def loss(known: Facts, within: Window = EVERYTHING) -> Curve:
    """The loss by step, as each attempt has logged it; of the steps within a window alone, in full detail."""
    parts, gaps = [], []
    for number, every in known.series.items():
        rows = [row for row in every if row.step is not None and within[0] <= row.step <= within[1]]
        points = [(float(r.step), r.loss) for r in rows if r.step is not None and r.loss is not None]
        parts += _parts(known, number, [(x, y) for x, y in points if isfinite(y)])
        gaps += [float(r.step) for r in rows if r.step is not None and _is_lost(r)]
    return Curve(_bounded(parts), tuple(_spread(sorted(set(gaps)), GAPS)))


def speed(known: Facts) -> tuple[Curve, str]:
    """Tokens a second by step where the job says so, or else steps a second; and which of them it is."""
    tokens = any(row.tokens_per_s for rows in known.series.values() for row in rows)
    parts: list[CurveLine] = []
    for number, rows in known.series.items():
        parts += _parts(known, number, list(_tokens(rows) if tokens else _steps_a_second(rows)))
    return Curve(_bounded(parts)), "tokens/s" if tokens else "steps/s"


def progress(known: Facts) -> Curve:
    """The step over seconds since the run began: what is flat is lost time, what falls back is lost work."""
    parts, start = [], began(known)
    for number, rows in known.series.items():
        points = [(elapsed(start, r.at), float(r.step)) for r in rows if r.step is not None and r.at is not None]
        parts.append(CurveLine(number, tuple(points)))
    return Curve(_bounded(parts))


def loss_by_time(known: Facts) -> Curve:
    """The loss over seconds since the run began, of a job that logs no steps."""
    parts, gaps, start = [], [], began(known)
    for number, rows in known.series.items():
        at = [(elapsed(start, row.at), row) for row in rows if row.at is not None]
        parts.append(CurveLine(number, tuple((x, r.loss) for x, r in at if r.loss is not None and isfinite(r.loss))))
        gaps += [x for x, row in at if _is_lost(row)]
    return Curve(_bounded(parts), tuple(_spread(gaps, GAPS)))


def select_window(known: Facts) -> Window | None:
    """The steps around the newest incident; None where nothing is known of it, or where they are most of the run's."""
    incident = known.run.incidents[-1] if known.run.incidents else None
    steps = [row.step for rows in known.series.values() for row in rows if row.step is not None]
    if incident is None or not steps:
        return None
    number = incident.attempt
    later = [a.resumed_from_step for a in known.run.attempts if a.number == number + 1]
    befallen = [row.step for row in known.series.get(number, ())[-1:]]
    places = [each for each in (incident.onset_step, incident.step, *later, *befallen) if each is not None]
    if not places:
        return None
    low, high = min(places), max(places)
    span = max(high - low, FEW_STEPS)
    window = (low - span / 2, high + span)
    covered = min(window[1], max(steps)) - max(window[0], min(steps))
    return window if covered < CLOSE * (max(steps) - min(steps)) else None


def elapsed(start: datetime, at: datetime) -> float:
    """Seconds since the run began, at `start`."""
    return (at - start).total_seconds()


def began(known: Facts) -> datetime:
    """When the run's first job was made, as far as anybody knows."""
    return min([known.run.created_at, *(a.created_at for a in known.run.attempts if a.created_at)])


def _is_lost(row: Sample) -> bool:
    return row.nonfinite or (row.loss is not None and not isfinite(row.loss))


def _tokens(rows: Sequence[Sample]) -> Iterable[Point]:
    for row in rows:
        if row.step is not None and row.tokens_per_s is not None and isfinite(row.tokens_per_s):
            yield float(row.step), row.tokens_per_s


def _steps_a_second(rows: Sequence[Sample]) -> Iterable[Point]:
    """Over stretches of the log: single lines arrive in bursts, and are stamped when they arrive."""
    stamped = [(row.at, row.step) for row in rows if row.at is not None and row.step is not None]
    stretch = max(1, len(stamped) // 120)
    for (at, step), (later, farther) in zip(stamped[::stretch], stamped[stretch::stretch], strict=False):
        seconds = (later - at).total_seconds()
        if seconds > 0 and farther > step:
            yield float(farther), (farther - step) / seconds


def _parts(known: Facts, number: int, points: list[Point]) -> list[CurveLine]:
    """An attempt's curve, up to where a later one went back behind it, and from there on."""
    resumed = [a.resumed_from_step or 0 for a in known.run.attempts if a.number > number and a.exists]
    orders = [o.resume_step for o in known.run.attempts[number - 1].orders if o.restarted_at]
    back = min([*resumed, *(step for step in orders if step is not None)], default=None)
    if back is None or orders:
        return [CurveLine(number, tuple(points))]
    kept = [point for point in points if point[0] <= back]
    given_up = [point for point in points if point[0] > back]
    joint = kept[-1:] if given_up else []
    return [CurveLine(number, tuple(kept)), CurveLine(number, tuple(joint + given_up), kept=False)]


def _bounded(lines: Iterable[CurveLine]) -> tuple[CurveLine, ...]:
    """The lines that have points, each with its fair share of what a chart may hold."""
    drawn = [line for line in lines if line.points]
    share = max(4, min(POINTS, POINTS_OF_A_CHART // max(1, len(drawn))))
    return tuple(CurveLine(line.attempt, thin_points(line.points, share), line.kept) for line in drawn)


def thin_points(points: Sequence[Point], most: int) -> tuple[Point, ...]:
    """At most so many of the points: the first and the last, and of each stretch between the least and the greatest."""
    if len(points) <= most:
        return tuple(points)
    inner = points[1:-1]
    size = ceil(len(inner) / max(1, (most - 2) // 2))
    found = [points[0]]
    for start in range(0, len(inner), size):
        stretch = range(start, min(start + size, len(inner)))
        ends = {min(stretch, key=lambda i: inner[i][1]), max(stretch, key=lambda i: inner[i][1])}
        found += [inner[index] for index in sorted(ends)]
    return (*found, points[-1])


def _spread(values: Sequence[float], most: int) -> Sequence[float]:
    """At most so many of the values, with the first and the last."""
    if len(values) <= most:
        return values
    return [values[round(index * (len(values) - 1) / (most - 1))] for index in range(most)]
