"""A local S3, CloudWatch and Logs for the fake to talk to, and a api with short durations."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from local.sagemaker import Timing
from tests.local.sagemaker.local_api import BUCKET, QUICK, LocalApi, client, until


@pytest.fixture(scope="session")
def aws_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("ministack")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "GATEWAY_PORT": str(port),
        "BIND_HOST": "127.0.0.1",
        "IOT_MTLS_ENABLED": "0",
        "LOG_LEVEL": "WARNING",
    }
    command = [sys.executable, "-m", "ministack"]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: server.poll() is None and _answers(port), lambda: "MiniStack does not listen")
        client("s3", url).create_bucket(Bucket=BUCKET)
        yield url
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="session")
def api(aws_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalApi]:
    shared = LocalApi(aws_url, tmp_path_factory.mktemp("api"))
    yield shared
    shared.close()


@pytest.fixture(scope="session")
def patient_api(aws_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalApi]:
    """A api whose containers have a minute to end by themselves, for those that do."""
    shared = LocalApi(aws_url, tmp_path_factory.mktemp("patient-api"), replace(QUICK, stop_grace=60.0))
    yield shared
    shared.close()


@pytest.fixture
def make_api(aws_url: str, tmp_path: Path) -> Iterator[Callable[..., LocalApi]]:
    """For a test that needs durations of its own, or closes the service itself."""
    made: list[LocalApi] = []

    def make(timing: Timing = QUICK) -> LocalApi:
        folder = tmp_path / f"api-{len(made)}"
        folder.mkdir()
        made.append(LocalApi(aws_url, folder, timing))
        return made[-1]

    yield make
    for api in made:
        api.close()
