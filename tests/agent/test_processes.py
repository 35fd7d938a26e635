"""Signal masks that count as a handler, one that does not, and the CPU time of a child that has ended."""

import os
import signal
import threading
import time
from collections.abc import Iterator, Set

import pytest

from rerail_agent.processes import has_handler, measure_child_cpu_s


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


@pytest.mark.slow
def test_a_child_that_is_reaped_adds_no_cpu_time() -> None:
    """A training that hangs would count as one that computes, if it reaped a worker while it is looked at."""
    if (pid := os.fork()) == 0:
        while time.process_time() < 0.5:
            pass
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    before = measure_child_cpu_s()
    os.waitpid(pid, 0)
    assert measure_child_cpu_s() - before < 0.25
