"""Megatron's rerun machine: is the loss ten times the largest of the first hundred?"""

from collections.abc import Iterable, Iterator

from bench.rules.series import losses
from cli.backtest.scoring import INTERVENE, Call
from rerail.model.sample import Sample

# megatron/core/rerun_state_machine.py, is_unexpectedly_large: what is not finite is left to another check on purpose.
TIMES, FIRST = 10.0, 100


def calls(samples: Iterable[Sample]) -> Iterator[Call]:
    largest = 0.0
    for seen, (row, loss) in enumerate(losses(samples)):
        if seen < FIRST:
            largest = max(largest, abs(loss))
        elif abs(loss) >= TIMES * largest:
            yield Call(row, "loss_spike", INTERVENE)
