"""The detectors, step by step: what they find, once, and what it makes of a checkpoint saved now."""

import json
import math
import random

import pytest

from rerail.detection.detectors import evaluate_series
from rerail.model.finding import Kind, Level
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds
from rerail_agent.detection import StepDetection


def losses(steps: int, *, seed: int = 1, level: float = 2.0) -> list[float]:
    chance = random.Random(seed)
    return [level * math.exp(chance.gauss(0, 0.01)) for _ in range(steps)]


def rows(values: list[float], first: int = 1) -> list[Sample]:
    return [Sample(step=step, loss=value, step_time_s=0.1) for step, value in enumerate(values, first)]


@pytest.mark.parametrize(
    ("trouble", "good_before", "suspect"), [([6.0, 5.0, 4.0], 100, 3), ([math.nan], 40, 10)], ids=["spike", "no number"]
)
def test_checkpoints_are_suspect_until_the_loss_recovers(trouble, good_before, suspect):
    """From the first row that is too high to the first that is back; after a NaN until ten good rows in a row."""
    judgement = StepDetection(Thresholds())
    health = []
    for sample in rows([*losses(good_before), *trouble, *losses(30, seed=2)]):
        judgement.evaluate(sample)
        health.append(judgement.health)
    assert health == ["clean"] * good_before + ["suspect"] * suspect + ["clean"] * (30 + len(trouble) - suspect)


def test_a_loss_that_stays_up_is_suspect_until_well_after_the_time_to_act():
    """The detectors take a level that has lasted for the new one, long after they have asked for an intervention."""
    judgement = StepDetection(Thresholds())
    found, last_suspect = {}, 0
    for sample in rows(losses(200) + losses(400, seed=3, level=4.0)):
        for finding in judgement.evaluate(sample):
            found.setdefault((finding.kind, finding.level), sample.step)
        last_suspect = sample.step if judgement.health == "suspect" else last_suspect
    acted = found[Kind.DIVERGENCE, Level.INTERVENE]
    assert found[Kind.LOSS_SPIKE, Level.WARN] == 201
    assert 264 <= acted <= 320
    assert acted < last_suspect < 500


def test_the_findings_are_those_of_the_detectors_benchmark_each_reported_once():
    """In place or not, the same detectors say the same; a repeated finding with one onset is reported once."""
    samples = rows([*losses(150), *losses(12, seed=4, level=5.0), *losses(60, seed=5), math.nan, *losses(90, seed=6)])
    judgement = StepDetection(Thresholds())
    mine = [finding for sample in samples for finding in judgement.evaluate(sample)]
    theirs = list(dict.fromkeys((f.kind, f.level, f.onset_step) for _, f in evaluate_series(samples, Thresholds())))
    assert [(f.kind, f.level, f.onset_step) for f in mine if f.level is not Level.RECOVERED] == theirs
    assert len(theirs) >= 2


def test_what_was_learnt_outlives_the_process():
    """Resumed after some steps, the detectors judge the next ones as if nothing had happened."""
    before, after = rows(losses(120)), rows([*losses(30, seed=7), 5.0, *losses(5, seed=8)], first=121)
    one = StepDetection(Thresholds())
    for sample in before:
        one.evaluate(sample)
    state = one.dump_state()
    assert isinstance(json.loads(state), dict)
    other = StepDetection(Thresholds())
    other.restore(state)
    for sample in after:
        assert one.evaluate(sample) == other.evaluate(sample)
        assert one.health == other.health
    assert one.dump_state() == other.dump_state()


def test_a_suspect_state_is_resumed_as_suspect():
    """A checkpoint saved in the middle of a spike carries the spike along."""
    one, other = StepDetection(Thresholds()), StepDetection(Thresholds())
    for sample in rows([*losses(100), 6.0]):
        one.evaluate(sample)
    other.restore(one.dump_state())
    assert other.health == "suspect"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"watch": 5}',
        '{"watch": {"schema": 3}}',
        '{"watch": {"schema": 2, "detectors": {"loss_spike": {"baseline": {"level": {"values": ["y"]}}}}}}',
        '{"watch": {"schema": 1}, "open": ["no such kind"]}',
    ],
)
def test_a_state_that_cannot_be_read_changes_nothing(text):
    """It is an error for the guard to tell, and the detectors go on as they were."""
    judgement = StepDetection(Thresholds())
    for sample in rows(losses(50)):
        judgement.evaluate(sample)
    before = judgement.dump_state()
    with pytest.raises(Exception):  # noqa: B017  (whatever it is, the guard tells it)
        judgement.restore(text)
    assert judgement.dump_state() == before


def test_a_rise_that_lasts_began_with_its_spike():
    """A rollback has to reach behind the first step that went wrong, not behind the one that was noticed later."""
    judgement = StepDetection(Thresholds(patience_rows=12))
    noise = random.Random(5)
    found = []
    for step in range(1, 500):
        level = 3.0 if step < 400 else 6.0
        found += judgement.evaluate(Sample(step=step, loss=level * (1 + noise.gauss(0, 0.01))))
    spike = next(f for f in found if f.kind is Kind.LOSS_SPIKE)
    grave = next(f for f in found if f.level is Level.INTERVENE)
    assert spike.onset_step == grave.onset_step == 400
