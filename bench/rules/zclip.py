"""ZClip, applied to the loss: is the value 2.5 deviations above a running mean that learns only the clipped value?"""

import math
from collections.abc import Iterable, Iterator
from statistics import mean, pvariance

from bench.rules.series import losses
from cli.backtest.scoring import INTERVENE, Call
from rerail.model.sample import Sample

# arXiv 2504.02507 and its code: made for clipping gradient norms, here as a detector on the loss.
ALPHA, Z, WARM_UP, TINY = 0.97, 2.5, 25, 1e-6


def calls(samples: Iterable[Sample]) -> Iterator[Call]:
    first: list[float] = []
    centre = variance = 0.0
    for row, loss in losses(samples):
        if len(first) < WARM_UP:
            first.append(loss)
            centre, variance = mean(first), pvariance(first)
            continue
        std = math.sqrt(variance)
        z = (loss - centre) / (std + TINY)
        if z > Z:
            yield Call(row, "loss_spike", INTERVENE)
            loss = centre + Z * std / (z / Z)
        centre = ALPHA * centre + (1 - ALPHA) * loss
        variance = ALPHA * variance + (1 - ALPHA) * (loss - centre) ** 2
