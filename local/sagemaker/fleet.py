"""What all running jobs share: the AWS clients, the worker threads, the settings."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from .faults import Faults
from .images import Image
from .market import Market
from .storage import Storage
from .timing import Timing
from .warm_pools import WarmPools

log = logging.getLogger(__name__)

T = TypeVar("T")


class LocalFleet:
    """Blocking work runs on threads of its own: the event loop's default threads may be serving the very S3 it asks."""

    def __init__(
        self,
        *,
        endpoint_url: str,
        state_dir: Path,
        timing: Timing,
        images: Mapping[str, Image],
        region: str,
        account_id: str,
    ) -> None:
        self.endpoint_url = endpoint_url
        self.state_dir = state_dir
        self.timing = timing
        self.images = images
        self.region = region
        self.account_id = account_id
        self.faults = Faults()
        self.market = Market()
        self.pools = WarmPools(timing)
        self.storage = Storage(self._client("s3"))
        self.cloudwatch = self._client("cloudwatch")
        self.logs = self._client("logs")
        self._threads = ThreadPoolExecutor(max_workers=16, thread_name_prefix="sagemaker-fake")
        self._closing = False

    def _client(self, service: str) -> Any:
        return boto3.client(
            service,
            endpoint_url=self.endpoint_url,
            region_name=self.region,
            # Where a local AWS keeps several accounts apart, a key of 12 digits names the account.
            aws_access_key_id=self.account_id,
            aws_secret_access_key="local",
            config=Config(
                connect_timeout=60,
                read_timeout=300,
                retries={"total_max_attempts": 3, "mode": "standard"},
                max_pool_connections=16,
                proxies={},
                s3={"addressing_style": "path"},
            ),
        )

    def job_folder(self, job: str) -> Path:
        return self.state_dir / "jobs" / job

    async def in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        """A thread cannot be cancelled, so a cancelled caller waits it out; else two attempts would share a folder."""
        future = asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if not self._closing:
                await asyncio.wait({future})
            raise

    async def try_in_thread(self, work: Callable[[], object]) -> None:
        """For work that comes round again: AWS being away for a moment is logged, no more."""
        try:
            await self.in_thread(work)
        except (BotoCoreError, ClientError, OSError) as error:
            if not self._closing:
                log.warning("%s failed, it will be tried again: %s", getattr(work, "__qualname__", work), error)

    def begin_closing(self) -> None:
        self._closing = True

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
