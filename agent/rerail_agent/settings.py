"""What the environment says about how the agent works: intervals, thresholds and switches."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any

from rerail.model.thresholds import Thresholds

Tell = Callable[[str], None]
SHORTEST_S = 0.05


@dataclass(frozen=True, slots=True)
class Settings:
    """All of them, with their defaults; `hang_s` is the least silence between steps that counts as a hang."""

    poll_s: float = 5.0
    heartbeat_s: float = 60.0
    hang_s: float = 300.0
    save_on_warning: bool = True
    detection: Thresholds = Thresholds()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], tell: Tell) -> "Settings":
        """Never raises: what cannot be read is told, and the default stands."""
        return cls(
            poll_s=_seconds(environment, "RERAIL_POLL_SECONDS", cls().poll_s, tell),
            heartbeat_s=_seconds(environment, "RERAIL_HEARTBEAT_SECONDS", cls().heartbeat_s, tell),
            hang_s=_seconds(environment, "RERAIL_HANG_SECONDS", cls().hang_s, tell),
            save_on_warning=environment.get("RERAIL_SAVE_ON_WARNING", "").lower() not in ("off", "0", "false", "no"),
            detection=_detection(environment.get("RERAIL_DETECTION", ""), tell),
        )


def _seconds(environment: Mapping[str, str], name: str, default: float, tell: Tell) -> float:
    text = environment.get(name, "")
    try:
        seconds = float(text or default)
        if not SHORTEST_S <= seconds < math.inf:
            raise ValueError
    except ValueError:
        tell(f"{name}={text!r}: must be a number of seconds, {SHORTEST_S} or more; taking {default:g}")
        return default
    return seconds


def _detection(text: str, tell: Tell) -> Thresholds:
    """The thresholds that a JSON object names, the others as they are; one bad field, and none of it counts."""
    if not text:
        return Thresholds()
    try:
        table = json.loads(text)
        if not isinstance(table, dict):
            raise ValueError('must be a JSON object such as {"patience_rows": 40}')
        return replace(Thresholds(), **{name: _field(name, value) for name, value in table.items()})
    except (ValueError, RecursionError) as error:
        tell(f"RERAIL_DETECTION: {error}; taking the defaults")
        return Thresholds()


def _field(name: str, value: Any) -> Any:
    known = {f.name: getattr(Thresholds(), f.name) for f in fields(Thresholds)}
    if name not in known:
        raise ValueError(f"there is no field {name!r}")
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
