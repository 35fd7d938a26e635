"""Assumed times that people on call need for a run without Rerail; no figures are published.

The simulation samples from them, and Rerail's savings are measured against their medians.
"""

from dataclasses import dataclass

from rerail.detection.onsets import OF_THE_LOSS
from rerail.model.finding import Kind

MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Delay:
    """A log-normal delay, given by its median and its 90th percentile in minutes."""

    median: float
    p90: float

    def __str__(self) -> str:
        return f"{self.median:g} / {self.p90:g}"


# Until a failed run is running again; BLOOM: 7.3 h for the first one.
CRASH = Delay(20, 90)
# Until a diverged loss is noticed and rolled back.
DIVERGED = Delay(120, 600)
# Until a slow machine is found; BLOOM: by elimination.
SLOW = Delay(360, 1440)
# Seconds until a hang ends the job by itself: NCCL's watchdog in many issues; BLOOM: not after 3 h.
WATCHDOG_S = 1800.0
# The share of speed that all machines lose through a slow one; BLOOM: 0.05.
SLOW_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Unattended:
    """The cost of a problem that only people take care of."""

    # Seconds until it is resolved.
    seconds: float
    # The seconds of these for which the machines are billed.
    billed_s: float = 0.0
    # The share of speed that is lost meanwhile.
    share: float = 1.0


def estimate_unattended(kind: str) -> Unattended:
    """Return the median for an incident of this kind.

    The mean is at least twice as long, since some problems are only found in the morning. If a job has ended, people
    are called at once, whatever the cause.
    """
    crash_s = CRASH.median * MINUTE_S
    if kind == Kind.THROUGHPUT_DROP:
        return Unattended(SLOW.median * MINUTE_S, SLOW.median * MINUTE_S, SLOW_SHARE)
    if kind in OF_THE_LOSS:
        return Unattended(DIVERGED.median * MINUTE_S, DIVERGED.median * MINUTE_S)
    if kind in (Kind.STALL, Kind.STARTUP_STALL):
        return Unattended(WATCHDOG_S + crash_s, WATCHDOG_S)
    return Unattended(crash_s)
