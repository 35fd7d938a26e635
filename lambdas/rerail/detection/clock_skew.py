"""Doubt in our own clock, or in our own diligence: time that passed while nobody looked is not held against a job."""

from dataclasses import replace
from datetime import datetime, timedelta

from rerail.model.liveness import Liveness

# A round a minute, and now and then one that is missed: more than this between two is a clock that jumped, or an outage
# of ours. A row that is younger than the second says that the clock is right.
JUMP, FRESH = timedelta(minutes=3), timedelta(minutes=5)


def find_silence_start(
    doubt: datetime | None, looked_at: datetime | None, *, heard: bool, newest: datetime | None, at: datetime
) -> datetime | None:
    """Since when silence counts, or None where there is no doubt.

    Doubt begins with a jump from the last look to this one, or with a new row (`heard`) that is not of about now by
    this clock; each such row puts it off, and one that is ends it. `newest` is the time of the last row."""
    if looked_at is not None and abs(at - looked_at) > JUMP:
        return at
    if not heard:
        return doubt
    is_right = newest is not None and abs(at - newest) <= FRESH
    return None if is_right else at


def with_silence_excused(pulse: Liveness, doubt: datetime | None) -> Liveness:
    """The pulse as though the run had been heard, and had moved, when the doubt began."""
    if doubt is None:
        return pulse
    moments = {name: getattr(pulse, name) for name in ("since", "moved_at", "heard_at", "started_at")}
    return replace(pulse, **{name: max(then, doubt) for name, then in moments.items() if then is not None})
