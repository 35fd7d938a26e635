"""Measure the CPU time of work, so that a test can compare two costs of the same run on any machine."""

import time
from collections.abc import Callable


def cpu_seconds(work: Callable[[], object], *, repeats: int = 3) -> float:
    """Return the least CPU time that one of several calls takes in this thread.

    A single value depends on the machine. Divide it by another one that the same test has measured.
    """
    return min(_once(work) for _ in range(repeats))


def growth(small: Callable[[], object], large: Callable[[], object], *, repeats: int = 3) -> float:
    """Return how many times the CPU time of the small work the large one takes."""
    return cpu_seconds(large, repeats=repeats) / cpu_seconds(small, repeats=repeats)


def _once(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began
