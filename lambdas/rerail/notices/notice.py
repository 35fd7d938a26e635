"""What a human is told: one model of a notice, made of a decision's words and the run as it is then."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

from rerail.accounting.costs import attempt_dollars
from rerail.model.actions import Notify, Severity
from rerail.model.codec import BadRecord, read_plain
from rerail.model.mailbox import EARLIEST, LATEST
from rerail.model.policy import Policy
from rerail.model.run import Run
from rerail.model.runbooks import Runbook

# What a reader is ready to read, and one event on the bus can carry.
TITLE_LIMIT, TEXT_LIMIT = 250, 4_000
_NUMBER, _AMOUNT = (int, type(None)), (int, float, type(None))
# What a notice is told with: whoever may put events on the bus may have written it.
KINDS: Mapping[str, Any] = {
    **dict.fromkeys(("run", "title", "body", "key", "thread", "did", "todo", "clears", "state", "job"), str),
    **dict.fromkeys(("attempt", "step"), _NUMBER),
    "dollars": _AMOUNT,
}
SPOKEN: Mapping[Any, str] = {str: "text", _NUMBER: "a whole number, or nothing", _AMOUNT: "a number, or nothing"}


@dataclass(frozen=True, slots=True)
class Notice:
    """One notice for every reader: each rendering of it is made of nothing else.

    `body` says what happened, `did` what Rerail did about it, `todo` what the reader must do, `by` until when; `since`
    is when the trouble began, `at` when it was told. `key` is the dedup key, `thread` what belongs to one run;
    `clears` is the key of the page that an all-clear ends. `dollars` is what the run has cost so far, None where a
    price is not known; `state`, `attempt`, `job` and `step` say where the run is.
    """

    run: str
    severity: Severity
    title: str
    body: str
    key: str
    at: datetime | None = None
    thread: str = ""
    since: datetime | None = None
    did: str = ""
    todo: str = ""
    by: datetime | None = None
    runbook: Runbook = Runbook.INFORMED
    clears: str = ""
    state: str = ""
    attempt: int | None = None
    job: str = ""
    step: int | None = None
    dollars: float | None = None


def make_run_notice(tell: Notify, run: Run, *, at: datetime, policy: Policy) -> Notice:
    """What the decision has to say, with where the run is and what it has cost so far."""
    attempt = run.current
    return Notice(
        **_words(tell),
        run=run.id,
        thread=run.id,
        at=at,
        state=run.state.value,
        attempt=attempt.number,
        job=attempt.job_name,
        step=attempt.last_step,
        dollars=cost_so_far(run, at, policy),
    )


def make_job_notice(tell: Notify, job: str, *, at: datetime) -> Notice:
    """What is to be said of a job that belongs to no run."""
    return Notice(**_words(tell), run=job, thread=job, at=at, job=job)


def cost_so_far(run: Run, at: datetime, policy: Policy) -> float | None:
    """Dollars of all attempts of the run, whatever a human has forgiven; None where a price is not known."""
    spent = [attempt_dollars(attempt, at, policy.prices) for attempt in run.attempts]
    return None if None in spent else sum(each for each in spent if each is not None)


def as_detail(notice: Notice) -> dict[str, Any]:
    """The notice as the detail of a `Rerail Notice` event: every field, as JSON types, times in ISO 8601."""
    values = {f.name: getattr(notice, f.name) for f in fields(notice)}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}


def read_detail(detail: Mapping[str, Any]) -> Notice:
    """The notice that `as_detail` wrote, here or in another version; raises BadRecord that names the field."""
    known = {"runbook": Runbook.INFORMED} if detail.get("runbook") not in list(Runbook) else {}
    notice: Notice = read_plain(Notice, {**detail, **known})
    for name, kinds in KINDS.items():
        value = getattr(notice, name)
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise BadRecord(f"Notice.{name} is {value!r:.100}; it must be {SPOKEN[kinds]}")
    return replace(notice, at=_of_utc(notice.at), since=_of_utc(notice.since), by=_of_utc(notice.by))


def truncate(text: str, limit: int) -> str:
    """The text, cut to so many characters, as one can see."""
    return text if len(text) <= limit else f"{text[: limit - 3].rstrip()}..."


def _of_utc(time: datetime | None) -> datetime | None:
    """A time that names no zone is UTC's: whoever puts a notice on the bus by hand may leave it out. One that nobody
    can reckon with is left out too: it keeps no page from being told."""
    if time is None:
        return None
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    return time if EARLIEST <= time < LATEST else None


def _words(tell: Notify) -> dict[str, Any]:
    return {
        "severity": tell.severity,
        "title": truncate(tell.title, TITLE_LIMIT),
        "body": truncate(tell.body, TEXT_LIMIT),
        "key": tell.key,
        "since": tell.since,
        "did": truncate(tell.did, TEXT_LIMIT),
        "todo": truncate(tell.todo, TEXT_LIMIT),
        "by": tell.by,
        "runbook": tell.runbook,
        "clears": tell.clears,
    }
