"""metaseq's spike damping: is the loss above a multiple of its running mean, which is frozen meanwhile?"""

from collections.abc import Iterable, Iterator

from bench.rules.series import losses
from cli.backtest.scoring import INTERVENE, Call
from rerail.model.sample import Sample

# metaseq/trainer.py: span 9, that is alpha 0.2. It is off by default, so the ratio is ours.
SPAN, RATIO = 9, 1.3


def calls(samples: Iterable[Sample]) -> Iterator[Call]:
    alpha = 2 / (SPAN + 1)
    running: float | None = None
    for row, loss in losses(samples):
        if running is not None and loss > RATIO * running:
            yield Call(row, "loss_spike", INTERVENE)
            continue
        running = loss if running is None else alpha * loss + (1 - alpha) * running
