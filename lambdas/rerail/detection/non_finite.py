"""Is the loss or the gradient no number any more?"""

import math
from dataclasses import dataclass

from rerail.model.finding import Finding, Kind, Level
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds

# Of so many rows half being bad is as good as a run of bad ones; the first rows of a real run were nan, nan and six
# rows later nan once more, and it trained on for ten thousand.
MEMORY = 10


@dataclass(slots=True)
class NonFinite:
    """Which of the last rows were bad, newest in the lowest bit, and what has been said about it."""

    recent: int = 0
    good: int = 0
    onset: int | None = None
    told: Level | None = None

    def see(self, sample: Sample, detection: Thresholds) -> Finding | None:
        """Warn at the first bad row, intervene when there are several in a few."""
        fault = _fault(sample)
        self.recent = (self.recent << 1 | (fault is not None)) & ((1 << MEMORY) - 1)
        if fault is None:
            self.good += 1
            if self.good >= detection.non_finite_quiet_rows:
                self.told, self.onset = None, None
            return None
        self.good = 0
        bad = self.recent.bit_count()
        if self.onset is None:
            self.onset = sample.step if sample.sound_to is None else sample.sound_to + 1
        run = (~self.recent & (self.recent + 1)).bit_length() - 1
        if (run >= detection.non_finite_patience or bad >= MEMORY // 2) and self.told is not Level.INTERVENE:
            return self._finding(Level.INTERVENE, sample, f"{fault} in {bad} of the last {MEMORY} rows")
        # An infinite gradient with a sound loss is what a loss scaler provokes on purpose: it must come again.
        if self.told is None and not (bad == 1 and _scaler_probe(sample)):
            return self._finding(Level.WARN, sample, fault)
        return None

    def _finding(self, level: Level, sample: Sample, evidence: str) -> Finding:
        self.told = level
        return Finding(Kind.NON_FINITE, level, sample.step, self.onset, evidence, sample.at)


def _fault(sample: Sample) -> str | None:
    if sample.sound_to is not None:
        return "the log goes on without a loss that is a number"
    if sample.nonfinite:
        return "the run says itself that loss or gradient is not finite"
    for name, value in (("loss", sample.loss), ("gradient norm", sample.grad_norm)):
        if value is not None and not math.isfinite(value):
            return f"{name} is {value}"
    return None


def _scaler_probe(sample: Sample) -> bool:
    sound = sample.loss is not None and math.isfinite(sample.loss)
    return sound and not sample.nonfinite and sample.grad_norm is not None and math.isinf(sample.grad_norm)
