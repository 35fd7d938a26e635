"""Make bad input from the samples of a parser: a few hundred in the suite, over a million with RERAIL_INPUTS=all."""

from collections.abc import Iterator
from random import Random

from tests.bad_input.targets.catalogue import Target
from tests.examples import FULL_RUN


def inputs(target: Target, count: int) -> Iterator[bytes]:
    """Yield the samples, then this many changed ones: the same in each run."""
    samples = list(target.samples())
    yield from samples
    for seed in range(target.inputs if FULL_RUN else count):
        yield target.change(Random(seed).choice(samples), Random(seed))[: target.longest]
