"""A job from Starting to its end: the platform's side of the story, attempt after attempt."""

import asyncio
import logging
from collections.abc import Awaitable
from enum import StrEnum
from typing import TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from .artifacts import upload_artifacts
from .attempt import JobExecution
from .channels import DownloadFailed
from .faults import CAPACITY_ERROR, INTERNAL_ERROR, pending_limit
from .fleet import LocalFleet
from .images import UnknownImage
from .job import LocalJob, Secondary, Status

log = logging.getLogger(__name__)

T = TypeVar("T")


class Order(StrEnum):
    """What can interrupt a job from outside, the weightiest first."""

    STOP = "stop"
    MAX_WAIT = "max_wait"
    MAX_RUNTIME = "max_runtime"
    NODE_LOST = "node_lost"
    SPOT_RECLAIMED = "spot_reclaimed"


class _Ordered(Exception):
    def __init__(self, order: Order) -> None:
        super().__init__(order)
        self.order = order


class _JobFailed(Exception):
    """`cluster_sound`: the failure is the algorithm's or the request's, so a warm pool may be kept."""

    def __init__(self, reason: str, *, cluster_sound: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.cluster_sound = cluster_sound


class JobRun:
    """Drives one job on the event loop. `order` may be called at any time; the phase under way is left at once."""

    def __init__(self, job: LocalJob, fleet: LocalFleet) -> None:
        self.job = job
        self.attempt: JobExecution | None = None
        self._fleet = fleet
        self._warm = fleet.pools.claim(job)
        self._capacity = (0.0, True) if self._warm else fleet.faults.take_capacity(job.name)
        if not self._warm and not fleet.market.take(job):
            self._capacity = (max(self._capacity[0], fleet.market.patience), False)
        self._launched = False
        self._retries = 0
        self._interruption = fleet.timing.interruption
        self._trained = 0.0
        self._orders: set[Order] = set()
        self._ordered = asyncio.Event()
        self._timers: list[asyncio.TimerHandle] = []

    def order(self, order: Order, *, interruption: float | None = None) -> None:
        if interruption is not None:
            self._interruption = interruption
        self._orders.add(order)
        self._ordered.set()

    def begin_stop(self) -> None:
        """Show the job as stopping, and leave the phase under way."""
        self.job.move(Secondary.STOPPING, status=Status.STOPPING)
        self.order(Order.STOP)

    async def run(self) -> None:
        self._limit_waiting()
        self.job.move(Secondary.STARTING)
        try:
            await self._follow_orders()
        except _JobFailed as failed:
            await self._end_processes(lost=not failed.cluster_sound)
            self._settle_pool(failed.cluster_sound)
            self.job.fail(failed.reason)
        except Exception:
            log.exception("The run of %s broke: a fault of this fake", self.job.name)
            await self._end_processes(lost=True)
            self.job.fail(INTERNAL_ERROR)
        finally:
            for timer in self._timers:
                timer.cancel()

    async def _follow_orders(self) -> None:
        answers = {
            Order.STOP: self._stop,
            Order.MAX_WAIT: self._stop_for_wait,
            Order.MAX_RUNTIME: self._stop_for_runtime,
            Order.NODE_LOST: self._replace_node,
            Order.SPOT_RECLAIMED: self._wait_for_spot,
        }
        step = self._attempt_once
        while True:
            try:
                await step()
                return
            except _Ordered as interruption:
                step = answers[interruption.order]

    async def _attempt_once(self) -> None:
        await self._unless_ordered(self._start())
        self.attempt = attempt = JobExecution(self.job, self._fleet)
        await self._unless_ordered(self._download(attempt))
        host, code = await self._unless_ordered(self._train(attempt))
        await self._end_processes()
        self.job.move(Secondary.UPLOADING)
        await self._unless_ordered(self._upload(attempt, with_model=code == 0))
        if code:
            text = attempt.failure_text(host)
            raise _JobFailed(f"AlgorithmError: {text}, exit code: {code}", cluster_sound=True)
        self._settle_pool(sound=True)
        self.job.end(Status.COMPLETED, Secondary.COMPLETED)

    async def _start(self) -> None:
        if self.job.secondary is not Secondary.STARTING:
            self.job.move(Secondary.STARTING)
        await self._wait_for_capacity()
        await self._pause(self._fleet.timing.warm_start if self._warm else self._fleet.timing.start)
        if not self._capacity[1]:
            raise _JobFailed(CAPACITY_ERROR, cluster_sound=False)
        self._launched = True
        self.job.instances_ready()
        self._fleet.pools.occupy(self.job)

    async def _wait_for_capacity(self) -> None:
        wait, granted = self._capacity
        if wait:
            limit = pending_limit(self.job)
            self._capacity = (0.0, granted and wait <= limit)
            self.job.move(Secondary.PENDING)
            await self._pause(min(wait, limit))
            self.job.move(Secondary.STARTING)

    async def _download(self, attempt: JobExecution) -> None:
        self.job.move(Secondary.DOWNLOADING)
        try:
            await asyncio.gather(self._fleet.in_thread(attempt.prepare), self._pause(self._fleet.timing.download))
        except UnknownImage as error:
            raise _JobFailed(f"ClientError: Cannot pull the training image: {error}", cluster_sound=True) from error
        except (DownloadFailed, BotoCoreError, ClientError, ValueError) as error:
            raise _JobFailed(f"ClientError: Data download failed: {error}", cluster_sound=True) from error

    async def _train(self, attempt: JobExecution) -> tuple[str, int]:
        """The deciding host and its exit code. MaxRuntimeInSeconds covers all attempts of the job together."""
        await attempt.launch()
        self.job.move(Secondary.TRAINING)
        limit = self.job.request["StoppingCondition"].get("MaxRuntimeInSeconds", 86400)
        clock = asyncio.get_running_loop().time
        began, timer = clock(), self._call_after(self._fleet.timing.real(limit) - self._trained, Order.MAX_RUNTIME)
        try:
            return await attempt.outcome()
        finally:
            timer.cancel()
            self._trained += clock() - began

    async def _upload(self, attempt: JobExecution, *, with_model: bool) -> None:
        try:
            uri, _ = await asyncio.gather(
                self._fleet.in_thread(self._upload_now, attempt, with_model), self._pause(self._fleet.timing.upload)
            )
        except (BotoCoreError, ClientError, OSError) as error:
            raise _JobFailed(f"ClientError: Artifact upload failed:{error}", cluster_sound=True) from error
        self.job.model_artifacts = uri

    def _upload_now(self, attempt: JobExecution, with_model: bool) -> str | None:
        return upload_artifacts(self._fleet.storage, self.job.request, attempt.hosts, with_model=with_model)

    async def _stop(self, end: Secondary = Secondary.STOPPED) -> None:
        """Nothing interrupts a stop. Artifacts are uploaded if training had begun."""
        if self.job.status is not Status.STOPPING:
            self.job.move(Secondary.STOPPING, status=Status.STOPPING)
        if self.attempt:
            await self.attempt.stop()
        if self.attempt and self.attempt.processes:
            self.job.move(Secondary.UPLOADING)
            await self._upload(self.attempt, with_model=True)
        if self._launched:
            self._settle_pool(sound=True)
        self.job.end(Status.STOPPED, end)

    async def _stop_for_runtime(self) -> None:
        await self._stop(Secondary.MAX_RUNTIME_EXCEEDED)

    async def _stop_for_wait(self) -> None:
        await self._stop(Secondary.MAX_WAIT_TIME_EXCEEDED)

    async def _replace_node(self) -> None:
        """Restart the job in place after an internal error (RetryStrategy); fail it if no retries are left."""
        await self._end_processes(lost=True)
        allowed = self.job.request.get("RetryStrategy", {}).get("MaximumRetryAttempts", 0)
        if self._retries >= allowed:
            raise _JobFailed(INTERNAL_ERROR, cluster_sound=False)
        self._retries += 1
        self._warm = False
        self.job.move(Secondary.RESTARTING)
        await self._unless_ordered(self._pause(self._fleet.timing.restart))
        await self._attempt_once()

    async def _wait_for_spot(self) -> None:
        """Interrupt the processes; the job's status remains Training during their notice period."""
        if self.attempt:
            await self.attempt.reclaim()
            self.attempt = None
        self.job.move(Secondary.INTERRUPTED)
        await self._unless_ordered(self._pause(self._interruption))
        await self._attempt_once()

    async def _end_processes(self, *, lost: bool = False) -> None:
        if self.attempt and lost:
            await self.attempt.lose()
            self.attempt = None
        elif self.attempt:
            await self.attempt.end()

    def _settle_pool(self, sound: bool) -> None:
        if sound and self._launched:
            self._fleet.pools.retain(self.job)
        else:
            self._fleet.pools.discard(self.job)

    def _limit_waiting(self) -> None:
        limit = self.job.request["StoppingCondition"].get("MaxWaitTimeInSeconds")
        if limit is not None:
            self._call_after(self._fleet.timing.real(limit), Order.MAX_WAIT)

    def _call_after(self, seconds: float, order: Order) -> asyncio.TimerHandle:
        timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self.order, order)
        self._timers.append(timer)
        return timer

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(self._fleet.timing.real(seconds))

    async def _unless_ordered(self, work: Awaitable[T]) -> T:
        """The work's result, or the weightiest order that came meanwhile, raised."""
        task = asyncio.ensure_future(work)
        bell = asyncio.ensure_future(self._ordered.wait())
        try:
            await asyncio.wait({task, bell}, return_when=asyncio.FIRST_COMPLETED)
            if not self._ordered.is_set():
                return task.result()
        finally:
            bell.cancel()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        raise _Ordered(self._take_order())

    def _take_order(self) -> Order:
        order = next(order for order in Order if order in self._orders)
        self._orders.clear()
        self._ordered.clear()
        return order
