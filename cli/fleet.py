"""The fleet as it is now: every run with what matters of it, the pause, and whether the supervisor is well.

Open and held runs are looked up each time, all others once a minute: they do not change, and their records lie among
those of every decision ever made."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from cli import place
from cli.place import Place
from rerail.accounting.goodput import make_account
from rerail.decisions.checkpoint_health import find_open_onset, find_open_warning
from rerail.decisions.decision import find_manifest_key, format_next_command, format_stop, select_known
from rerail.decisions.in_place_restart import find_newest_restart
from rerail.decisions.shared_errors import find_shareable_error
from rerail.detection.evaluate import RunDetection
from rerail.model.errors import RerailError
from rerail.model.policy import Mode, Policy
from rerail.model.run import LaunchCheck, Run, RunState
from rerail.ports import policy_of
from rerail.supervisor.pause import parse_pause

SCANNED_EVERY = timedelta(minutes=1)
# So many heartbeats are read in about a second; of more runs, what the sweep has noted of them a minute ago must do.
MOST_HEARTBEATS = 200
# Of so many ended runs the checkpoints are listed, once each.
MOST_LISTED = 20
ENDS = (RunState.COMPLETED, RunState.STOPPED)
# Advice often ends so; the command says it.
RELEASE = ", then release the run"


@dataclass(frozen=True, slots=True)
class FleetRow:
    """One run as people look at it: `since` is when its state began, `step_at` when its newest step was done, `share`
    its goodput, `todo` what somebody has to do, and `command` the one that follows."""

    run: Run
    since: datetime | None
    step: int | None
    step_at: datetime | None
    share: float | None
    dollars: float | None
    todo: str = ""
    command: str = ""

    @property
    def is_open(self) -> bool:
        """Something may still come of it: it goes on, or a human has to look."""
        return self.run.state not in ENDS


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """All of it at a moment; `paused` says whether Rerail is paused, None if unknown; `alarms` are what is
    wrong with the supervisor by its own alarms, None where nobody could ask; `unread` are the runs whose records
    another version has written."""

    at: datetime
    name: str
    rows: tuple[FleetRow, ...]
    paused: bool | None
    alarms: tuple[str, ...] | None
    unread: tuple[str, ...] = ()

    @property
    def counts(self) -> Mapping[str, int]:
        """How many runs there are in each state, in the order of a run's life."""
        counted = Counter(row.run.state for row in self.rows)
        return {state.value: counted[state] for state in RunState if counted[state]}

    @property
    def shared_errors(self) -> Mapping[str, list[str]]:
        """Return the runs that are held or wait after the same error, by that error; for two runs or more."""
        found: dict[str, tuple[str, list[str]]] = {}
        for run in (row.run for row in self.rows if row.run.state in (RunState.HELD, RunState.WAITING)):
            failed = run.current if run.state is RunState.HELD else run.attempts[-2:][0]
            if error := find_shareable_error(run, failed):
                found.setdefault(failed.fingerprint, (error, []))[1].append(run.id)
        return {error: sorted(ids) for error, ids in found.values() if len(ids) > 1}


@dataclass
class FleetReader:
    """Looks at one deployment, again and again."""

    where: Place
    _ended: dict[str, Run] = field(default_factory=dict)
    _open: set[str] = field(default_factory=set)
    _scanned_at: datetime | None = None
    _unread: tuple[str, ...] = ()
    # Step and time of the newest checkpoint of each ended run; None: there is none, or it cannot be read.
    _saved: dict[str, tuple[int, datetime] | None] = field(default_factory=dict)

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
        rows = sorted((self._row(run, steps.get(run.id), at, paused) for run in runs), key=_order)
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
            if run.current.job_name not in self._saved:
                self._saved[run.current.job_name] = _find_newest_save(run)
        return [_with_save(row, self._saved.get(row.run.current.job_name)) for row in rows]

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

    def _steps(self, runs: Sequence[Run]) -> dict[str, tuple[int, datetime | None]]:
        """The newest step of each, and when it was done: by its heartbeat, or as the sweep has noted it."""
        from rerail.aws.detector_states import DynamoDetections
        from rerail.aws.mailbox import S3Mailbox

        found = {}
        memories = DynamoDetections(self._table).recall([run.id for run in runs])
        for run in runs:
            if (memory := memories.get(run.id)) and (known := _noted(run, memory)):
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

    def _row(
        self, run: Run, known: tuple[int, datetime | None] | None, at: datetime, paused: bool | None = None
    ) -> FleetRow:
        policy = self._policy(run)
        account = make_account(run, at, policy)
        step, step_at = known or _last_step(run)
        todo, command = map(self.where.complete_text, find_todo(run, policy, paused=paused))
        return FleetRow(run, find_state_start(run), step, step_at, account.share, account.dollars, todo, command)

    def _policy(self, run: Run) -> Policy:
        """The run's; where it cannot be read, the defaults, so that one bad policy hides no run."""
        try:
            return policy_of(run, self._policies)
        except RerailError:
            return Policy(name=run.policy)

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


def find_state_start(run: Run) -> datetime | None:
    """When the run's state began, as far as its record tells."""
    attempt, incident = run.current, run.incidents[-1] if run.incidents else None
    match run.state:
        case RunState.SAVING | RunState.STOPPING:
            return run.stop.asked_at if run.stop else None
        case RunState.RESTARTING:
            return attempt.in_place_restarts[-1].asked_at if attempt.in_place_restarts else None
        case RunState.WATCHING:
            restarted = [order.restarted_at for order in attempt.in_place_restarts if order.restarted_at]
            return restarted[-1] if restarted else attempt.training_started_at
        case RunState.HELD if incident and incident.closed_at and not incident.recovered:
            return incident.closed_at
        case RunState.WAITING:
            return run.attempts[-2].ended_at if len(run.attempts) > 1 else run.created_at
        case RunState.STARTING:
            return attempt.created_at or (run.ledger.starts[-1] if run.ledger.starts else run.created_at)
    return attempt.ended_at


def find_todo(run: Run, policy: Policy, *, paused: bool | None) -> tuple[str, str]:
    """Return what a human has to do, if anything, and the command that follows; `paused` is None if unknown."""
    if run.proposal and run.proposal.awaits is LaunchCheck.APPROVAL:
        asked = run.proposal
        return (
            f"{asked.what}? ({asked.why}) {format_stop(run)}".rstrip(),
            f"rerail approve {run.id} --proposal {asked.id}",
        )
    if run.state is RunState.HELD:
        todo = (run.hold_advice.removesuffix(RELEASE) or run.hold_reason, format_stop(run))
        return ". ".join(filter(None, todo)), format_next_command(run)
    if run.blocked_by is LaunchCheck.PAUSE or (run.stop and run.stop.is_deferred):
        if policy.mode is Mode.PAUSE:
            return f"it waits until its policy {policy.name} has another mode than pause", f"rerail show {run.id}"
        # A lifted pause is noticed within two minutes.
        return ("", "") if paused is False else ("it waits until the pause is lifted", "rerail resume")
    is_asked = run.observe_only or (run.last_policy and run.last_policy.mode is not Mode.ACT)
    if is_asked and find_open_onset(run) is not None and (warning := find_open_warning(run)):
        return f"{warning}. {format_stop(run)}", f"rerail show {run.id}"
    return "", ""


def _noted(run: Run, memory: RunDetection) -> tuple[int, datetime | None] | None:
    """What the sweep has noted of the job that runs now."""
    if memory.cursor.job != run.current.job_name:
        return None
    liveness, cursor = memory.detectors.liveness, memory.cursor
    # The detectors' last row may be an earlier attempt's.
    step = max((s for s in (liveness.step, cursor.seen_step) if s is not None), default=None)
    return None if step is None else (step, liveness.moved_at or cursor.seen_at)


def _last_step(run: Run) -> tuple[int | None, datetime | None]:
    """Return the last step of a job that has ended, or the first since a restart in place, and its time."""
    attempt = run.current
    if attempt.ended_at is None:
        order = find_newest_restart(run)
        return (order.first_step, order.stepped_at) if order else (None, None)
    if attempt.last_step is not None:
        return attempt.last_step, attempt.ended_at
    before = run.attempts[-2].ended_at if len(run.attempts) > 1 else None
    return attempt.resumed_from_step, before if attempt.resumed_from_step is not None else None


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


def _order(row: FleetRow) -> tuple[bool, bool, float]:
    """Those that wait for a human first, then those under way, the newest first; ended ones last."""
    newest = (row.run.current.ended_at or row.run.created_at) if not row.is_open else row.run.created_at
    return (not row.is_open, not row.todo, -newest.timestamp())


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
