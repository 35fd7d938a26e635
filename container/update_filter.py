"""Decide which updates are skipped: those of a step whose loss or gradient is not finite, or is an outlier.

Every rank must decide alike, so the filter takes the loss and the norm that all ranks share. The rule for outliers and
its numbers are those of OLMo-core's SkipStepOptimizer.
"""

import math
from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

WINDOW, FEWEST, SIGMAS = 128, 64, 6.0


class SkipMode(StrEnum):
    """Which updates are skipped."""

    OFF = "off"
    NONFINITE = "nonfinite"  # updates that would leave no number in the weights
    SIGMA = "sigma"  # these, and those whose loss or norm is six standard deviations above the mean of the last 128


class UpdateFilter:
    """Evaluate one step after the other, and count the updates that were skipped since the run began."""

    def __init__(self, mode: SkipMode) -> None:
        self.mode = mode
        self.skipped = 0
        self.losses: deque[float] = deque(maxlen=WINDOW)
        self.norms: deque[float] = deque(maxlen=WINDOW)

    def accepts(self, loss: float, grad_norm: Any) -> bool:
        """Return whether to make the update. The norm, a number or a tensor, is read only if it matters."""
        if self.mode is SkipMode.OFF:
            return True
        norm = float(grad_norm)
        good = math.isfinite(loss) and math.isfinite(norm)
        if self.mode is SkipMode.SIGMA and good:
            good = not (_is_outlier(loss, self.losses) or _is_outlier(norm, self.norms))
            # Skipped steps count too: a level that lasts becomes the new level, and training goes on.
            self.losses.append(loss)
            self.norms.append(norm)
        self.skipped += not good
        return good

    def get_counts(self) -> dict[str, int]:
        """Return the number of skipped updates for the metric line."""
        return {} if self.mode is SkipMode.OFF else {"skipped": self.skipped}

    def state_dict(self) -> dict[str, Any]:
        return {"skipped": self.skipped, "losses": list(self.losses), "norms": list(self.norms)}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        self.skipped = saved["skipped"]
        self.losses = deque(saved["losses"], maxlen=WINDOW)
        self.norms = deque(saved["norms"], maxlen=WINDOW)


def _is_outlier(value: float, before: deque[float]) -> bool:
    if len(before) < FEWEST:
        return False
    mean = math.fsum(before) / len(before)
    deviation = math.sqrt(math.fsum((earlier - mean) ** 2 for earlier in before) / len(before))
    return deviation > 0 and value - mean > SIGMAS * deviation
