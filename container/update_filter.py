"""Which updates are left out: those of a step whose loss or gradient is no number, or far above what it has been.

Every rank has to decide alike, so a sieve is given the loss and the norm that all ranks share. The rule for outliers
and its numbers are those of OLMo-core's SkipStepOptimizer.
"""

import math
from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

WINDOW, FEWEST, SIGMAS = 128, 64, 6.0


class SkipMode(StrEnum):
    """What is left out."""

    OFF = "off"
    NONFINITE = "nonfinite"  # updates that would leave no number in the weights
    SIGMA = "sigma"  # these, and those whose loss or norm is six standard deviations above the mean of the last 128


class UpdateFilter:
    """Judges one step after the other, and counts what it has left out since the run began."""

    def __init__(self, mode: SkipMode) -> None:
        self.mode = mode
        self.skipped = 0
        self.losses: deque[float] = deque(maxlen=WINDOW)
        self.norms: deque[float] = deque(maxlen=WINDOW)

    def accepts(self, loss: float, grad_norm: Any) -> bool:
        """Whether the update is to be made. The norm, a number or a tensor, is looked at only if it matters."""
        if self.mode is SkipMode.OFF:
            return True
        norm = float(grad_norm)
        good = math.isfinite(loss) and math.isfinite(norm)
        if self.mode is SkipMode.SIGMA and good:
            good = not (_is_outlier(loss, self.losses) or _is_outlier(norm, self.norms))
            # Learnt from also when it is left out: a level that stays is the new level, and training goes on.
            self.losses.append(loss)
            self.norms.append(norm)
        self.skipped += not good
        return good

    def get_counts(self) -> dict[str, int]:
        """For the metric line: how many updates the run has gone without so far."""
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
    deviation = math.sqrt(math.fsum((each - mean) ** 2 for each in before) / len(before))
    return deviation > 0 and value - mean > SIGMAS * deviation
