"""The watchdog: what it says about a process that really hangs, and what it leaves alone."""

import time

import pytest

from rerail.detectors.finding import Level
from rerail.detectors.pulse import Phase
from rerail_agent.hang import Limits, Watchdog
from rerail_agent.harmless import Harmless
from rerail_agent.progress import Progress
from tests.agent import loops
from tests.agent.fake_s3 import Bucket
from tests.agent.jobs import Ranks, environment_of


def test_a_process_that_hangs_says_in_which_function(bucket: Bucket, tmp_path):
    """Within seconds of its limit, while its heartbeat goes on; the stacks are in SageMaker's output folder too."""
    environment = environment_of(bucket, base=tmp_path, RERAIL_HANG_SECONDS="0.8")
    ranks = Ranks(loops.hanging, 1, environment=environment, culprit=0)
    try:
        assert ranks.said(0) == "training"
        report = bucket.wait_for_report("findings")
        beat = bucket.heartbeat()
        assert bucket.wait_for(lambda: bucket.heartbeat().at > beat.at)
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


def test_a_rank_that_waits_for_a_lost_one_names_the_collective(bucket: Bucket, tmp_path):
    """Rank 0 reports; the culprit's own stacks lie beside rank 0's."""
    environment = environment_of(bucket, base=tmp_path, RERAIL_HANG_SECONDS="0.8")
    ranks = Ranks(loops.hanging, 2, environment=environment, culprit=1)
    culprit = tmp_path / "output" / "data" / "rerail-stacks-rank1.txt"
    try:
        report = bucket.wait_for_report("findings")
        bucket.wait_for(culprit.exists)
    finally:
        ranks.kill()
    assert report.findings[0].level == "intervene"
    assert "waiting in torch.distributed: all_reduce" in report.evidence
    assert "reduce at" in report.evidence
    deadline = time.monotonic() + 5
    while "wait_for_a_batch_that_never_comes" not in culprit.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "wait_for_a_batch_that_never_comes" in culprit.read_text()


class Watched:
    """A watchdog over a progress of our own, with limits of a blink."""

    def __init__(self, **limits: float) -> None:
        self.progress, self.found = Progress(), []
        values = {"step_s": 0.2, "save_s": 60.0, "unknown_s": 60.0, "factor": 5.0, **limits}
        self.watchdog = Watchdog(
            self.progress,
            Limits(**values),
            file=None,
            found=lambda finding, evidence: self.found.append((finding, evidence)),
            harmless=Harmless(),
        )
        self.watchdog.start()

    def wait(self, seconds: float) -> None:
        """The main thread stands still."""
        time.sleep(seconds)

    def wait_for(self, findings: int) -> None:
        """The main thread goes on elsewhere until so much was found; writing stacks down may take a while."""
        end = time.monotonic() + 20
        while len(self.found) < findings and time.monotonic() < end:
            sum(range(50))

    def levels(self) -> list[Level]:
        self.watchdog.stop()
        return [finding.level for finding, _ in self.found]


@pytest.mark.parametrize("seconds", [1.0])
def test_a_stand_still_is_told_once(seconds, capfd):
    """However long it lasts; the next one is news."""
    watched = Watched()
    watched.progress.stepped(1)
    watched.wait(seconds)
    watched.progress.stepped(2)
    watched.wait(seconds)
    assert watched.levels() == ["intervene"] * 2
    assert "no step for" in capfd.readouterr().err


def test_a_thread_that_moves_gets_twice_the_time():
    """It may be a save or an evaluation that nobody announced: a warning first."""
    watched = Watched()
    watched.progress.stepped(1)
    watched.wait_for(findings=2)
    assert watched.levels() == ["warn", "intervene"]


def test_a_save_or_an_evaluation_has_limits_of_its_own():
    """Ones that are learnt; before that, those of the start."""
    watched = Watched()
    watched.progress.stepped(1)
    for phase in (Phase.SAVE, Phase.EVALUATION):
        with watched.progress.within(phase):
            watched.wait(0.5)
    assert watched.levels() == []
    limits = Limits(step_s=300, save_s=600, unknown_s=1800, factor=5)
    assert limits.of_phase(Phase.STARTUP, 0) == limits.of_phase(Phase.SAVE, 0) == 1800
    assert (limits.of_phase(Phase.SAVE, 20), limits.of_phase(Phase.SAVE, 500)) == (600, 2500)
    assert (limits.of_phase(Phase.EVALUATION, 20), limits.of_phase(Phase.STEP, 100)) == (300, 500)


def test_steps_that_take_long_by_nature_raise_the_limit():
    """Five times the longest gap that the run has shown."""
    watched = Watched(step_s=0.05)
    for step in range(1, 12):
        watched.progress.stepped(step)
        watched.wait(0.04)
    watched.wait(0.08)
    assert watched.levels() == []


def test_a_start_that_takes_too_long_is_told_as_such():
    """Before the first step there is another limit, and another kind of finding."""
    watched = Watched(unknown_s=0.2)
    watched.wait(0.6)
    watched.watchdog.stop()
    assert [(finding.kind, finding.step) for finding, _ in watched.found] == [("startup_stall", None)]


def test_a_process_that_was_stopped_is_not_taken_for_a_hung_one(monkeypatch):
    """The watchdog did not run either: the silence is not the training's."""
    monkeypatch.setattr("rerail_agent.hang.PAUSED_S", 0.0)
    watched = Watched(step_s=0.4)
    watched.progress.stepped(1)
    clock = time.monotonic
    monkeypatch.setattr("rerail_agent.hang.time.monotonic", lambda: clock() + 1000)
    watched.wait(0.2)
    monkeypatch.undo()
    assert watched.levels() == []
