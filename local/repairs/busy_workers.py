"""Let a running invocation end when its function is updated, or another invocation of it fails.

MiniStack ends every worker of a function then, also those in the middle of an invocation, which fails. A few functions
at once and an update that takes seconds use up all tries of an asynchronous event that way. AWS lets a running
invocation end in its environment, which serves no other afterwards.
Facts: Lambda developer guide, "Understanding the Lambda execution environment lifecycle".
"""

import threading
from collections.abc import Iterable
from typing import Any

from ministack.core import lambda_runtime
from ministack.services import lambda_svc


class _Leases(threading.local):
    """The worker of this thread's invocation, and whether the thread invalidates workers now."""

    worker: Any = None
    is_invalidating = False


def apply() -> None:
    acquire, release = lambda_runtime.acquire_worker, lambda_runtime.release_worker
    invalidate, kill = lambda_runtime.invalidate_worker, lambda_runtime.kill_workers
    leases = _Leases()

    def acquire_worker(*function: Any, **options: Any) -> tuple[Any, str]:
        worker, reason = acquire(*function, **options)
        leases.worker = worker
        return worker, reason

    def release_worker(worker: Any) -> None:
        leases.worker = None
        release(worker)
        if getattr(worker, "is_retired", False):
            kill([worker])

    def invalidate_worker(*function: Any, **options: Any) -> None:
        leases.is_invalidating = True
        try:
            invalidate(*function, **options)
        finally:
            leases.is_invalidating = False
            leases.worker = None  # its own is ended, and is not released any more

    def kill_workers(workers: Iterable[Any]) -> None:
        ended = list(workers)
        if leases.is_invalidating:
            with lambda_runtime._lock:  # release_worker takes it too
                busy = [worker for worker in ended if worker.in_use and worker is not leases.worker]
                for worker in busy:
                    worker.is_retired = True
            ended = [worker for worker in ended if worker not in busy]
        kill(ended)

    for module in (lambda_runtime, lambda_svc):
        module.acquire_worker = acquire_worker
        module.release_worker = release_worker
        module.invalidate_worker = invalidate_worker
    lambda_runtime.kill_workers = kill_workers
