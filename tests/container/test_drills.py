"""What each drill does to the losses of a real training."""

import os
import re
import signal
import threading
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pytest
import torch

import faults
from rerail_agent import Guard
from tests.container.hosts import Here, agree, saved

pytestmark = pytest.mark.slow


def level(losses: dict[int, str], steps: Iterable[int]) -> float:
    return fmean(float(losses[step]) for step in steps)


def test_a_spike_jumps_and_does_not_recover(train_here: Here, tmp_path: Path) -> None:
    options = {"steps": "160", "checkpoint_every": "1000"}
    undisturbed = train_here(tmp_path / "undisturbed", **options, drill="bug:step=60")
    spiked = train_here(tmp_path / "spiked", **options, drill="spike:step=60")
    before = level(spiked, range(50, 60))
    assert list(spiked) == list(range(1, 161))
    assert agree({step: spiked[step] for step in range(1, 60)}, undisturbed)
    assert min(float(spiked[step]) for step in range(60, 161)) > 1.5 * before


def test_a_spike_is_the_same_on_every_rank() -> None:
    plans = [faults.FaultPlan.of(faults.parse("spike:step=2"), attempt=1, rank=rank, world_size=3) for rank in range(3)]
    layers = []
    for plan in plans:
        torch.manual_seed(1)
        layer = torch.nn.Linear(4, 4, bias=False)
        plan.apply(2, model=layer, optimizer=torch.optim.AdamW(layer.parameters()))
        layers.append(layer.weight)
    torch.manual_seed(1)
    sound = torch.nn.Linear(4, 4, bias=False).weight
    assert all(weight.equal(-sound) for weight in layers)


def test_a_toxic_sample_spikes_whenever_it_is_trained_on_and_not_where_it_is_skipped(
    train_here: Here, tmp_path: Path
) -> None:
    """Sample 355 is of step 30. Skipped with its batch, the next samples move up, and the loss goes on falling."""
    spiked = train_here(tmp_path / "spiked", drill="toxic:sample=355", attempt=3)
    assert level(spiked, range(30, 40)) > 1.5 * level(spiked, range(25, 30))
    spared = train_here(tmp_path / "spared", drill="toxic:sample=355", attempt=3, skipped=(range(348, 360),))
    assert agree({step: spared[step] for step in range(1, 30)}, spiked)
    assert level(spared, range(30, 40)) < 1.1 * level(spared, range(25, 30))


def test_an_unstable_step_spikes_at_the_scheduled_rate_and_not_below_it(train_here: Here, tmp_path: Path) -> None:
    """Nine tenths of the rate are trained with from the first step on: every later loss differs."""
    spiked = train_here(tmp_path / "spiked", drill="unstable:step=30")
    assert level(spiked, range(30, 40)) > 1.5 * level(spiked, range(25, 30))
    calm = train_here(tmp_path / "calm", drill="unstable:step=30", rate=0.9)
    assert level(calm, range(30, 40)) < 1.1 * level(calm, range(25, 30))
    assert (calm[1], calm[2] == spiked[2], calm[20] == spiked[20]) == (spiked[1], False, False)
    rates = [float(rate) for rate in re.findall(r" lr=(\S+)", train_here.out)]
    assert rates[0] == pytest.approx(0.9 * 3e-3 / 5, rel=0.01)


def test_a_healing_spike_comes_back_to_its_level(train_here: Here, tmp_path: Path) -> None:
    """It falls from its peak to nothing within its steps, and leaves no damage behind."""
    undisturbed = train_here(tmp_path / "undisturbed", steps="90")
    healed = train_here(tmp_path / "healed", steps="90", drill="heal:step=60:for=6")
    before = level(undisturbed, range(50, 60))
    spike = [float(healed[step]) for step in range(60, 66)]
    assert agree({step: healed[step] for step in range(1, 60)}, undisturbed)
    assert spike[0] > 1.5 * before
    assert min(spike) > 1.1 * before
    assert all(earlier > later for earlier, later in pairwise(spike))
    assert level(healed, range(66, 76)) == pytest.approx(before, rel=0.05)
    assert level(healed, range(80, 91)) == pytest.approx(level(undisturbed, range(80, 91)), rel=0.05)


def test_healing_takes_eight_steps_by_default() -> None:
    plan = faults.FaultPlan.of(faults.parse("heal:step=10"), attempt=1, rank=0, world_size=1)
    shares = {step: plan.wrong_labels(step) for step in range(1, 30)}
    assert [step for step, share in shares.items() if share] == list(range(10, 18))
    assert (shares[10], shares[17]) == (1.0, 1 / 8)


def test_nan_stays_and_the_script_goes_on(train_here: Here, tmp_path: Path) -> None:
    """Every line from there on says so, what is saved is suspect, and nothing fails."""
    losses = train_here(drill="nan:step=15")
    assert [step for step in losses if losses[step] == "nan"] == list(range(15, 41))
    flags = re.findall(r"^rerail step=(\d+) .* nonfinite=1$", train_here.out, re.MULTILINE)
    assert [int(step) for step in flags] == list(range(15, 41))
    assert not (tmp_path / "output" / "failure").exists()
    healths = {step: manifest.health for step, manifest in saved(tmp_path / "checkpoints").items()}
    assert healths == {10: "clean", 20: "suspect", 30: "suspect", 40: "suspect"}


def test_a_slow_step_takes_a_multiple(train_here: Here) -> None:
    """The speed in the metric line drops by the factor, and the losses stay as they are.

    The fastest steps are compared, which no other program has delayed.
    """
    losses = train_here(steps="20", step_seconds="0.1", drill="slow:step=11:factor=5")
    speeds = [int(speed) for speed in re.findall(r" tokens_per_s=(\d+) ", train_here.out)]
    assert list(losses) == list(range(1, 21))
    assert max(speeds[1:9]) / max(speeds[9:]) == pytest.approx(5, rel=0.3)


def test_a_stalled_process_lives_until_sigterm(
    train_here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step completes, nothing is saved, and SIGTERM ends it with exit code 0."""
    monkeypatch.setattr(faults, "stall", while_signalled(faults.stall, threading.Event()))
    losses = train_here(checkpoint_every="1000", drill="stall:step=6")
    assert (max(losses), train_here.exit_code) == (5, 0)
    assert saved(tmp_path / "checkpoints") == {}
    assert not (tmp_path / "output" / "failure").exists()


def test_a_waiting_step_begins_when_sigterm_arrives(
    train_here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal is handled as ever, so that step is saved and is the last one. The next process does not wait again,
    also where it resumes from an older checkpoint because the last one was lost."""
    over = threading.Event()
    monkeypatch.setattr(faults, "wait_for_sigterm", while_signalled(faults.wait_for_sigterm, over))
    losses = train_here(checkpoint_every="1000", drill="wait:step=6")
    assert over.is_set()
    assert max(losses) == 6
    assert list(saved(tmp_path / "checkpoints")) == [6]
    plan = faults.FaultPlan.of(faults.parse("wait:step=7"), attempt=1, rank=0, world_size=1, resumed_step=5)
    over.clear()
    plan.apply(7, model=torch.nn.Linear(1, 1), optimizer=torch.optim.SGD([torch.zeros(1)]))
    assert not over.is_set()


def test_a_last_step_waits_only_in_a_process_with_damaged_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = []
    monkeypatch.setattr(faults, "wait_for_sigterm", lambda: waits.append("waited"))
    drills = faults.parse("nan:step=6:attempt=1;wait:step=9:damaged=1")
    for attempt, resumed_step in ((1, 0), (2, 5)):
        plan = faults.FaultPlan.of(drills, attempt=attempt, rank=0, world_size=1, resumed_step=resumed_step)
        for step in (6, 9):
            plan.apply(step, model=torch.nn.Linear(1, 1, bias=False), optimizer=torch.optim.SGD([torch.zeros(1)]))
    assert waits == ["waited"]


def while_signalled(function: Callable[[], None], over: threading.Event) -> Callable[[], None]:
    """Return the function with SIGTERM sent to this process until it has ended; then `over` is set."""

    def call() -> None:
        stopper = threading.Thread(target=signal_until, args=(over,))
        stopper.start()
        try:
            function()
        finally:
            over.set()
            stopper.join()

    return call


def signal_until(over: threading.Event) -> None:
    while not over.wait(0.2):
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_blind_run_trains_without_a_line(train_here: Here, tmp_path: Path) -> None:
    train_here(tmp_path / "talking")
    weights = re.findall(r"finished after step 40, weights (\S+)", train_here.err)
    losses = train_here(tmp_path / "blind", drill="blind:step=21")
    assert list(losses) == list(range(1, 21))
    assert re.findall(r"finished after step 40, weights (\S+)", train_here.err) == weights


def test_drills_fire_at_their_step_attempt_and_rank() -> None:
    """Several drills at a time; those of a moment fire once, the others hold on, also in a run that resumes later."""
    drills = faults.parse("kill:step=60:attempt=1; bug:step=90:rank=1;hang:step=5;slow:step=7;blind:step=8;heal:step=9")
    kill, bug, hang, slow, blind, heal = drills
    assert kill.applies_to(attempt=1, rank=0, world_size=2)
    assert not kill.applies_to(attempt=2, rank=0, world_size=2)
    assert (bug.applies_to(attempt=7, rank=1, world_size=2), bug.applies_to(attempt=7, rank=0, world_size=2)) == (
        True,
        False,
    )
    assert hang.applies_to(attempt=1, rank=1, world_size=2)
    assert not slow.applies_to(attempt=1, rank=1, world_size=2)
    assert blind.applies_to(attempt=1, rank=1, world_size=2)
    assert [step for step in range(100) if kill.is_active(step)] == [60]
    assert [step for step in range(100) if slow.is_active(step)] == list(range(7, 100))
    assert [step for step in range(100) if heal.is_active(step)] == list(range(9, 17))


def test_a_batch_that_does_not_fit_goes_on_in_parts(train_here: Here, tmp_path: Path) -> None:
    """From the checkpoint of whole batches, whose losses are not compared to the last bit then."""
    options = {"steps": "12", "checkpoint_every": "4", "dropout": "0"}
    undisturbed = train_here(tmp_path / "undisturbed", **options)
    stopped = train_here(tmp_path / "run", **options, drill="oom:step=6:over=8")
    assert list(stopped) == [1, 2, 3, 4, 5] and "CUDA out of memory" in (tmp_path / "run/output/failure").read_text()
    guard = Guard(environment={"RERAIL_MICROBATCHES": "2"})
    split = train_here(tmp_path / "run", **options, drill="oom:step=6:over=8", attempt=2, guard=guard)
    assert [*map(float, split.values())] == pytest.approx([float(undisturbed[step]) for step in range(5, 13)], rel=1e-4)
    assert "forgotten" not in train_here.err


def test_a_drill_has_settings_of_its_own() -> None:
    assert faults.parse("") == ()
    assert faults.parse("exit:code=7:step=60")[0].code == 7
    assert [drill.length for drill in faults.parse("heal:step=1;heal:step=1:for=3")] == [8, 3]
    assert [drill.factor for drill in faults.parse("slow:step=1;slow:step=1:factor=9")] == [4, 9]


@pytest.mark.parametrize(
    "text",
    [
        "explode:step=1",
        "bug",
        "bug:step=x",
        "bug:step=1:loss=2",
        "spike:step=1:rank=1",
        "toxic:step=1",
        "toxic:sample=1:for=2",
        "unstable:sample=1",
        "slow:step=1:for=3",
        "kill:step",
    ],
)
def test_a_drill_that_cannot_be_read_is_refused(text: str) -> None:
    kinds = "bug, oom, kill, exit, hang, spike, toxic, unstable, heal, nan, slow, stall, blind, wait"
    with pytest.raises(ValueError, match=rf"RERAIL_DRILL: cannot read .* kind of {kinds}"):
        faults.parse(text)
