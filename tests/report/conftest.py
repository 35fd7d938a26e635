"""A real run that went wrong and was mended, as it was recorded, and runs made up beside it."""

import gzip
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rerail.incident_report.facts import Facts, LogLine
from rerail.model.actions import Notify, Severity
from rerail.model.causes import Cause
from rerail.model.codec import loads
from rerail.model.run import Attempt, Incident, JobStatus, OpenPage, Run, RunState, TimelineEntry
from rerail.model.runbooks import Runbook
from rerail.model.sample import Sample

BEGAN = datetime(2026, 1, 31, 3, tzinfo=UTC)
HOSTILE = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>{{ 7 * 7 }}</pre></style>"


@pytest.fixture(scope="session")
def recorded() -> Facts:
    """The demo's scenario `spike`, as `python -m tools.screenshots --record` has written it down."""
    text = gzip.decompress((Path(__file__).parent / "data" / "spike.json.gz").read_bytes()).decode()
    return loads(Facts, text)


def attempt(number: int, *, start: int | None = None, last: int | None = None, **fields: object) -> Attempt:
    """An attempt of an hour."""
    began = BEGAN + timedelta(hours=number - 1)
    ends = {"ended_at": began + timedelta(minutes=50), "status": JobStatus.FAILED} | fields
    return Attempt(
        number=number,
        job_name="gpt" if number == 1 else f"gpt-a{number:03d}",
        created_at=began,
        training_started_at=began + timedelta(minutes=2),
        resumed_from_step=start,
        last_step=last,
        instance_type="ml.p4d.24xlarge",
        **ends,  # type: ignore[arg-type]
    )


def rows(number: int, first: int, last: int, *, every: int = 10) -> tuple[Sample, ...]:
    """A row every so many steps, a second a step."""
    began = BEGAN + timedelta(hours=number - 1, minutes=2)
    return tuple(
        Sample(step=step, at=began + timedelta(seconds=step - first), loss=10.0 / (1 + step / 50))
        for step in range(first, last + 1, every)
    )


def held() -> Facts:
    """A run that ran out of memory, and waits for somebody."""
    when = BEGAN + timedelta(minutes=52)
    reason = "attempt 1 failed: oom (CUDA out of memory); held: the same batch needs the same memory"
    words = "stopped trying", "Make the batch smaller.\nThen release the run."
    notify = Notify(Severity.PAGE, "gpt: held", reason, "gpt/held-1", Runbook.OUT_OF_MEMORY, *words)
    notify = replace(notify, by=when + timedelta(hours=4))
    failed = attempt(1, last=700, cause=Cause.OOM, failure_reason="AlgorithmError: CUDA out of memory, exit code: 1")
    incident = Incident(1, "job_failed", 1, Cause.OOM, reason, "CUDA out of memory", when, when, step=700)
    run = Run(
        "gpt",
        "default",
        RunState.HELD,
        BEGAN,
        (failed,),
        incidents=(replace(incident, closed_at=when, resolution="the run was held"),),
        hold_reason=reason,
        pages=(OpenPage(notify, 1, when),),
    )
    entry = TimelineEntry(
        "gpt", 3, when, RunState.WATCHING, RunState.HELD, reason, "job_failed", inputs={"rule": "oom", "last_step": 700}
    )
    lines = (LogLine(when, "algo-1-1", "torch.OutOfMemoryError: CUDA out of memory."),)
    return Facts(run, when, timeline=(entry,), series={1: rows(1, 10, 700)}, lines={1: lines})


def hostile() -> Facts:
    """Every text of it is somebody else's, and means no good; one line of its log is 10 kB long."""
    known = held()
    run, (entry,), (incident,) = known.run, known.timeline, known.run.incidents
    bad = replace(
        run,
        policy=HOSTILE,
        attempts=(replace(run.current, failure_reason=HOSTILE, instance_type=HOSTILE, rung=HOSTILE),),
        incidents=(replace(incident, reason=HOSTILE, evidence=HOSTILE, resolution=HOSTILE, kind=HOSTILE),),
        pages=(replace(run.pages[0], notice=replace(run.pages[0].notice, body=HOSTILE, todo=HOSTILE, did=HOSTILE)),),
    )
    lines = (
        LogLine(known.at, HOSTILE, HOSTILE),
        LogLine(known.at, "algo-1-1", "x" * 10_000),
        LogLine(known.at, "algo-1-1", "\x1b[31mred\x00\u202e"),
    )
    entries = (replace(entry, reason=HOSTILE, inputs={HOSTILE: HOSTILE}),)
    return replace(known, run=bad, timeline=entries, lines={1: lines}, unread=(HOSTILE,))


def immense(*, every: int, tries: int = 500) -> Facts:
    """Return attempts with two thousand steps each, one row of `every` so many steps, and a timeline to match."""
    numbers = range(1, tries + 1)
    attempts = [attempt(n, start=(n - 1) * 1000 or None, last=n * 1000, cause=Cause.UNKNOWN) for n in numbers]
    incidents = [
        Incident(n, "job_failed", n, Cause.UNKNOWN, f"attempt {n} failed", "exit code 137", at, at, step=n * 1000)
        for n, at in ((attempt.number, attempt.ended_at or BEGAN) for attempt in attempts[:-1])
    ]
    timeline = tuple(
        TimelineEntry("gpt", n, BEGAN + timedelta(minutes=n), RunState.WATCHING, RunState.WAITING, f"decision {n}" * 20)
        for n in range(10 * tries)
    )
    series = {n: rows(n, (n - 1) * 1000, n * 1000 + 999, every=every) for n in numbers}
    lines = {n: tuple(LogLine(BEGAN, "algo-1-1", "y" * 5000) for _ in range(30)) for n in numbers[:-1]}
    run = Run("gpt", "default", RunState.WATCHING, BEGAN, tuple(attempts), incidents=tuple(incidents))
    return Facts(run, BEGAN + timedelta(days=21), timeline=timeline, series=series, lines=lines)
