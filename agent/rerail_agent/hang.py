"""Does this rank stand still? A thread that looks, writes down where everybody stands, and says so once.

Silence is judged by what the run itself has shown: five times the longest gap it ever made, and a floor. A training
thread that moves is perhaps evaluating, so it gets twice the time; one that stands at the same instruction does not.
It cannot look while an extension holds the interpreter's lock.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rerail.model.finding import Finding, Kind, Level
from rerail.model.liveness import Phase
from rerail.model.thresholds import Thresholds
from rerail_agent import stack_dump
from rerail_agent.fault_isolation import FaultIsolation
from rerail_agent.progress import Progress

LOOKS = 10
LOOK_FOR_S = 10.0
PAUSED_S = 5.0
KINDS = {Phase.STARTUP: Kind.STARTUP_STALL, Phase.SAVE: Kind.CHECKPOINT_STALL}


@dataclass(frozen=True, slots=True)
class HangLimits:
    """How long each phase may last without a sign of life, in seconds."""

    step_s: float
    save_s: float
    unknown_s: float  # the start, and the first save or evaluation: nothing was learnt about them yet
    factor: float

    @classmethod
    def of(cls, detection: Thresholds, *, hang_s: float) -> "HangLimits":
        return cls(
            step_s=hang_s,
            save_s=detection.save_floor.total_seconds(),
            unknown_s=detection.startup_limit.total_seconds(),
            factor=detection.stall_factor,
        )

    def of_phase(self, phase: Phase, longest_s: float) -> float:
        learnt = self.factor * longest_s
        if phase is Phase.STEP:
            return max(self.step_s, learnt)
        if phase is Phase.STARTUP or not longest_s:
            return self.unknown_s
        return max(self.save_s if phase is Phase.SAVE else self.step_s, learnt)


class Watchdog:
    """The thread. `found` gets the finding and the evidence; it is None on ranks that only write down their stacks."""

    def __init__(
        self,
        progress: Progress,
        limits: HangLimits,
        *,
        file: Path | None,
        found: Callable[[Finding, str], None],
        harmless: FaultIsolation,
    ) -> None:
        self._progress, self._limits, self._file = progress, limits, file
        self._found, self._harmless = found, harmless
        self._told: tuple[float, Level] | None = None  # about which silence, named by when it began
        self._stop = threading.Event()
        least = min(limits.step_s, limits.save_s, limits.unknown_s)
        self._every_s = min(5.0, least / 8)
        self._looked = self._excused = time.monotonic()
        self._thread = threading.Thread(target=self._watch, name="rerail-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _watch(self) -> None:
        while not self._stop.wait(self._every_s) and not {"watchdog", "progress"} & self._harmless.broken:
            self._harmless.run("watchdog", self._look, None)

    def _look(self) -> None:
        progress = self._progress
        now, before = time.monotonic(), self._looked
        self._looked = now
        if now - before > 2 * self._every_s + PAUSED_S:
            self._excused = now  # this thread did not run either: the process was stopped, or its lock was held
        moved, phase = progress.moved, progress.phase
        still_s = now - max(moved, self._excused)
        limit_s = self._limits.of_phase(phase, progress.longest[phase])
        if still_s <= limit_s or self._told == (moved, Level.INTERVENE):
            return
        overdue = still_s > 2 * limit_s
        if self._told == (moved, Level.WARN) and not overdue:
            return
        stands = self._stands_still(min(LOOK_FOR_S, limit_s / 4))
        if progress.moved != moved or self._stop.is_set():
            return
        self._looked = time.monotonic()
        self._tell(moved, phase, Level.INTERVENE if stands or overdue else Level.WARN, limit_s=limit_s, stands=stands)

    def _stands_still(self, for_s: float) -> bool:
        first = stack_dump.find_position()
        for _ in range(LOOKS):
            self._stop.wait(for_s / LOOKS)
            if stack_dump.find_position() != first:
                return False
        return True

    def _tell(self, moved: float, phase: Phase, level: Level, *, limit_s: float, stands: bool) -> None:
        self._told = moved, level
        still_s = time.monotonic() - moved
        at = datetime.now(UTC)
        where = "stands at one instruction" if stands else "moves"
        text = (
            f"no step for {still_s:.0f} s in phase {phase}, limit {limit_s:.0f} s; the training thread {where}"
            f"{'' if stands else ' (a save or an evaluation outside guard.phase?)'}"
        )
        stack_dump.dump_stacks(self._file, text)
        step = self._progress.step
        finding = Finding(KINDS.get(phase, Kind.STALL), level, step, step, text, at, at - timedelta(seconds=still_s))
        self._found(finding, stack_dump.format_stacks())
