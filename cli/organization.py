"""`rerail status --organization`: the newest event of each run in all accounts, as the hub has logged them."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

import typer
from botocore.exceptions import BotoCoreError, ClientError
from rich.table import Table
from rich.text import Text

from cli import place
from cli.console import Console
from cli.runs import STYLES
from cli.trouble import explain
from rerail.messages.cluster_events import clean_text
from rerail.messages.messages import JOB_NAME, RERAIL, RUN_STATE_CHANGE
from rerail.model.formatting import format_dollars
from rerail.model.run import RunState

HUB, LOG_GROUP = "RerailOrganization", "RunEventsLogGroup"
# A run without a state change for so long is not listed.
SINCE, WINDOW = timedelta(days=30), timedelta(days=5)
# A member may send any number.
MOST_EVENTS = 1_000_000
RUN_LIMIT, REASON_LIMIT = 63, 300


@dataclass(frozen=True, slots=True)
class MemberRun:
    """A run, as its newest event describes it."""

    # As EventBridge has written them into the event; the sender cannot.
    account: str
    region: str
    run: str
    # Of two events of one time the later has the larger number. A new run of an old name begins again with 1.
    sequence: int
    at: str
    state: str
    reason: str
    attempts: int
    step: int | None = None
    dollars: float | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """Return what tells a run from all others of the organization."""
        return self.account, self.region, self.run

    @property
    def todo(self) -> str:
        """Return what a person has to do, with the credentials of the run's account; "" for nothing."""
        if self.state != RunState.HELD:
            return ""
        return f"in {self.account}, {self.region}: `rerail show {self.run}`, fix the cause, `rerail release {self.run}`"


def read_event(text: str) -> MemberRun | None:
    """Return the run that a logged event is about; None if it is not a run event of version 1."""
    try:
        event = json.loads(text)
        if (event["source"], event["detail-type"]) != (RERAIL, RUN_STATE_CHANGE):
            return None
        detail = event["detail"]
        run = MemberRun(
            account=clean_text(event["account"], 12),
            region=clean_text(event["region"], 32),
            run=clean_text(detail["run"], RUN_LIMIT),
            sequence=_read_number(detail["sequence"], int),
            at=datetime.fromisoformat(detail["at"]).isoformat(),
            state=RunState(detail["state"]).value,
            reason=clean_text(detail["reason"], REASON_LIMIT),
            attempts=_read_number(detail["attempts"], int),
            step=None if detail.get("step") is None else _read_number(detail["step"], int),
            dollars=None if detail["dollars"] is None else _read_number(detail["dollars"], int, float),
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    # People copy the commands that name the run.
    return run if run.account and run.region and JOB_NAME.fullmatch(run.run) else None


def find_newest(runs: Iterable[MemberRun]) -> dict[tuple[str, str, str], MemberRun]:
    """Return the newest event of each run, whatever the order and repetition of the events."""
    newest: dict[tuple[str, str, str], MemberRun] = {}
    for run in runs:
        known = newest.get(run.key)
        if known is None or (run.at, run.sequence) > (known.at, known.sequence):
            newest[run.key] = run
    return newest


def show_organization(*, as_json: bool) -> None:
    """Print the runs of all accounts; those that wait for a person come first."""
    group = _find_log_group()
    now = place.now()
    since, unread = now - SINCE, 0

    def read_events() -> Iterator[MemberRun]:
        nonlocal since, unread
        for count, (start, text) in enumerate(_list_events(group, now)):
            if count == MOST_EVENTS:
                since = start + WINDOW
                return
            run = read_event(text)
            unread += run is None
            if run:
                yield run

    newest = find_newest(read_events())
    rows = sorted(newest.values(), key=lambda row: (not row.todo, row.account, row.region, row.run))
    if as_json:
        listed = [{**asdict(row), "todo": row.todo} for row in rows]
        typer.echo(json.dumps({"since": since.isoformat(), "unread": unread, "runs": listed}, indent=2))
        return
    console = Console()
    console.print(make_table(rows))
    for row in rows:
        if row.todo:
            console.print(Text.assemble(("to do  ", "bold red"), row.todo, ("  " + row.reason, "dim")))
    if not rows:
        console.print(f"no run of a member has changed its state in {SINCE.days} days")
    if since > now - SINCE:
        console.print(f"more than {MOST_EVENTS:,} events: of those before {since:%d %b %H:%M} UTC some were not read")
    if unread:
        console.print(f"{unread} events are not of this version: update this command line")


def make_table(rows: Iterable[MemberRun]) -> Table:
    """Return a row for each run."""
    table = Table("account", "region", "run", "state", "step", "attempts", "cost", "since", box=None, pad_edge=False)
    for row in rows:
        cost = "" if row.dollars is None else format_dollars(row.dollars)
        step = "" if row.step is None else f"{row.step:,}"
        state = Text(row.state, style=STYLES.get(RunState(row.state), "yellow"))
        table.add_row(row.account, row.region, Text(row.run), state, step, str(row.attempts), cost, row.at[:16])
    return table


def _find_log_group() -> str:
    from local.deploy import outputs_of

    try:
        outputs = outputs_of(place.client("cloudformation"), HUB)
    except (ClientError, BotoCoreError) as error:
        what, remedy = explain(error)
        place.fail(f"cannot read the stack {HUB}: {what}", f"use the credentials of the hub. {remedy}")
    if LOG_GROUP not in outputs:
        remedy = 'set "organizationView": true in cdk.json, then `rerail deploy --organization`'
        place.fail(f"the hub keeps no run events: the stack {HUB} has no output {LOG_GROUP}", remedy)
    return outputs[LOG_GROUP]


def _list_events(group: str, now: datetime) -> Iterator[tuple[datetime, str]]:
    """Yield the logged events with the start of their window, the newest window first."""
    pages = place.client("logs").get_paginator("filter_log_events")
    for end in (now - WINDOW * number for number in range(SINCE // WINDOW)):
        first, last = ((moment.timestamp() * 1000) for moment in (end - WINDOW, end + timedelta(minutes=5)))
        for page in pages.paginate(logGroupName=group, startTime=int(first), endTime=int(last)):
            yield from ((end - WINDOW, event["message"]) for event in page["events"])


def _read_number(value: Any, *types: type) -> Any:
    """Return the number; raise ValueError for anything else, for negative ones, and for those that are not finite."""
    is_number = isinstance(value, (int, float)) and isinstance(value, types) and not isinstance(value, bool)
    if not is_number or not 0 <= value < 1e15:
        raise ValueError(f"{value!r:.100} is not a number of 0 or more")
    return value
