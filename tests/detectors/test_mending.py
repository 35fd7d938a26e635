"""A trouble with the loss has an end: it mends, or where it has stayed is the level now; each is said once."""

import math
import random

import pytest

from rerail.detection.detectors import DetectorState, evaluate_sample
from rerail.detection.onsets import OF_THE_LOSS, with_onsets
from rerail.detection.recovery import OpenFinding, follow_findings
from rerail.model.finding import Finding, Kind, Level
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds
from rerail_agent.detection import CLEAN, StepDetection


def losses(count: int, *, seed: int = 1, level: float = 2.0) -> list[float]:
    chance = random.Random(seed)
    return [level * math.exp(chance.gauss(0, 0.01)) for _ in range(count)]


def ends(values: list[float], detection: Thresholds | None = None) -> list[tuple[Kind, Level, int | None, int | None]]:
    """Every end that is told of the series, with its onset and its step."""
    watch, troubles, told = DetectorState(), (), []
    for step, loss in enumerate(values, 1):
        sample = Sample(step=step, loss=loss)
        watch, said = evaluate_sample(watch, sample, detection or Thresholds())
        troubles, over = follow_findings(troubles, said, watch.detectors, sample)
        told += over
        assert {trouble.kind for trouble in troubles} <= OF_THE_LOSS
    return [(f.kind, f.level, f.onset_step, f.step) for f in told]


def test_a_spike_that_comes_back_has_recovered():
    """At the first row that is back; the level of some rows a little later."""
    over = ends([*losses(150), *losses(12, level=5.0), *losses(60, seed=2)])
    assert (Kind.LOSS_SPIKE, Level.RECOVERED, 151, 163) in over
    assert {(kind, level) for kind, level, _, _ in over} <= {
        (Kind.LOSS_SPIKE, Level.RECOVERED),
        (Kind.DIVERGENCE, Level.RECOVERED),
    }


def test_a_loss_that_is_finite_again_has_recovered():
    """When ten rows in a row were sound."""
    over = ends([*losses(50), math.nan, *losses(40, seed=2)])
    assert over == [(Kind.NON_FINITE, Level.RECOVERED, 51, 61)]


def test_a_frozen_loss_that_moves_again_has_recovered():
    over = ends([*losses(50), *[2.0] * 60, *losses(10, seed=2)])
    assert (Kind.FROZEN_LOSS, Level.RECOVERED, 51, 111) in over


@pytest.mark.parametrize(("slow", "level"), [(150, Level.RECOVERED), (3000, Level.ACCEPTED)])
def test_slow_steps_end_when_they_are_fast_again_or_their_pace_is_accepted(slow, level):
    """They end no trust in checkpoints: those are still clean."""
    detection, said = StepDetection(Thresholds()), []
    for row in range(300 + slow + 200):
        seconds = 1.0 if 300 <= row < 300 + slow else 0.5
        said += detection.evaluate(Sample(step=row + 1, loss=2.0 + row % 7 / 100, step_time_s=seconds))
        assert detection.health == CLEAN
    drops = [finding for finding in said if finding.kind is Kind.THROUGHPUT_DROP]
    assert (drops[0].level, drops[-1].level) == (Level.WARN, level)


def test_a_level_that_stays_is_accepted_in_the_end_and_the_spike_with_it():
    """Its own detector gives the spike up first: nobody has accepted anything while the divergence is judged."""
    over = ends([*losses(300), *losses(400, level=3.0, seed=2)])
    kinds = {kind: (level, step) for kind, level, _, step in over}
    assert kinds[Kind.LOSS_SPIKE] == kinds[Kind.DIVERGENCE]
    level, step = kinds[Kind.DIVERGENCE]
    assert level is Level.ACCEPTED
    assert step is not None
    assert step > 300 + Thresholds().spike_cap_rows


@pytest.mark.parametrize(
    ("rows", "ending", "earliest"), [(20, Level.RECOVERED, 41), (300, Level.ACCEPTED, 20 + Thresholds().rise_cap_rows)]
)
def test_a_rise_in_the_first_rows_lasts_until_the_loss_is_back_or_stays(rows, ending, earliest):
    over = ends([6.0, 5.0, *losses(18), *losses(rows, level=4.0, seed=2), *losses(10, seed=3)])
    ((level, onset, step),) = [told[1:] for told in over if told[0] is Kind.DIVERGENCE]
    assert (level, onset) == (ending, 21)
    assert step is not None and step >= earliest


def test_the_earliest_reported_onset_counts():
    """And the newer finding of the same kind is the same trouble."""
    watch, _ = evaluate_sample(DetectorState(), Sample(step=1, loss=math.nan), Thresholds())
    told = [Finding(Kind.NON_FINITE, Level.WARN, 9, onset, "x") for onset in (None, 7, 5, 8)]
    assert follow_findings((), told, watch.detectors, Sample(step=9)) == ((OpenFinding(Kind.NON_FINITE, 5),), ())


def test_only_findings_about_the_loss_have_an_end():
    told = [Finding(Kind.STALL, Level.WARN, 9, 5, "x"), Finding(Kind.GRAD_NORM, Level.WARN, 9, 5, "x")]
    assert follow_findings((), told, DetectorState().detectors, Sample(step=9)) == ((), ())


@pytest.mark.parametrize("seed", range(3))
def test_what_is_over_can_begin_again(seed):
    spikes = [*losses(150, seed=seed), *losses(5, level=6.0), *losses(120, seed=seed + 9)]
    again = [*spikes, *losses(5, level=6.0, seed=3), *losses(60, seed=seed + 19)]
    assert [step for kind, _, step, _ in ends(again) if kind is Kind.LOSS_SPIKE] == [151, 276]


@pytest.mark.parametrize(("row", "onset"), [(339, 70), (340, 300)])
def test_a_severe_finding_begins_with_the_earliest_of_three_times_the_patience(row, onset):
    """Others keep their own onset."""
    spike = Finding(Kind.LOSS_SPIKE, Level.WARN, 1, 70, "x")
    stall = Finding(Kind.STALL, Level.INTERVENE, 1, 60, "x")
    severe = Finding(Kind.DIVERGENCE, Level.INTERVENE, 1, 300, "x")
    onsets, told = with_onsets((), (stall, spike), row=100, detection=Thresholds())
    assert (onsets, told) == (((100, 70),), (stall, spike))
    onsets, told = with_onsets(onsets, (severe, stall), row=row, detection=Thresholds())
    assert [finding.onset_step for finding in told] == [onset, 60]
    assert len(with_onsets(onsets, [spike] * 30, row=row, detection=Thresholds())[0]) == 20
