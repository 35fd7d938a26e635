"""The watchdog: what it says about a process that really hangs, and what it leaves alone."""

import itertools
import os
import re
import signal
import subprocess
import threading
import time
from types import SimpleNamespace

import pytest

from rerail.model.finding import Finding, Level
from rerail.model.liveness import Phase
from rerail.model.mailbox import Report
from rerail_agent import stack_dump
from rerail_agent.agreement import Agreement
from rerail_agent.fault_isolation import FaultIsolation
from rerail_agent.hang import HangLimits, Watchdog
from rerail_agent.progress import Progress
from rerail_agent.stalled_ranks import Culprits, StallExchange
from tests.agent import loops
from tests.agent.fake_s3 import HANG_S, Bucket
from tests.agent.jobs import Ranks, environment_of


def stand_still(bucket: Bucket) -> Report | None:
    """Return the report of the last step's stand-still; on a busy machine an earlier step may have been slow."""
    for report in bucket.reports().values():
        if any((found.step, found.level) == (10, Level.INTERVENE) for found in report.findings):
            return report
    return None


def test_a_hung_process_reports_its_function(bucket: Bucket, tmp_path):
    """Within seconds of its limit, while its heartbeat goes on; the stacks are in SageMaker's output folder too."""
    environment = environment_of(bucket, base=tmp_path, RERAIL_HANG_SECONDS="0.8")
    ranks = Ranks(loops.hanging, 1, environment=environment, culprit=0)
    try:
        assert ranks.said(0) == "training"
        report = bucket.wait_for(lambda: stand_still(bucket))
        heartbeat = bucket.wait_for(bucket.heartbeat)
        assert bucket.wait_for(lambda: bucket.heartbeat().at > heartbeat.at)
    finally:
        ranks.kill()
    (finding,) = report.findings
    assert (finding.kind, finding.level, finding.step) == ("stall", "intervene", 10)
    assert "stands at one instruction" in finding.evidence
    first_frames = report.evidence.splitlines()[:4]
    assert any("wait_for_a_batch_that_never_comes" in line for line in first_frames)
    assert bucket.heartbeat().step == 10
    stacks = (tmp_path / "output" / "data" / "rerail-stacks-rank0.txt").read_text()
    assert "wait_for_a_batch_that_never_comes" in stacks


@pytest.mark.parametrize(
    ("recorded", "frozen", "reason"),
    [
        ("0", False, "has not entered all_reduce, where rank 0 and 1 more wait"),
        ("2000", False, "has not entered gloo:all_reduce 11 of group 0 (default_pg), where ranks 0, 2 wait for it"),
        ("0", True, "does not answer; rank 0 and 1 more wait in all_reduce"),
    ],
)
def test_the_rank_that_others_wait_for_is_named(bucket: Bucket, tmp_path, recorded, frozen, reason):
    """With its place and function, although rank 0 reports, with torch's flight recorder and without."""
    environment = environment_of(bucket, base=tmp_path, RERAIL_HANG_SECONDS="2", SM_CURRENT_HOST="algo-1")
    environment |= {"LOCAL_RANK": "1", "TORCH_FR_BUFFER_SIZE": recorded}
    ranks = Ranks(loops.hanging, 3, environment=environment, culprit=1)
    culprit = tmp_path / "output" / "data" / "rerail-stacks-rank1.txt"
    try:
        assert ranks.said(1) == "training"
        if frozen:
            os.kill(ranks.processes[1].pid, signal.SIGSTOP)
        report = bucket.wait_for(lambda: stand_still(bucket))
        if not frozen:
            bucket.wait_for(lambda: culprit.exists() and "wait_for_a_batch_that_never_comes" in culprit.read_text())
    finally:
        ranks.kill()
    (finding,) = report.findings
    assert f"; rank 1 on algo-1 local rank 1: it {reason}" in finding.evidence
    assert ("; it is in wait_for_a_batch_that_never_comes at" in finding.evidence) is not frozen
    assert "; rank 0 waits in hanging at" in finding.evidence
    assert "waiting in torch.distributed: all_reduce, called from hanging at" in report.evidence


@pytest.mark.slow
def test_a_rank_that_works_alone_for_long_is_a_warning(bucket: Bucket, tmp_path):
    """As in an evaluation that the others wait for, outside guard.phase: it is reported, and nothing is stopped."""
    environment = environment_of(bucket, base=tmp_path, RERAIL_HANG_SECONDS="4")
    assert Ranks(loops.working_alone, 2, environment=environment, for_s=10).answers() == [11, 11]
    (finding,) = [finding for report in bucket.reports().values() for finding in report.findings]
    assert (finding.kind, finding.level, finding.step) == ("stall", "warn", 10)
    assert re.search("; it works in .*evaluate at", finding.evidence)


class Watched:
    """A watchdog that looks when the test's clock moves on; the training thread stands or moves as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **limits: float) -> None:
        self.now, self.moves, self._places = 1000.0, False, itertools.count()
        clock = SimpleNamespace(monotonic=lambda: self.now, time=time.time)
        monkeypatch.setattr("rerail_agent.hang.time", clock)
        monkeypatch.setattr("rerail_agent.progress.time", clock)
        monkeypatch.setattr("rerail_agent.hang.CHECK_SPAN_S", 0.0)
        # The process of the tests exchanges messages with its runner meanwhile, and has children of other tests.
        monkeypatch.setattr(stack_dump, "count_io_bytes", lambda: 0)
        monkeypatch.setattr(stack_dump, "measure_child_cpu_s", lambda: 0.0)
        monkeypatch.setattr(stack_dump, "find_position", lambda: next(self._places) if self.moves else "here")
        self.progress, self.levels, self.kinds = Progress(), [], []
        values = {"step_s": 0.2, "save_s": 60.0, "unknown_s": 60.0, "factor": 5.0, **limits}
        self.watchdog = Watchdog(
            self.progress,
            HangLimits(**values),
            file=None,
            on_hang=self.found,
            isolation=(isolation := FaultIsolation()),
            stalls=StallExchange(Agreement(every=1, log=print), self.progress, isolation),
        )

    def found(self, finding: Finding, evidence: str) -> None:
        self.reason = finding.evidence
        self.levels.append(finding.level)
        self.kinds.append((finding.kind, finding.step))

    def wait(self, seconds: float) -> None:
        """Let this time pass, with a look every so often."""
        looks = 20
        for _ in range(looks):
            self.now += seconds / looks
            self.watchdog._check()


def test_a_stall_is_reported_once(monkeypatch, capfd):
    watched = Watched(monkeypatch)
    for step in (1, 2):
        watched.progress.on_step(step)
        watched.wait(1.0)
    assert watched.levels == ["intervene"] * 2
    assert "no step for" in capfd.readouterr().err


def test_a_rank_writes_where_it_stands_before_any_rank_reports(monkeypatch):
    """Ranks that have waited for rank 0's evaluations have longer limits than rank 0."""
    watched, posted = Watched(monkeypatch), []
    monkeypatch.setattr(watched.watchdog._stalls, "post", lambda after_s: posted.append(watched.now))
    watched.progress.on_step(1)
    watched.progress.longest[Phase.STEP] = 10.0
    watched.wait(0.09)
    assert posted == []
    watched.wait(0.5)
    assert len(posted) == 5 and watched.levels == []


@pytest.mark.parametrize("moving", ["this rank", "the rank that the others wait for"])
def test_a_thread_that_moves_is_a_warning_until_it_stands(monkeypatch, moving):
    """It may be a save or an evaluation outside guard.phase, however long: it is reported once, and looked at again."""
    watched, culprits = Watched(monkeypatch), Culprits("rank 3 on algo-1: it has not entered all_reduce", works=True)
    watched.moves = moving == "this rank"
    if not watched.moves:
        monkeypatch.setattr(watched.watchdog._stalls, "find_culprits", lambda within_s: culprits)
    watched.progress.on_step(1)
    watched.wait(0.19)
    assert watched.levels == []
    watched.wait(3.0)
    assert watched.levels == ["warn"]
    watched.moves, culprits = False, Culprits()
    watched.wait(3.0)
    assert watched.levels == ["warn", "intervene"]


def test_a_save_or_an_evaluation_has_limits_of_its_own(monkeypatch):
    """Ones that are learnt; before that, those of the start."""
    watched = Watched(monkeypatch)
    watched.progress.on_step(1)
    for phase in (Phase.SAVE, Phase.EVALUATION):
        with watched.progress.track_phase(phase):
            watched.wait(0.5)
    assert watched.levels == []
    limits = HangLimits(step_s=300, save_s=600, unknown_s=1800, factor=5)
    assert limits.get_limit_s(Phase.STARTUP, 0) == limits.get_limit_s(Phase.SAVE, 0) == 1800
    assert (limits.get_limit_s(Phase.SAVE, 20), limits.get_limit_s(Phase.SAVE, 500)) == (600, 2500)
    assert (limits.get_limit_s(Phase.EVALUATION, 20), limits.get_limit_s(Phase.STEP, 100)) == (300, 500)


def test_steps_that_take_long_by_nature_raise_the_limit(monkeypatch):
    """Five times the longest gap that the run has shown."""
    watched = Watched(monkeypatch, step_s=0.05)
    for step in range(1, 12):
        watched.progress.on_step(step)
        watched.wait(0.04)
    watched.wait(0.15)
    assert watched.levels == []
    watched.wait(0.05)
    assert watched.levels == ["intervene"]


def test_a_start_that_takes_too_long_is_reported_as_a_startup_stall(monkeypatch):
    watched = Watched(monkeypatch, unknown_s=0.2)
    watched.wait(0.6)
    assert watched.kinds == [("startup_stall", None)]


@pytest.mark.parametrize(
    ("device", "environment", "expected"),
    [
        ("uverbs0", {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, "FI_PROVIDER is not set"),
        ("uverbs0", {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "FI_PROVIDER": "tcp"}, "FI_PROVIDER is 'tcp'"),
        ("uverbs0", {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "FI_PROVIDER": "efa"}, ""),
        ("uverbs0", {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "FI_PROVIDER": "efa,shm"}, ""),
        ("uverbs0", {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}, ""),
        ("uverbs0", {"WORLD_SIZE": "many"}, ""),
        ("rdma_cm", {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, ""),
    ],
)
def test_an_efa_that_may_not_be_in_use_is_named_where_no_step_was_made(
    monkeypatch, tmp_path, device, environment, expected
):
    (tmp_path / device).touch()
    monkeypatch.setattr("rerail_agent.hang.EFA_DEVICES", tmp_path)
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "FI_PROVIDER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    watched = Watched(monkeypatch, unknown_s=0.2)
    watched.wait(0.6)
    assert ("EFA" in watched.reason) is bool(expected)
    assert expected in watched.reason


def test_a_stall_after_the_first_step_is_not_put_down_to_the_network(monkeypatch, tmp_path):
    (tmp_path / "uverbs0").touch()
    monkeypatch.setattr("rerail_agent.hang.EFA_DEVICES", tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    watched = Watched(monkeypatch)
    watched.progress.on_step(1)
    watched.wait(0.6)
    assert watched.kinds == [("stall", 1)]
    assert "EFA" not in watched.reason


def test_a_process_that_was_stopped_is_not_taken_for_a_hung_one(monkeypatch):
    """The watchdog did not run either: the silence is not the training's."""
    watched = Watched(monkeypatch, step_s=0.4)
    watched.progress.on_step(1)
    watched.now += 1000
    watched.wait(0.3)
    assert watched.levels == []
    watched.wait(0.2)
    assert watched.levels == ["intervene"]


def test_a_moving_thread_is_distinguished_from_a_waiting_one():
    """By the instruction of the main thread, as another thread sees it."""
    moved, stood, release = threading.Event(), threading.Event(), threading.Event()

    def watch() -> None:
        first = stack_dump.find_position()
        while stack_dump.find_position() == first and not release.is_set():
            time.sleep(0.001)
        moved.set()
        same = 0
        while same < 20 and not release.is_set():
            before = stack_dump.find_position()
            time.sleep(0.001)
            same = same + 1 if stack_dump.find_position() == before else 0
        stood.set()

    threading.Thread(target=watch, daemon=True).start()
    deadline = time.monotonic() + HANG_S
    while not moved.is_set() and time.monotonic() < deadline:
        sum(range(50))
    assert moved.is_set()
    assert stood.wait(HANG_S)
    release.set()


@pytest.mark.slow
@pytest.mark.parametrize(("command", "stands"), [("sleep 60", True), ("while :; do :; done", False)])
def test_a_thread_whose_children_compute_does_not_stand_still(monkeypatch, command, stands):
    """As while processes tokenize or compile for it; those of a hung data loader wait."""
    monkeypatch.setattr(stack_dump, "find_position", lambda: "in a wait for a child")
    with subprocess.Popen(["sh", "-c", command], start_new_session=True) as child:
        found, deadline = not stands, time.monotonic() + HANG_S
        while found is not stands and time.monotonic() < deadline:  # its start takes time, and it has not all of a core
            found = stack_dump.stands_still(0.3)
        os.killpg(child.pid, signal.SIGKILL)
    assert found is stands


@pytest.mark.parametrize(("megabytes", "stands"), [(1, True), (40, False)], ids=["a log", "a checkpoint"])
def test_a_thread_that_saves_does_not_stand_still(tmp_path, monkeypatch, megabytes, stands):
    """One call of a library may write for minutes, without a further instruction of the training thread."""
    monkeypatch.setattr(stack_dump, "find_position", lambda: "in torch.save")
    monkeypatch.setattr(stack_dump, "measure_child_cpu_s", lambda: 0.0)
    with (tmp_path / "state.pt").open("wb", buffering=0) as file:
        written = iter([bytes(megabytes << 19)])
        assert stack_dump.stands_still(0.0, lambda seconds: file.write(next(written, b""))) is stands
