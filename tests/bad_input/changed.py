"""A parser's samples, changed as the long run of `python -m bench.fuzz` changes them, a few hundred times."""

from random import Random

from bench.hostile.targets import Target


def inputs(target: Target, count: int) -> list[bytes]:
    """The same ones each time; the samples themselves first."""
    samples = list(target.samples())
    made = [target.change(Random(seed).choice(samples), Random(seed)) for seed in range(count)]
    return [*samples, *(data[: target.longest] for data in made)]
