"""Hosts and runs for the tests of the training image."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.container.hosts import Here, Host


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


@pytest.fixture
def train_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """Trains with one rank in this process."""
    return Here(tmp_path, monkeypatch, capsys)
