"""Google's ml-goodput: is the slow tail of the last hundred steps above what the thousand before call normal?"""

import math
from collections.abc import Iterable, Iterator

from bench.rules.series import Ordered
from cli.backtest.scoring import WARN, Call
from rerail.model.sample import Sample

# ml_goodput_measurement/src/goodput_utils.py: anomalous is a step above median + 3 MAD, the deviation is p90 of the
# last 100 against the median of the previous 1,000. It ignores steps under a second, which would be most logs here;
# and it names no least history, so 100 steps are ours.
RECENT, BEFORE, TAIL, MADS, AT_LEAST = 100, 1_000, 0.9, 3.0, 100


def calls(samples: Iterable[Sample]) -> Iterator[Call]:
    recent, before = Ordered(RECENT), Ordered(BEFORE)
    for row, sample in enumerate(samples):
        seconds = sample.step_time_s
        if seconds is None or not math.isfinite(seconds):
            continue
        gone = recent.add(seconds)
        if gone is not None:
            before.add(gone)
        if len(before) >= AT_LEAST:
            normal = before.quantile(0.5)
            excess = recent.quantile(TAIL) - normal
            if excess > 0 and before.share_within(excess / MADS, of=normal) >= 0.5:
                yield Call(row, "throughput_drop", WARN)
