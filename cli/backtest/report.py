"""What the backtest prints: what was found, where, and how right it was."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.backtest.evaluation import EvaluatedLog
from cli.backtest.scoring import Score, measures
from rerail.model.finding import Finding, Level

LOGS_SHOWN, FINDINGS_SHOWN = 15, 30
STYLES = {Level.WARN: "yellow", Level.INTERVENE: "bold red"}
MEANING = "warn: tell people, do nothing else. intervene: stop the job and go on from before the onset."

Scored = tuple[Score, Mapping[str, int]] | None


def show(console: Console, judged: Sequence[EvaluatedLog], *, policy: str, seconds: float, scored: Scored) -> None:
    """Print the findings and the score."""
    rows = sum(log.samples for log in judged)
    logs = "1 log" if len(judged) == 1 else f"{len(judged)} logs"
    console.print(f"{logs}, {rows:,} rows, judged with the policy {policy} in {seconds:.1f} s")
    for log in judged[:LOGS_SHOWN]:
        for note in log.notes:
            console.print(f"{log.log.name}: {note}", style="dim", markup=False)
        for limit in log.limits:
            console.print(f"{log.log.name}: {limit}", style="yellow", markup=False)
    if not any(log.findings for log in judged):
        if not all(log.limits for log in judged):
            console.print("no findings: Rerail would not have acted")
    else:
        console.print(_kinds(judged))
        console.print(_findings(judged[0]) if len(judged) == 1 else _logs(judged))
        console.print(MEANING, style="dim")
    if scored:
        console.print(_quality(*scored))


def make_json(judged: Sequence[EvaluatedLog], *, policy: str, seconds: float, scored: Scored) -> dict[str, Any]:
    """Return the findings and the score as JSON types."""
    return {
        "policy": policy,
        "logs": len(judged),
        "rows": sum(log.samples for log in judged),
        "seconds": round(seconds, 2),
        "findings": {kind: dict(levels) for kind, levels in _by_kind(judged).items()},
        "by_log": [
            {"log": log.log.name, "rows": log.samples, "findings": list(log.lines())}
            | {"limits": list(log.limits), "notes": list(log.notes)}
            for log in judged
            if log.findings or log.limits or log.notes
        ],
        "score": {**scored[0].as_json(), "unscored": dict(scored[1])} if scored else None,
    }


def _by_kind(judged: Sequence[EvaluatedLog]) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    for log in judged:
        for _, finding in log.findings:
            counts.setdefault(str(finding.kind), Counter())[str(finding.level)] += 1
    return counts


def _kinds(judged: Sequence[EvaluatedLog]) -> Table:
    table = Table("kind", title="findings", title_justify="left")
    for heading in ("logs", "warn", "intervene"):
        table.add_column(heading, justify="right")
    for kind, levels in sorted(_by_kind(judged).items()):
        logs = sum(any(finding.kind == kind for _, finding in log.findings) for log in judged)
        table.add_row(kind, str(logs), str(levels[Level.WARN]), str(levels[Level.INTERVENE]))
    return table


def _logs(judged: Sequence[EvaluatedLog]) -> Table:
    """The logs with most interventions, then most warnings."""
    loud = sorted(
        (log for log in judged if log.findings), key=lambda log: (-log.of(Level.INTERVENE), -len(log.findings))
    )
    table = Table("log", title=f"{len(loud)} of {len(judged)} logs have findings", title_justify="left")
    for heading in ("rows", "warn", "intervene"):
        table.add_column(heading, justify="right")
    table.add_column("the gravest")
    for log in loud[:LOGS_SHOWN]:
        gravest = next((f for _, f in log.findings if f.level is Level.INTERVENE), log.findings[0][1])
        counts = (f"{log.samples:,}", str(log.of(Level.WARN)), str(log.of(Level.INTERVENE)))
        table.add_row(Text(log.log.name), *counts, _evidence(gravest))
    if len(loud) > LOGS_SHOWN:
        table.add_row(f"and {len(loud) - LOGS_SHOWN} more", "", "", "", "--json prints them all")
    return table


def _findings(log: EvaluatedLog) -> Table:
    table = Table("row", "step", "level", "kind", "evidence", title=Text(log.log.name), title_justify="left")
    for row, (_, finding) in list(zip(log.rows, log.findings, strict=True))[:FINDINGS_SHOWN]:
        step = "" if finding.step is None else str(finding.step)
        table.add_row(str(row), step, Text(finding.level, STYLES[finding.level]), finding.kind, Text(finding.evidence))
    if len(log.findings) > FINDINGS_SHOWN:
        rest = f"{len(log.findings) - FINDINGS_SHOWN} more: --json prints them all"
        table.add_row("...", "", "", "", rest)
    return table


def _evidence(finding: Finding) -> Text:
    step = "" if finding.step is None else f"step {finding.step}: "
    return Text(f"{step}{finding.kind}, {finding.evidence}", STYLES[finding.level])


def _quality(score: Score, unscored: Mapping[str, int]) -> Table:
    table = Table("against the labels", title="how right it was", title_justify="left")
    table.add_column("", justify="right")
    for family, recall in score.families.items():
        table.add_row(f"{family}: found of {recall.labels}, macro / micro", f"{recall.macro:.2f} / {recall.micro:.2f}")
    values = measures(score)
    table.add_row("false alarms", f"{score.false_alarms}, {values['false alarms per 100k rows']:.2f} per 100k rows")
    wrong = f"{score.wrong}, {values['wrong interventions per 100k rows']:.2f} per 100k rows"
    table.add_row("wrong interventions", wrong)
    table.add_row("right interventions", str(score.right))
    for family, (acted, of) in score.lasting.items():
        table.add_row(f"{family}: lasting events that were acted on", f"{acted} of {of}")
    if unscored:
        table.add_row("besides, not scored", ", ".join(f"{count} {kind}" for kind, count in unscored.items()))
    return table
