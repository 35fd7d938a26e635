"""Is the loss or the gradient no number any more?"""

import math
from dataclasses import dataclass

from rerail.detectors.detection import Detection
from rerail.detectors.finding import Finding, Kind, Level
from rerail.detectors.sample import Sample


@dataclass(slots=True)
class NonFinite:
    """How many rows in a row were not finite."""

    bad: int = 0
    onset: int | None = None

    def see(self, sample: Sample, detection: Detection) -> Finding | None:
        """Warn at the first such row, intervene when it lasts."""
        if not _non_finite(sample):
            self.bad, self.onset = 0, None
            return None
        self.bad += 1
        self.onset = sample.step if self.bad == 1 else self.onset
        if self.bad not in (1, detection.non_finite_patience):
            return None
        level = Level.WARN if self.bad < detection.non_finite_patience else Level.INTERVENE
        return Finding(
            Kind.NON_FINITE, level, sample.step, self.onset, f"{self.bad} rows in a row are not finite", at=sample.at
        )


def _non_finite(sample: Sample) -> bool:
    return sample.nonfinite or any(
        value is not None and not math.isfinite(value) for value in (sample.loss, sample.grad_norm)
    )
