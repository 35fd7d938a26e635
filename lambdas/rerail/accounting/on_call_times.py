"""How long people on call take where nobody else looks after a run: assumed, no figure is published.

The simulation draws from these, and what Rerail saves is told against their medians."""

from dataclasses import dataclass

from rerail.detection.onsets import OF_THE_LOSS
from rerail.model.finding import Kind

MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Delay:
    """How long people take: log-normal, by its median and its 90th percentile, in minutes."""

    median: float
    p90: float

    def __str__(self) -> str:
        return f"{self.median:g} / {self.p90:g}"


# Until a dead run is running again; BLOOM: 7.3 h for the first one.
CRASH = Delay(20, 90)
# Until a loss is seen and rolled back.
DIVERGED = Delay(120, 600)
# Until a slow machine is found; BLOOM: by elimination.
SLOW = Delay(360, 1440)
# Seconds until a hang ends the job by itself: NCCL's watchdog in many issues; BLOOM: not after 3 h.
WATCHDOG_S = 1800.0
# What a slow machine costs all, as a share of their speed; BLOOM: 0.05.
SLOW_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Unattended:
    """What becomes of a trouble that only people see to: seconds until the run is in order again, the seconds of
    these in which its machines are billed, and the share of its speed that is lost meanwhile."""

    seconds: float
    billed_s: float = 0.0
    share: float = 1.0


def estimate_unattended(kind: str) -> Unattended:
    """For an incident of that kind, the median; the mean is twice as long and more, since some troubles are found in
    the morning. Whoever's job has ended is called at once, whatever it has ended of."""
    crash_s = CRASH.median * MINUTE_S
    if kind == Kind.THROUGHPUT_DROP:
        return Unattended(SLOW.median * MINUTE_S, SLOW.median * MINUTE_S, SLOW_SHARE)
    if kind in OF_THE_LOSS:
        return Unattended(DIVERGED.median * MINUTE_S, DIVERGED.median * MINUTE_S)
    if kind in (Kind.STALL, Kind.STARTUP_STALL):
        return Unattended(WATCHDOG_S + crash_s, WATCHDOG_S)
    return Unattended(crash_s)
