"""Policies: every threshold and budget of a supervised job, read from TOML and checked."""

import difflib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, assert_never, get_type_hints

from rerail.model.causes import Cause
from rerail.model.checkpoint_intervals import MACHINE_MTBF, SaveInterval
from rerail.model.errors import PolicyError
from rerail.model.machines import read_fallback
from rerail.model.metrics import MetricNames
from rerail.model.thresholds import RETIRED_THRESHOLDS, PlannedChange, Thresholds, find_zero, read_planned

DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
FALLBACKS_LIMIT = 10
TYPE_DESCRIPTIONS = {bool: "true or false", str: "text in quotes"}
UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# Fields of policies that earlier versions accepted: under another name, or without effect now.
FORMER_FIELDS = {"hyperpod.tell": "notify_for", "mailbox.sealed_only": "signed_only"}
RETIRED_FIELDS = frozenset(
    (
        "weighing",
        "detection.rise_mended",
        "detection.spike_mended",
        *(f"detection.{name}" for name in RETIRED_THRESHOLDS),
    )
)
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}")
INSTANCE_TYPE = re.compile(r"ml\.[a-z0-9-]{1,20}\.[a-z0-9-]{1,20}")
PRICES_LIMIT = 20
CAUSES_LIMIT = 20
# The causes that a policy may give to a text: the others come with facts that a text lacks, such as a checkpoint.
NAMED_CAUSES = (Cause.INFRASTRUCTURE, Cause.HARDWARE, Cause.USER_CODE, Cause.DATA, Cause.OOM)
NAMES_LIMIT = 10
COPIES_LIMIT = 20


class Mode(StrEnum):
    """What a policy lets Rerail do."""

    ACT = "act"
    APPROVE = "approve"  # stops and relaunches need an operator's approval
    OBSERVE = "observe"  # detect and report, but never act
    PAUSE = "pause"  # postpone everything that would stop or create a job


class OnMaxRuntime(StrEnum):
    """The reaction to a job that reached its own MaxRuntimeInSeconds."""

    STOP = "stop"
    RELAUNCH = "relaunch"


class MaxRuntime(StrEnum):
    """Whether a request's MaxRuntimeInSeconds applies to the whole run or to each attempt."""

    PER_RUN = "per_run"
    PER_ATTEMPT = "per_attempt"


class OnExpiry(StrEnum):
    """The treatment of a proposal that was not answered in time."""

    ACT = "act"
    HOLD = "hold"


class OnDoubtfulEnd(StrEnum):
    """The reaction to a completed job whose log ends with an error, or that did not do half of its steps."""

    INFORM = "inform"
    FAIL = "fail"  # as to a failed job


class OnAlarm(StrEnum):
    """The reaction to a CloudWatch alarm that the user set on the job."""

    INFORM = "inform"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class Retries:
    """The failures in a row of each cause that a run may have before it is held; progress resets all counts.

    Unknown causes have no budget of their own: the limits on progress, restart storms and attempts bound them.
    """

    infrastructure: int = 10
    hardware: int = 10
    hang: int = 3
    diverged: int = 8
    user_code: int = 1
    data: int = 1
    # Each quarantines one checkpoint and resumes from the one before.
    damaged_checkpoint: int = 3
    oom: int = 0
    # Older failures no longer count; 0: all failures since the last progress count.
    window: timedelta = timedelta(hours=24)

    def of(self, cause: Cause) -> int | None:
        """Return the budget of a cause, or None if it has none of its own."""
        match cause:
            case Cause.INFRASTRUCTURE:
                return self.infrastructure
            case Cause.HARDWARE:
                return self.hardware
            case Cause.HANG:
                return self.hang
            case Cause.DIVERGED:
                return self.diverged
            case Cause.USER_CODE:
                return self.user_code
            case Cause.DATA:
                return self.data
            case Cause.DAMAGED_CHECKPOINT:
                return self.damaged_checkpoint
            case Cause.OOM:
                return self.oom
            case Cause.CAPACITY | Cause.UNKNOWN:  # bounded by time, and by progress
                return None
        assert_never(cause)  # a new cause without a line here would be retried without a bound


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that apply whatever the cause; 0 disables a limit in dollars and the limit on the account's relaunches."""

    # Jobs per run.
    attempts: int = 50
    # Attempts in a row that trained, failed and left no newer checkpoint.
    attempts_without_progress: int = 3
    # This many launches within `starts_window` are a restart storm.
    starts: int = 5
    starts_window: timedelta = timedelta(minutes=30)
    # Restarts for alarms within `retries.window`, whatever the progress; further alarms are only notified.
    alarm_restarts: int = 3
    # The cost of all attempts of a run, and of the attempts since an incident began.
    run_dollars: float = 0.0
    incident_dollars: float = 0.0
    # The cost of all attempts of a run at which its running job is saved and stopped too.
    stop_dollars: float = 0.0
    # Relaunches of all runs of the account within `account_window`.
    account_relaunches: int = 100
    account_window: timedelta = timedelta(hours=1)
    # The last attempt gets at least this much run time.
    least_runtime: timedelta = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter: uniform between 0 and `base` doubled for each failure, at most `cap`."""

    base: timedelta = timedelta(seconds=30)
    cap: timedelta = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class Capacity:
    """Waiting for machines; it costs time, but no attempts."""

    # How long a run waits before it is held.
    wait: timedelta = timedelta(hours=12)
    # Backoff between two launches.
    base: timedelta = timedelta(minutes=2)
    cap: timedelta = timedelta(minutes=20)
    # How long a run waits before it tries the fallback machines.
    fallback_after: timedelta = timedelta(minutes=30)
    # Other instance types and subnets, tried in this order.
    fallbacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SaveTimeouts:
    """Timeouts of a planned stop that waits for a checkpoint."""

    # Until the agent has acknowledged the command.
    answer: timedelta = timedelta(minutes=2)
    # Until the checkpoint is complete; then the job is stopped without it.
    deadline: timedelta = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class CopyPolicy:
    """Copies of files that a script overwrites in place; made only where `quarantineFolders` lists the folder."""

    # The newest copies of each file that are kept; 0: none are made.
    keep: int = 3
    # The least time from the save that was copied last to the next copy.
    every: timedelta = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class MailboxPolicy:
    """Which messages from agents are accepted."""

    # Ignore unsigned reports of jobs that were given no key too, instead of showing them to people.
    signed_only: bool = False


@dataclass(frozen=True, slots=True)
class InPlacePolicy:
    """Restarts of the training processes within the running job."""

    # Restart in place if no other machine is needed; False: always launch a new job.
    in_place: bool = True
    # In-place restarts per attempt.
    per_attempt: int = 3
    # How long the agent's init may take until the processes run again.
    deadline: timedelta = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Approval:
    """Expiry of proposals that wait for an operator."""

    wait: timedelta = timedelta(minutes=30)
    # While a job is running.
    on_expiry: OnExpiry = OnExpiry.HOLD
    # While no job is running.
    on_expiry_dead: OnExpiry = OnExpiry.ACT


@dataclass(frozen=True, slots=True)
class Advice:
    """The assumptions behind the checkpoint interval and the estimated cost of a relaunch.

    No decision depends on them; relaunched jobs get the mean time between failures that follows.
    """

    # Mean time between failures of one machine, used until the run has data of its own.
    machine_mtbf: timedelta = MACHINE_MTBF
    # From the creation of a job to its training, used until the run has a start of its own: queue, download, start-up.
    startup: timedelta = timedelta(minutes=5)
    # From the end of a save to its arrival in S3.
    upload: timedelta = timedelta()
    # Where `startup` and `upload` come from, in words; empty: assumed.
    source: str = ""


@dataclass(frozen=True, slots=True)
class Notices:
    """When notices are sent or repeated."""

    # A page that is still open is sent again after this; 0: never.
    refire: timedelta = timedelta(hours=4)
    # A run of which not everything is watched is reported after this time in training; 0: never.
    unwatched_after: timedelta = timedelta(minutes=10)


class WhichClusters(StrEnum):
    """The HyperPod clusters that notices are sent for: all, those that an open run needs, or none."""

    ALL = "all"
    NEEDED = "needed"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ClusterPolicy:
    """Notices about HyperPod clusters; read from the policy `default` only."""

    notify_for: WhichClusters = WhichClusters.ALL
    # A lasting condition that HyperPod reports again is sent again after this; 0: never.
    again: timedelta = timedelta(hours=4)
    # How long HyperPod may repair a part before that is reported; 0: never.
    patience: timedelta = timedelta(hours=2)
    # Notices of each severity for the parts of one cluster within an hour.
    most: int = 10


@dataclass(frozen=True, slots=True)
class Ladder:
    """The rollback ladder for a loss that does not recover; see rollback_ladder.py."""

    # Roll back to the newest clean checkpoint at least this many steps before the onset.
    margin_steps: int = 100
    # A loss that goes wrong again within this many steps is the same problem and takes the next rung.
    near_steps: int = 500
    # Batches to skip around the onset, and on the far_skip rung.
    skip_batches: int = 200
    far_skip_batches: int = 500
    # Each cut multiplies the learning rate by this factor, but not below the share `least_rate`.
    rate_factor: float = 0.9
    least_rate: float = 0.5
    # How often each rung is tried for one problem; 0 leaves the rung out.
    replays: int = 1
    skips: int = 1
    far_skips: int = 1
    lower_rates: int = 1


@dataclass(frozen=True, slots=True)
class Policy:
    """All settings that may differ between supervised jobs."""

    name: str = "default"
    mode: Mode = Mode.ACT
    # If several runs wait to be launched, those with a higher priority go first.
    priority: int = 50
    on_max_runtime: OnMaxRuntime = OnMaxRuntime.STOP
    on_doubtful_end: OnDoubtfulEnd = OnDoubtfulEnd.INFORM
    on_alarm: OnAlarm = OnAlarm.INFORM
    # Alarms on metrics outside SageMaker's namespace that may restart too, by name.
    alarms: tuple[str, ...] = ()
    max_runtime: MaxRuntime = MaxRuntime.PER_RUN
    retries: Retries = field(default_factory=Retries)
    limits: Limits = field(default_factory=Limits)
    approval: Approval = field(default_factory=Approval)
    notices: Notices = field(default_factory=Notices)
    hyperpod: ClusterPolicy = field(default_factory=ClusterPolicy)
    advice: Advice = field(default_factory=Advice)
    backoff: Backoff = field(default_factory=Backoff)
    capacity: Capacity = field(default_factory=Capacity)
    save: SaveTimeouts = field(default_factory=SaveTimeouts)
    interval: SaveInterval = field(default_factory=SaveInterval)
    copies: CopyPolicy = field(default_factory=CopyPolicy)
    mailbox: MailboxPolicy = field(default_factory=MailboxPolicy)
    restart: InPlacePolicy = field(default_factory=InPlacePolicy)
    ladder: Ladder = field(default_factory=Ladder)
    metrics: MetricNames = field(default_factory=MetricNames)
    detection: Thresholds = field(default_factory=Thresholds)
    # Dollars per machine-hour by instance type; they override prices.py.
    prices: Mapping[str, float] = field(default_factory=dict)
    # Causes of failures by a text of the failure reason or the log; they override the diagnosis.
    causes: Mapping[str, Cause] = field(default_factory=dict)

    def scaled(self, factor: float) -> "Policy":
        """Return a copy with every duration divided by `factor`, for a clock that runs that much faster."""
        scaled: Policy = _scaled(self, factor)
        return scaled


def parse_policy(text: str, *, name: str) -> Policy:
    """Return the policy in a TOML text; raise PolicyError that names the field and the remedy if it is invalid."""
    if not NAME.fullmatch(name):
        raise PolicyError(f"policy {name!r}: the name must be 1-63 letters, digits, '.', '_' or '-'")
    try:
        table = tomllib.loads(text)
        repr(table)  # a number of more digits than Python writes could not be quoted in an error either
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"policy {name!r} is not valid TOML: {error}") from error
    if "name" in table:
        raise PolicyError(f"policy {name!r}: field 'name' is taken from the file's name; remove it")
    policy: Policy = _read(Policy, table, where=f"policy {name!r}", path="")
    if not 0 < policy.ladder.rate_factor < 1:
        what = f"field 'ladder.rate_factor' is {policy.ladder.rate_factor}; it must be a number between 0 and 1"
        raise PolicyError(f"policy {name!r}: {what}, such as 0.9")
    if zero := find_zero(policy.detection):
        raise PolicyError(f"policy {name!r}: field 'detection.{zero}' is 0; it must be above 0")
    if not 0 < policy.interval.most_share <= 1:
        what = f"field 'interval.most_share' is {policy.interval.most_share}; it must be a number above 0, at most 1"
        raise PolicyError(f"policy {name!r}: {what}, such as 0.05; automatic = false turns the interval off")
    if policy.copies.keep > COPIES_LIMIT:
        what = f"field 'copies.keep' is {policy.copies.keep}; it must be a whole number from 0 to {COPIES_LIMIT}"
        raise PolicyError(f"policy {name!r}: {what}")
    return replace(policy, name=name)


def to_toml(policy: Policy) -> str:
    """Return the policy as TOML text that `parse_policy` reads back unchanged."""
    plain, sections = [], []
    for f in fields(policy):
        value = getattr(policy, f.name)
        if is_dataclass(value):
            rows = "".join(f"{g.name} = {_format_literal(getattr(value, g.name))}\n" for g in fields(value))
            sections.append(f"\n[{f.name}]\n{rows}")
        elif isinstance(value, Mapping):
            rows = "".join(f"{_format_literal(key)} = {_format_literal(item)}\n" for key, item in value.items())
            sections.append(f"\n[{f.name}]\n{rows}" if rows else "")
        elif f.name != "name":
            plain.append(f"{f.name} = {_format_literal(value)}\n")
    return "".join(plain + sections)


def _format_literal(value: Any) -> str:
    if isinstance(value, timedelta):
        return f'"{value.total_seconds():.6f}'.rstrip("0").rstrip(".") + 's"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_format_literal, value))}]"
    if isinstance(value, PlannedChange):
        return f"{{step = {value.step}, what = {_format_literal(value.what)}}}"
    if not isinstance(value, str):
        return repr(value)
    # TOML has JSON's escapes, but no halves of a character, and no DEL.
    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if " " <= c <= "~" else f"\\U{ord(c):08X}" for c in text)


def _read(cls: type[Any], table: Mapping[str, Any], *, where: str, path: str) -> Any:
    known = {f.name: f for f in fields(cls)}
    hints = get_type_hints(cls)
    values = {}
    for given, value in table.items():
        if path + given in RETIRED_FIELDS:
            continue
        key = FORMER_FIELDS.get(path + given, given)
        if key != given and key in table:
            raise PolicyError(f"{where}: field '{path}{given}' is called '{path}{key}' now; remove the former name")
        if key not in known:
            raise PolicyError(f"{where}: unknown field '{path}{key}'; {_suggest_field(key, known)}")
        values[key] = _read_value(hints[key], value, where=where, path=f"{path}{key}")
    return cls(**values)


def _read_value(kind: Any, value: Any, *, where: str, path: str) -> Any:
    if is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise PolicyError(f"{where}: field '{path}' must be a table, written [{path}]")
        return _read(kind, value, where=where, path=f"{path}.")  # type: ignore[arg-type]
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        allowed = [member.value for member in kind]
        if value not in allowed:
            raise PolicyError(f"{where}: field '{path}' is {value!r:.200}; it must be one of {', '.join(allowed)}")
        return kind(value)
    if kind is timedelta:
        return _read_duration(value, where=where, path=path)
    if kind == tuple[str, ...]:
        return (_read_names if path == "alarms" else _read_fallbacks)(value, where=where, path=path)
    if kind == tuple[PlannedChange, ...]:
        return _read_planned(value, where=where, path=path)
    if kind == Mapping[str, float]:
        return _read_prices(value, where=where, path=path)
    if kind == Mapping[str, Cause]:
        return _read_causes(value, where=where, path=path)
    if kind in (bool, str):
        if not isinstance(value, kind):
            raise PolicyError(f"{where}: field '{path}' is {value!r:.200}; it must be {TYPE_DESCRIPTIONS[kind]}")
        return value
    if kind is float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1_000_000:
            raise PolicyError(f"{where}: field '{path}' is {value!r:.200}; it must be a number from 0 to 1,000,000")
        return float(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 1_000_000:
        raise PolicyError(f"{where}: field '{path}' is {value!r:.200}; it must be a whole number from 0 to 1,000,000")
    return value


def _read_fallbacks(value: Any, *, where: str, path: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value) or len(value) > FALLBACKS_LIMIT:
        raise PolicyError(
            f"{where}: field '{path}' is {value!r:.200}; it must be a list of at most {FALLBACKS_LIMIT} texts such as "
            '["ml.p4de.24xlarge", "subnet-0a1b2c3d"]'
        )
    for number, item in enumerate(value):
        try:
            read_fallback(item)
        except ValueError as error:
            what = f"field '{path}[{number}]' is {item!r:.100}"
            raise PolicyError(f"{where}: {what}: {error}; correct or remove it") from error
    return tuple(" ".join(item.split()) for item in value)


def _read_names(value: Any, *, where: str, path: str) -> tuple[str, ...]:
    is_valid = isinstance(value, list) and all(isinstance(item, str) and 0 < len(item) <= 255 for item in value)
    if not is_valid or len(value) > NAMES_LIMIT:
        what = f"it must be a list of at most {NAMES_LIMIT} names of alarms"
        raise PolicyError(f"{where}: field '{path}' is {value!r:.200}; {what}")
    return tuple(value)


def _read_planned(value: Any, *, where: str, path: str) -> tuple[PlannedChange, ...]:
    try:
        return read_planned(value)
    except ValueError as error:
        raise PolicyError(f"{where}: field '{path}' is {value!r:.200}; {error}") from error


def _read_prices(value: Any, *, where: str, path: str) -> dict[str, float]:
    if not isinstance(value, Mapping) or len(value) > PRICES_LIMIT:
        limit = f"of at most {PRICES_LIMIT} prices"
        raise PolicyError(f"{where}: field '{path}' must be a table, written [{path}], {limit}")
    for key in value:
        if not INSTANCE_TYPE.fullmatch(key):
            remedy = 'it must be an instance type, written "ml.p5.48xlarge" = 63.30'
            raise PolicyError(f"{where}: field '{path}' names {key!r:.100}; {remedy}")
    return {key: _read_value(float, price, where=where, path=f"{path}.{key}") for key, price in value.items()}


def _read_causes(value: Any, *, where: str, path: str) -> dict[str, Cause]:
    example = 'written "NCCL WARN Call to bind failed" = "infrastructure"'
    if not isinstance(value, Mapping) or len(value) > CAUSES_LIMIT:
        limit = f"of at most {CAUSES_LIMIT} texts"
        raise PolicyError(f"{where}: field '{path}' must be a table, written [{path}], {limit}")
    for text, cause in value.items():
        if not 4 <= len(text.strip()) <= 100 or not text.isprintable():
            what = f"it must be a text of 4 to 100 characters on one line, {example}"
            raise PolicyError(f"{where}: field '{path}' names {text!r:.110}; {what}")
        if cause not in NAMED_CAUSES:
            what = f"it must be one of {', '.join(NAMED_CAUSES)}"
            raise PolicyError(f"{where}: field '{path}' gives {text!r:.110} the cause {cause!r:.50}; {what}")
    return {text.strip(): Cause(cause) for text, cause in value.items()}


def _read_duration(value: Any, *, where: str, path: str) -> timedelta:
    match = DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if not match or len(match[1]) > 20:
        raise PolicyError(
            f'{where}: field \'{path}\' is {value!r:.200}; it must be a duration such as "90s", "15m" or "12h"'
        )
    seconds = float(match[1]) * UNIT_SECONDS[match[2]]
    if seconds > 366 * 86400:
        raise PolicyError(f"{where}: field '{path}' is {value!r:.200}; it must be at most a year")
    return timedelta(seconds=seconds)


def _suggest_field(key: str, known: Mapping[str, Field[Any]]) -> str:
    names = [name for name in known if name != "name"]
    close = difflib.get_close_matches(key, names, n=1)
    return f"did you mean '{close[0]}'?" if close else f"the fields here are {', '.join(names)}"


def _scaled(value: Any, factor: float) -> Any:
    if isinstance(value, timedelta):
        return value / factor
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _scaled(getattr(value, f.name), factor) for f in fields(value)})
    return value
