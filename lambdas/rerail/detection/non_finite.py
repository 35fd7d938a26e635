"""Detect a loss or gradient that is not finite."""

import math
from dataclasses import dataclass

from rerail.detection.row import Row
from rerail.model.finding import Finding, Kind, Level
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds

# If half of this many rows are bad, that counts like a sequence of bad rows. A real run had nan in its first two rows
# and once more six rows later, and then trained for ten thousand rows.
MEMORY = 10


@dataclass(slots=True)
class NonFinite:
    """Which of the last rows were bad (the newest in the lowest bit), and the level reported."""

    recent: int = 0
    good: int = 0
    # A finite gradient norm was seen: until then a log may print none that is valid.
    has_norm: bool = False
    onset: int | None = None
    reported_level: Level | None = None

    def see(self, row: Row, detection: Thresholds) -> Finding | None:
        """Warn at the first bad row, and intervene if there are several within a few rows."""
        sample = row.sample
        self.has_norm = self.has_norm or (sample.grad_norm is not None and math.isfinite(sample.grad_norm))
        fault = _find_fault(sample, has_norm=self.has_norm)
        self.recent = (self.recent << 1 | (fault is not None)) & ((1 << MEMORY) - 1)
        if fault is None:
            self.good += 1
            if self.good >= detection.non_finite_quiet_rows:
                self.reported_level, self.onset = None, None
            return None
        self.good = 0
        bad = self.recent.bit_count()
        if self.onset is None:
            self.onset = sample.step if sample.complete_to is None else sample.complete_to + 1
        run = (~self.recent & (self.recent + 1)).bit_length() - 1
        if (run >= detection.non_finite_patience or bad >= MEMORY // 2) and self.reported_level is not Level.INTERVENE:
            return self._finding(Level.INTERVENE, sample, f"{fault} in {bad} of the last {MEMORY} rows")
        # Loss scalers cause an infinite gradient with a finite loss on purpose, so a single one is not reported.
        if self.reported_level is None and not (bad == 1 and _is_scaler_probe(sample)):
            return self._finding(Level.WARN, sample, fault)
        return None

    def _finding(self, level: Level, sample: Sample, evidence: str) -> Finding:
        self.reported_level = level
        return Finding(Kind.NON_FINITE, level, sample.step, self.onset, evidence, sample.at)


def _find_fault(sample: Sample, *, has_norm: bool) -> str | None:
    if sample.complete_to is not None:
        return "the log continues without a finite loss"
    if sample.nonfinite:
        return "the run itself reports that loss or gradient is not finite"
    for name, value in (("loss", sample.loss), ("gradient norm", sample.grad_norm if has_norm else None)):
        if value is not None and not math.isfinite(value):
            return f"{name} is {value}"
    return None


def _is_scaler_probe(sample: Sample) -> bool:
    sound = sample.loss is not None and math.isfinite(sample.loss)
    return sound and not sample.nonfinite and sample.grad_norm is not None and math.isinf(sample.grad_norm)
