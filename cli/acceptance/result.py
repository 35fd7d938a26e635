"""The result of an acceptance: acceptance.json, and a page made as an incident report is."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from cli.acceptance.checks import CheckResult, CheckVerdict
from cli.acceptance.seen import Observations
from rerail.incident_report.report import IncidentReport, ReportSection
from rerail.incident_report.summary import Urgency
from rerail.model.measurements import KIND, SCHEMA
from rerail.model.run import RunState

JSON_FILE, PAGE_FILE = "acceptance.json", "acceptance.html"


def make_result(
    results: Sequence[CheckResult],
    measurements: Mapping[str, Any],
    *,
    id: str,
    region: str,
    scale: float,
    began: datetime,
    made_at: datetime,
    policy: str,
    image: str,
    interrupted: bool,
) -> dict[str, Any]:
    """Return the content of acceptance.json; docs/acceptance.schema.json describes it."""
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "id": id,
        "region": region,
        # 1 in an account; the local AWS runs so many times as fast.
        "clock_scale": scale,
        "began_at": began.isoformat(),
        "made_at": made_at.isoformat(),
        "policy": policy,
        "image": image,
        "interrupted": interrupted,
        "checks": [
            {
                "id": result.id,
                "assumption": result.assumption,
                "expected": result.expected,
                "seen": result.seen,
                "verdict": result.verdict.value,
                "evidence": list(result.evidence),
            }
            for result in results
        ],
        "measurements": dict(measurements),
    }


def count_verdicts(results: Sequence[CheckResult]) -> str:
    """Return how many checks have each verdict, in words."""
    counts = Counter(result.verdict for result in results)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in CheckVerdict if counts[verdict])


def make_acceptance_report(
    result: Mapping[str, Any], results: Sequence[CheckResult], observed: Observations
) -> IncidentReport:
    """Return the page's content: each assumption with what was seen, then the measurements and the jobs."""
    refuted = [found for found in results if found.verdict is CheckVerdict.REFUTED]
    untried = [found for found in results if found.verdict is CheckVerdict.NOT_TRIED]
    rows = tuple((f"{found.id}: {found.verdict}", _describe(found)) for found in results)
    return IncidentReport(
        run=str(result["id"]),
        policy=str(result["policy"]),
        state=RunState.COMPLETED,
        at=datetime.fromisoformat(result["made_at"]),
        began=datetime.fromisoformat(result["began_at"]),
        tone=Urgency.NEEDED if refuted else Urgency.NONE,
        headline=f"Acceptance in {result['region']}: {count_verdicts(results)}",
        happened="\n".join(f"{found.id}: {found.seen}" for found in refuted) or "No assumption was refuted.",
        todo=tuple(f"Look at {found.id}: expected was {found.expected}." for found in refuted)
        or tuple(f"Not tried: {found.id}, because {found.seen}." for found in untried)
        or ("Nothing.",),
        facts=(("region", str(result["region"])), ("policy", str(result["policy"])), ("image", str(result["image"]))),
        sections=(
            ReportSection("Assumptions", rows, "Those of docs/limits.md that an account can settle."),
            ReportSection("Measurements", tuple(_list_measurements(result["measurements"]))),
            ReportSection("Jobs", tuple((job.name, f"{job.status} {job.failure_reason}") for job in observed.jobs)),
        ),
    )


def _describe(found: CheckResult) -> str:
    evidence = "".join(f"\n{line}" for line in found.evidence)
    return f"{found.assumption}\nExpected: {found.expected}.\nSeen: {found.seen}.{evidence}"


def _list_measurements(measured: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for name, value in measured.items():
        if isinstance(value, dict) and "median" in value:
            rows.append((name, f"{value['median']:g} s (median of {value['count']}), {value['largest']:g} s at most"))
        elif name == "phases_s":
            rows += [(f"{phase}", f"{value[phase]['median']:g} s (median)") for phase in value]
        else:
            rows.append((name, "not seen" if value is None else str(value)))
    return rows


def write_json(folder: Path, result: Mapping[str, Any]) -> Path:
    """Write acceptance.json; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / JSON_FILE
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    partial.rename(path)
    return path


def make_stored_copy(result: Mapping[str, Any]) -> str:
    """Return what a deployment keeps of the result: the measurements alone, in a few hundred characters."""
    kept = {name: result[name] for name in ("schema", "kind", "region", "clock_scale", "made_at")}
    seconds = {name: value for name, value in result["measurements"].items() if name.endswith("_s")}
    return json.dumps({**kept, "measurements": {name: value for name, value in seconds.items() if name != "phases_s"}})
