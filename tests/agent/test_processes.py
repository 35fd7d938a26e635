"""Which signal masks count as a handler."""

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


def test_the_mask_of_all_signals_is_not_that_of_a_process_that_waits_for_one(blocked: Set[int]) -> None:
    """torch's import creates threads: a SIGTERM sent in that instant would end the rank without a checkpoint."""
    thread = threading.get_native_id()
    assert has_handler(thread, signal.SIGUSR2, or_blocked=True) == (len(blocked) == 1)
    assert not has_handler(thread, signal.SIGUSR2)
