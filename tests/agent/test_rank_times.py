"""Real ranks, joined by gloo: the one that is slow is named, with where it runs and why it is slow."""

import time
from types import SimpleNamespace

import pytest

from rerail.model.finding import Kind, Level
from rerail_agent.rank_times import RankTimer
from tests.agent import loops
from tests.agent.fake_s3 import Bucket
from tests.agent.jobs import Ranks, environment_of

ROUND_S = 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "words"), [("compute", "data wait normal"), ("data", "most of the excess is waiting for data")]
)
def test_the_slow_rank_of_eight_is_named(bucket: Bucket, tmp_path, where, words):
    """The others wait for it in the collective, and are as late as it is."""
    environment = environment_of(bucket, base=tmp_path, SM_CURRENT_HOST="algo-7")
    ranks = Ranks(loops.with_a_slow_rank, 8, environment=environment, culprit=5, where=where, round_s=ROUND_S)
    ranks.answers()
    found = [f for report in bucket.reports().values() for f in report.findings if f.kind is Kind.STRAGGLER]
    named = {finding.evidence.split(":")[0] for finding in found if finding.level is Level.WARN}
    assert named == {"rank 5 on algo-7 local rank 0"}
    assert all(words in finding.evidence and "x its peers for" in finding.evidence for finding in found)


def test_a_step_with_a_save_is_left_out(monkeypatch):
    """Its time says nothing about the rank."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("rerail_agent.rank_times.time", clock)
    timer = RankTimer()
    for seconds, is_saving in ((9.0, False), (1.0, False), (50.0, True), (2.0, False), (3.0, False)):
        if is_saving:
            timer.leave_out()
        with timer.track_data():
            clock.now += seconds / 4
        clock.now += seconds * 3 / 4
        timer.on_arrival()
        timer.on_release()
        timer.on_step()
    assert timer.take_round() == [1.5, 0.5]  # the medians of 1, 2 and 3 s: the first step has no beginning
    assert timer.take_round() == [0.0, 0.0]
    assert not timer.has_times


def test_the_time_in_the_collective_is_not_the_ranks_own():
    timer = RankTimer()
    timer.on_step()
    timer.on_arrival()
    time.sleep(0.1)
    timer.on_release()
    timer.on_step()
    own_s, _ = timer.take_round()
    assert own_s < 0.1
