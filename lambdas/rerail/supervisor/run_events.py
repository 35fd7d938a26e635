"""Make the event of a run's state change from the run's record."""

from datetime import datetime

from rerail.incident_report.location import make_page_key
from rerail.model.policy import Policy
from rerail.model.run import Run, StateChange
from rerail.model.run_event import RunEvent
from rerail.notices.notice import find_cost


def make_run_event(run: Run, change: StateChange, *, at: datetime, policy: Policy, reports: str) -> RunEvent:
    """Return the event of the change; `at` is when it is published, `reports` the bucket of the incident reports."""
    attempt = next(attempt for attempt in run.attempts if attempt.number == change.attempt)
    return RunEvent(
        id=change.id,
        run=run.id,
        sequence=change.version,
        at=change.at,
        previous_state=change.before.value if change.before else "",
        state=change.after.value,
        is_end=change.after.is_end,
        reason=change.reason,
        policy=run.policy,
        attempt=attempt.number,
        job=attempt.job_name,
        first_job=run.attempts[0].job_name,
        attempts=len(run.attempts),
        step=attempt.last_step,
        dollars=find_cost(run, at, policy),
        artifacts=attempt.artifacts,
        report=f"s3://{reports}/{make_page_key(run.id)}" if reports else "",
    )
