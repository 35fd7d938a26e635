"""The floor: a worse number fails, a better one never does, and a floor that cannot be meant is refused."""

import json
from pathlib import Path

import pytest

from bench.floor import BadFloor, read_floors, shortfalls, write_floors
from cli.backtest.scoring import INTERVENE, Call, Label, Labelled, measures, score

CONTENDERS = ("ours",)


def measured(*said: Call) -> dict[str, dict[str, float]]:
    run = Labelled("a", "g", 30_000, (Label("loss_spike", 100, 110), Label("stall", 900, 900)))
    return {"ours": measures(score([run], {"a": said}))}


def test_what_was_written_is_held(tmp_path: Path):
    """A floor set from these numbers passes these numbers, rounding and all."""
    now = measured(Call(100, "loss_spike"), Call(500, "stall"))
    write_floors(tmp_path / "floor.json", now)
    assert shortfalls(now, read_floors(tmp_path / "floor.json", contenders=CONTENDERS)) == []


def test_a_miss_and_a_false_alarm_are_each_a_shortfall():
    """One sentence for each measure, with the number and its floor."""
    floors = {"ours": {"loss recall, macro": 1.0, "false alarms per 100k rows": 0.0}}
    assert shortfalls(measured(Call(100, "loss_spike")), floors) == []
    missed, noisy = shortfalls(measured(Call(500, "loss_spike")), floors)
    assert missed == "ours: loss recall, macro is 0.000, it must be at least 1.000"
    assert noisy == "ours: false alarms per 100k rows is 3.333, it must be at most 0.000"


def test_an_intervention_on_a_spike_that_mends_counts_as_wrong():
    """The dearest mistake has a floor of its own."""
    floors = {"ours": {"wrong interventions per 100k rows": 0.2}}
    assert len(shortfalls(measured(Call(100, "loss_spike", INTERVENE)), floors)) == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "must be an object"),
        ('{"theirs": {}}', "no contender 'theirs'"),
        ('{"ours": {"recall": 1}}', "no measure 'recall'"),
        ('{"ours": {"loss recall, macro": "high"}}', "write a number"),
    ],
)
def test_a_floor_that_cannot_be_meant_is_refused(tmp_path, content, says):
    """A mistyped measure must not pass as one that is met."""
    file = tmp_path / "floor.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(BadFloor, match=says):
        read_floors(file, contenders=CONTENDERS)


def test_the_committed_floor_can_be_read():
    """Its contenders and measures are those that the benchmark has."""
    from bench.detection import HERE
    from bench.judging import CONTENDERS as ALL

    assert read_floors(HERE / "floor.json", contenders=ALL)
    assert json.loads((HERE / "floor.json").read_text())
