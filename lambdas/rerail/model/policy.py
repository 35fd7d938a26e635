"""Policies: every threshold and budget, read from TOML and checked with one clear error."""

import difflib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, get_type_hints

from rerail.model.causes import Cause
from rerail.model.errors import PolicyError
from rerail.model.machines import read_fallback
from rerail.model.metrics import MetricNames
from rerail.model.thresholds import Thresholds

DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
FALLBACKS_LIMIT = 10
WORDS = {bool: "true or false", str: "text in quotes"}
UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}")
INSTANCE_TYPE = re.compile(r"ml\.[a-z0-9-]{1,20}\.[a-z0-9-]{1,20}")
PRICES_LIMIT = 20


class Mode(StrEnum):
    """What a policy lets Rerail do."""

    ACT = "act"
    APPROVE = "approve"
    OBSERVE = "observe"
    PAUSE = "pause"


class OnMaxRuntime(StrEnum):
    """What to do when a job ran into its own MaxRuntimeInSeconds."""

    STOP = "stop"
    RELAUNCH = "relaunch"


class MaxRuntime(StrEnum):
    """Whether a request's MaxRuntimeInSeconds is for the whole run, or for each attempt anew."""

    PER_RUN = "per_run"
    PER_ATTEMPT = "per_attempt"


class OnExpiry(StrEnum):
    """What becomes of a proposal that nobody has answered."""

    ACT = "act"
    HOLD = "hold"


class OnAlarm(StrEnum):
    """What to do when a CloudWatch alarm of the user's own on the job goes off."""

    INFORM = "inform"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class Retries:
    """How many failures of one cause in a row a run may have before it is held; progress refunds them all, and those
    older than `window` no longer count (0: they count for ever).

    `unknown` has no budget of its own: what we cannot name is bounded by progress, storms and the total alone.
    """

    infrastructure: int = 10
    hardware: int = 10
    hang: int = 3
    diverged: int = 8
    user_code: int = 1
    data: int = 1
    oom: int = 0
    window: timedelta = timedelta(hours=24)

    def of(self, cause: Cause) -> int | None:
        """The budget of a cause, or None where the cause has none of its own."""
        budgets: dict[Cause, int] = {
            Cause.INFRASTRUCTURE: self.infrastructure,
            Cause.HARDWARE: self.hardware,
            Cause.HANG: self.hang,
            Cause.DIVERGED: self.diverged,
            Cause.USER_CODE: self.user_code,
            Cause.DATA: self.data,
            Cause.OOM: self.oom,
        }
        return budgets.get(cause)


@dataclass(frozen=True, slots=True)
class Limits:
    """Brakes that hold whatever the cause; 0 dollars, or relaunches of the account, are no brake."""

    attempts: int = 50
    attempts_without_progress: int = 3
    starts: int = 5
    starts_window: timedelta = timedelta(minutes=30)
    run_dollars: float = 0.0
    incident_dollars: float = 0.0
    account_relaunches: int = 100
    account_window: timedelta = timedelta(hours=1)
    least_runtime: timedelta = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter: uniform between nothing and `base` doubled per failure, at most `cap`."""

    base: timedelta = timedelta(seconds=30)
    cap: timedelta = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class Capacity:
    """Waiting for machines costs time, not attempts; the `fallbacks` are other machines, tried in this order once the
    run has waited for `fallback_after`."""

    wait: timedelta = timedelta(hours=12)
    base: timedelta = timedelta(minutes=2)
    cap: timedelta = timedelta(minutes=20)
    fallback_after: timedelta = timedelta(minutes=30)
    fallbacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SaveTimeouts:
    """How long a planned stop waits: for the agent's word that it has heard of it, and for the checkpoint in all."""

    answer: timedelta = timedelta(minutes=2)
    deadline: timedelta = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class MailboxPolicy:
    """Whether a report or a heartbeat without a seal is passed over from the start, and not only once an agent of the
    run has sealed one (see seals.py)."""

    sealed_only: bool = False


@dataclass(frozen=True, slots=True)
class InPlacePolicy:
    """Whether training processes are restarted in place where no other machine is needed, how often in one attempt, and
    how long the agent's init may take until they run again."""

    in_place: bool = True
    per_attempt: int = 3
    deadline: timedelta = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Approval:
    """How long a proposal waits for a human, and what then becomes of a job that runs and of one that has died."""

    wait: timedelta = timedelta(minutes=30)
    on_expiry: OnExpiry = OnExpiry.HOLD
    on_expiry_dead: OnExpiry = OnExpiry.ACT


@dataclass(frozen=True, slots=True)
class Advice:
    """What is expected of one machine until the run itself has told: its mean time between failures."""

    machine_mtbf: timedelta = timedelta(days=264)


@dataclass(frozen=True, slots=True)
class Notices:
    """After how long a page that still stands is told again; 0 is never."""

    refire: timedelta = timedelta(hours=4)


class WhichClusters(StrEnum):
    """Of which HyperPod clusters people are told: of all, of those that an open run needs, or of none."""

    ALL = "all"
    NEEDED = "needed"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ClusterPolicy:
    """What is told of HyperPod clusters: of which, after how long what lasts is told again where HyperPod repeats it,
    how long HyperPod may mend a part until that is told (0 is never, for both), and how many notices of each kind one
    cluster may cause in an hour. Read of the policy `default`."""

    tell: WhichClusters = WhichClusters.ALL
    again: timedelta = timedelta(hours=4)
    patience: timedelta = timedelta(hours=2)
    most: int = 10


@dataclass(frozen=True, slots=True)
class CostBenefit:
    """Whether waiting for a loss to mend is weighed against a relaunch, and how long it must have lasted at least."""

    enabled: bool = False
    least: timedelta = timedelta(minutes=5)
    least_rows: int = 8


@dataclass(frozen=True, slots=True)
class Ladder:
    """How a loss that does not mend is answered (see ladder.py): how far back, how much data is passed over, how often
    each rung is tried for one trouble; 0 tries leave a rung out."""

    margin_steps: int = 100
    near_steps: int = 500
    skip_batches: int = 200
    far_skip_batches: int = 500
    rate_factor: float = 0.9
    least_rate: float = 0.5
    replays: int = 1
    skips: int = 1
    far_skips: int = 1
    lower_rates: int = 1


@dataclass(frozen=True, slots=True)
class Policy:
    """All that may differ from one supervised job to the next; where many wait to be launched, those of a higher
    `priority` go first."""

    name: str = "default"
    mode: Mode = Mode.ACT
    priority: int = 50
    on_max_runtime: OnMaxRuntime = OnMaxRuntime.STOP
    on_alarm: OnAlarm = OnAlarm.INFORM
    max_runtime: MaxRuntime = MaxRuntime.PER_RUN
    retries: Retries = field(default_factory=Retries)
    limits: Limits = field(default_factory=Limits)
    approval: Approval = field(default_factory=Approval)
    notices: Notices = field(default_factory=Notices)
    hyperpod: ClusterPolicy = field(default_factory=ClusterPolicy)
    weighing: CostBenefit = field(default_factory=CostBenefit)
    advice: Advice = field(default_factory=Advice)
    backoff: Backoff = field(default_factory=Backoff)
    capacity: Capacity = field(default_factory=Capacity)
    save: SaveTimeouts = field(default_factory=SaveTimeouts)
    mailbox: MailboxPolicy = field(default_factory=MailboxPolicy)
    restart: InPlacePolicy = field(default_factory=InPlacePolicy)
    ladder: Ladder = field(default_factory=Ladder)
    metrics: MetricNames = field(default_factory=MetricNames)
    detection: Thresholds = field(default_factory=Thresholds)
    prices: Mapping[str, float] = field(default_factory=dict)

    def scaled(self, factor: float) -> "Policy":
        """The same policy on a clock that runs `factor` times as fast: every duration divided by it."""
        scaled: Policy = _scaled(self, factor)
        return scaled


def parse_policy(text: str, *, name: str) -> Policy:
    """Read a policy from TOML text; raises PolicyError that names the field and the remedy."""
    if not NAME.fullmatch(name):
        raise PolicyError(f"policy {name!r}: the name must be 1-63 letters, digits, '.', '_' or '-'")
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise PolicyError(f"policy {name!r} is not valid TOML: {error}") from error
    if "name" in table:
        raise PolicyError(f"policy {name!r}: field 'name' is taken from the file's name; remove it")
    policy: Policy = _read(Policy, table, where=f"policy {name!r}", path="")
    if not 0 < policy.ladder.rate_factor < 1:
        what = f"field 'ladder.rate_factor' is {policy.ladder.rate_factor}; it must be a number between 0 and 1"
        raise PolicyError(f"policy {name!r}: {what}, such as 0.9")
    return replace(policy, name=name)


def to_toml(policy: Policy) -> str:
    """The policy as TOML text that `parse_policy` reads back unchanged."""
    plain, sections = [], []
    for f in fields(policy):
        value = getattr(policy, f.name)
        if is_dataclass(value):
            rows = "".join(f"{g.name} = {_literal(getattr(value, g.name))}\n" for g in fields(value))
            sections.append(f"\n[{f.name}]\n{rows}")
        elif isinstance(value, Mapping):
            rows = "".join(f"{json.dumps(key)} = {item!r}\n" for key, item in value.items())
            sections.append(f"\n[{f.name}]\n{rows}" if rows else "")
        elif f.name != "name":
            plain.append(f"{f.name} = {_literal(value)}\n")
    return "".join(plain + sections)


def _literal(value: Any) -> str:
    if isinstance(value, timedelta):
        return f'"{value.total_seconds():.6f}'.rstrip("0").rstrip(".") + 's"'
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, str | tuple) else repr(value)


def _read(cls: type[Any], table: Mapping[str, Any], *, where: str, path: str) -> Any:
    known = {f.name: f for f in fields(cls)}
    hints = get_type_hints(cls)
    values = {}
    for key, value in table.items():
        if key not in known:
            raise PolicyError(f"{where}: unknown field '{path}{key}'; {_suggestion(key, known)}")
        values[key] = _value(hints[key], value, where=where, path=f"{path}{key}")
    return cls(**values)


def _value(kind: Any, value: Any, *, where: str, path: str) -> Any:
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
        return _duration(value, where=where, path=path)
    if kind == tuple[str, ...]:
        return _fallbacks(value, where=where, path=path)
    if kind == Mapping[str, float]:
        return _prices(value, where=where, path=path)
    if kind in (bool, str):
        if not isinstance(value, kind):
            raise PolicyError(f"{where}: field '{path}' is {value!r:.200}; it must be {WORDS[kind]}")
        return value
    if kind is float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1_000_000:
            raise PolicyError(f"{where}: field '{path}' is {value!r:.200}; it must be a number from 0 to 1,000,000")
        return float(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 1_000_000:
        raise PolicyError(f"{where}: field '{path}' is {value!r:.200}; it must be a whole number from 0 to 1,000,000")
    return value


def _fallbacks(value: Any, *, where: str, path: str) -> tuple[str, ...]:
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
            raise PolicyError(f"{where}: {what}: {error}; mend or remove it") from error
    return tuple(" ".join(item.split()) for item in value)


def _prices(value: Any, *, where: str, path: str) -> dict[str, float]:
    if not isinstance(value, Mapping) or len(value) > PRICES_LIMIT:
        limit = f"of at most {PRICES_LIMIT} prices"
        raise PolicyError(f"{where}: field '{path}' must be a table, written [{path}], {limit}")
    for key in value:
        if not INSTANCE_TYPE.fullmatch(key):
            remedy = 'it must be an instance type, written "ml.p5.48xlarge" = 63.30'
            raise PolicyError(f"{where}: field '{path}' names {key!r:.100}; {remedy}")
    return {key: _value(float, price, where=where, path=f"{path}.{key}") for key, price in value.items()}


def _duration(value: Any, *, where: str, path: str) -> timedelta:
    match = DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if not match or len(match[1]) > 20:
        raise PolicyError(
            f'{where}: field \'{path}\' is {value!r:.200}; it must be a duration such as "90s", "15m" or "12h"'
        )
    seconds = float(match[1]) * UNIT_SECONDS[match[2]]
    if seconds > 366 * 86400:
        raise PolicyError(f"{where}: field '{path}' is {value!r:.200}; it must be at most a year")
    return timedelta(seconds=seconds)


def _suggestion(key: str, known: Mapping[str, Field[Any]]) -> str:
    names = [name for name in known if name != "name"]
    close = difflib.get_close_matches(key, names, n=1)
    return f"did you mean '{close[0]}'?" if close else f"the fields here are {', '.join(names)}"


def _scaled(value: Any, factor: float) -> Any:
    if isinstance(value, timedelta):
        return value / factor
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _scaled(getattr(value, f.name), factor) for f in fields(value)})
    return value
