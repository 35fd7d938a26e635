"""The detectors that read the loss: what each of them must say, and where it must be silent."""

import math
import random
from dataclasses import replace

import pytest

from rerail.detection.detectors import Detectors
from rerail.model.finding import Kind, Level
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds
from tests.detectors.runs import DETECTION, falling, levels, lifted, said, samples

LOSS = (Kind.LOSS_SPIKE, Kind.DIVERGENCE)


@pytest.mark.parametrize("seed", range(5))
def test_a_sound_run_is_left_in_peace(seed: int) -> None:
    """A falling loss with noise of one per cent is no trouble of any kind."""
    assert said(samples(falling(2000, seed=seed))) == []


@pytest.mark.parametrize("every", [1, 100])
def test_a_spike_of_one_row_is_reported_at_once(every: int) -> None:
    """A single row at 1.5 times the loss is warned of in that row, whatever the logging interval."""
    found = said(samples(lifted(falling(), 300, 300, times=1.5), every=every), *LOSS)
    assert [(row, f.kind, f.level) for row, f in found] == [(300, Kind.LOSS_SPIKE, Level.WARN)]
    assert found[0][1].onset_step == 301 * every


def test_a_rise_in_the_first_rows_is_told_once_and_not_acted_on():
    """A launch of forty rows that breaks at its eighteenth; not one that wavers, or that grows from its first row."""
    start = [7.2, 5.6, 4.6, 4.1, 3.9, 3.8, 3.8, 4.1, 4.0, 3.7, 3.7, 3.6, 4.2, 4.0, 4.0, 3.7, 3.7]
    broken = said(samples([*start, *(7.0 + 0.1 * (row % 5) for row in range(23))]), Kind.DIVERGENCE)
    assert [(f.level, row, f.onset_step) for row, f in broken] == [(Level.WARN, len(start) + 7, len(start) + 1)]
    for healthy in ([*start, *start[3:], *start[3:]], [1 + 0.2 * row for row in range(40)], [*start, 7.0, *start[3:]]):
        assert said(samples(healthy), Kind.DIVERGENCE) == []


def test_the_evidence_names_the_numbers() -> None:
    """The sentence says what the loss is, and what was expected."""
    [(_, finding)] = said(samples(lifted(falling(), 300, 300, times=1.5)), *LOSS)
    assert "1.5" in finding.evidence and "usual" in finding.evidence


def test_a_spike_early_in_a_steep_fall_is_seen() -> None:
    """The loss need not have settled: row 60 of a run that still falls is judged against its slope."""
    assert said(samples(lifted(falling(120), 60, 64, times=1.4)), Kind.LOSS_SPIKE)[0][0] == 60


def test_two_early_spikes_are_no_habit() -> None:
    """Nor are the rows of a short history that lie above the others."""
    flat = [2.0 * math.exp(random.Random(row).gauss(0, 0.01)) for row in range(60)]
    twice = lifted(lifted(flat, 34, 34, times=1.8), 45, 45, times=1.8)
    assert [row for row, _ in said(samples(twice), *LOSS)] == [34, 45]


@pytest.mark.parametrize("offset", [0.0, -9.0], ids=["positive", "below zero"])
def test_a_spike_that_the_mean_of_a_minute_hides_is_found_in_its_maximum(offset: float) -> None:
    """One of thirty rows at twice the loss raises the mean by 3 %. Without a maximum, or with NaN, nothing is said."""
    means, highest = falling(seed=1), lifted([1.03 * loss for loss in falling(seed=2)], 300, 300, times=2)
    minutes = [
        replace(row, loss=mean + offset, loss_max=peak + offset, count=30)
        for row, mean, peak in zip(samples(means), means, highest, strict=True)
    ]
    [(row, finding)] = said(minutes, *LOSS)
    assert (row, finding.kind, finding.level, finding.onset_step) == (300, Kind.LOSS_SPIKE, Level.WARN, 301)
    assert f"loss {highest[300] + offset:.4g} is" in finding.evidence
    for peak in (None, math.nan, math.inf):
        assert said([replace(minute, loss_max=peak) for minute in minutes], *LOSS) == []


def test_a_spike_that_recovers_is_never_intervened_on() -> None:
    """Forty rows at three times the loss, then back: warned of, and left alone."""
    found = said(samples(lifted(falling(600), 300, 340, times=3)), *LOSS)
    assert found and set(levels(found)) == {Level.WARN}


def test_a_rise_that_stays_is_intervened_on_after_the_patience() -> None:
    """A loss that jumps and stays is warned of at once, and intervened on when patience is over, not before."""
    found = said(samples(lifted(falling(600), 300, 600, times=1.6)), *LOSS)
    row = next(row for row, finding in found if finding.level is Level.INTERVENE)
    assert found[0][0] == 300 and 300 + DETECTION.patience_rows <= row <= 316 + DETECTION.patience_rows


def test_a_loss_that_creeps_upwards_is_intervened_on() -> None:
    """No single row of a slow divergence is a spike; the level is what tells."""
    sound = falling(800)
    creeping = [loss * 1.004 ** max(0, row - 400) for row, loss in enumerate(sound)]
    assert Level.INTERVENE in levels(said(samples(creeping), Kind.DIVERGENCE))


def test_a_run_that_starts_again_is_not_intervened_on() -> None:
    """Two launches in one log: the loss is back where it began and falls again, which is no divergence."""
    found = said(samples(falling(1200) + falling(1200, seed=3)))
    assert Level.INTERVENE not in levels(found)


def test_a_new_level_stops_alarming() -> None:
    """A legitimate change of level is told a few times at most, and then is the level."""
    found = said(samples(lifted(falling(3000), 500, 3000, times=1.5)), *LOSS)
    assert 1 <= len(found) <= 5 and max(row for row, _ in found) < 800


def test_spikes_at_one_distance_become_the_habit_of_the_run() -> None:
    """The first rows of every epoch are high in some logs: after a few epochs that is no news."""
    sawtooth = [loss * (1.5 if row % 20 == 0 else 1) for row, loss in enumerate(falling(1000))]
    assert len(said(samples(sawtooth), *LOSS)) <= 4


@pytest.mark.parametrize(("times", "rows", "reported"), [(1.5, 1, []), (1.5, 3, [903]), (1.5, 2, []), (2.2, 1, [901])])
def test_single_rows_like_two_before_are_the_noise_of_the_run(times: float, rows: int, reported: list[int]) -> None:
    """After two rows at 1.5 times the loss a third is only reported if it lasts longer, or is much larger."""
    noisy = lifted(lifted(falling(1200), 300, 300, times=1.5), 557, 557, times=1.5)
    found = said(samples(lifted(noisy, 901, 900 + rows, times=times)), *LOSS)
    assert [row for row, _ in found] == [300, 557, *reported]


def test_two_modes_of_a_loss_are_noise() -> None:
    """Mixup makes the loss of a batch jump between two levels; neither is a spike."""
    dice = random.Random(1)
    modes = [loss * (1.8 if dice.random() < 0.3 else 1) for loss in falling(1500)]
    assert len(said(samples(modes), *LOSS)) <= 2


def test_a_change_of_the_logging_interval_starts_the_baseline_afresh() -> None:
    """A hundred rows a step apart, then rows 500 steps apart: the slope of the former says nothing of the latter."""
    losses = [10.0 - 0.01 * row for row in range(100)] + [3 + 5 / (row + 1) for row in range(200)]
    rows = [Sample(step=row + 1 if row < 100 else 500 * (row - 99), loss=loss) for row, loss in enumerate(losses)]
    assert said(rows, *LOSS) == []


def test_a_negative_objective_is_not_judged_by_ratios() -> None:
    """The loss of an actor may be negative: a multiple of it means nothing, and nothing is said."""
    assert said(samples([-100.0 + row % 7 for row in range(300)]), *LOSS) == []


def test_nan_is_a_warning_at_once_and_an_intervention_when_it_lasts() -> None:
    """The first row that is no number warns; the third in a row intervenes."""
    found = said(samples([*falling(50), *[float("nan")] * 5]), Kind.NON_FINITE)
    assert [(row, f.level) for row, f in found] == [(50, Level.WARN), (52, Level.INTERVENE)]


def test_half_of_the_last_ten_rows_intervene_and_fewer_do_not() -> None:
    """Also where good rows lie between the bad ones."""
    losses = falling(50) + [float("nan"), 1.0] * 5
    patient = replace(DETECTION, non_finite_patience=100)
    found = said(samples(losses), Kind.NON_FINITE, detection=patient)
    assert [(row, finding.level) for row, finding in found] == [(50, Level.WARN), (58, Level.INTERVENE)]


def test_a_gradient_of_nan_counts_though_the_loss_looks_well() -> None:
    """A masked gradient leaves a healthy loss behind: the norm is judged of its own."""
    rows = [Sample(step=n, loss=0.04, grad_norm=float("nan") if n > 20 else 1.0 + n % 3) for n in range(40)]
    assert levels(said(rows, Kind.NON_FINITE)) == [Level.WARN, Level.INTERVENE]


def test_the_flag_of_the_run_counts_where_no_value_can_be_sent() -> None:
    """CloudWatch takes no NaN: the explicit flag stands for it."""
    rows = [Sample(step=n, loss=None if n == 30 else 2.0 + n % 3 / 100, nonfinite=n == 30) for n in range(40)]
    assert [row for row, _ in said(rows, Kind.NON_FINITE)] == [30]


def test_a_loss_scaler_that_probes_its_limit_is_no_trouble() -> None:
    """One infinite gradient norm with a sound loss is how dynamic loss scaling works."""
    rows = [Sample(step=n, loss=2.0 + n % 3 / 100, grad_norm=float("inf") if n % 50 == 30 else 1.0) for n in range(200)]
    assert said(rows, Kind.NON_FINITE) == []


@pytest.mark.parametrize("value", [0.0, 2.345678])
def test_a_frozen_loss_is_a_warning_and_then_an_intervention(value: float) -> None:
    """The very same number row after row, after numbers that never repeated, is no learning."""
    found = said(samples([*falling(200), *[value] * 200]), Kind.FROZEN_LOSS)
    assert levels(found) == [Level.WARN, Level.INTERVENE]


def test_a_log_of_few_digits_is_not_frozen() -> None:
    """Two decimals late in a run repeat for dozens of rows, as they did before."""
    assert said(samples([round(3 + 2 / (1 + row / 50), 2) for row in range(3000)]), Kind.FROZEN_LOSS) == []


def test_a_loss_learnt_down_to_zero_is_not_frozen() -> None:
    """A loss that became ever smaller before it read 0.0 got there by learning."""
    assert said(samples([*[10.0 * 0.5**row for row in range(60)], *[0.0] * 200]), Kind.FROZEN_LOSS) == []


def test_a_plateau_is_told_once_after_a_fall_unless_the_policy_excludes_it() -> None:
    """A loss that never fell may have its floor there; after a fall by a third it has stopped learning."""
    dice = random.Random(2)
    flat = [1 + dice.gauss(0, 0.003) for _ in range(900)]
    assert said(samples([5.4 * value for value in flat], every=100), Kind.PLATEAU) == []
    fallen = samples([5.4 * value * (1.5 if row < 30 else 1) for row, value in enumerate(flat)], every=100)
    assert levels(said(fallen, Kind.PLATEAU)) == [Level.WARN]
    assert said(fallen, Kind.PLATEAU, detection=Thresholds(plateau=False)) == []
    # Rounding to whole numbers hides a gain of three per cent.
    assert said([replace(sample, loss=round(sample.loss or 0)) for sample in fallen], Kind.PLATEAU) == []


def test_a_run_that_learns_is_no_plateau() -> None:
    """A power law that still gains with every doubling is none."""
    assert said(samples(falling(3000, noise=0.003)), Kind.PLATEAU, detection=Thresholds(plateau=True)) == []


def test_a_jump_of_the_gradient_norm_warns_once() -> None:
    """Five times the norm for three rows is one warning, where the policy asks for it."""
    rows = [
        Sample(step=n, loss=2.0 + n % 3 / 100, grad_norm=(5.0 if 100 <= n < 103 else 1.0) + n % 5 / 50)
        for n in range(200)
    ]
    assert said(rows, Kind.GRAD_NORM) == []
    found = said(rows, Kind.GRAD_NORM, detection=Thresholds(grad_norm=True))
    assert [(row, f.level) for row, f in found] == [(100, Level.WARN)]


def test_a_spike_is_over_below_half_of_what_is_allowed() -> None:
    """Between half and all of it the loss has not recovered: a second warning says so some rows later."""
    for share, warnings in ((0.7, 2), (0.3, 1)):
        detectors, found = Detectors(), []
        for sample in samples(lifted(falling(301), 300, 300, times=1.5)):
            found += detectors.run(sample, DETECTION)
        spike = detectors.loss_spike
        loss = math.exp(spike.expected + share * spike.allowed)
        for row in range(DETECTION.spike_again_rows):
            found += detectors.run(Sample(step=302 + row, loss=loss), DETECTION)
        assert [finding.kind for finding in found].count(Kind.LOSS_SPIKE) == warnings


def test_a_staircase_is_acted_on_once() -> None:
    """A rise that acting on did not undo is only told when it goes on; back at the first level, the next one counts."""
    dice = random.Random(3)
    stairs = [2.0 + 0.5 * (row // 150) for row in range(1500)]
    again = [2.0] * 300 + [4.0] * 300
    found = said(samples([value * (1 + dice.gauss(0, 0.01)) for value in stairs]), Kind.DIVERGENCE)
    assert levels(found).count(Level.INTERVENE) == 1
    found = said(samples([value * (1 + dice.gauss(0, 0.01)) for value in (*stairs, *again)]), Kind.DIVERGENCE)
    assert levels(found).count(Level.INTERVENE) == 2
