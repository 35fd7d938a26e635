"""Made-up runs for the detectors: a loss that falls by a power law with noise, and what may befall it."""

import math
import random
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from rerail.detection.detectors import evaluate_series
from rerail.model.finding import Finding, Kind, Level
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds

START = datetime(2026, 11, 21, tzinfo=UTC)
DETECTION = Thresholds()


def falling(rows: int = 400, *, noise: float = 0.01, seed: int = 7) -> list[float]:
    """A sound run: 2 + 8 / sqrt(row) with noise of the given share."""
    dice = random.Random(seed)
    return [(2 + 8 / math.sqrt(row + 1)) * math.exp(dice.gauss(0, noise)) for row in range(rows)]


def lifted(losses: Sequence[float], first: int, last: int, *, times: float) -> list[float]:
    """The run with the rows first..last multiplied."""
    return [loss * times if first <= row <= last else loss for row, loss in enumerate(losses)]


def samples(losses: Iterable[float], *, every: int = 1) -> list[Sample]:
    """One sample a row, `every` steps apart."""
    return [Sample(step=(row + 1) * every, loss=loss) for row, loss in enumerate(losses)]


def slow(seconds: Iterable[float], *, suspect: str = "rank 3 is slow") -> list[Sample]:
    """One sample a row that knows nothing but its step time, and what shows that a slow one is a fault."""
    return [Sample(step=row + 1, step_time_s=value, suspect=suspect) for row, value in enumerate(seconds)]


def said(rows: Iterable[Sample], *kinds: Kind, detection: Thresholds = DETECTION) -> list[tuple[int, Finding]]:
    """What was said of these kinds (all kinds without any), with the rows."""
    return [(row, finding) for row, finding in evaluate_series(rows, detection) if not kinds or finding.kind in kinds]


def levels(findings: Iterable[tuple[int, Finding]]) -> list[Level]:
    """The levels of findings, in order."""
    return [finding.level for _, finding in findings]


def minutes(count: float) -> datetime:
    """So many minutes after the start."""
    return START + timedelta(minutes=count)


def list_rows(rows: Iterable[Sample], kind: Kind, detection: Thresholds = DETECTION) -> list[int]:
    """Return the rows of the findings of a kind; negative where they ask to intervene."""
    found = said(rows, kind, detection=detection)
    return [-row if finding.level is Level.INTERVENE else row for row, finding in found]
