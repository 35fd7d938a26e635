"""Do the same work on many logs, on all cores."""

import os
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_all_start_methods, get_context
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


def spread(work: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
    """Yield the results as they come, in any order; `work` must be a function of a module.

    One task is done in this process.
    """
    processes = min(len(tasks), os.cpu_count() or 1)
    if processes < 2:
        yield from map(work, tasks)
        return
    # A forked worker has everything imported already; the pool forks before it starts threads of its own.
    method = "fork" if "fork" in get_all_start_methods() else "spawn"
    with get_context(method).Pool(processes) as pool:
        yield from pool.imap_unordered(work, tasks)
