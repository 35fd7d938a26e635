"""Detect that the machines of a job have stopped computing, from the load that SageMaker publishes of every job.

It needs nothing in the job: no agent and no metrics. What is usual comes from the job's own past.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median, median_low
from typing import NamedTuple

from rerail.model.finding import Finding, Kind, Level
from rerail.model.metrics import HostLoad, find_resolution
from rerail.model.partitions import is_turn
from rerail.model.thresholds import Thresholds

# Percent of one device: below this nothing is computed. A busy GPU proves nothing, because a waiting collective spins.
IDLE_BELOW = 5.0
# Shares of the job's usual load. While its GPUs are idle, a waiting process may keep one CPU of many busy.
GPU_SHARE, CPU_SHARE_BESIDE_GPU, CPU_SHARE_ALONE = 0.1, 0.25, 0.1
# The job's usual load is known after this many busy periods.
ENOUGH = 20
# A job is reported after this many of the policy's shortest stalls, and of its own longest pauses.
SHORTEST_STALLS, LONGEST_PAUSES = 2, 1.5
# It is stopped after this many times that: a pause also delays the next checkpoint, which is the other reason to stop.
STOPPED_AFTER = 3
# Load is read once in so many periods. Older values prove nothing about now, and nothing is known of longer gaps.
READ_EVERY = 5
MINUTE = timedelta(minutes=1)


class HostHistory(NamedTuple):
    """The usual load of a machine, since when it is idle, and its longest earlier pause."""

    gpu: float
    cpu: float
    idle_since: datetime | None
    longest: timedelta
    # It was idle and computed again. While values are read only of idle time, they look like the usual load.
    has_resumed: bool


def is_load_due(run_id: str, at: datetime, period: timedelta) -> bool:
    """Return whether the load of the run's machines is read now; runs are spread evenly over the periods.

    A run's turn among short periods changes with each round: a look each minute could always fall in the same one.
    """
    resolution = find_resolution(period)
    draw = f" {int(at.timestamp() / (READ_EVERY * resolution).total_seconds())}" if resolution < MINUTE else ""
    return is_turn(run_id + draw, at, every=READ_EVERY, period=resolution)


def describe_hosts(
    loads: Mapping[str, Sequence[HostLoad]], *, at: datetime, period: timedelta
) -> dict[str, HostHistory]:
    """Return what is known of each machine from its values, oldest first; nothing unless it is known of all."""
    hosts = {name: _describe(values, at, period) for name, values in loads.items()}
    known = {name: host for name, host in hosts.items() if host is not None}
    return known if len(known) == len(loads) else {}


def find_idle(
    hosts: Mapping[str, HostHistory], saved_at: Sequence[datetime], *, at: datetime, detection: Thresholds
) -> Finding | None:
    """Return a finding if all machines, or some of several, have been idle for longer than any pause of the job.

    A checkpoint that was saved meanwhile, by `saved_at`, shows that the job goes on. Only a job that has saved some may
    be stopped: the next one has to be missing too.
    """
    newest_save = max(saved_at, default=None)
    # Since when each host is idle, and how many times its limit that is.
    idle: dict[str, tuple[datetime, float]] = {}
    for name, host in hosts.items():
        if host.idle_since is None:
            continue
        since = max(host.idle_since, newest_save or host.idle_since)
        limit = max(SHORTEST_STALLS * detection.stall_floor, LONGEST_PAUSES * host.longest)
        if at - since > limit:
            idle[name] = since, (at - since) / limit
    if not idle:
        return None
    since, is_whole = max(since for since, _ in idle.values()), len(idle) == len(hosts)
    first = hosts[min(idle, key=lambda name: idle[name])]
    several = f"all {len(hosts)} machines read" if is_whole else f"{', '.join(sorted(idle))} of {len(hosts)} machines"
    who = several if len(hosts) > 1 else "the machine"
    usual = f"usually CPU {first.cpu:.0f} %" + (f" and GPU {first.gpu:.0f} %" if first.gpu else "")
    text = f"no load for {(at - since).total_seconds():.0f} s on {who}, {usual}"
    is_lasting = is_whole and all(times > STOPPED_AFTER for _, times in idle.values())
    level = Level.INTERVENE if is_lasting and saved_at else Level.WARN
    return Finding(Kind.STALL, level, None, None, text, at, since)


def _describe(values: Sequence[HostLoad], at: datetime, period: timedelta) -> HostHistory | None:
    """Return what is known of a machine, or None before its usual load is, or if its newest value is too old.

    With a short period there is not a value in each. A machine is idle only since the newest gap.
    """
    if len(values) < ENOUGH:
        return None
    longest_gap = READ_EVERY * max(period, median_low(later.at - earlier.at for earlier, later in pairwise(values)))
    if at - values[-1].at > longest_gap:
        return None
    gpu = _find_usual([value.gpu for value in values])
    # A process that waits for ever may keep a CPU busy for longer than the job has trained.
    cpu = _find_usual([value.cpu for value in values if value.gpu is None or value.gpu >= GPU_SHARE * gpu])
    idle_since, longest, busy, has_resumed = None, timedelta(), 0, False
    for before, value in pairwise((values[0], *values)):
        if value.at - before.at > longest_gap:
            idle_since = None
        if _is_idle(value, gpu=gpu, cpu=cpu):
            idle_since = idle_since or value.at - period
            continue
        if idle_since is not None:
            has_resumed = True
            longest = max(longest, value.at - idle_since) if busy else longest
        idle_since, busy = None, busy + 1
    return HostHistory(gpu, cpu, idle_since, longest, has_resumed) if busy >= ENOUGH else None


def _find_usual(percents: Sequence[float | None]) -> float:
    """Return the median of the busy values; 0 if there is none."""
    busy = [percent for percent in percents if percent is not None and percent >= IDLE_BELOW]
    return median(busy) if busy else 0.0


def _is_idle(value: HostLoad, *, gpu: float, cpu: float) -> bool:
    share = CPU_SHARE_BESIDE_GPU if gpu else CPU_SHARE_ALONE
    is_cpu_idle = value.cpu is None or value.cpu < max(IDLE_BELOW, share * cpu)
    return is_cpu_idle and (value.gpu is None or value.gpu < max(IDLE_BELOW, GPU_SHARE * gpu))
