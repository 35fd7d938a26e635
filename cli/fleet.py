"""The fleet as it is now: every run with what matters of it, the pause, and whether the supervisor is well.

Open and held runs are looked up each time, all others once a minute: they do not change, and their records lie among
those of every decision ever made."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from cli import place
from cli.place import Place
from rerail.decisions.decision import find_manifest_key, select_known
from rerail.incident_report.fleet import (
    FleetRow,
    FleetStatus,
    SeenStep,
    find_noted_step,
    find_policy,
    find_sort_key,
    make_row,
)
from rerail.model.errors import RerailError
from rerail.model.run import Run, RunState
from rerail.supervisor.pause import parse_pause

SCANNED_EVERY = timedelta(minutes=1)
# So many heartbeats are read in about a second; of more runs, what the sweep has noted of them a minute ago must do.
MOST_HEARTBEATS = 200
# Of so many ended runs the checkpoints are listed, once each.
MOST_LISTED = 20


@dataclass
class FleetReader:
    """Looks at one deployment, again and again."""

    where: Place
    _ended: dict[str, Run] = field(default_factory=dict)
    _open: set[str] = field(default_factory=set)
    _scanned_at: datetime | None = None
    _unread: tuple[str, ...] = ()
    # Step and time of the newest checkpoint, by run and ended job; None: there is none, or it cannot be read.
    _saved: dict[tuple[str, str], tuple[int, datetime] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from rerail.aws.ssm import SsmPolicies

        self._policies = SsmPolicies(self.where.outputs["PolicyPrefix"], place.now)
        self._table = self.where.outputs["TableName"]

    def read(self) -> FleetStatus:
        """Everything as it is now."""
        at = place.now()
        runs = self._runs(at)
        steps = self._steps([run for run in runs if run.is_open])
        paused = self._paused()
        rows = sorted((self._row(run, steps.get(run.id), at, paused) for run in runs), key=find_sort_key)
        return FleetStatus(at, self.where.name, tuple(rows), paused, self._alarms(), self._unread)

    def read_row(self, run: Run) -> FleetRow:
        """One run as it is now."""
        known = self._steps([run]).get(run.id) if run.is_open else None
        return self.with_saved_steps([self._row(run, known, place.now())])[0]

    def with_saved_steps(self, rows: Sequence[FleetRow]) -> list[FleetRow]:
        """The rows, of ended jobs with the step of the newest checkpoint where no later one is known.

        A job's last metrics arrive late or not at all, and its record is closed by then.
        """
        ended = [row.run for row in rows if row.run.checkpoint_uri and row.run.current.ended_at]
        for run in ended[:MOST_LISTED]:
            if (key := (run.id, run.current.job_name)) not in self._saved:
                self._saved[key] = _find_newest_save(run)
        return [_with_save(row, self._saved.get((row.run.id, row.run.current.job_name))) for row in rows]

    def _runs(self, at: datetime) -> Sequence[Run]:
        if self._scanned_at is None or at - self._scanned_at >= SCANNED_EVERY:
            self._scanned_at = at
            there = dict(self.where.runs.all_runs())
            self._unread = tuple(sorted(name for name, run in there.items() if run is None))
            found = {name: run for name, run in there.items() if run}
            self._known(found)
            return list(found.values())
        now = {name: run for name, run in self.where.runs.open_runs() if run}
        for name in self._open - now.keys():  # it has ended since
            if run := self.where.runs.load(name):
                self._ended[name] = run
        over = {name: run for name, run in self._ended.items() if name not in now}
        self._known({**now, **over})
        return [*now.values(), *over.values()]

    def _known(self, found: Mapping[str, Run]) -> None:
        self._ended = {name: run for name, run in found.items() if not run.is_open}
        self._open = {name for name, run in found.items() if run.is_open}

    def _steps(self, runs: Sequence[Run]) -> dict[str, SeenStep]:
        """The newest step of each, and when it was done: by its heartbeat, or as the sweep has noted it."""
        from rerail.aws.detector_states import DynamoDetections
        from rerail.aws.mailbox import S3Mailbox

        found = {}
        memories = DynamoDetections(self._table).recall([run.id for run in runs])
        for run in runs:
            if (memory := memories.get(run.id)) and (known := find_noted_step(run, memory)):
                found[run.id] = known
        beating = {run.mailbox: run for run in runs if run.current.agent and run.current.may_be_live}
        bucket = self.where.outputs.get("MailboxBucket")
        if not bucket or not 0 < len(beating) <= MOST_HEARTBEATS:
            return found
        keys = {folder: run.signing_key for folder, run in beating.items()}
        for folder, received in S3Mailbox(bucket).heartbeats(list(beating), keys).received.items():
            run, heartbeat = beating[folder], received.heartbeat
            if not received.is_signed:
                continue  # it may be anybody's
            if heartbeat.step is not None and heartbeat.attempt == run.current.number:
                found[run.id] = heartbeat.step, received.at
        return found

    def _row(self, run: Run, seen: SeenStep | None, at: datetime, paused: bool | None = None) -> FleetRow:
        row = make_row(run, find_policy(run, self._policies), at, seen, paused=paused)
        return replace(row, todo=self.where.complete_text(row.todo), command=self.where.complete_text(row.command))

    def _paused(self) -> bool | None:
        """Return whether Rerail is paused; None if the parameter cannot be read or is not valid."""
        name = self.where.outputs.get("PauseParameter")
        if not name:
            return False
        try:
            return parse_pause(self.where.client("ssm").get_parameter(Name=name)["Parameter"]["Value"])
        except (ClientError, BotoCoreError):
            return None

    def _alarms(self) -> tuple[str, ...] | None:
        """What the supervisor's own alarms say of it; a metric that nobody has published yet says nothing."""
        try:
            pages = self.where.client("cloudwatch").get_paginator("describe_alarms")
            asked = pages.paginate(AlarmNamePrefix=f"{place.STACK}-", StateValue="ALARM")
            found = [alarm for page in asked for alarm in page["MetricAlarms"]]
        except (ClientError, BotoCoreError):
            return None
        return tuple(_said(alarm) for alarm in found)


def _find_newest_save(run: Run) -> tuple[int, datetime] | None:
    from rerail.aws.s3 import S3Checkpoints

    try:
        found = S3Checkpoints().list_checkpoints(run.checkpoint_uri, signing_key=find_manifest_key(run))
    except (RerailError, ClientError, BotoCoreError):
        return None
    return max(((save.step, save.saved_at) for save in select_known(run, found) if save.is_whole), default=None)


def _with_save(row: FleetRow, saved: tuple[int, datetime] | None) -> FleetRow:
    is_newer = saved is not None and (row.step is None or saved[0] > row.step)
    return replace(row, step=saved[0], step_at=saved[1]) if saved and is_newer else row


def _said(alarm: Mapping[str, Any]) -> str:
    words = str(alarm.get("AlarmDescription") or alarm["AlarmName"]).removeprefix("Rerail: ")
    return " ".join(words.split())


def select_rows(
    rows: Sequence[FleetRow], *, states: Sequence[RunState], policy: str, ended: int | None
) -> Iterator[FleetRow]:
    """The rows that were asked for; of those that are over, only so many (None: all)."""
    shown = 0
    for row in rows:
        if (states and row.run.state not in states) or (policy and row.run.policy != policy):
            continue
        if not row.is_open and ended is not None and not states:
            if shown >= ended:
                continue
            shown += 1
        yield row
