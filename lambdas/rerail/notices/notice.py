"""The notice: what happened to a run, what Rerail did, and what the operator must do."""

from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

from rerail.accounting.costs import sum_attempt_dollars
from rerail.accounting.goodput import find_incident_dollars
from rerail.model.actions import Notify
from rerail.model.codec import BadRecord, from_plain
from rerail.model.mailbox import EARLIEST, LATEST
from rerail.model.notice import Notice
from rerail.model.policy import Policy
from rerail.model.run import Run
from rerail.model.runbooks import Runbook

# In characters: a notice must stay readable and fit into one EventBridge event.
TITLE_LIMIT, TEXT_LIMIT = 250, 4_000
_NUMBER, _AMOUNT = (int, type(None)), (int, float, type(None))
# Expected type of each field. Anyone with events:PutEvents on the bus can write a notice, so the types are checked.
_FIELD_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(("run", "title", "body", "key", "thread", "did", "todo", "clears", "state", "job"), str),
    **dict.fromkeys(("attempt", "step"), _NUMBER),
    **dict.fromkeys(("dollars", "incident_dollars"), _AMOUNT),
}
_TYPE_NAMES: Mapping[Any, str] = {str: "text", _NUMBER: "a whole number or null", _AMOUNT: "a number or null"}


def make_run_notice(notice: Notify, run: Run, *, at: datetime, policy: Policy) -> Notice:
    """Return the decision's notice with the run's current state and its cost so far."""
    attempt = run.current
    return Notice(
        **_decision_fields(notice),
        run=run.id,
        thread=run.id,
        at=at,
        state=run.state.value,
        attempt=attempt.number,
        job=attempt.job_name,
        step=attempt.last_step,
        dollars=find_cost(run, at, policy),
        incident_dollars=_find_incident_cost(run, notice, at, policy),
    )


def _find_incident_cost(run: Run, notice: Notify, at: datetime, policy: Policy) -> float | None:
    """Return the dollars that the open incident has cost, or the last one for an all-clear."""
    incident = run.open_incident or (run.incidents[-1] if run.incidents and notice.clears else None)
    return None if incident is None else find_incident_dollars(run, incident, at, policy.prices)


def make_job_notice(notice: Notify, job: str, *, at: datetime) -> Notice:
    """Return a notice about a job that belongs to no run."""
    return Notice(**_decision_fields(notice), run=job, thread=job, at=at, job=job)


def find_cost(run: Run, at: datetime, policy: Policy) -> float | None:
    """Return the dollars spent on all attempts, regardless of releases, or None if a price is not known."""
    costs = [sum_attempt_dollars(attempt, at, policy.prices) for attempt in run.attempts]
    return None if None in costs else sum(cost for cost in costs if cost is not None)


def format_detail(notice: Notice) -> dict[str, Any]:
    """Return the notice as the detail of a `Rerail Notice` event: JSON types, times in ISO 8601."""
    values = {f.name: getattr(notice, f.name) for f in fields(notice)}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}


def read_detail(detail: Mapping[str, Any]) -> Notice:
    """Return the notice that `as_detail` of any version wrote. Raises BadRecord, which names the malformed field."""
    # Another version may name a runbook that this one does not have.
    overrides = {"runbook": Runbook.INFORMED} if detail.get("runbook") not in list(Runbook) else {}
    notice: Notice = from_plain(Notice, {**detail, **overrides})
    for name, types in _FIELD_TYPES.items():
        value = getattr(notice, name)
        if not isinstance(value, types) or isinstance(value, bool):
            raise BadRecord(f"Notice.{name} is {value!r:.100}; it must be {_TYPE_NAMES[types]}")
    return replace(notice, at=_make_utc(notice.at), since=_make_utc(notice.since), by=_make_utc(notice.by))


def truncate(text: str, limit: int) -> str:
    """Return the text in at most `limit` characters; a truncated text ends in "..."."""
    return text if len(text) <= limit else f"{text[: limit - 3].rstrip()}..."


def _make_utc(time: datetime | None) -> datetime | None:
    """Return the time with UTC for a missing time zone, or None if it is out of range.

    A notice put on the bus by hand may lack the zone. An unusable time must not block a page."""
    if time is None:
        return None
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    return time if EARLIEST <= time < LATEST else None


def _decision_fields(notice: Notify) -> dict[str, Any]:
    return {
        "severity": notice.severity,
        "title": truncate(notice.title, TITLE_LIMIT),
        "body": truncate(notice.body, TEXT_LIMIT),
        "key": notice.key,
        "since": notice.since,
        "did": truncate(notice.did, TEXT_LIMIT),
        "todo": truncate(notice.todo, TEXT_LIMIT),
        "by": notice.by,
        "runbook": notice.runbook,
        "clears": notice.clears,
    }
