"""Evaluate logs of the past with the detectors, as if each row had just arrived."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cli.backtest.minutes import minutes
from cli.backtest.scoring import FAMILIES, SCORED_AS, Score, as_calls, score
from cli.backtest.sources import Log
from cli.parallel import spread
from rerail.detection.detectors import Detectors
from rerail.model.finding import Finding, Level
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds

# Fewer rows are not judged: levels and noise are learnt from so many.
NEEDS_ROWS = 40


@dataclass(frozen=True, slots=True)
class EvaluatedLog:
    """One log with its findings, each with the index of its sample."""

    log: Log
    # The number of rows of the log.
    samples: int
    # Each finding with the index of the sample after which it is made.
    findings: tuple[tuple[int, Finding], ...]
    # The row of each finding, as the log counts rows.
    rows: tuple[int, ...]
    # What the log is too short for; empty: nothing.
    limits: tuple[str, ...] = ()
    # How it was read, where that is not plain.
    notes: tuple[str, ...] = ()

    def of(self, level: Level) -> int:
        return sum(finding.level == level for _, finding in self.findings)

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield every finding as JSON types."""
        for row, (_, finding) in zip(self.rows, self.findings, strict=True):
            what = {"run_id": self.log.name, "row": row, "kind": str(finding.kind), "level": str(finding.level)}
            yield what | {"step": finding.step, "onset_step": finding.onset_step, "evidence": finding.evidence}

    def scorable_lines(self) -> Iterator[dict[str, Any]]:
        """Yield the findings that a label can confirm or reject, with the kinds that labels use."""
        for line in self.lines():
            kind = SCORED_AS.get(line["kind"], line["kind"])
            if kind in FAMILIES:
                yield {**line, "kind": kind}


def evaluate_logs(logs: Sequence[Log], detection: Thresholds, *, by_minute: bool = False) -> Iterator[EvaluatedLog]:
    """Yield each evaluated log, in any order; the logs are read and evaluated on all cores.

    By the minute, the detectors get the aggregates that CloudWatch would keep.
    """
    yield from spread(_evaluate_log, [(log, detection, by_minute) for log in logs])


def score_logs(judged: Sequence[EvaluatedLog]) -> tuple[Score, Mapping[str, int]] | None:
    """Return the score and the counts of findings that no label can confirm; None if no log has labels."""
    runs = [evaluated.log.labelled for evaluated in judged if evaluated.log.labelled]
    if not runs:
        return None
    unscored: Counter[str] = Counter()
    calls = {evaluated.log.name: as_calls(evaluated.findings, unscored=unscored) for evaluated in judged}
    return score(runs, calls), unscored


def _evaluate_log(task: tuple[Log, Thresholds, bool]) -> EvaluatedLog:
    log, detection, by_minute = task
    read = log.read()
    grouped = minutes(read.samples) if by_minute else None
    samples = grouped.samples if grouped else read.samples
    detectors = Detectors()
    findings = [
        (index, finding) for index, sample in enumerate(samples) for finding in detectors.run(sample, detection)
    ]
    if grouped:
        findings = [(grouped.last_rows[index], finding) for index, finding in findings]
    return EvaluatedLog(
        log,
        len(read.samples),
        tuple(findings),
        rows=tuple(read.find_row(index) for index, _ in findings),
        limits=tuple(_find_limits(samples, detectors, detection)),
        notes=read.notes,
    )


def _find_limits(samples: Sequence[Sample], detectors: Detectors, detection: Thresholds) -> Iterator[str]:
    """Yield what cannot be said about a log because it is too short, or ends too soon."""
    if len(samples) < NEEDS_ROWS:
        yield f"cannot judge {len(samples)} rows: the detectors learn what is usual from {NEEDS_ROWS}"
    factor = samples[-1].patience_factor if samples else 1
    rise, patience = detectors.divergence.rise, detection.patience_rows // factor
    if rise and not rise.is_reported and rise.rows < patience:
        left = patience - rise.rows
        yield f"the loss is too high since step {rise.onset}; the log ends {left} rows before the patience is over"
    drop, patience = detectors.throughput_drop, detection.throughput_patience_rows
    if drop.reported == 1 and 0 < drop.lasting < patience:
        left = (patience - drop.lasting) // factor
        yield f"steps are slow since step {drop.onset}; the log ends {left} rows before the patience is over"
