"""The fake behind a real HTTP port with boto3 clients at it, for the tests of this folder."""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from local.sagemaker import Timing, TrainingService
from local.sagemaker.control import inject
from local.sagemaker.images import Image

ROLE = "arn:aws:iam::000000000000:role/training"
BUCKET = "bucket"
HANG_S = 120.0  # ends a wait for what never comes
TERMINAL = ("Completed", "Failed", "Stopped")

QUICK = Timing(
    start=0.05,
    warm_start=0.01,
    download=0.02,
    upload=0.02,
    stop_grace=1.0,
    checkpoint_sync=0.1,
    host_metrics=0.2,
    restart=0.05,
    interruption=0.05,
    log_flush=0.1,
)

_numbers = itertools.count(1)


def client(service: str, endpoint_url: str) -> Any:
    return boto3.client(
        service,
        endpoint_url=endpoint_url,
        region_name="us-east-1",
        aws_access_key_id="000000000000",
        aws_secret_access_key="local",
        config=Config(retries={"total_max_attempts": 1}, proxies={}, s3={"addressing_style": "path"}),
    )


class LocalApi:
    """`create` starts a job whose container is the given shell script; `ended` waits for its end."""

    def __init__(self, aws_url: str, folder: Path, timing: Timing = QUICK) -> None:
        self.folder = folder
        self.events: list[dict[str, Any]] = []
        self._closed = False
        self._images: dict[str, Image] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.service = TrainingService(
            aws_url, folder / "state", self.events.append, timing=timing, images=self._images
        )
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _request_handler(self.service, self._loop))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.sagemaker = client("sagemaker", self.url)
        self.s3 = client("s3", aws_url)
        self.cloudwatch = client("cloudwatch", aws_url)
        self.logs = client("logs", aws_url)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        asyncio.run_coroutine_threadsafe(self.service.close(), self._loop).result(HANG_S)
        self._server.shutdown()
        self._server.server_close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(HANG_S)

    def image(self, script: str) -> str:
        """A folder with a Dockerfile whose entrypoint is the script; returns the image's URI."""
        name = f"image-{next(_numbers)}"
        folder = self.folder / name
        folder.mkdir()
        program = "python" if script.startswith("import") else "sh"
        (folder / "main").write_text(script)
        (folder / "Dockerfile").write_text(f'FROM scratch\nENTRYPOINT ["{program}", "main"]\n')
        self._images[name] = Image(folder)
        return f"000000000000.dkr.ecr.us-east-1.amazonaws.com/{name}:latest"

    def request(self, script: str = "exit 0", **fields: Any) -> dict[str, Any]:
        algorithm = {"TrainingImage": self.image(script), "TrainingInputMode": "File"}
        return {
            "TrainingJobName": f"job-{next(_numbers)}",
            "RoleArn": ROLE,
            "AlgorithmSpecification": algorithm | fields.pop("AlgorithmSpecification", {}),
            "OutputDataConfig": {"S3OutputPath": f"s3://{BUCKET}/out"},
            "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 10}
            | fields.pop("ResourceConfig", {}),
            "StoppingCondition": {"MaxRuntimeInSeconds": 600},
            **fields,
        }

    def create(self, script: str = "exit 0", **fields: Any) -> str:
        request = self.request(script, **fields)
        self.sagemaker.create_training_job(**request)
        return request["TrainingJobName"]

    def describe(self, job: str) -> dict[str, Any]:
        return self.sagemaker.describe_training_job(TrainingJobName=job)

    def stop(self, job: str) -> None:
        self.sagemaker.stop_training_job(TrainingJobName=job)

    def ended(self, job: str) -> dict[str, Any]:
        return self.reached(job, lambda d: d["TrainingJobStatus"] in TERMINAL)

    def training(self, job: str) -> dict[str, Any]:
        return self.reached(job, lambda d: d["SecondaryStatus"] == "Training")

    def reached(self, job: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        return until(lambda: (lambda d: d if condition(d) else None)(self.describe(job)), lambda: self.describe(job))

    def run(self, script: str = "exit 0", **fields: Any) -> dict[str, Any]:
        return self.ended(self.create(script, **fields))

    def inject(self, fault: str, **fields: Any) -> dict[str, Any]:
        return inject(self.url, fault, **fields)

    def base(self, job: str, host: str = "algo-1") -> Path:
        """The host's /opt/ml on this machine."""
        return self.folder / "state" / "jobs" / job / host / "opt" / "ml"

    def put(self, key: str, content: str = "x") -> None:
        self.s3.put_object(Bucket=BUCKET, Key=key, Body=content.encode())

    def keys(self, prefix: str) -> set[str]:
        found = self.s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
        return {item["Key"].removeprefix(prefix) for item in found}

    def events_of(self, job: str) -> list[dict[str, Any]]:
        return [entry for entry in list(self.events) if entry["Resources"][0].endswith(f"/{job}")]


def steps(description: dict[str, Any]) -> list[str]:
    return [step["Status"] for step in description["SecondaryStatusTransitions"]]


def until(look: Callable[[], Any], describe: Callable[[], Any] = str, seconds: float = HANG_S) -> Any:
    """The first true answer; fails with the story told after the time is over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.02)
    raise AssertionError(f"did not happen within {seconds} s: {describe()}")


def _request_handler(service: TrainingService, loop: asyncio.AbstractEventLoop) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer = service.handle("POST", self.path, dict(self.headers), body, {})
            status, headers, content = asyncio.run_coroutine_threadsafe(answer, loop).result(HANG_S)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    return Handler
