"""The published rules in numpy: the same calls as those that are scored, or the comparison of speed means nothing."""

import random

import numpy as np
import pytest

from bench.rules import RULES
from bench.vectors import FAST
from rerail.model.sample import Sample

ROWS, SERIES = 700, 6


def histories() -> np.ndarray:
    """Noisy losses that fall, with spikes of all widths and a start that some rules take as their measure."""
    draw = random.Random(7)
    rows = []
    for number in range(SERIES):
        losses = [2.0 + 4.0 / (1 + row / 60) + draw.gauss(0, 0.05) for row in range(ROWS)]
        for _ in range(6):
            at, width, height = draw.randrange(80, ROWS), draw.randrange(1, 12), draw.choice((1.3, 1.8, 3.0, 40.0))
            for row in range(at, min(ROWS, at + width)):
                losses[row] *= height
        rows.append(losses)
        assert number < SERIES
    return np.array(rows)


@pytest.mark.parametrize("fast", FAST, ids=lambda fast: fast.name)
def test_numpy_says_what_the_rule_says(fast):
    """Over whole histories and value by value: the rows of the rule in plain Python, for every history."""
    values = histories()
    (rule,) = (rule for rule in RULES if rule.name == fast.name)
    expected = [[call.row for call in rule.calls(Sample(loss=loss) for loss in row)] for row in values]
    assert any(expected)
    judge = fast.fresh(SERIES)
    one_by_one = np.stack([judge(values[:, row]) for row in range(ROWS)], axis=1)
    for said in (fast.whole(values), one_by_one):
        assert [list(np.flatnonzero(row)) for row in said] == expected
