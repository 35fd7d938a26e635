"""Do the same work on many logs or simulated runs, on all cores, and show how far it is."""

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from multiprocessing import get_all_start_methods, get_context
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

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


def show_progress(results: Iterator[Result], total: int, what: str, console: Console) -> Iterator[Result]:
    """Yield the results of `spread` as they come, under a progress bar.

    The first is taken before the bar starts its thread: a process is forked best while it has one.
    """
    yield from islice(results, 1)
    columns = TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=total < 2) as progress:
        bar = progress.add_task(what, total=total, completed=1)
        for result in results:
            progress.advance(bar)
            yield result
