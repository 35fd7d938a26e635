"""Watch in a thread whether this rank makes progress; write down all stacks and report a hang once.

The limit follows from what the run itself has shown: five times its longest gap, and at least a floor. A training
thread that works, here or on the rank that others wait for, may be evaluating: that is a warning, and the supervisor
acts on it once a checkpoint is overdue. Each time that the standstill has doubled, the threads are looked at again.
The watching thread cannot run while an extension holds the interpreter's lock.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rerail.model.finding import Finding, Kind, Level
from rerail.model.liveness import Phase
from rerail.model.thresholds import Thresholds
from rerail_agent import stack_dump
from rerail_agent.fault_isolation import FaultIsolation
from rerail_agent.progress import Progress
from rerail_agent.stalled_ranks import Culprits, StallExchange

CHECK_SPAN_S = 10.0
PAUSED_S = 5.0
KINDS = {Phase.STARTUP: Kind.STARTUP_STALL, Phase.SAVE: Kind.CHECKPOINT_STALL}
# The devices through which libfabric uses AWS's Elastic Fabric Adapter.
EFA_DEVICES = Path("/dev/infiniband")


@dataclass(frozen=True, slots=True)
class HangLimits:
    """The longest time without progress in each phase, in seconds."""

    step_s: float
    save_s: float
    # The start, and the first save or evaluation, of which nothing is known yet.
    unknown_s: float
    factor: float

    @classmethod
    def from_thresholds(cls, detection: Thresholds, *, hang_s: float) -> "HangLimits":
        return cls(
            step_s=hang_s,
            save_s=detection.save_floor.total_seconds(),
            unknown_s=detection.startup_limit.total_seconds(),
            factor=detection.stall_factor,
        )

    @property
    def least_s(self) -> float:
        """Return the shortest time without progress after which any rank may report a hang."""
        return min(self.step_s, self.save_s, self.unknown_s)

    def get_limit_s(self, phase: Phase, longest_s: float) -> float:
        """Return the limit of a phase, given the longest time that it has taken."""
        learnt = self.factor * longest_s
        if phase is Phase.STEP:
            return max(self.step_s, learnt)
        if phase is Phase.STARTUP or not longest_s:
            return self.unknown_s
        return max(self.save_s if phase is Phase.SAVE else self.step_s, learnt)


class Watchdog:
    """The watching thread; `on_hang` receives the finding and its evidence."""

    def __init__(
        self,
        progress: Progress,
        limits: HangLimits,
        *,
        file: Path | None,
        on_hang: Callable[[Finding, str], None],
        isolation: FaultIsolation,
        stalls: StallExchange,
    ) -> None:
        self._progress, self.limits, self._file = progress, limits, file
        self._on_hang, self._isolation = on_hang, isolation
        self._stalls = stalls
        self._posted = (0.0, 0)  # when the standstill began whose position was posted, and how often
        # When the reported hang began, and after how many seconds it is looked at again.
        self._reported: tuple[float, float] = (0.0, 0.0)
        self._stop = threading.Event()
        self._every_s = min(5.0, limits.least_s / 8)
        self._checked = self._not_before = time.monotonic()
        self._thread = threading.Thread(target=self._watch, name="rerail-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _watch(self) -> None:
        while not self._stop.wait(self._every_s) and not {"watchdog", "progress"} & self._isolation.broken:
            self._isolation.run("watchdog", self._check, None)

    def _check(self) -> None:
        progress = self._progress
        now, before = time.monotonic(), self._checked
        self._checked = now
        if now - before > 2 * self._every_s + PAUSED_S:
            self._not_before = now  # this thread did not run either: the process was stopped, or the lock was held
        moved, phase = progress.moved, progress.phase
        still_s = now - max(moved, self._not_before)
        limit_s = self.limits.get_limit_s(phase, progress.longest[phase])
        # The limits of ranks differ; no rank reports before twice this time.
        posts = int(still_s / (self.limits.least_s / 2))
        if posts and self._posted != (moved, posts):
            self._posted = moved, posts
            self._stalls.post(min(CHECK_SPAN_S, self.limits.least_s / 8))
        is_known = self._reported[0] == moved
        if still_s <= limit_s or (is_known and still_s < self._reported[1]):
            return
        span_s = min(CHECK_SPAN_S, limit_s / 4)
        stands = stack_dump.stands_still(span_s, self._stop.wait)
        culprits = self._stalls.find_culprits(span_s) if stands or not is_known else Culprits()
        if progress.moved != moved or self._stop.is_set():
            return
        self._checked = time.monotonic()
        level = Level.INTERVENE if stands and not culprits.works else Level.WARN
        self._reported = moved, 2 * still_s if level is Level.WARN else math.inf
        if level is Level.INTERVENE or not is_known:
            self._report(moved, phase, level, culprits, limit_s=limit_s, stands=stands)

    def _report(
        self, moved: float, phase: Phase, level: Level, culprits: Culprits, *, limit_s: float, stands: bool
    ) -> None:
        still_s = time.monotonic() - moved
        at = datetime.now(UTC)
        where = "stands at one instruction" if stands else "works"
        text = (
            f"no step for {still_s:.0f} s in phase {phase}, limit {limit_s:.0f} s; the training thread {where}"
            f"{'' if stands else ' (a save or an evaluation outside guard.phase?)'}"
        )
        stack_dump.dump_stacks(self._file, text)
        network = describe_unused_efa(os.environ, EFA_DEVICES) if phase is Phase.STARTUP else ""
        text = "; ".join(filter(None, (text, culprits.text, network)))
        step = self._progress.step
        finding = Finding(KINDS.get(phase, Kind.STALL), level, step, step, text, at, at - timedelta(seconds=still_s))
        self._on_hang(finding, stack_dump.format_stacks())


def describe_unused_efa(environment: Mapping[str, str], devices: Path) -> str:
    """Return that ranks of several machines may not use the EFA that this machine has; "" if they do, or need none.

    AWS's toolkit sets FI_PROVIDER only for the instance types that it knows.
    """
    ranks = [environment.get(name, "") for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")]
    is_spread = all(count.isdecimal() for count in ranks) and int(ranks[0]) > int(ranks[1])
    provider = environment.get("FI_PROVIDER", "")
    if not is_spread or "efa" in provider.split(",") or not any(devices.glob("uverbs*")):
        return ""
    state = f"is {provider!r:.40}" if provider else "is not set"
    return f"the machine has EFA, which may not be in use: FI_PROVIDER {state}; set it to efa in the job's environment"
