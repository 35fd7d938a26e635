"""Signal masks that count as a handler, and one that does not."""

import signal
import threading
from collections.abc import Iterator, Set

import pytest

from rerail_agent.processes import has_handler


@pytest.fixture(params=[{signal.SIGUSR2}, signal.valid_signals()], ids=["one", "all"])
def blocked(request: pytest.FixtureRequest) -> Iterator[Set[int]]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, request.param)
    yield request.param
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_mask_of_all_signals_does_not_count_as_a_handler(blocked: Set[int]) -> None:
    """torch's import creates threads: a SIGTERM sent in that instant would end the rank without a checkpoint."""
    thread = threading.get_native_id()
    assert has_handler(thread, signal.SIGUSR2, or_blocked=True) == (len(blocked) == 1)
    assert not has_handler(thread, signal.SIGUSR2)
