"""One cluster's work on a job: hosts laid out, processes run and tended, and everything ended again."""

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Any

from .channels import download_channels
from .checkpoints import CheckpointMirror
from .fleet import LocalFleet
from .hosts import Host, environment_of, free_port, hosts_of, lay_out
from .images import Image, find_image
from .job import LocalJob
from .logs import HostLog
from .metrics import NAMESPACE, HostMeter, MetricScraper
from .processes import HostProcess

log = logging.getLogger(__name__)

_DEFAULT_CHECKPOINT_PATH = "/opt/ml/checkpoints"


class JobExecution:
    """The execution of a job on one cluster; SageMaker may start several (RetryStrategy, spot interruption)."""

    def __init__(self, job: LocalJob, fleet: LocalFleet) -> None:
        self._job = job
        self._fleet = fleet
        self.hosts = hosts_of(job.request, fleet.job_folder(job.name))
        self.processes: dict[str, HostProcess] = {}
        self._scraper = MetricScraper(
            fleet.cloudwatch,
            job=job.name,
            definitions=job.request["AlgorithmSpecification"].get("MetricDefinitions", []),
        )
        self._mirror = self._make_mirror()
        self._logs: list[HostLog] = []
        self._over = asyncio.Event()
        self._tenders: list[asyncio.Task[None]] = []

    def _make_mirror(self) -> CheckpointMirror | None:
        config = self._job.request.get("CheckpointConfig")
        if config is None:
            return None
        path = config.get("LocalPath", _DEFAULT_CHECKPOINT_PATH)
        return CheckpointMirror(
            self._fleet.storage, uri=config["S3Uri"], folders=[host.path_of(path) for host in self.hosts]
        )

    def prepare(self) -> None:
        """Do the blocking work of the status Downloading."""
        request = self._job.request
        self._image().command(request["AlgorithmSpecification"])
        for host in self.hosts:
            lay_out(host, self.hosts, request)
        download_channels(self._fleet.storage, request, self.hosts)
        if self._mirror:
            self._mirror.restore()

    def _image(self) -> Image:
        return find_image(self._fleet.images, _image_name(self._job.request))

    async def launch(self) -> None:
        port = free_port()
        for host in self.hosts:
            self.processes[host.name] = self._process_for(host, port)
        loop = asyncio.get_running_loop()
        for process in self.processes.values():
            await self._fleet.in_thread(process.start, loop)
        self._tend()

    def _process_for(self, host: Host, master_port: int) -> HostProcess:
        image = self._image()
        environment = environment_of(
            host,
            self._job.request,
            arn=self._job.arn,
            endpoint_url=self._fleet.endpoint_url,
            region=self._fleet.region,
            account_id=self._fleet.account_id,
            master_port=master_port,
            image={**image.environment, **self._fleet.market.variables(self._job.request)},
        )
        host_log = HostLog(self._fleet.logs, job=self._job.name, host=host.name)
        self._logs.append(host_log)

        def on_line(line: str) -> None:
            host_log.add(line)
            self._scraper.scan(line)

        command = image.command(self._job.request["AlgorithmSpecification"])
        return HostProcess(command, cwd=image.workdir, environment=environment, on_line=on_line)

    async def outcome(self) -> tuple[str, int]:
        """Wait until all hosts exited with 0 or one did not; return the name of the deciding host and its exit code."""
        waits = {asyncio.ensure_future(process.exited.wait()): name for name, process in self.processes.items()}
        try:
            pending = set(waits)
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for name in sorted(waits[task] for task in done):
                    if code := self.processes[name].exit_code:
                        return name, code
            return self.hosts[0].name, 0
        finally:
            for task in waits:
                task.cancel()

    def failure_text(self, host: str) -> str:
        """Return what the container wrote to output/failure: on the host that failed, else on any other."""
        ordered = sorted(self.hosts, key=lambda item: item.name != host)
        paths = [host.base / "output" / "failure" for host in ordered]
        return next((path.read_text(errors="replace") for path in paths if path.is_file()), "")

    async def stop(self) -> None:
        """Send SIGTERM to each entrypoint, after the grace period SIGKILL to the rest, and sync a last time."""
        await self._terminate()
        await self.end()

    async def reclaim(self) -> None:
        """End the processes of a spot interruption: SIGTERM and the grace period, while checkpoints are synced as
        before.

        Then the nodes are gone, with everything that was not uploaded by then.
        """
        await self._terminate()
        await self.lose()

    async def _terminate(self) -> None:
        for process in self.processes.values():
            process.terminate()
        exits = [asyncio.ensure_future(process.exited.wait()) for process in self._started()]
        if exits:
            await asyncio.wait(exits, timeout=self._fleet.timing.real(self._fleet.timing.stop_grace))
        for task in exits:
            task.cancel()

    async def end(self) -> None:
        """Kill every process that still runs; send checkpoints, logs and metrics a last time."""
        await self._kill_all()
        self._over.set()
        await asyncio.gather(*self._tenders)
        self._tenders.clear()

    async def lose(self) -> None:
        """End without a last sync of checkpoints, because the nodes are gone with their disks."""
        if self._mirror:
            self._mirror.abandon()
        await self.end()

    def metric(self, name: str) -> float:
        """Return the last value that the attempt has printed of a metric; -inf before the first."""
        return self._scraper.final_values().get(name, (-math.inf, 0.0))[0]

    async def upload_checkpoints(self) -> None:
        """Upload what is saved and not yet in S3, without waiting for the next regular sync."""
        if self._mirror:
            await self._fleet.try_in_thread(self._mirror.sync)

    async def kill_host(self, host: str) -> None:
        await self._fleet.in_thread(self.processes[host].kill)

    async def fail_host(self, host: str, text: str) -> None:
        """Kill the host as if its processes had written this text as the reason."""
        base = next(item.base for item in self.hosts if item.name == host)
        (base / "output" / "failure").write_text(text)
        await self.kill_host(host)

    async def freeze(self) -> None:
        """Stop the training processes of every host, as in a hang."""
        for process in self._started():
            await self._fleet.in_thread(process.freeze)

    async def slow_down(self, share: float, period: float) -> None:
        """Let the training processes work for this share of the time only, until they have ended."""
        while any(process.running for process in self._started()):
            await self.freeze()
            await asyncio.sleep(period * (1 - share))
            for process in self._started():
                await self._fleet.in_thread(process.thaw)
            await asyncio.sleep(period * share)

    def abort(self) -> None:
        """Kill the processes without any event, because this program ends."""
        if self._mirror:
            self._mirror.abandon()
        for tender in self._tenders:
            tender.cancel()
        for process in self.processes.values():
            process.destroy()

    async def _kill_all(self) -> None:
        for process in self._started():
            await self._fleet.in_thread(process.kill)
        for process in self._started():
            await process.exited.wait()

    def _started(self) -> list[HostProcess]:
        """Return the processes that were started; a stop may come while the hosts are being launched."""
        return [process for process in self.processes.values() if process.started]

    def _tend(self) -> None:
        timing = self._fleet.timing
        self._start_tender(timing.log_flush, self._ship)
        self._start_tender(timing.real(timing.host_metrics), self._measure_hosts())
        if self._mirror:
            self._start_tender(timing.real(timing.checkpoint_sync), self._mirror.sync)

    def _start_tender(self, seconds: float, work: Callable[[], object]) -> None:
        self._tenders.append(asyncio.ensure_future(self._repeat(seconds, work)))

    async def _repeat(self, seconds: float, work: Callable[[], object]) -> None:
        """Do the work periodically until the execution is over, and once more then."""
        while True:
            over = await self._over_within(seconds)
            await self._fleet.try_in_thread(work)
            self._job.final_metrics.update(self._scraper.final_values())
            if over:
                return

    async def _over_within(self, seconds: float) -> bool:
        try:
            return await asyncio.wait_for(self._over.wait(), seconds)
        except TimeoutError:
            return False

    def _ship(self) -> None:
        for host_log in self._logs:
            host_log.flush()
        self._scraper.flush()

    def _measure_hosts(self) -> Callable[[], None]:
        meters = [HostMeter(process, job=self._job.name, host=name) for name, process in self.processes.items()]

        def measure() -> None:
            if any(process.running for process in self.processes.values()):
                data = [datum for meter in meters for datum in meter.read()]
                self._fleet.cloudwatch.put_metric_data(Namespace=NAMESPACE, MetricData=data)

        return measure


def _image_name(request: dict[str, Any]) -> str:
    algorithm = request["AlgorithmSpecification"]
    return str(algorithm.get("TrainingImage") or algorithm["AlgorithmName"])
