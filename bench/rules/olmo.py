"""OLMo-core: is the loss (in its SkipStepOptimizer also the gradient norm) 6 deviations above the last 128 steps?"""

import math
from collections.abc import Iterable, Iterator

from bench.rules.series import Moments
from cli.backtest.scoring import INTERVENE, Call
from rerail.model.sample import Sample

# train/callbacks/stability_monitor.py looks at the loss, optim/skip_step_optimizer.py at the gradient norm as well. The
# current value is compared first and learned afterwards, come what may.
WINDOW, SIGMAS, AT_LEAST, TINY = 128, 6.0, 64, 1e-10


def calls(samples: Iterable[Sample]) -> Iterator[Call]:
    """The loss alone."""
    loss = Moments(WINDOW)
    for row, sample in enumerate(samples):
        if _outside(loss, sample.loss):
            yield Call(row, "loss_spike", INTERVENE)


def calls_with_gradient(samples: Iterable[Sample]) -> Iterator[Call]:
    """The loss or the gradient norm."""
    loss, grad_norm = Moments(WINDOW), Moments(WINDOW)
    for row, sample in enumerate(samples):
        outside = [_outside(loss, sample.loss), _outside(grad_norm, sample.grad_norm)]
        if any(outside):
            yield Call(row, "loss_spike", INTERVENE)


def _outside(window: Moments, value: float | None) -> bool:
    if value is None or not math.isfinite(value):
        return False
    known = len(window) >= AT_LEAST
    outside = known and (std := window.std) >= TINY and value > window.mean + SIGMAS * std
    window.add(value)
    return outside
