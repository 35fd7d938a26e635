"""Evaluate logs of the past with the detectors, as if each row had just arrived."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cli.backtest.scoring import FAMILIES, SCORED_AS, Score, as_calls, score
from cli.backtest.sources import Log
from cli.parallel import spread
from rerail.detection.detectors import evaluate_series
from rerail.model.finding import Finding, Level
from rerail.model.thresholds import Thresholds


@dataclass(frozen=True, slots=True)
class EvaluatedLog:
    """One log with its findings, each with the index of its sample."""

    log: Log
    samples: int
    findings: tuple[tuple[int, Finding], ...]
    rows: tuple[int, ...]

    def of(self, level: Level) -> int:
        return sum(finding.level == level for _, finding in self.findings)

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield every finding as JSON types."""
        for row, (_, finding) in zip(self.rows, self.findings, strict=True):
            yield {
                "run_id": self.log.name,
                "row": row,
                "kind": str(finding.kind),
                "level": str(finding.level),
                "step": finding.step,
                "onset_step": finding.onset_step,
                "evidence": finding.evidence,
            }

    def scorable_lines(self) -> Iterator[dict[str, Any]]:
        """Yield the findings that a label can confirm or reject, with the kinds that labels use."""
        for line in self.lines():
            kind = SCORED_AS.get(line["kind"], line["kind"])
            if kind in FAMILIES:
                yield {**line, "kind": kind}


def evaluate_logs(logs: Sequence[Log], detection: Thresholds) -> Iterator[EvaluatedLog]:
    """Yield each evaluated log, in any order; the logs are read and evaluated on all cores."""
    yield from spread(_evaluate_log, [(log, detection) for log in logs])


def score_logs(judged: Sequence[EvaluatedLog]) -> tuple[Score, Mapping[str, int]] | None:
    """Return the score and the counts of findings that no label can confirm; None if no log has labels."""
    runs = [evaluated.log.labelled for evaluated in judged if evaluated.log.labelled]
    if not runs:
        return None
    unscored: Counter[str] = Counter()
    calls = {evaluated.log.name: as_calls(evaluated.findings, unscored=unscored) for evaluated in judged}
    return score(runs, calls), unscored


def _evaluate_log(task: tuple[Log, Thresholds]) -> EvaluatedLog:
    log, detection = task
    read = log.read()
    findings = tuple(evaluate_series(read.samples, detection))
    return EvaluatedLog(log, len(read.samples), findings, rows=tuple(read.find_row(place) for place, _ in findings))
