"""The event of a run's state change, as other systems receive it: docs/run.schema.json."""

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

VERSION = 1


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One state change of a run; fields are added, never renamed."""

    # The same for every publication of this change.
    id: str
    run: str
    # Later events of a run have larger numbers.
    sequence: int
    at: datetime
    # "" for an adopted run.
    previous_state: str
    state: str
    # Rerail launches nothing more, unless an operator releases or continues the run.
    is_end: bool
    reason: str
    policy: str
    # The number and the job of the attempt that was current.
    attempt: int
    job: str
    # The job that the run began with.
    first_job: str
    # The number of attempts so far.
    attempts: int
    # The last step of that attempt that Rerail knows of; None before the first one.
    step: int | None
    # What all attempts have cost; None if a price is not known.
    dollars: float | None
    # The model of the attempt's job in S3; "" without one.
    artifacts: str
    # The run's incident report in S3; "" if reports are not deployed.
    report: str


def format_run_event(event: RunEvent) -> dict[str, Any]:
    """Return the event's detail: JSON types, times in ISO 8601."""
    values = {f.name: getattr(event, f.name) for f in fields(event)}
    return {"version": VERSION, **values, "at": event.at.isoformat()}
