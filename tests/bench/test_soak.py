"""The soak: its plan covers every scenario, and its checks find what they are for; tests/demo soak_runs a tiny one."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

import faults as drills  # container/faults.py, that a training process has
from bench.soaking.faults import FAULTS
from bench.soaking.notes import Notes, different, lineage, lost_steps, uncovered
from bench.soaking.remedied import Stretch, stretches
from cli.demo.scenarios import Name

BATCH = 4


# ------------------------------------------------------------------ the plan


def test_every_scenario_of_the_demo_and_every_drill_is_soaked():
    """None is added to either that no soak ever meets. A step that waits for a fault from outside is none itself,
    `parallel` is the fault of `crash` in a layout of eight processes, too many for a soak, `idle` is that of `stall`,
    found by the load of the machine, `storm` that of `infra`, `budget` breaks nothing, the losses of `oom-heal` are not
    exact, and the script of `hf` notes nothing."""
    elsewhere = {Name.PARALLEL, Name.IDLE, Name.STORM, Name.BUDGET, Name.OOM_HEAL, Name.HF}
    assert {name.value for name in set(Name) - elsewhere} <= set(FAULTS)
    written = " ".join(fault.drill for fault in FAULTS.values())
    assert [kind for kind in drills.FaultKind if f"{kind}:" not in written] == [drills.FaultKind.WAIT]


def test_every_drill_can_be_read_by_the_training_script():
    """Also those that name a sample in place of a step."""
    marks = {"step": 100, "sample": 1599}
    assert all(drills.parse(fault.drill.format(**marks)) for fault in FAULTS.values() if fault.drill)


# ------------------------------------------------------------------ what was trained


class Run:
    """A training that notes what it does, as bench/soak_worker/rank.py would."""

    def __init__(self) -> None:
        self.notes, self.at = Notes(Path()), 0.0

    def note(self, **what) -> None:
        self.at += 1.0
        self.notes.take({**what, "at": self.at})

    def train(self, attempt: int, steps: range, *, source: int | None = None, skipped=(), rate: float = 1.0) -> None:
        """One start: these steps, on the data order's samples without those that it skips."""
        begun = {"start": [attempt, 0], "after": steps.start - 1, "source": [source, 0] if source else None}
        self.note(**begun, consumed=0, skipped=[list(each) for each in skipped], rate=rate)
        order = [i for i in range(10_000) if not any(first <= i <= last for first, last in skipped)]
        for step in steps:
            self.note(step=step, ids=order[BATCH * (step - 1) : BATCH * step], loss=float(1 / step).hex())

    def read(self) -> Mapping[int, list[int]]:
        final = lineage(self.notes.starts)
        return {number: self.notes.samples(start, step) for number, (start, step) in final.items()}


def test_the_final_lineage_leaves_out_what_was_trained_in_vain():
    """Trained to 8, resumed from 5: steps 6 to 8 count once; resumed from the first attempt's save, the second's are
    lost too."""
    run = Run()
    run.train(1, range(1, 9))
    run.train(2, range(6, 8), source=1)
    run.train(3, range(6, 13), source=1)
    final = lineage(run.notes.starts)
    assert sorted(final) == list(range(1, 13))
    assert [final[step][0].attempt for step in (5, 6, 12)] == [1, 3, 3]
    assert lost_steps(run.notes.starts, final) == 3 + 2
    assert list(uncovered(run.read(), steps=12, batch=BATCH)) == []


def test_a_resume_from_what_nobody_saved_is_told():
    """Its source has never trained that step."""
    run = Run()
    run.train(1, range(1, 4))
    run.train(2, range(6, 9), source=1)
    with pytest.raises(ValueError, match="began after step 5, which no attempt has trained"):
        lineage(run.notes.starts)


def test_skipped_samples_are_those_that_the_timeline_names():
    """No fewer and no more, and in the final lineage alone."""
    run = Run()
    run.train(1, range(1, 9))
    run.train(2, range(5, 13), source=1, skipped=[(20, 27)])
    assert list(uncovered(run.read(), steps=12, batch=BATCH, skipped=[(20, 27)])) == []
    assert "8 samples were never trained" in " ".join(uncovered(run.read(), steps=12, batch=BATCH))
    told = " ".join(uncovered(run.read(), steps=12, batch=BATCH, skipped=[(20, 29)]))
    assert "2 samples were trained that the timeline calls skipped, the first is 28" in told


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda read: read[3].__setitem__(0, read[2][0]), "1 samples were trained twice"),
        (lambda read: read[3].__setitem__(0, 999), "never trained"),
        (lambda read: read[3].pop(), "step 3 read 3 samples, not 4"),
        (lambda read: read.pop(3), "1 steps are in no lineage, the first is step 3"),
        (lambda read: read.update({3: read[4], 4: read[3]}), "out of order"),
        (lambda read: read.update({9: [32, 33, 34, 35]}), "steps that the run does not have"),
    ],
)
def test_a_sample_that_is_doubled_missing_or_misplaced_is_found(broken, said):
    """What a data loader that resumes wrongly would do."""
    run = Run()
    run.train(1, range(1, 9))
    read = {step: list(ids) for step, ids in run.read().items()}
    assert list(uncovered(read, steps=8, batch=BATCH)) == []
    broken(read)
    assert said in " ".join(uncovered(read, steps=8, batch=BATCH))


def test_two_ranks_read_a_batch_together(tmp_path):
    """What each of them noted makes one step; a line that a kill has cut is waited for."""
    start = json.dumps({"start": [1, 0], "after": 0, "source": None, "skipped": [], "rate": 1.0, "at": 1.0})
    for rank, ids in ((0, [0, 2]), (1, [1, 3])):
        step = json.dumps({"step": 1, "ids": ids, "loss": "0x1p+0", "at": 2.0})
        (tmp_path / f"gpt.rank{rank}.notes").write_text(f'{start}\n{step}\n{{"step": 2, "id')
    notes = Notes(tmp_path)
    notes.read(["gpt"])
    notes.read(["gpt"])
    ((start, step),) = lineage(notes.starts).values()
    assert notes.samples(start, step) == [0, 1, 2, 3]


def test_losses_are_compared_to_the_last_bit():
    """Also where they print alike."""
    one, other = {1: (0.1).hex(), 2: (0.3).hex()}, {1: (0.1).hex(), 2: (0.1 + 0.2).hex(), 3: (0.4).hex()}
    count, apart = different(one, other)
    assert (count, 0 < apart < 1e-15) == (1, True)
    assert different(one, one) == (0, 0.0)


def test_a_twin_has_the_same_remedies_from_the_same_steps_on():
    """A run that was rolled back to step 4, and that skips and learns more slowly from there on."""
    run = Run()
    run.train(1, range(1, 9))
    run.train(2, range(5, 9), source=1, skipped=[(20, 27)])
    run.train(3, range(5, 13), source=1, skipped=[(20, 27)], rate=0.9)
    assert stretches(lineage(run.notes.starts)) == [Stretch(4, (), 1.0), Stretch(12, ((20, 27),), 0.9)]
