"""Read the agent's settings from the environment: intervals, thresholds and switches."""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any, TypeVar

from rerail.model.agent_settings import DETECTION_VARIABLE, INTERVAL_VARIABLE, MTBF_VARIABLE
from rerail.model.checkpoint_intervals import SaveInterval
from rerail.model.skipped_samples import Ranges, parse_ranges
from rerail.model.thresholds import RETIRED_THRESHOLDS, Thresholds, find_zero, read_planned

Log = Callable[[str], None]
S = TypeVar("S", Thresholds, SaveInterval)
SHORTEST_S = 0.05
OFF = ("off", "0", "false", "no")
HIGHEST_RATE = 1000.0
FROM_POLICY = (DETECTION_VARIABLE, INTERVAL_VARIABLE, MTBF_VARIABLE)
# Set by SageMaker in jobs on reserved capacity.
CAPACITY_VARIABLE = "SAGEMAKER_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP"


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """All settings, with their defaults."""

    poll_s: float = 5.0
    heartbeat_s: float = 60.0
    # The shortest time without a step that counts as a hang.
    hang_s: float = 300.0
    save_on_warning: bool = True
    detection: Thresholds = Thresholds()
    interval: SaveInterval = SaveInterval()
    # The mean time between failures that the supervisor has estimated; None: not known.
    mtbf_s: float | None = None
    # When the reserved capacity of a training plan ends, in seconds since 1970; None: not known, or not reserved.
    capacity_ends: float | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], log: Log) -> "AgentSettings":
        """Read the settings; log a value that is not valid, and use its default."""
        return cls(
            poll_s=_read_seconds(environment, "RERAIL_POLL_SECONDS", cls().poll_s, log),
            heartbeat_s=_read_seconds(environment, "RERAIL_HEARTBEAT_SECONDS", cls().heartbeat_s, log),
            hang_s=_read_seconds(environment, "RERAIL_HANG_SECONDS", cls().hang_s, log),
            save_on_warning=environment.get("RERAIL_SAVE_ON_WARNING", "").lower() not in OFF,
            detection=_read_thresholds(environment.get(DETECTION_VARIABLE, ""), log),
            interval=_read_interval(environment.get(INTERVAL_VARIABLE, ""), log),
            mtbf_s=_read_seconds(environment, MTBF_VARIABLE, 0.0, log) or None,
            capacity_ends=_read_capacity_end(environment.get(CAPACITY_VARIABLE, ""), log),
        )

    def with_policy(self, text: str, environment: Mapping[str, str], log: Log) -> "AgentSettings":
        """Return the settings with what a command says of the policy, where the environment does not say it.

        A job that was not launched by Rerail has no such variables. Log a text that is not valid, and ignore it.
        """
        try:
            table = json.loads(text)
            given = {name: str(table[name]) for name in FROM_POLICY if name in table and not environment.get(name)}
        except (ValueError, TypeError, RecursionError) as error:
            log(f"the settings of the policy cannot be read: {error!s:.200}; taking those of this job")
            return self
        changes: dict[str, Any] = {}
        if DETECTION_VARIABLE in given:
            changes["detection"] = _read_thresholds(given[DETECTION_VARIABLE], log)
        if INTERVAL_VARIABLE in given:
            changes["interval"] = _read_interval(given[INTERVAL_VARIABLE], log)
        if MTBF_VARIABLE in given:
            changes["mtbf_s"] = _read_seconds(given, MTBF_VARIABLE, 0.0, log) or None
        return replace(self, **changes)


def read_skipped_samples(environment: Mapping[str, str]) -> Ranges:
    """Return the first and last id of each range in RERAIL_SKIP_SAMPLES, ascending; raise ValueError if malformed."""
    try:
        return parse_ranges(environment.get("RERAIL_SKIP_SAMPLES", ""))
    except ValueError as error:
        raise ValueError(f"RERAIL_SKIP_SAMPLES: {error}; join several by commas") from error


def read_rate(environment: Mapping[str, str]) -> float:
    """Return the factor on the learning rate, RERAIL_LR_SCALE, or 1; raise ValueError if it is malformed."""
    text = environment.get("RERAIL_LR_SCALE", "")
    try:
        rate = float(text or 1.0)
    except ValueError:
        rate = math.nan
    if not 0 < rate <= HIGHEST_RATE:
        raise ValueError(f"RERAIL_LR_SCALE={text!r}: must be a number above 0, at most {HIGHEST_RATE:g}, such as 0.9")
    return rate


def read_microbatches(environment: Mapping[str, str]) -> int:
    """Return RERAIL_MICROBATCHES, or 1; raise ValueError if it is malformed."""
    text = environment.get("RERAIL_MICROBATCHES", "") or "1"
    if not re.fullmatch("[1-9][0-9]{0,3}", text):
        raise ValueError(f"RERAIL_MICROBATCHES={text!r}: must be a whole number above 0, such as 2")
    return int(text)


def _read_seconds(environment: Mapping[str, str], name: str, default: float, log: Log) -> float:
    text = environment.get(name, "")
    try:
        seconds = float(text) if text else default
        if text and not SHORTEST_S <= seconds < math.inf:
            raise ValueError
    except ValueError:
        log(f"{name}={text!r}: must be a number of seconds, {SHORTEST_S} or more; taking {default:g}")
        return default
    return seconds


def _read_capacity_end(text: str, log: Log) -> float | None:
    """Return the time in seconds since 1970; SageMaker gives it in milliseconds, and 0 where nothing is reserved."""
    try:
        milliseconds = int(text or 0)
    except ValueError:
        log(f"{CAPACITY_VARIABLE}={text!r:.100}: not a number of milliseconds; the end of the capacity is not known")
        return None
    return milliseconds / 1000 if milliseconds > 0 else None


def _read_thresholds(text: str, log: Log) -> Thresholds:
    """Return the thresholds with the fields that a JSON object sets; one bad field, and none is set."""
    try:
        thresholds = _read_object(Thresholds(), text, '{"patience_rows": 40}')
        if zero := find_zero(thresholds):
            raise ValueError(f"field {zero!r} is 0; it must be above 0")
        return thresholds
    except (ValueError, OverflowError, RecursionError) as error:
        log(f"RERAIL_DETECTION: {error}; taking the defaults")
        return Thresholds()


def _read_interval(text: str, log: Log) -> SaveInterval:
    """Return the bounds on the checkpoint interval; a value that cannot be read turns the automatic interval off."""
    if text.lower() in OFF:
        return SaveInterval(automatic=False)
    try:
        interval = _read_object(SaveInterval(), text, '{"longest": 1800}, or off')
        if not 0 < interval.most_share <= 1:
            raise ValueError(f"field 'most_share' is {interval.most_share}; it must be above 0, at most 1")
    except (ValueError, OverflowError, RecursionError) as error:
        log(f"RERAIL_SAVE_INTERVAL: {error}; only the script saves periodically now")
        return SaveInterval(automatic=False)
    return interval


def _read_object(defaults: S, text: str, example: str) -> S:
    """Return the defaults with the fields that a JSON object sets; raise ValueError for a bad one."""
    table = json.loads(text) if text else {}
    if not isinstance(table, dict):
        raise ValueError(f"must be a JSON object such as {example}")
    known = {name: value for name, value in table.items() if name not in RETIRED_THRESHOLDS}
    return replace(defaults, **{name: _convert_field(defaults, name, value) for name, value in known.items()})


def _convert_field(defaults: Thresholds | SaveInterval, name: str, value: Any) -> Any:
    known = {f.name: getattr(defaults, f.name) for f in fields(defaults)}
    if name not in known:
        raise ValueError(f"there is no field {name!r}")
    if name == "planned":
        try:
            return read_planned(value)
        except ValueError as error:
            raise ValueError(f"field 'planned' is {value!r:.60}; {error}") from error
    default = known[name]
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if isinstance(default, bool):
        fits = isinstance(value, bool)
    elif isinstance(default, int):
        fits = number and value == int(value)
    else:
        fits = number
    if not fits or (number and value < 0):
        kind = "seconds" if isinstance(default, timedelta) else type(default).__name__
        raise ValueError(f"field {name!r} is {value!r:.60}; it must be a value like {default!s} ({kind})")
    return timedelta(seconds=value) if isinstance(default, timedelta) else type(default)(value)
