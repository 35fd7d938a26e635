"""Run no more functions at once than a small machine can.

AWS starts as many environments as an event source's MaximumConcurrency allows; they cost nothing there when idle. Here
each is a process of some 90 MB that takes a second of a core to start, and eight of them slow each other down. Messages
wait in the queue meanwhile, as they do on AWS at the maximum.
"""

from typing import Any

from ministack.services import lambda_svc


def apply(workers: int) -> None:
    allowed = lambda_svc._sqs_esm_concurrency

    def limited(*mapping: Any, **options: Any) -> int:
        return min(workers, int(allowed(*mapping, **options)))

    lambda_svc._sqs_esm_concurrency = limited
