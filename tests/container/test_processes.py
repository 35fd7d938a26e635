"""Real processes through launch.py: kills, signals and ranks that wait for each other."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import checkpoint
from tests.container.hosts import CONTAINER, LIMIT_S, Here, Host, agree

NewHost = Callable[..., Host]
pytestmark = pytest.mark.slow


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def launch_together(hosts: list[Host], **environment: str) -> None:
    """One job on several hosts with one process each, all on this machine."""
    names = tuple(f"algo-{number + 1}" for number in range(len(hosts)))
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    for name, host in zip(names, hosts, strict=True):
        host.launch(names, name, **meeting, **environment)


def run_forked(*jobs: tuple[Host, int, dict[str, str]]) -> None:
    """Runs jobs of (host, number of ranks, environment) to their end, whatever it is, without launch.py."""
    described = [
        {
            "base": str(host.base),
            "ranks": ranks,
            "options": [f"--{name}={value}" for name, value in host.options.items()],
            "environment": environment,
        }
        for host, ranks, environment in jobs
    ]
    script = Path(__file__).with_name("forked.py")
    environment = {**os.environ, "PYTHONPATH": str(CONTAINER)}
    subprocess.run([sys.executable, script, json.dumps(described)], env=environment, check=True, timeout=LIMIT_S)


def await_step(host: Host, step: int) -> None:
    _await(lambda: any(seen >= step for seen in host.losses), host)


def await_save(host: Host) -> None:
    """Returns in the middle of a save, if this process is quick enough; just after it otherwise."""
    _await(lambda: any(host.checkpoints.glob(".saving-*")) or any(host.checkpoints.glob("step-*")), host)


def _await(happened: Callable[[], bool], host: Host) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not happened():
        assert host.processes[-1].poll() is None, host.err.read_text()
        assert time.monotonic() < deadline, host.err.read_text()
        time.sleep(0.002)


def ending(host: Host) -> str:
    """The checksum of the weights at the end."""
    found = re.search(r"finished after step \d+, weights (\S+)", host.err.read_text())
    assert found, host.err.read_text()
    return found[1]


def test_a_killed_process_resumes_bit_for_bit(new_host: NewHost, train_here: Here) -> None:
    """SIGKILL in a save, then at a random moment: losses and weights are those of a run that nobody killed."""
    whole_base = new_host("whole").base
    whole = train_here(whole_base)
    host = new_host(checkpoint_every="5", step_seconds="0.02")
    host.launch()
    await_save(host)
    host.send(signal.SIGKILL)
    assert host.wait() == -signal.SIGKILL
    first = host.losses
    host.launch()
    await_step(host, max(first) + random.randint(3, 15))
    time.sleep(random.random() / 50)
    host.send(signal.SIGKILL)
    assert host.wait() == -signal.SIGKILL
    second = host.losses
    host.launch()
    assert host.wait() == 0, host.err.read_text()
    assert all(agree(part, whole) for part in (first, second, host.losses))
    assert max(host.losses) == 40
    assert f"weights {ending(host)}" in train_here.err


def test_two_killed_ranks_resume_bit_for_bit(new_host: NewHost) -> None:
    """Two ranks under torchrun, killed with their launcher: losses and weights are those of a run nobody killed."""
    ranks = {"RERAIL_PROCESSES_PER_NODE": "2"}
    whole, broken = new_host("whole"), new_host("broken")
    run_forked((whole, 2, {}))
    broken.launch(**ranks, RERAIL_DRILL="kill:step=27:attempt=1")
    assert broken.wait() == -signal.SIGKILL
    first = broken.losses
    broken.launch(**ranks, RERAIL_RUN="night", RERAIL_ATTEMPT="2", RERAIL_RESUME_STEP="20")
    assert broken.wait() == 0, broken.err.read_text()
    assert (max(first), min(broken.losses), max(broken.losses)) == (26, 21, 40)
    assert agree(first, whole.losses)
    assert agree(broken.losses, whole.losses)
    assert ending(broken) == ending(whole)
    assert broken.failure is None


def test_three_ranks_sum_in_the_same_order_after_a_resume(new_host: NewHost) -> None:
    """From three ranks on the order of summation shows in the last bits: it must not depend on where the run began."""
    whole, broken = new_host("whole"), new_host("broken")
    run_forked((whole, 3, {}), (broken, 3, {"RERAIL_DRILL": "bug:step=27:rank=1"}))
    first = broken.losses
    assert broken.failure is not None
    assert (broken.failure["cause"], broken.failure["rank"]) == ("user_code", 1)
    run_forked((broken, 3, {"RERAIL_RUN": "night", "RERAIL_ATTEMPT": "2", "RERAIL_RESUME_STEP": "20"}))
    assert (max(first), min(broken.losses), max(broken.losses)) == (26, 21, 40), broken.err.read_text()
    assert agree(first, whole.losses)
    assert agree(broken.losses, whole.losses)
    assert ending(broken) == ending(whole)


def test_sigterm_stops_all_ranks_at_one_step(new_host: NewHost) -> None:
    """SIGTERM reaches one host alone; both ranks end after the same step, saved, with exit code 0."""
    hosts = [new_host(f"algo-{number}", steps="100000", step_seconds="0.01") for number in (1, 2)]
    launch_together(hosts)
    await_step(hosts[0], 3)
    hosts[1].send(signal.SIGTERM)
    assert [host.wait() for host in hosts] == [0, 0], hosts[0].err.read_text()
    ends = [re.search(r"rank \d ends after step (\d+)", host.err.read_text()) for host in hosts]
    steps = [int(found[1]) for found in ends if found]
    assert steps == [max(hosts[0].losses)] * 2
    newest = Path(hosts[0].checkpoints / checkpoint.folder_name(steps[0]))
    assert checkpoint.verify(newest).reason in ("sigterm", "periodic")
    assert hosts[0].failure is None


def test_a_hung_rank_is_named_by_those_who_wait(new_host: NewHost) -> None:
    """The waiting rank times out in its collective and says `hang`; the hung one says nothing."""
    hosts = [new_host(f"algo-{number}", collective_timeout_seconds="5") for number in (1, 2)]
    launch_together(hosts, RERAIL_DRILL="hang:step=4")
    assert hosts[0].wait() == 1
    assert hosts[0].failure is not None
    assert (hosts[0].failure["cause"], hosts[0].failure["step"], hosts[0].failure["rank"]) == ("hang", 4, 0)
    assert hosts[1].processes[-1].poll() is None
    assert hosts[1].failure is None


@pytest.mark.parametrize(("drill", "exit_code"), [("exit:code=7:step=4", 7), ("kill:step=4", -signal.SIGKILL)])
def test_an_exit_and_a_kill_have_their_code_alone(new_host: NewHost, drill: str, exit_code: int) -> None:
    """One process per node keeps its own exit code, and nobody writes a failure file for it."""
    host = new_host()
    host.launch(RERAIL_DRILL=drill)
    assert host.wait() == exit_code
    assert max(host.losses) == 3
    assert host.failure is None


def test_a_sigterm_during_the_start_is_kept(new_host: NewHost) -> None:
    """Sent while torch is imported, it takes effect after the first step: it neither kills nor is lost."""
    host = new_host(steps="100000")
    host.launch()
    _await(lambda: "train.py" in Path(f"/proc/{host.processes[-1].pid}/cmdline").read_text(), host)
    host.send(signal.SIGTERM)
    assert host.wait() == 0, host.err.read_text()
    assert list(host.losses) == [1]
    assert checkpoint.verify(host.checkpoints / "step-000000001").reason == "sigterm"
