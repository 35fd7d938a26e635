"""Track what this rank is doing, since when, and how long each phase took before."""

import time
from contextlib import AbstractContextManager
from types import TracebackType

from rerail.model.liveness import IGNORED_GAPS, Phase

# The share of the newest step in the mean step time.
SMOOTHING = 0.1


class Progress:
    """This rank's progress, written by the training thread and read by the others; times are monotonic."""

    def __init__(self) -> None:
        self.phase = Phase.STARTUP
        self.step: int | None = None
        self.steps = 0
        self.moved = time.monotonic()
        self.moved_wall: float | None = None
        self.longest = dict.fromkeys(Phase, 0.0)
        self.step_s: float | None = None  # of the last step, saves and evaluations taken out
        self.mean_s = 0.0
        self.usual_s = 0.0  # the mean before the last step
        self.saved_s = 0.0  # in saves, between the last two steps
        self.paused_s = 0.0  # in saves and evaluations, since the last step
        self.trained_s = 0.0  # in steps, all in all
        self._stepped: float | None = None
        self._saving_s = 0.0  # in saves, since the last step

    def on_step(self, step: int) -> None:
        """Record that a step is done, and learn how long it took."""
        now = time.monotonic()
        self.saved_s, self._saving_s, self.usual_s = self._saving_s, 0.0, self.mean_s
        if self._stepped is not None:
            self.step_s = seconds = max(0.0, now - self._stepped - self.paused_s)
            self.trained_s += seconds
            self.mean_s = seconds if self.steps < IGNORED_GAPS else self.mean_s + SMOOTHING * (seconds - self.mean_s)
            if self.steps > IGNORED_GAPS:  # the first ones compile, allocate and fill caches
                self._learn(Phase.STEP, now - self.moved)
        self.step, self._stepped, self.paused_s = step, now, 0.0
        self.steps += 1
        self.moved, self.moved_wall, self.phase = now, time.time(), Phase.STEP

    def track_phase(self, phase: Phase) -> AbstractContextManager[None]:
        """Count the time within the context to this phase, and not to the step around it."""
        return _PhaseTimer(self, phase)

    def _learn(self, phase: Phase, seconds: float) -> None:
        longest = self.longest[phase]
        # Half of the difference, as in the detectors: a plain maximum would keep one exceptional value for ever.
        self.longest[phase] = (longest + seconds) / 2 if seconds > longest > 0 else max(longest, seconds)


class _PhaseTimer(AbstractContextManager[None]):
    def __init__(self, progress: Progress, phase: Phase) -> None:
        self._progress, self._phase = progress, phase
        self._before, self._began = progress.phase, 0.0

    def __enter__(self) -> None:
        progress = self._progress
        self._before, self._began = progress.phase, time.monotonic()
        progress.phase, progress.moved = self._phase, self._began

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        progress, now = self._progress, time.monotonic()
        progress._learn(self._phase, now - self._began)
        if self._before in (Phase.STARTUP, Phase.STEP):  # the outermost of nested ones has the whole time
            progress.paused_s += now - self._began
            progress._saving_s += (now - self._began) * (self._phase is Phase.SAVE)
        progress.phase, progress.moved = self._before, now
