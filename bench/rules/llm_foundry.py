"""llm-foundry's KillLossSpike: has the loss been twice its rolling mean for five steps in a row?"""

from collections.abc import Iterable, Iterator

from bench.rules.series import Moments, losses
from cli.backtest.scoring import INTERVENE, Call
from rerail.model.sample import Sample

# llmfoundry/callbacks/kill_loss_spike_callback.py: patience 4 means the fifth; the window is the larger of 100 steps
# and 5 % of the run, and the run's length is not known here.
TIMES, PATIENCE, WINDOW = 2.0, 4, 100


def calls(samples: Iterable[Sample]) -> Iterator[Call]:
    window, in_a_row = Moments(WINDOW), 0
    for row, loss in losses(samples):
        if len(window) == WINDOW:
            in_a_row = in_a_row + 1 if loss >= TIMES * window.mean else 0
            if in_a_row > PATIENCE:
                yield Call(row, "loss_spike", INTERVENE)
        window.add(loss)
