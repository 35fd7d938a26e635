"""Periodic checkpoints that the agent asks for: as often as wastes least, for what the saves of the script cost."""

import os
import time
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

os.environ["HF_HUB_OFFLINE"] = "1"

from rerail.model.checkpoint_intervals import SaveInterval, choose_interval
from rerail.model.liveness import Phase
from rerail_agent import manifests
from rerail_agent.hf import AUTOMATIC_KEPT, RerailCallback
from rerail_agent.progress import Progress
from rerail_agent.save_schedule import FIRST_SAVE_S, SaveSchedule, expect_mtbf_s
from rerail_agent.settings import CAPACITY_VARIABLE
from tests.agent import loops
from tests.agent.fake_s3 import Bucket
from tests.agent.frameworks import HuggingFace, trainer_in
from tests.agent.jobs import Ranks, environment_of
from tests.examples import count_examples

# As often as each step allows: nothing bounds the interval but the share.
ALWAYS = '{"shortest": 0.0, "longest": 0.0, "most_share": 0.999}'
DAY_S = 86_400.0


class Clock:
    """A script with steps of `step_s` whose saves stop training for `stall_s`, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, schedule_of: SaveInterval, *, mtbf_s: float | None) -> None:
        self.now = 1000.0
        clock = SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now)
        monkeypatch.setattr("rerail_agent.progress.time", clock)
        self.progress = Progress()
        self.schedule = SaveSchedule(schedule_of, self.progress, mtbf_s=mtbf_s)
        self.saves: list[float] = []

    def train(self, until_s: float, *, step_s: float, stall_s: float, durable_s: float = 0.0, in_phase: bool) -> None:
        end, step, durable_at = self.now + until_s, 0, None
        while self.now < end:
            self.now += step_s
            step += 1
            self.progress.on_step(step)
            if durable_at is not None and self.now >= durable_at:
                self.schedule.on_durable(durable_at)
                durable_at = None
            if self.schedule.is_due(ranks=8):
                assert not self.schedule.is_due(ranks=8), "it is asked for once"
                self.saves.append(self.now)
                self.schedule.on_save(self.now)
                durable_at = self.now + stall_s + durable_s
                if in_phase:
                    with self.progress.track_phase(Phase.SAVE):
                        self.now += stall_s
                else:
                    self.now += stall_s

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.saves, self.saves[1:], strict=False)]


@pytest.mark.parametrize("in_phase", [True, False], ids=["in a phase", "outside of one"])
def test_the_interval_follows_from_the_measured_stall(monkeypatch, in_phase):
    """The first save, after five minutes, measures it; from then on the interval is the recommended one."""
    bounds, mtbf_s = SaveInterval(shortest=timedelta(), longest=timedelta(days=1)), 11_124.0
    clock = Clock(monkeypatch, bounds, mtbf_s=mtbf_s)
    clock.train(6 * 3600, step_s=6.0, stall_s=5.0, in_phase=in_phase)
    assert clock.saves[0] - 1006 == FIRST_SAVE_S
    expected = choose_interval(bounds, mtbf_s=mtbf_s, stall_s=5.0)
    assert clock.gaps[-1] == pytest.approx(expected, abs=12)


@pytest.mark.parametrize(
    ("bounds", "mtbf_s", "first_s"),
    [
        (SaveInterval(), 264 * DAY_S, 300),  # of one machine, for which an assumed stall of a minute means an hour
        (SaveInterval(shortest=timedelta(minutes=20)), 264 * DAY_S, 1200),
        (SaveInterval(longest=timedelta(seconds=90), most_share=0.5), 264 * DAY_S, 90),
    ],
)
def test_the_first_save_keeps_the_bounds(monkeypatch, bounds, mtbf_s, first_s):
    clock = Clock(monkeypatch, bounds, mtbf_s=mtbf_s)
    clock.train(1800, step_s=6.0, stall_s=5.0, in_phase=True)
    assert clock.saves[0] - 1006 == first_s


@settings(max_examples=count_examples(30), deadline=None)
@given(stall_s=st.floats(0, 600), step_s=st.floats(0.5, 30), mtbf_s=st.floats(1, DAY_S), share=st.floats(0.01, 0.5))
def test_saving_never_takes_more_than_its_share(stall_s, step_s, mtbf_s, share):
    """However rare or frequent failures are said to be, and however long a save takes."""
    bounds = SaveInterval(shortest=timedelta(), longest=timedelta(0), most_share=share)
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(patch, bounds, mtbf_s=mtbf_s)
        clock.train(4 * 3600, step_s=step_s, stall_s=stall_s, in_phase=True)
    assert all(stall_s <= share * gap * 1.001 + 1e-6 for gap in clock.gaps)


def test_no_save_is_asked_for_while_the_last_one_is_being_written(monkeypatch):
    """A next one would wait for it, and training with it."""
    bounds = SaveInterval(shortest=timedelta(), longest=timedelta(days=1))
    clock = Clock(monkeypatch, bounds, mtbf_s=3600.0)
    clock.train(4 * 3600, step_s=6.0, stall_s=0.1, durable_s=600.0, in_phase=True)
    assert clock.gaps and min(clock.gaps) >= 600


def test_a_script_that_saves_often_enough_is_not_asked(monkeypatch):
    """Its own saves start the clock again."""
    clock = Clock(monkeypatch, SaveInterval(), mtbf_s=11_124.0)
    for _ in range(100):
        clock.train(50.0, step_s=5.0, stall_s=1.0, in_phase=True)
        clock.schedule.on_save(clock.now)
    assert clock.saves == []


def test_other_bounds_apply_from_the_next_step_on(monkeypatch):
    """Those of the policy arrive while the job trains; they may also turn the schedule off."""
    bounds = SaveInterval(shortest=timedelta(), longest=timedelta(days=1))
    clock = Clock(monkeypatch, bounds, mtbf_s=1e6)
    clock.train(600, step_s=6.0, stall_s=5.0, in_phase=True)
    assert len(clock.saves) == 1
    clock.schedule.set_bounds(replace(bounds, longest=timedelta(minutes=2)), mtbf_s=1e6)
    clock.train(3600, step_s=6.0, stall_s=5.0, in_phase=True)
    asked = len(clock.saves)
    assert asked >= 10 and clock.gaps[1:] == pytest.approx([120] * (asked - 2), abs=12)
    clock.schedule.set_bounds(replace(bounds, automatic=False), mtbf_s=1e6)
    clock.train(3600, step_s=6.0, stall_s=5.0, in_phase=True)
    assert len(clock.saves) == asked


def test_a_new_process_continues_with_the_measured_stall(new_guard, bucket):
    """It is part of the guard's state, so that the next save does not have to measure it again."""
    guard = new_guard(bucket)
    guard._schedule._stalls.append(0.5)
    guard._schedule._durables.append(2.0)
    resumed = new_guard(bucket)
    resumed.load_state_dict(guard.state_dict())
    assert resumed._schedule.dump_state() == {"stalls": [0.5], "durables": [2.0]}


def test_more_ranks_fail_more_often():
    """16,384 GPUs every 3.09 hours, as published; one machine in 264 days, however few GPUs it has."""
    assert expect_mtbf_s(16_384) / 3600 == pytest.approx(3.09, abs=0.01)
    assert expect_mtbf_s(1) == expect_mtbf_s(8) == 264 * DAY_S


def test_all_ranks_save_at_the_same_steps(bucket: Bucket, tmp_path):
    """Rank 0 decides; each is wanted once, although it stays due until the ranks have agreed."""
    environment = environment_of(bucket, base=tmp_path, RERAIL_SAVE_INTERVAL=ALWAYS, RERAIL_MTBF_SECONDS="1")
    answers = Ranks(loops.saving_periodically, 3, environment=environment, steps=60, stall_s=0.02).answers()
    saves = answers[0]
    assert answers == [saves] * 3
    assert {reason for _, reason in saves} == {"periodic"}
    assert len(saves) >= 3 and all(late - early > 1 for (early, _), (late, _) in zip(saves, saves[1:], strict=False))


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"RERAIL_SAVE_INTERVAL": "off"}, ""),
        ({"RERAIL_SAVE_INTERVAL": '{"shortest": "soon"}'}, "RERAIL_SAVE_INTERVAL: field 'shortest' is 'soon'"),
        ({"RERAIL_SAVE_INTERVAL": '{"most_share": 0}'}, "RERAIL_SAVE_INTERVAL: field 'most_share' is 0"),
    ],
)
def test_one_setting_turns_it_off_and_so_does_an_unreadable_one(new_guard, bucket, capfd, variables, line):
    guard = new_guard(bucket, RERAIL_MTBF_SECONDS="1", **variables)
    assert guard._schedule is None
    assert line in capfd.readouterr().err
    assert new_guard(bucket, RERAIL_SAVE_INTERVAL=ALWAYS)._schedule is not None


def test_outside_a_training_job_only_the_script_saves(new_guard):
    assert new_guard(RERAIL_SAVE_INTERVAL=ALWAYS)._schedule is None


@pytest.mark.parametrize(
    ("minutes", "asked"), [(-5, 1), (20, 1), (34, 1), (36, 0), (600, 0), (None, 0), ("soon", 0), ("0", 0)]
)
def test_a_checkpoint_is_asked_for_once_before_reserved_capacity_ends(new_guard, capfd, minutes, asked):
    """SageMaker ends the machines of a training plan from 30 minutes before its end on; the script may save rarely."""
    text = str(int((time.time() + minutes * 60) * 1000)) if isinstance(minutes, int) else minutes
    variables = {"RERAIL_SAVE_INTERVAL": "off", **({CAPACITY_VARIABLE: text} if text is not None else {})}
    guard, saves = new_guard(**variables), []
    for step in range(4):
        guard.step(step=step, loss=1.0)
        saves += [step] if guard.wants_checkpoint else []
    assert len(saves) == asked
    said = capfd.readouterr().err
    assert ("capacity ends soon" in said) == bool(asked) and ("not a number" in said) == (minutes == "soon")


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, 6])
def test_the_trainer_saves_when_it_is_due(new_guard, bucket, tmp_path, limit):
    """Where it would keep all of them, the outdated automatic ones are deleted, and its own stay."""
    guard = new_guard(bucket, RERAIL_SAVE_INTERVAL=ALWAYS, RERAIL_MTBF_SECONDS="1")
    pauses = [HuggingFace().before_step(step, lambda: time.sleep(0.2)) for step in range(1, 13)]
    changes = {"save_steps": 6, "save_total_limit": limit}
    trainer_in(tmp_path / "out", RerailCallback(guard), *pauses, **changes).train()
    steps = sorted(manifests.parse_step(folder) for folder in manifests.list_folders(tmp_path / "out"))
    assert steps[-1] == 12 and any(step % 6 for step in steps)
    if limit is None:
        assert 6 in steps and sum(step % 6 > 0 for step in steps) <= AUTOMATIC_KEPT
    else:
        assert len(steps) <= limit
    assert all(manifests.is_whole(tmp_path / "out" / f"checkpoint-{step}") for step in steps)
