"""Hosts and runs for the tests of the training image."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.container.hosts import IMPORT_PATH, Here, Host


@pytest.fixture
def new_host(tmp_path: Path) -> Iterator[Callable[..., Host]]:
    """Makes hosts with a folder of their own; what still runs at the end is killed."""
    made: list[Host] = []

    def make(name: str = "algo-1", **options: str) -> Host:
        base = tmp_path / name
        base.mkdir()
        made.append(Host(base, **options))
        return made[-1]

    yield make
    for host in made:
        host.kill_all()


@pytest.fixture(scope="session")
def run_forked() -> Iterator[Callable[..., list[int]]]:
    """Runs a job on a host to its end with ranks forked from one process, not by launch.py; gives their exit codes."""
    script = Path(__file__).with_name("forked.py")
    scrubbed = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    environment = {**scrubbed, "PYTHONPATH": IMPORT_PATH}
    forker = subprocess.Popen(
        [sys.executable, script], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def run(host: Host, *, ranks: int, grace_s: float = 60.0, **environment: str) -> list[int]:
        assert forker.stdin is not None
        assert forker.stdout is not None
        options = [f"--{name}={value}" for name, value in host.options.items()]
        place = {"base": str(host.base), "ranks": ranks, "grace_s": grace_s}
        print(json.dumps({**place, "options": options, "environment": environment}), file=forker.stdin, flush=True)
        codes: list[int] = json.loads(forker.stdout.readline())
        return codes

    yield run
    forker.kill()
    forker.wait()


@pytest.fixture
def train_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """Trains with one rank in this process."""
    return Here(tmp_path, monkeypatch, capsys)
