"""LocalInject: the faults that tests and demonstrations can cause, one function each."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from .attempt import JobExecution
from .errors import ServiceError, invalid, not_found
from .events import EventDelivery, EventFeed
from .fleet import LocalFleet
from .job import Secondary, Status
from .lifecycle import JobRun, Order
from .validation import Request

log = logging.getLogger(__name__)

# How often jobs that a fault waits for are looked at, in wall time.
_LOOK_EVERY_S = 0.05
# Shorter than a step that anyone would notice, long enough for a listing of processes.
_SLOW_PERIOD_S = 0.5
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."

OPERATIONS = (
    "AddTags",
    "CreateTrainingJob",
    "DeleteTags",
    "DeleteTrainingJob",
    "DescribePipelineExecution",
    "DescribeTrainingJob",
    "DescribeTrainingPlan",
    "ListPipelineExecutionSteps",
    "ListTags",
    "ListTrainingJobs",
    "Search",
    "SendPipelineExecutionStepFailure",
    "SendPipelineExecutionStepSuccess",
    "StopPipelineExecution",
    "StopTrainingJob",
    "UpdateTrainingJob",
)


class Injections:
    def __init__(self, *, runs: Mapping[str, JobRun], fleet: LocalFleet, feed: EventFeed) -> None:
        self._runs = runs
        self._fleet = fleet
        self._feed = feed
        self._scheduled: set[asyncio.Task[None]] = set()
        self._causes: dict[str, Callable[[Request], Awaitable[None]]] = {
            "kill": self._kill,
            "oom": self._oom,
            "hang": self._hang,
            "slow": self._slow,
            "internal_error": self._internal_error,
            "interrupt": self._interrupt,
            "capacity": self._capacity,
            "machines": self._machines,
            "quota": self._quota,
            "plan": self._plan,
            "resource_limit": self._resource_limit,
            "throttle": self._throttle,
            "deny": self._deny,
            "describe_error": self._describe_error,
            "events": self._events,
            "event": self._event,
            "stop": self._stop,
            "at": self._at,
        }

    async def inject(self, request: Request) -> dict[str, Any]:
        fault = request.get("Fault")
        if fault not in self._causes:
            raise invalid(f"Fault must be one of {', '.join(self._causes)}, not {fault!r}")
        await self._causes[fault](request)
        return {"Fault": fault}

    def close(self) -> None:
        """Forget the faults that still wait for a step."""
        for task in self._scheduled:
            task.cancel()

    async def _at(self, request: Request) -> None:
        """Cause Faults in order, once each of TrainingJobNames has printed at least Step and its checkpoints are
        uploaded.

        The jobs need not exist yet.
        """
        names, faults = request.get("TrainingJobNames"), request.get("Faults")
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise invalid(f"TrainingJobNames must be a list of names of training jobs, not {names!r}")
        if not isinstance(faults, list) or not all(isinstance(fault, dict) for fault in faults):
            raise invalid(f"Faults must be a list of faults, each an object with Fault and its fields, not {faults!r}")
        if unknown := [fault.get("Fault") for fault in faults if fault.get("Fault") not in self._causes]:
            raise invalid(f"Fault must be one of {', '.join(self._causes)}, not {unknown[0]!r}")
        step = _number(request, "Step")
        task = asyncio.create_task(self._cause_at(step, names, faults))
        self._scheduled.add(task)
        task.add_done_callback(self._scheduled.discard)

    async def _cause_at(self, step: float, names: list[str], faults: list[Request]) -> None:
        for name in names:
            while not self._has_reached(name, step):
                await asyncio.sleep(_LOOK_EVERY_S)
        for name in names:
            attempt = self._runs[name].attempt
            if attempt:
                await attempt.upload_checkpoints()
        for fault in faults:
            try:
                await self.inject(fault)
            except ServiceError as error:
                log.error("the fault %s at step %g was refused: %s", fault, step, error)

    def _has_reached(self, name: str, step: float) -> bool:
        run = self._runs.get(name)
        attempt = run.attempt if run else None
        return attempt is not None and attempt.metric("step") >= step

    async def _stop(self, request: Request) -> None:
        """Stop the job as StopTrainingJob does."""
        self._run_in(request).begin_stop()

    async def _kill(self, request: Request) -> None:
        """SIGKILL to every process of the job on one host."""
        attempt, host = self._host_in(request)
        await attempt.kill_host(host)

    async def _oom(self, request: Request) -> None:
        """SIGKILL as by `kill`, with the failure file of a GPU that is out of memory."""
        attempt, host = self._host_in(request)
        await attempt.fail_host(host, OUT_OF_MEMORY)

    async def _hang(self, request: Request) -> None:
        """SIGSTOP to the training processes: they live, and do nothing any more."""
        attempt, _ = self._host_in(request)
        await attempt.freeze()

    async def _slow(self, request: Request) -> None:
        """Let the training processes work for Share of the time (0.3)."""
        attempt, _ = self._host_in(request)
        share = _number(request, "Share", default=0.3)
        if not 0 < share < 1:
            raise invalid(f"Share must lie between 0 and 1, not {share!r}")
        task = asyncio.create_task(attempt.slow_down(share, _SLOW_PERIOD_S))
        self._scheduled.add(task)
        task.add_done_callback(self._scheduled.discard)

    def _host_in(self, request: Request) -> tuple[JobExecution, str]:
        """Return the attempt of a job that trains, and one of its hosts."""
        attempt = self._run_in(request, Secondary.TRAINING).attempt
        assert attempt, "a job in Training has an attempt"
        host = request.get("Host", "algo-1")
        if host not in attempt.processes:
            raise invalid(f"Host must be one of {', '.join(attempt.processes)}, not {host!r}")
        return attempt, str(host)

    async def _internal_error(self, request: Request) -> None:
        self._run_in(request).order(Order.NODE_LOST)

    async def _interrupt(self, request: Request) -> None:
        run = self._run_in(request)
        if not run.job.request.get("EnableManagedSpotTraining"):
            raise invalid(f"{run.job.name} has no spot instances to interrupt: set EnableManagedSpotTraining")
        run.order(Order.SPOT_RECLAIMED, interruption=request.get("WaitSeconds"))

    async def _capacity(self, request: Request) -> None:
        """WaitSeconds first spends that time Pending; with Granted the job then gets its capacity."""
        faults = self._fleet.faults
        faults.only["capacity"] = _name(request)
        faults.capacity_wait = _number(request, "WaitSeconds", default=0)
        if request.get("Granted"):
            faults.capacity_delays = _count(request)
        else:
            faults.capacity_failures = _count(request)

    async def _machines(self, request: Request) -> None:
        """So many are left of InstanceType for new jobs; without Count they are plentiful again."""
        market = self._fleet.market
        market.patience = _number(request, "WaitSeconds", default=market.patience)
        _set(market.left, request, "Count")

    async def _quota(self, request: Request) -> None:
        """The account may use so many of InstanceType at once; without Limit as many as it likes."""
        _set(self._fleet.market.limits, request, "Limit")

    async def _plan(self, request: Request) -> None:
        """A training plan of this ARN has capacity from StartTime to EndTime, in seconds since 1970."""
        arn = request.get("TrainingPlanArn")
        if not isinstance(arn, str) or ":training-plan/" not in arn:
            raise invalid(f"TrainingPlanArn must be the ARN of a training plan, not {arn!r}")
        self._fleet.market.plans[arn] = _number(request, "StartTime", default=0), _number(request, "EndTime")

    async def _resource_limit(self, request: Request) -> None:
        self._fleet.faults.arm_call("resource_limit", "CreateTrainingJob", _count(request), only=_name(request))

    async def _throttle(self, request: Request) -> None:
        self._fleet.faults.arm_call("throttle", _operation(request), _count(request))

    async def _deny(self, request: Request) -> None:
        """Refuse the next Count calls of Operation for jobs whose names begin with TrainingJobName, as a service
        control policy does."""
        self._fleet.faults.arm_call("deny", _operation(request), _count(request), only=_name(request))

    async def _describe_error(self, request: Request) -> None:
        self._fleet.faults.arm_call("describe_error", "DescribeTrainingJob", _count(request))

    async def _events(self, request: Request) -> None:
        """Loss, Repeat, Delay, DelayEvery and TrainingJobName are changed where given; the rest stays."""
        now = self._feed.delivery
        self._feed.delivery = EventDelivery(
            loss_every=int(_number(request, "Loss", default=now.loss_every)),
            repeat=int(_number(request, "Repeat", default=now.repeat)),
            delay=_number(request, "Delay", default=now.delay),
            delay_every=max(1, int(_number(request, "DelayEvery", default=now.delay_every))),
            only=_name(request) if "TrainingJobName" in request else now.only,
        )

    async def _event(self, request: Request) -> None:
        """An event that SageMaker itself puts on the default bus, such as one of a HyperPod cluster."""
        kind, detail, resources = request.get("DetailType"), request.get("Detail"), request.get("Resources", [])
        if not isinstance(kind, str) or not kind.startswith("SageMaker ") or not isinstance(detail, dict):
            raise invalid("DetailType must begin with 'SageMaker ', and Detail must be a JSON object")
        self._feed.publish(kind, detail, resources)

    def _run_in(self, request: Request, secondary: Secondary | None = None) -> JobRun:
        run = self._runs.get(request.get("TrainingJobName", ""))
        if run is None:
            raise not_found()
        job = run.job
        if job.status is not Status.IN_PROGRESS or secondary not in (None, job.secondary):
            raise invalid(f"{job.name} is {job.status}/{job.secondary}: this fault needs {secondary or 'InProgress'}")
        return run


def _set(table: dict[str, int], request: Request, key: str) -> None:
    kind = request.get("InstanceType")
    if not isinstance(kind, str) or not kind.startswith("ml."):
        raise invalid(f"InstanceType must be an instance type, not {kind!r}")
    if key in request:
        table[kind] = int(_number(request, key))
    else:
        table.pop(kind, None)


def _name(request: Request) -> str:
    """Return the prefix of the names of the jobs concerned; "" for all."""
    name = request.get("TrainingJobName", "")
    if not isinstance(name, str):
        raise invalid(f"TrainingJobName must be how the jobs' names begin, not {name!r}")
    return name


def _operation(request: Request) -> str:
    operation = request.get("Operation")
    if operation not in OPERATIONS:
        raise invalid(f"Operation must be one of {', '.join(OPERATIONS)}, not {operation!r}")
    return str(operation)


def _count(request: Request) -> int:
    return int(_number(request, "Count", default=1))


def _number(request: Request, key: str, *, default: float | None = None) -> float:
    value = request.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise invalid(f"{key} must be a number of 0 or more, not {value!r}")
    return value
