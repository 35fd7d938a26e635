"""Detect that the machines of a job have stopped computing, from the load that SageMaker publishes of every job.

It needs nothing in the job: no agent and no metrics. What is usual comes from the job's own past.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import NamedTuple
from zlib import crc32

from rerail.model.finding import Finding, Kind, Level
from rerail.model.metrics import HostLoad
from rerail.model.thresholds import Thresholds

# Percent of one device: below this nothing is computed.
IDLE_BELOW = 5.0
# Shares of the job's usual load. While its GPUs are idle, a waiting process may keep one CPU of many busy.
GPU_SHARE, CPU_SHARE_BESIDE_GPU, CPU_SHARE_ALONE = 0.1, 0.25, 0.1
# The job's usual load is known after this many busy periods.
ENOUGH = 20
# A job is reported after so many of the policy's shortest stalls, and of its own longest pause; stopped after so many
# times that. A pause also delays the next checkpoint, so that the two reasons to stop are not independent.
FLOORS, PAUSES, GRAVE = 2, 1.5, 3
# Load is read once in so many periods, and older values prove nothing about now.
READ_EVERY = 5


class _Host(NamedTuple):
    """The usual load of a machine, since when it is idle, and its longest earlier pause."""

    gpu: float
    cpu: float
    idle_since: datetime | None
    longest: timedelta


def is_load_due(run_id: str, at: datetime, period: timedelta) -> bool:
    """Return whether the load of the run's machines is read now; runs are spread evenly over the periods."""
    return (int(at.timestamp() / period.total_seconds()) + crc32(run_id.encode())) % READ_EVERY == 0


def find_idle(
    loads: Mapping[str, Sequence[HostLoad]],
    saved_at: Sequence[datetime],
    *,
    at: datetime,
    period: timedelta,
    detection: Thresholds,
) -> Finding | None:
    """Return a finding if all machines, or some of several, have been idle for longer than any pause of the job.

    `loads` are the values of each host, oldest first, and `saved_at` the times of its checkpoints. A checkpoint that
    was saved meanwhile shows that the job goes on. Only a job that has saved some may be stopped: the next one has to
    be missing too.
    """
    hosts = {name: _describe(values, period) for name, values in loads.items() if _is_current(values, at, period)}
    known = {name: host for name, host in hosts.items() if host is not None}
    if len(known) < len(loads) or not known:
        return None
    newest_save = max(saved_at, default=None)
    idle, grave = {}, set()
    for name, host in known.items():
        if host.idle_since is None:
            continue
        since = max(host.idle_since, newest_save or host.idle_since)
        limit = max(FLOORS * detection.stall_floor, PAUSES * host.longest)
        if at - since > limit:
            idle[name] = since
        if at - since > GRAVE * limit:
            grave.add(name)
    if not idle:
        return None
    since, is_whole = max(idle.values()), len(idle) == len(known)
    first = known[min(idle, key=lambda name: idle[name])]
    several = f"all {len(known)} machines read" if is_whole else f"{', '.join(sorted(idle))} of {len(known)} machines"
    who = several if len(known) > 1 else "the machine"
    usual = f"usually CPU {first.cpu:.0f} %" + (f" and GPU {first.gpu:.0f} %" if first.gpu else "")
    text = f"no load for {(at - since).total_seconds():.0f} s on {who}, {usual}"
    level = Level.INTERVENE if len(grave) == len(known) and saved_at else Level.WARN
    return Finding(Kind.STALL, level, None, None, text, at, since)


def is_computing(loads: Mapping[str, Sequence[HostLoad]], *, at: datetime, period: timedelta) -> bool:
    """Return whether every machine has computed within its newest values."""
    hosts = [_describe(values, period) for values in loads.values() if _is_current(values, at, period)]
    return bool(hosts) and len(hosts) == len(loads) and all(host and host.idle_since is None for host in hosts)


def _is_current(values: Sequence[HostLoad], at: datetime, period: timedelta) -> bool:
    """Return whether the newest value is as new as it can be; with a short period there is not one in each."""
    if len(values) < ENOUGH:
        return False
    usual = (values[-1].at - values[0].at) / (len(values) - 1)
    return at - values[-1].at <= READ_EVERY * max(period, usual)


def _describe(values: Sequence[HostLoad], period: timedelta) -> _Host | None:
    """Return what is known of a machine, or None before its usual load is."""
    gpu = _find_usual([value.gpu for value in values])
    cpu = _find_usual([value.cpu for value in values])
    idle_since, longest, busy = None, timedelta(), 0
    for value in values:
        if _is_idle(value, gpu=gpu, cpu=cpu):
            idle_since = idle_since or value.at - period
            continue
        if idle_since is not None and busy:
            longest = max(longest, value.at - idle_since)
        idle_since, busy = None, busy + 1
    return _Host(gpu, cpu, idle_since, longest) if busy >= ENOUGH else None


def _find_usual(percents: Sequence[float | None]) -> float:
    """Return the median of the busy values; 0 if there is none."""
    busy = [percent for percent in percents if percent is not None and percent >= IDLE_BELOW]
    return median(busy) if busy else 0.0


def _is_idle(value: HostLoad, *, gpu: float, cpu: float) -> bool:
    share = CPU_SHARE_BESIDE_GPU if gpu else CPU_SHARE_ALONE
    is_cpu_idle = value.cpu is None or value.cpu < max(IDLE_BELOW, share * cpu)
    return is_cpu_idle and (value.gpu is None or value.gpu < max(IDLE_BELOW, GPU_SHARE * gpu))
