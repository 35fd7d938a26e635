"""Measure the CPU time of work, so that a test can compare two costs of the same run on any machine."""

import math
import time
from collections.abc import Callable, Mapping


def cpu_seconds(work: Callable[[], object], *, repeats: int = 3) -> float:
    """Return the least CPU time that one of several calls takes in this thread.

    A single value depends on the machine. Divide it by another one that the same test has measured.
    """
    return min(_once(work) for _ in range(repeats))


def growth(small: Callable[[], object], large: Callable[[], object], *, repeats: int = 3) -> float:
    """Return how many times the CPU time of the small work the large one takes."""
    return cpu_seconds(large, repeats=repeats) / cpu_seconds(small, repeats=repeats)


def measure_in_turns(
    measures: Mapping[str, Callable[[], float]], is_enough: Callable[[Mapping[str, float]], bool], *, rounds: int = 3
) -> dict[str, float]:
    """Return the least value of each measure, taken in turns, so that a busy machine strikes all of them.

    Rounds are added while the values are not enough: a neighbor on the same machine slows some of them for a while,
    code that is too slow stays so.
    """
    least = dict.fromkeys(measures, math.inf)
    for number in range(1, 4 * rounds + 1):
        least = {name: min(least[name], measure()) for name, measure in measures.items()}
        if number >= rounds and is_enough(least):
            break
    return least


def _once(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began
