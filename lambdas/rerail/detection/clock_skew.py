"""Handle clock jumps and outages of the sweep: time that was not monitored does not count against a job."""

from dataclasses import replace
from datetime import datetime, timedelta

from rerail.model.liveness import Liveness

# The sweep runs once a minute and occasionally misses a run. A longer time between two means a clock jump or an outage.
JUMP = timedelta(minutes=3)
# A row younger than this proves that the clock is right.
FRESH = timedelta(minutes=5)


def find_silence_start(
    doubt: datetime | None, looked_at: datetime | None, *, age: timedelta | None, at: datetime
) -> datetime | None:
    """Return from when on silence counts, or None if the clock is not in doubt.

    Doubt begins with a jump since the last evaluation, or with a new row that is not recent by this clock. Each such
    row restarts the doubt, and a recent row ends it. `age` is that of the newest row, None if there is no new one.
    """
    if looked_at is not None and abs(at - looked_at) > JUMP:
        return at
    if age is None:
        return doubt
    return None if abs(age) <= FRESH else at


def with_silence_excused(liveness: Liveness, doubt: datetime | None) -> Liveness:
    """Return the liveness as if the run had reported and made progress when the doubt began."""
    if doubt is None:
        return liveness
    moments = {name: getattr(liveness, name) for name in ("since", "moved_at", "received_at", "started_at")}
    return replace(liveness, **{name: max(then, doubt) for name, then in moments.items() if then is not None})
