"""Detect a jump of the gradient norm, which precedes one loss spike in five."""

import math
from dataclasses import dataclass, field

from rerail.detection.row import Row
from rerail.detection.window import Window
from rerail.model.finding import Finding, Kind, Level
from rerail.model.thresholds import Thresholds

ROWS = 64
NEEDS = 32


@dataclass(slots=True)
class GradNorm:
    """The last gradient norms, as logarithms, and whether the last one was too high."""

    norms: Window = field(default_factory=lambda: Window(ROWS))
    high: bool = False

    def __post_init__(self) -> None:
        self.norms = self.norms.copy()

    def see(self, row: Row, detection: Thresholds) -> Finding | None:
        """Warn at the first row of a jump, if the policy asks for it: a reason to save early, but not to stop."""
        sample = row.sample
        norm = sample.grad_norm
        if not detection.grad_norm or norm is None or not 0 < norm < math.inf:
            return None
        value, was_high = math.log(norm), self.high
        self.high = len(self.norms) >= NEEDS and norm > detection.grad_norm_floor and value > self._limit(detection)
        usual = self.norms.median() if self.high else 0.0
        self.norms.push(value)
        if not self.high or was_high:
            return None
        times, median = math.exp(min(value - usual, 700)), math.exp(usual)
        text = f"gradient norm {norm:.4g} is {times:.1f} times its median {median:.4g}"
        return Finding(Kind.GRAD_NORM, Level.WARN, sample.step, sample.step, text, sample.at)

    def _limit(self, detection: Thresholds) -> float:
        noise = detection.grad_norm_noise * self.norms.deviation()
        return self.norms.median() + max(noise, math.log(detection.grad_norm_factor))
