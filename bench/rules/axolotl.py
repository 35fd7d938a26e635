"""axolotl's loss watchdog: has the loss been above a fixed threshold for three steps in a row?"""

from collections.abc import Iterable, Iterator

from bench.rules.series import losses
from cli.backtest.scoring import INTERVENE, Call
from rerail.model.sample import Sample

# loss_watchdog_threshold and loss_watchdog_patience; its documentation advises about twice the starting loss.
TIMES_FIRST, PATIENCE = 2.0, 3


def calls(samples: Iterable[Sample]) -> Iterator[Call]:
    threshold: float | None = None
    in_a_row = 0
    for row, loss in losses(samples):
        threshold = TIMES_FIRST * loss if threshold is None else threshold
        in_a_row = in_a_row + 1 if loss > threshold else 0
        if in_a_row >= PATIENCE:
            yield Call(row, "loss_spike", INTERVENE)
