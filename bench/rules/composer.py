"""Composer's NaN monitor: is the loss NaN?"""

import math
from collections.abc import Iterable, Iterator

from cli.backtest.scoring import INTERVENE, Call
from rerail.model.sample import Sample


def calls(samples: Iterable[Sample]) -> Iterator[Call]:
    # composer/callbacks/nan_monitor.py: it raises at once; an infinite loss passes.
    for row, sample in enumerate(samples):
        if sample.loss is not None and math.isnan(sample.loss):
            yield Call(row, "non_finite", INTERVENE)
