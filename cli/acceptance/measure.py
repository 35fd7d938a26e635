"""Compute the measurements of an acceptance: durations in seconds, and the order of uploaded files."""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from cli.acceptance.seen import Observation, Observations, ObservedJob

# Their scripts do not end at SIGTERM: one hangs, and without init it is not forwarded.
KILLED_TRIALS = ("hang", "own-layout")


def measure(observed: Observations) -> dict[str, Any]:
    """Return each duration with its median, its largest value and its count; null if it was not seen."""
    account = observed.account
    trials = observed.trials.values()
    uploads = [upload for trial in trials for upload in trial.uploads]
    found: dict[str, Sequence[float]] = {
        "startup_s": _measure_starts(observed.jobs, is_warm=False),
        "warm_startup_s": _measure_starts(observed.jobs, is_warm=True),
        # Of scripts that handle SIGTERM; the others are killed after 120 s.
        "stop_s": _measure_stops(trial for trial in trials if trial.trial not in KILLED_TRIALS),
        "killed_stop_s": _measure_stops(trial for trial in trials if trial.trial in KILLED_TRIALS),
        "event_s": [(e.arrived_at - e.changed_at).total_seconds() for e in account.events if e.changed_at],
        "metric_s": [age for trial in trials for ages in trial.metric_ages.values() for age in ages],
        "upload_s": [(upload.manifest_at - upload.saved_at).total_seconds() for upload in uploads],
        "notice_s": [(notice.arrived_at - notice.sent_at).total_seconds() for notice in account.notices],
    }
    return {
        **{name: _summarize(values) for name, values in found.items()},
        "phases_s": _measure_phases(observed),
        "manifests_before_files": sum(upload.manifest_at < upload.files_at for upload in uploads),
        "manifests": len(uploads),
        "statuses": sorted({entry.status for job in observed.jobs for entry in job.transitions}),
    }


def _summarize(values: Sequence[float]) -> dict[str, float] | None:
    """Return the summary; times of S3 and SageMaker have whole seconds, so a small difference may be negative."""
    if not values:
        return None
    known = [max(0.0, value) for value in values]
    return {"median": round(median(known), 3), "largest": round(max(known), 3), "count": len(known)}


def _measure_starts(jobs: Iterable[ObservedJob], *, is_warm: bool) -> list[float]:
    """Return the seconds from the creation of each job to the start of its script, with or without a warm pool."""
    chosen = [job for job in jobs if bool(job.pool_of) is is_warm]
    return [(began - job.created_at).total_seconds() for job in chosen if (began := job.find_start("Training"))]


def _measure_stops(trials: Iterable[Observation]) -> list[float]:
    """Return the seconds from each StopTrainingJob to the job's end, its uploads included."""
    jobs = [job for trial in trials for job in trial.jobs if job.status == "Stopped"]
    calls = [(job.stop_called_at, job.ended_at) for job in jobs]
    return [(ended_at - called_at).total_seconds() for called_at, ended_at in calls if called_at and ended_at]


def _measure_phases(observed: Observations) -> dict[str, Any]:
    """Return the seconds that jobs spent in each secondary status before and after their training."""
    phases: dict[str, list[float]] = {}
    for job in observed.jobs:
        for entry in job.transitions:
            if entry.ended_at and entry.status not in ("Training", job.status):
                phases.setdefault(entry.status, []).append((entry.ended_at - entry.started_at).total_seconds())
    return {status: _summarize(values) for status, values in sorted(phases.items())}
