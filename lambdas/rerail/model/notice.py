"""A notice to people, as every channel receives it."""

from dataclasses import dataclass
from datetime import datetime

from rerail.model.actions import Severity
from rerail.model.runbooks import Runbook


@dataclass(frozen=True, slots=True)
class Notice:
    """One notice; every channel formats it from these fields alone."""

    run: str  # the run's id, or the job's name for a job that belongs to no run
    severity: Severity
    title: str
    body: str  # what happened
    key: str  # deduplication key
    at: datetime | None = None  # when the notice was made
    thread: str = ""  # groups the notices of one run
    since: datetime | None = None  # when the problem began
    did: str = ""  # what Rerail did
    todo: str = ""  # what the operator must do, one step a line
    by: datetime | None = None  # deadline for `todo`
    runbook: Runbook = Runbook.INFORMED
    clears: str = ""  # key of the page that this all-clear resolves
    state: str = ""  # the run's state; "" for a job that belongs to no run
    attempt: int | None = None  # number of the current attempt
    job: str = ""  # its SageMaker training job
    step: int | None = None  # its last known training step
    dollars: float | None = None  # cost of the run so far; None if a price is not known
    # What the open incident, or the one that an all-clear ends, has cost so far; None without one or without a price.
    incident_dollars: float | None = None
