"""The SageMaker training API on this machine: one `handle` for all operations."""

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from .callbacks import CallbackSteps
from .errors import ServiceError, in_use, invalid, not_found
from .events import Emit, EventFeed
from .fleet import LocalFleet
from .images import Image, default_images
from .injections import OPERATIONS, Injections
from .job import LocalJob, Secondary, Status
from .lifecycle import JobRun
from .listing import list_page
from .protocol import Response, operation_name, read_request, write_answer, write_error, write_plain
from .search import search_page
from .timing import Timing
from .validation import Request, check_request, debug_refused, tags_refused

log = logging.getLogger(__name__)

_MOST_TAGS = 50

Operation = Callable[[Request], Awaitable[dict[str, Any] | None]]


class TrainingService:
    """Run jobs as local processes; S3, CloudWatch and Logs are called at `endpoint_url`, from worker threads.

    `emit_event` gets each "SageMaker Training Job State Change" as an EventBridge entry, on the event loop.
    `images` maps an image's repository name to the folder that stands for it. `scale` is short for
    `timing=Timing(scale=...)`.
    """

    def __init__(
        self,
        endpoint_url: str,
        state_dir: Path | str,
        emit_event: Emit,
        *,
        scale: float = 1.0,
        timing: Timing | None = None,
        images: Mapping[str, Image] | None = None,
        region: str = "us-east-1",
        account_id: str = "000000000000",
    ) -> None:
        self._arn_prefix = f"arn:aws:sagemaker:{region}:{account_id}:training-job/"
        self._fleet = LocalFleet(
            endpoint_url=endpoint_url,
            state_dir=Path(state_dir).resolve(),
            timing=timing or Timing(scale=scale),
            images=default_images() if images is None else images,
            region=region,
            account_id=account_id,
        )
        self.events = EventFeed(emit_event, self._fleet.timing)
        self._runs: dict[str, JobRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._injections = Injections(runs=self._runs, fleet=self._fleet, feed=self.events)
        callbacks = CallbackSteps(f"arn:aws:sagemaker:{region}:{account_id}:pipeline/local/execution/local")
        self._operations: dict[str, Operation] = {
            "CreateTrainingJob": self._create,
            "DescribeTrainingJob": self._describe,
            "DescribeTrainingPlan": self._describe_plan,
            "ListTrainingJobs": self._list,
            "StopTrainingJob": self._stop,
            "UpdateTrainingJob": self._update,
            "DeleteTrainingJob": self._delete,
            "AddTags": self._add_tags,
            "ListTags": self._list_tags,
            "DeleteTags": self._delete_tags,
            "SendPipelineExecutionStepSuccess": callbacks.succeed,
            "SendPipelineExecutionStepFailure": callbacks.fail,
            "ListPipelineExecutionSteps": callbacks.list_steps,
            "StopPipelineExecution": callbacks.stop,
            "DescribePipelineExecution": callbacks.describe,
            "Search": self._search,
        }
        assert set(self._operations) == set(OPERATIONS)

    async def handle(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, query: Mapping[str, Any]
    ) -> Response:
        """One awsJson1.1 request; `method`, `path` and `query` say nothing in this protocol."""
        try:
            operation, request = operation_name(headers), read_request(body)
            if operation == "LocalInject":
                return write_plain(await self._injections.inject(request))
            return write_answer(operation, await self._answer(operation, request))
        except ServiceError as error:
            return write_error(error)
        except Exception as error:
            log.exception("A fault of this fake")
            return write_error(ServiceError("InternalFailure", f"A fault of the local fake: {error!r}", status=500))

    def tags_of(self, arn: str) -> dict[str, str]:
        """Return the tags of a job by its ARN; none of a job that there is not."""
        run = self._runs.get(arn.removeprefix(self._arn_prefix))
        return dict(run.job.tags) if run else {}

    async def close(self) -> None:
        """End every process that was started; running jobs keep their status, and no event is sent."""
        self._fleet.begin_closing()
        self._injections.close()
        self.events.close()
        for task in self._tasks:
            task.cancel()
        for run in self._runs.values():
            if run.attempt:
                run.attempt.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fleet.close()

    async def _answer(self, operation: str, request: Request) -> dict[str, Any] | None:
        if operation not in self._operations:
            known = ", ".join(self._operations)
            raise ServiceError("UnknownOperationException", f"{operation} is not part of this fake; known: {known}")
        self._fleet.faults.apply_to_call(operation, request)
        check_request(operation, request)
        return await self._operations[operation](request)

    async def _create(self, request: Request) -> dict[str, Any]:
        name = request["TrainingJobName"]
        if name in self._runs:
            raise in_use(
                "Training job names must be unique within an AWS account and region, and a training job with this "
                f"name already exists ({self._arn_prefix}{name})"
            )
        if not self._fleet.pools.has_for(request):
            self._fleet.market.check_quota(request, (run.job for run in self._runs.values()))
        job = LocalJob(request, arn=f"{self._arn_prefix}{name}", changed=self.events.announce)
        run = self._runs[name] = JobRun(job, self._fleet)
        task = asyncio.create_task(run.run(), name=f"training-job {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return {"TrainingJobArn": job.arn}

    async def _describe(self, request: Request) -> dict[str, Any]:
        return self._job(request).describe()

    async def _describe_plan(self, request: Request) -> dict[str, Any]:
        return self._fleet.market.describe_plan(request["TrainingPlanName"])

    async def _list(self, request: Request) -> dict[str, Any]:
        self._fleet.pools.settle()
        return list_page((run.job for run in self._runs.values()), request)

    async def _search(self, request: Request) -> dict[str, Any]:
        return search_page((run.job for run in self._runs.values()), request)

    async def _stop(self, request: Request) -> None:
        job = self._job(request)
        if job.status is not Status.IN_PROGRESS:
            raise invalid(f"The request was rejected because the training job is in status {job.status}.")
        self._runs[job.name].begin_stop()

    async def _update(self, request: Request) -> dict[str, Any]:
        job = self._job(request)
        if "RemoteDebugConfig" in request:
            if job.secondary not in (Secondary.DOWNLOADING, Secondary.TRAINING):
                raise invalid(f"RemoteDebugConfig can be updated in Downloading or Training, not in {job.secondary}.")
            if message := debug_refused({**job.request, **request}):
                raise invalid(message)
            job.change("RemoteDebugConfig", request["RemoteDebugConfig"])
        if "ResourceConfig" in request:
            self._fleet.pools.update(job, request["ResourceConfig"]["KeepAlivePeriodInSeconds"])
        return {"TrainingJobArn": job.arn}

    async def _delete(self, request: Request) -> None:
        job = self._job(request)
        if not job.over:
            raise in_use(f"The training job {job.name} is in status {job.status}: only terminal jobs can be deleted.")
        if (job.warm_pool or {}).get("Status") == "Available":
            raise in_use(f"The training job {job.name} retains an Available warm pool and cannot be deleted.")
        del self._runs[job.name]
        await self._fleet.in_thread(shutil.rmtree, self._fleet.job_folder(job.name), True)

    async def _add_tags(self, request: Request) -> dict[str, Any]:
        job = self._tagged(request)
        merged = {**job.tags, **{tag["Key"]: tag["Value"] for tag in request["Tags"]}}
        if message := tags_refused(request["Tags"]):
            raise invalid(message)
        if len(merged) > _MOST_TAGS:
            raise ServiceError("ResourceLimitExceeded", f"A resource can have {_MOST_TAGS} tags, not {len(merged)}.")
        job.tags = merged
        return await self._list_tags(request)

    async def _list_tags(self, request: Request) -> dict[str, Any]:
        return {"Tags": [{"Key": key, "Value": value} for key, value in self._tagged(request).tags.items()]}

    async def _delete_tags(self, request: Request) -> dict[str, Any]:
        tags = self._tagged(request).tags
        for key in request["TagKeys"]:
            tags.pop(key, None)
        return {}

    def _job(self, request: Request) -> LocalJob:
        self._fleet.pools.settle()
        run = self._runs.get(request["TrainingJobName"])
        if run is None:
            raise not_found()
        return run.job

    def _tagged(self, request: Request) -> LocalJob:
        run = self._runs.get(request["ResourceArn"].removeprefix(self._arn_prefix))
        if run is None:
            raise invalid(f"Could not find a training job with the ARN {request['ResourceArn']}.")
        return run.job
