"""Real processes through launch.py: kills, signals and ranks that wait for each other."""

import random
import re
import shutil
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rerail_agent.checkpoints import open_store
from tests.container.hosts import LIMIT_S, Here, Host, agree, saved, weights

NewHost = Callable[..., Host]
RunForked = Callable[..., list[int]]
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


def test_a_killed_process_resumes_bit_for_bit(new_host: NewHost, train_here: Here) -> None:
    """SIGKILL in a save, then at a random moment: losses and weights are those of an undisturbed run."""
    whole = train_here(new_host("whole").base)
    expected = weights(train_here.err)
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
    third = train_here(host.base, checkpoint_every="5")
    assert all(agree(part, whole) for part in (first, second, third))
    assert max(third) == 40
    assert weights(train_here.err) == expected != ""


def test_three_ranks_roll_back_as_one(new_host: NewHost, run_forked: RunForked) -> None:
    """All have the spike; rank 0 sets its checkpoints aside, the others wait, and all go on without it.

    From three ranks on the order of summation shows in the last bits: it must not depend on where the run began.
    """
    whole = new_host("whole")
    assert run_forked(whole, ranks=3) == [0, 0, 0]
    spiked = new_host("spiked")
    drill = "spike:step=15:attempt=1"
    run_forked(spiked, ranks=3, RERAIL_DRILL=f"{drill};bug:step=35:attempt=1:rank=1")
    assert spiked.failure is not None
    assert (spiked.failure["cause"], spiked.failure["rank"]) == ("user_code", 1)
    first = spiked.losses
    again = {"RERAIL_RUN": "night", "RERAIL_ATTEMPT": "2", "RERAIL_RESUME_STEP": "10", "RERAIL_DRILL": drill}
    run_forked(spiked, ranks=3, **again)
    assert (first[14] == whole.losses[14], first[15] == whole.losses[15]) == (True, False)
    assert (min(spiked.losses), max(spiked.losses)) == (11, 40), spiked.err.read_text()
    assert agree(spiked.losses, whole.losses)
    assert weights(spiked.err.read_text()) == weights(whole.err.read_text()) != ""
    tainted = {path.name for path in (spiked.checkpoints / "quarantine").iterdir()}
    assert tainted == {"a1-step-000000020", "a1-step-000000030"}


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
    newest = open_store(hosts[0].checkpoints).manifest(steps[0])
    assert newest is not None
    assert newest.reason in ("sigterm", "periodic")
    assert hosts[0].failure is None


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_sigterm_saves_below_a_launcher(new_host: NewHost, launcher: str) -> None:
    """Two ranks of one host: both are asked, both end after the same step, and the exit code is 0."""
    if not shutil.which(launcher) and launcher == "mpirun":
        pytest.skip("no mpirun here")
    host = new_host(steps="100000", step_seconds="0.01")
    host.launch(RERAIL_PROCESSES_PER_NODE="2", RERAIL_LAUNCHER=launcher)
    await_step(host, 3)
    host.send(signal.SIGTERM)
    assert host.wait() == 0, host.err.read_text()
    ends = set(re.findall(r"rank \d ends after step (\d+)", host.err.read_text()))
    assert ends == {str(max(host.losses))}
    assert saved(host.checkpoints)[max(host.losses)].reason in ("sigterm", "periodic")
    assert host.failure is None


def test_a_hung_rank_is_named_by_those_who_wait(new_host: NewHost, run_forked: RunForked) -> None:
    """The waiting rank times out in its collective and says `hang`; the hung one lives on and says nothing."""
    host = new_host(collective_timeout_seconds="3")
    codes = run_forked(host, ranks=2, grace_s=1.0, RERAIL_DRILL="hang:step=4")
    assert codes == [1, -signal.SIGKILL]
    assert host.failure is not None
    assert (host.failure["cause"], host.failure["step"], host.failure["rank"]) == ("hang", 4, 0)


def test_a_sigterm_during_the_start_is_kept(new_host: NewHost) -> None:
    """Sent while torch is imported, it takes effect after the first step: it neither kills nor is lost."""
    host = new_host(steps="100000")
    host.launch()
    _await(lambda: "train.py" in "".join(commands_below(host.processes[-1].pid)), host)
    host.send(signal.SIGTERM)
    assert host.wait() == 0, host.err.read_text()
    assert list(host.losses) == [1]
    assert saved(host.checkpoints)[1].reason == "sigterm"


def commands_below(pid: int) -> list[str]:
    """The command lines of a process's children."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [Path(f"/proc/{child}/cmdline").read_text() for child in children]
    except OSError:
        return []
