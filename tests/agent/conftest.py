"""A mailbox, and guards that talk to it as on SageMaker."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rerail_agent import Guard
from tests.agent.fake_s3 import Bucket, serving
from tests.agent.jobs import environment_of


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    with serving(Bucket()) as served:
        yield served


@pytest.fixture
def new_guard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Guard]]:
    """Makes guards of this process. With a bucket it is a training job, without one it is just a machine."""
    made: list[Guard] = []
    before = signal.getsignal(signal.SIGTERM)

    def make(bucket: Bucket | None = None, *, save=None, log_every: int = 1, abilities=(), **variables: str) -> Guard:
        environment = environment_of(bucket, base=tmp_path, **variables)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)  # boto3 reads them too
        made.append(Guard(save=save, log_every=log_every, abilities=abilities, environment=environment))
        return made[-1]

    yield make
    for guard in made:
        guard.close(within_s=0.2)
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Compute with one thread: a forked process can have no more, and another order of sums changes the last bits."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
