"""Runs no more functions at once than a small machine has use for.

AWS starts as many environments as an event source's MaximumConcurrency allows; they cost nothing there when idle. Here
each is a process of some 90 MB that takes a second of a core to start, and eight of them for a queue with a handful of
messages only get into each other's way. Messages wait in the queue meanwhile, as they do on AWS at the maximum.
"""

from typing import Any

from ministack.services import lambda_svc


def apply(workers: int) -> None:
    allowed = lambda_svc._sqs_esm_concurrency

    def limited(*mapping: Any, **options: Any) -> int:
        return min(workers, int(allowed(*mapping, **options)))

    lambda_svc._sqs_esm_concurrency = limited
