"""The detectors that read the loss: what each of them must say, and where it must be silent."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest

from rerail.detection.detectors import Detectors
from rerail.detection.divergence import Divergence, EarlierLevel
from rerail.detection.loss_scale import LossScale
from rerail.detection.rise import LossRise
from rerail.detection.row import RowReader
from rerail.model.finding import Kind, Level
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds
from tests.detectors.runs import DETECTION, falling, levels, lifted, list_rows, minutes, said, samples

LOSS = (Kind.LOSS_SPIKE, Kind.DIVERGENCE)


@pytest.mark.parametrize("seed", range(5))
def test_a_sound_run_is_left_in_peace(seed: int) -> None:
    """A falling loss with noise of one per cent is no trouble of any kind."""
    assert said(samples(falling(2000, seed=seed))) == []


def test_a_rise_in_the_first_rows_is_told_once_and_not_acted_on():
    """A launch of forty rows that breaks at its eighteenth; not one that wavers, or that grows from its first row."""
    start = [7.2, 5.6, 4.6, 4.1, 3.9, 3.8, 3.8, 4.1, 4.0, 3.7, 3.7, 3.6, 4.2, 4.0, 4.0, 3.7, 3.7]
    broken = said(samples([*start, *(7.0 + 0.1 * (row % 5) for row in range(23))]), Kind.DIVERGENCE)
    assert [(f.level, row, f.onset_step) for row, f in broken] == [(Level.WARN, len(start) + 7, len(start) + 1)]
    for healthy in ([*start, *start[3:], *start[3:]], [1 + 0.2 * row for row in range(40)], [*start, 7.0, *start[3:]]):
        assert said(samples(healthy), Kind.DIVERGENCE) == []


@pytest.mark.parametrize(("first", "told"), [(2.0, [Level.WARN]), (1e-4, [])])
def test_a_loss_that_has_only_grown_is_told_once_and_not_acted_on(first, told):
    """To over a thousand times its first level, where it stays; a healthy loss may start close to zero."""
    grown = [first * math.exp(0.02 * min(row, 400) + random.Random(row).gauss(0, 0.01)) for row in range(900)]
    found = said(samples(grown), Kind.DIVERGENCE)
    assert levels(found) == told and all(340 < row < 360 for row, _ in found)


@pytest.mark.parametrize(("fall", "least"), [(1.5, Level.WARN), (3.0, Level.INTERVENE)])
def test_a_slow_rise_early_in_a_run_is_told_and_after_a_real_fall_acted_on(fall, least):
    """Some healthy objectives grow after they fell a little."""
    losses = [8 - fall + fall * math.exp(-row / 30) + 0.04 * max(0, row - 90) for row in range(250)]
    noisy = [loss * math.exp(random.Random(row).gauss(0, 0.005)) for row, loss in enumerate(losses)]
    found = said(samples(noisy, every=10), Kind.DIVERGENCE)
    assert max(levels(found), key=[Level.WARN, Level.INTERVENE].index) is least
    assert found[0][0] < 120
    assert said(samples(noisy[90:91] * 20 + noisy[90:], every=10), Kind.DIVERGENCE) == []


def test_a_slow_rise_within_the_first_fifty_rows_does_not_become_usual():
    """The history of usual rises is short then, and would be made of this one."""
    losses = [(3 + 5 * math.exp(-min(row, 20) / 10)) * (1 + min(1.5, max(0, row - 20) / 40)) for row in range(200)]
    found = said(samples(loss * math.exp(random.Random(row).gauss(0, 0.01)) for row, loss in enumerate(losses)), *LOSS)
    assert found[0][0] < 80
    assert Level.INTERVENE in levels((row, finding) for row, finding in found if row < 160)


def test_a_spike_early_in_a_steep_fall_is_seen() -> None:
    """The loss need not have settled: row 60 of a run that still falls is judged against its slope."""
    assert said(samples(lifted(falling(120), 60, 64, times=1.4)), Kind.LOSS_SPIKE)[0][0] == 60


def test_two_early_spikes_are_no_habit() -> None:
    """Nor are the rows of a short history that lie above the others."""
    flat = [2.0 * math.exp(random.Random(row).gauss(0, 0.01)) for row in range(60)]
    twice = lifted(lifted(flat, 34, 34, times=1.8), 45, 45, times=1.8)
    assert [row for row, _ in said(samples(twice), *LOSS)] == [34, 45]


@pytest.mark.parametrize("offset", [0.0, -9.0], ids=["positive", "below zero"])
@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([4.0] * 2 + [5.2] * 98, [(Level.WARN, 101), (Level.INTERVENE, 101)]),
        ([5.2] * 30 + [4.0] * 70, []),
        ([4.0] * 10 + [5.2] * 12 + [4.0] * 30, [(Level.WARN, 101)]),
        ([4.0] * 32 + [5.2] * 14 + [4.0] * 10, [(Level.WARN, 129)]),
        ([4.0] * 2 + [5.2] * 180 + [4.0] * 20 + [5.2] * 12, [(Level.WARN, 101), (Level.INTERVENE, 101)]),
    ],
    ids=["returns", "not there yet", "recovers", "begins later", "becomes normal"],
)
def test_after_a_rollback_the_loss_is_compared_with_the_level_before_the_problem(offset, rows, found):
    """The problem began at step 101; the new attempt has too few rows to learn a level of its own from."""
    rng, first = random.Random(1), 101 if found else 71
    before, after = (
        [Sample(step=start + row, loss=loss + offset + 0.01 * rng.gauss(0, 1)) for row, loss in enumerate(losses)]
        for start, losses in ((1, [6.0 - row / 50 for row in range(100)]), (first, rows))
    )
    reader = RowReader()
    for sample in before:
        reader.read(sample)
    level, limit = reader.scale.place(4.0 + offset), reader.scale.place(4.5 + offset)
    earlier = EarlierLevel(101, level, limit - level)
    detectors = Detectors(RowReader(scale=reader.scale), divergence=Divergence(earlier=earlier))
    findings = [finding for sample in after for finding in detectors.run(sample, DETECTION)]
    assert [(f.level, f.onset_step) for f in findings if f.kind is Kind.DIVERGENCE] == found


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


@pytest.mark.parametrize("sinking", [0.0, 0.02])
def test_a_loss_a_thousand_times_above_its_best_is_acted_on_though_it_sinks(sinking) -> None:
    """It is above its first level too. It had fallen far below that before, unlike an objective that only grows."""
    losses = [2e5 * loss * math.exp(-sinking * row) for row, loss in enumerate(falling(140))]
    assert levels(said(samples(falling(300) + losses), Kind.DIVERGENCE)) == [Level.WARN, Level.INTERVENE]


def test_a_loss_below_zero_that_sinks_from_far_above_is_left_to_recover() -> None:
    """Its rise is measured in shares of the run's progress, not as a logarithm: the limit for those does not apply."""
    rng = random.Random(0)
    sound = [-1 + math.exp(-row / 60) + rng.gauss(0, 0.01) for row in range(500)]
    sinking = [sound[-1] + 4.5 * math.exp(-0.003 * row) + rng.gauss(0, 0.01) for row in range(400)]
    assert Level.INTERVENE not in levels(said(samples(sound + sinking), Kind.DIVERGENCE))


def test_a_loss_that_creeps_upwards_is_intervened_on() -> None:
    """No single row of a slow divergence is a spike; the level is what tells."""
    sound = falling(800)
    creeping = [loss * 1.004 ** max(0, row - 400) for row, loss in enumerate(sound)]
    assert Level.INTERVENE in levels(said(samples(creeping), Kind.DIVERGENCE))


def test_a_run_that_starts_again_is_not_intervened_on() -> None:
    """Two launches in one log: the loss is back where it began and falls again, which is no divergence."""
    found = said(samples(falling(1200) + falling(1200, seed=3)))
    assert Level.INTERVENE not in levels(found)
    launch = [Sample(step=100 * (row + 1), loss=3e4 if row == 0 else 1 + 1 / row) for row in range(60)]
    assert said([*launch, *launch], Kind.DIVERGENCE) == []


@pytest.mark.parametrize("times", [1.3, 2, 5, 10])
@pytest.mark.parametrize("has_steps", [True, False])
def test_a_training_that_begins_anew_is_not_acted_on_but_a_rise_after_that_is(times, has_steps) -> None:
    """Folds or phases of equal length end at other levels; without steps a minute tells that they began again."""
    phases = [[loss * times**number for loss in falling(700, seed=number)[400:]] for number in range(3)]
    rows = [
        Sample(step=row if has_steps else None, loss=loss, begins_again=not has_steps and number > 0 and row == 0)
        for number, phase in enumerate(phases)
        for row, loss in enumerate(phase)
    ]
    found = said(rows)
    assert Level.INTERVENE not in levels(found) and len(said(rows, Kind.DIVERGENCE)) <= 2
    broken = [replace(row, loss=row.loss * 4) if number >= 700 else row for number, row in enumerate(rows)]
    acted = [row for row, finding in said(broken, Kind.DIVERGENCE) if finding.level is Level.INTERVENE]
    assert len(acted) == 1 and 700 < acted[0] < 800
    # In one training the same rise is acted on.
    assert times < 2 or Level.INTERVENE in levels(said(samples(phases[0] + [phases[0][-1] * times] * 300)))


@pytest.mark.parametrize("has_steps", [True, False])
@pytest.mark.parametrize("onset", [479, 482, 500])
def test_a_rise_that_lasts_is_acted_on_in_short_epochs(onset, has_steps) -> None:
    """It begins right before, after or far from where the steps begin again, and lasts longer than an epoch."""
    values = lifted(falling(700), onset, 700, times=5)
    rows = [Sample(step=row % 40, loss=loss) for row, loss in enumerate(values)]
    if not has_steps:
        rows = [replace(row, step=None, begins_again=number > 0 and row.step == 0) for number, row in enumerate(rows)]
    acted = [row for row, finding in said(rows, Kind.DIVERGENCE) if finding.level is Level.INTERVENE]
    assert len(acted) == 1 and onset < acted[0] < onset + 120


def test_a_new_level_stops_alarming() -> None:
    """A legitimate change of level is told a few times at most, and then is the level."""
    found = said(samples(lifted(falling(3000), 500, 3000, times=1.5)), *LOSS)
    assert 1 <= len(found) <= 5 and max(row for row, _ in found) < 800


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


def test_a_gradient_of_nan_counts_though_the_loss_looks_well() -> None:
    """A masked gradient leaves a healthy loss behind: the norm is judged of its own."""
    rows = [Sample(step=n, loss=0.04, grad_norm=float("nan") if n > 20 else 1.0 + n % 3) for n in range(40)]
    assert levels(said(rows, Kind.NON_FINITE)) == [Level.WARN, Level.INTERVENE]


def test_the_flag_of_the_run_counts_where_no_value_can_be_sent() -> None:
    """CloudWatch takes no NaN: the explicit flag stands for it."""
    rows = [Sample(step=n, loss=None if n == 30 else 2.0 + n % 3 / 100, nonfinite=n == 30) for n in range(40)]
    assert list_rows(rows, Kind.NON_FINITE) == [30]
    ((_, inferred),) = said([*rows[:30], Sample(step=30, complete_to=25)], Kind.NON_FINITE)
    assert (inferred.onset_step, inferred.evidence) == (26, "the log continues without a finite loss")


def test_a_loss_scaler_that_probes_its_limit_is_no_trouble() -> None:
    """One infinite gradient norm with a sound loss is how dynamic loss scaling works."""
    rows = [Sample(step=n, loss=2.0 + n % 3 / 100, grad_norm=float("inf") if n % 50 == 30 else 1.0) for n in range(200)]
    assert said(rows, Kind.NON_FINITE) == []


def test_a_log_of_few_digits_is_not_frozen() -> None:
    """Two decimals late in a run repeat for dozens of rows, as they did before."""
    assert said(samples([round(3 + 2 / (1 + row / 50), 2) for row in range(3000)]), Kind.FROZEN_LOSS) == []


@pytest.mark.parametrize("digits", [3, 4, 6])
def test_a_smooth_loss_that_converges_is_not_frozen(digits) -> None:
    """It changes less and less until its printed digits stand still, as with full batches."""
    losses = [round(0.1 + 0.9 * math.exp(-row / 30), digits) for row in range(1000)]
    assert said(samples(losses), Kind.FROZEN_LOSS) == []


def test_a_smooth_loss_that_freezes_while_it_falls_is_found() -> None:
    """A running mean is smooth too; its last changes were more than rounding."""
    smooth = [round(3 * math.exp(-row / 200), 3) for row in range(300)]
    assert levels(said(samples(smooth + smooth[-1:] * 600), Kind.FROZEN_LOSS)) == [Level.WARN, Level.INTERVENE]


def test_a_loss_learnt_down_to_zero_is_not_frozen() -> None:
    """A loss that became ever smaller before it read 0.0 got there by learning."""
    assert said(samples([*[10.0 * 0.5**row for row in range(60)], *[0.0] * 200]), Kind.FROZEN_LOSS) == []


@pytest.mark.parametrize(("zeros", "worst"), [(0, Level.INTERVENE), (19, Level.INTERVENE), (20, Level.WARN)])
def test_zeros_are_acted_on_unless_they_have_come_and_gone_before(zeros, worst) -> None:
    """The policy of an agent may have nothing left to learn for a while, and its loss is printed as -0.0000."""
    busy = [round(0.3 * math.sin(row), 4) for row in range(1, 60)]
    found = said(samples([*busy, *[-0.0] * zeros, *busy, *[-0.0] * 400]), Kind.FROZEN_LOSS)
    assert levels(found)[-1] is worst
    assert "exactly 0 for" in found[0][1].evidence


@pytest.mark.parametrize(("settled", "worst"), [(0.0, Level.WARN), (0.05, Level.INTERVENE)])
def test_a_policy_that_has_settled_has_not_diverged(settled, worst) -> None:
    """Its loss rises from below zero to exactly zero; the detector of frozen losses judges that."""
    losses = [*[0.02 * math.sin(row) for row in range(60)], *[-0.3 + 0.01 * math.sin(row) for row in range(300)]]
    assert levels(said(samples([*losses, *[settled] * 1200]), Kind.DIVERGENCE))[-1] is worst


def test_a_policy_whose_loss_is_mostly_zero_has_no_spikes() -> None:
    """Only a few groups of answers have something to learn from, as in GRPO; a rise that lasts is still told."""
    rng = random.Random(3)
    losses = [rng.gauss(0, 0.1) if rng.random() < 0.3 else 0.0 for _ in range(300)]
    losses[200] = 0.9
    assert said(samples(losses), *LOSS) == []
    assert levels(said(samples([*losses, *[0.9] * 20]), *LOSS))


def test_a_plateau_is_told_once_after_a_fall_unless_the_policy_excludes_it() -> None:
    """A loss that never fell may have its floor there; after a fall by a third it has stopped learning."""
    dice = random.Random(2)
    flat = [1 + dice.gauss(0, 0.003) for _ in range(900)]
    assert said(samples([5.4 * value for value in flat], every=100), Kind.PLATEAU) == []
    fallen = samples([5.4 * value * (1.5 if row < 30 else 1) for row, value in enumerate(flat)], every=100)
    ((row, plateau),) = said(fallen, Kind.PLATEAU)
    assert (plateau.level, plateau.step // 8 >= plateau.onset_step) == (Level.WARN, True)
    assert row == 8 * plateau.onset_step // 100 - 1
    assert said(fallen, Kind.PLATEAU, detection=Thresholds(plateau=False)) == []
    # Rounding to whole numbers hides a gain of three per cent.
    assert said([replace(sample, loss=round(sample.loss or 0)) for sample in fallen], Kind.PLATEAU) == []


def test_a_run_that_learns_is_no_plateau() -> None:
    """A power law that still gains with every doubling is none."""
    assert said(samples(falling(3000, noise=0.003)), Kind.PLATEAU, detection=Thresholds(plateau=True)) == []


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


SPIKE, RISE, DROP = Kind.LOSS_SPIKE, Kind.DIVERGENCE, Kind.LOSS_DROP


@pytest.mark.parametrize(("first", "share"), [(-100, "50%"), (100, "43%")])
def test_a_loss_below_zero_is_measured_by_the_progress_of_the_run(first, share) -> None:
    """A rise is a share of the progress, which is a unit that grows; an equal rise of a positive loss is larger."""
    losses = [first - row + 0.5 * (-1) ** row for row in range(400)]
    (*_, rise) = said(samples([loss + 120 * (row >= 300) for row, loss in enumerate(losses)]), *LOSS)
    text = f"loss {first - 193.5} is 108 above the usual {first - 301.5}, {share} of the run's progress, row 8 of it"
    assert rise[1].evidence == text
    ((row, fall),) = said(samples([loss - 900 * (row >= 300) for row, loss in enumerate(losses)]), DROP)
    assert (row, fall.evidence) == (
        311,
        f"loss {first - 1212} is far below the usual one: 922 less than {first - 277.5}",
    )


def test_the_unit_of_the_linear_scale_is_the_progress() -> None:
    """Zeros do not lead to that scale, three losses below zero do; noise after the first is no progress."""
    scale = LossScale()
    for loss in (*[3.0] * 12, *[0.0] * 3, *[-1.0] * 2):
        scale.read(loss)
    assert (scale.start, scale.place(math.e), scale.convert(0.1, -2.0)) == (3.0, 1.0, 0.05)
    read = [(scale.read(-1.0), scale.place(1.0), scale.is_new) for _ in range(13)]
    assert read == [*[(None, None, False)] * 11, (-0.5, 0.5, True), (-0.5, 0.5, False)]
    units = []
    for losses in ([7.0, -9.0] * 6, [-3.0] * 12, [-3.1] * 7):
        units += [(scale.read(loss), scale.unit)[1] for loss in losses[:-1]]
        scale.read(losses[-1])
    assert set(units) == {4.0}, "6 is not more than 1.5 times the unit"
    assert (scale.unit, scale.factor, scale.is_new) == (pytest.approx(6.1), pytest.approx(4 / 6.1), False)


def changed(rows: int, *changes: tuple[int, int, float]) -> list[Sample]:
    """Return a loss that alternates by one per cent, so that the higher value is the usual one; multiply some rows."""
    losses = [2.0 * (1 + 0.01 * (-1) ** row) for row in range(rows)]
    for first, last, times in changes:
        losses = lifted(losses, first, last, times=times)
    return samples(losses)


def norms(*values: float) -> list[Sample]:
    return [Sample(step=row, loss=2.0, grad_norm=norm) for row, norm in enumerate(values)]


def bad(*rows: int) -> list[Sample]:
    return samples(math.nan if row in rows else 2 + row % 3 for row in range(200))


def repeated(value: float, rows: int, *, before: int = 1) -> list[Sample]:
    return samples([*falling(100), *[value] * before, *falling(100), *[value] * rows])


@pytest.mark.parametrize(
    ("kind", "rows", "expected"),
    [
        # One row at 1.18 times the usual, or six at 1.1 times it, after 34 rows; again after eight rows; over after 64.
        (SPIKE, changed(330, (300, 300, 1.17)), []),
        (SPIKE, changed(330, (300, 300, 1.19)), [300]),
        (SPIKE, changed(330, (300, 304, 1.13)), []),
        (SPIKE, changed(330, (300, 305, 1.13)), [305]),
        (SPIKE, changed(330, (300, 307, 1.5)), [300, 307]),
        (SPIKE, changed(40, (33, 33, 1.5)), []),
        (SPIKE, changed(40, (34, 34, 1.5)), [34]),
        (SPIKE, changed(420, (300, 420, 1.5), (398, 398, 2)), [300, 307]),
        (SPIKE, changed(420, (300, 420, 1.5), (399, 399, 2)), [300, 307, 399]),
        # Spikes of three rows at equal distances mark epochs, unless they are as large as a factor of 3.
        (SPIKE, changed(350, *((row, row + 2, 2.9) for row in (100, 160, 220, 286))), [100, 160, 220]),
        (SPIKE, changed(350, *((row, row + 2, 2.9) for row in (100, 160, 220, 287))), [100, 160, 220, 287]),
        (SPIKE, changed(350, *((row, row + 2, 3.1) for row in (100, 160, 220, 280))), [100, 160, 220, 280]),
        # Two of up to two rows are noise; another is told if its logarithm is larger by a quarter, or if it lasts.
        (SPIKE, changed(600, (300, 301, 1.5), (357, 358, 1.5), (470, 471, 1.62)), [300, 357]),
        (SPIKE, changed(600, (300, 301, 1.5), (357, 358, 1.5), (470, 471, 1.7)), [300, 357, 470]),
        (SPIKE, changed(600, (300, 301, 1.5), (357, 358, 1.5), (470, 472, 1.5)), [300, 357, 472]),
        # However often there were spikes, a factor of 5 is told.
        (SPIKE, changed(560, *((100 + n * n, 100 + n * n, 3) for n in range(1, 21)), (540, 540, 4.9)), [101, 104]),
        (SPIKE, changed(560, *((100 + n * n, 100 + n * n, 3) for n in range(1, 21)), (540, 540, 5.1)), [101, 104, 540]),
        # The median of eight rows is above the level of before, after 55 rows; for the patience of 80 rows.
        (RISE, changed(400, (300, 400, 1.11)), []),
        (RISE, changed(400, (300, 400, 1.12)), [306, -385]),
        (RISE, changed(400, (300, 382, 1.3)), [303, -382]),
        (RISE, changed(70, (49, 70, 1.5)), []),
        (RISE, changed(70, (50, 70, 1.5)), [55]),
        # A rise stays within a fifth of its peak.
        (RISE, changed(420, (300, 330, 1.5), (331, 420, 1.36)), [303]),
        (RISE, changed(420, (300, 330, 1.5), (331, 420, 1.4)), [303, -382]),
        # One that has fallen by half or more does not recover once it has been high again for 24 rows; after a jump
        # from where it was low for longer, for half of the patience.
        (RISE, changed(420, (300, 330, 2.0), (331, 365, 1.2), (366, 420, 1.5)), [303, -392]),
        (RISE, changed(440, (300, 330, 2.0), (331, 375, 1.2), (376, 440, 1.5)), [303, -423]),
        # A loss that becomes noisier as it rises is judged by the noise before.
        (
            RISE,
            samples([*falling(300, noise=0.2), *(20 * loss for loss in falling(420, noise=0.6)[300:])]),
            [303, -383],
        ),
        (RISE, samples([*falling(300, noise=0.3), *(20 * loss for loss in falling(420)[300:])]), [303, -382]),
        # After the learning rate is raised at once a rise has eight times as long, unless it is a thousandfold.
        (RISE, [replace(row, lr=1 + row.step // 300) for row in changed(1000, (310, 1000, 5))], [313, -952]),
        (
            RISE,
            [replace(row, lr=1 + row.step // 300) for row in samples(lifted(falling(500), 310, 499, times=2e3))],
            [313, -392],
        ),
        # What the run recovered from is told again if it is larger by half, and acted on if it lasts twice as long.
        (RISE, changed(500, (300, 340, 1.2), (400, 500, 1.3)), [303, -487]),
        (RISE, changed(500, (300, 340, 1.2), (400, 500, 1.32)), [303, 403, -482]),
        # Back near the first rows, after a rise by a factor of 8, it is most likely another launch, and has time.
        (RISE, changed(1000, (0, 7, 10), (200, 999, 8.0)), [203, -282]),
        (RISE, changed(1000, (0, 7, 10), (200, 999, 8.3)), [203, -842]),
        (RISE, changed(1000, (0, 7, 10), (200, 999, 12.7)), [203, -842]),
        (RISE, changed(1000, (0, 7, 10), (200, 999, 13.0)), [203, -282]),
        # A fall to a quarter within twelve rows, after the first hundred.
        (DROP, changed(330, (300, 330, 1 / 3.9)), []),
        (DROP, changed(330, (300, 330, 1 / 4.1)), [306]),
        (DROP, changed(130, (93, 130, 1 / 8)), [99]),
        (DROP, changed(130, (80, 130, 1 / 8)), []),
        # Twice the median and six deviations, above three, after 32 rows.
        (Kind.GRAD_NORM, norms(*[2.0] * 31, *[4.1] * 3), [32]),
        (Kind.GRAD_NORM, norms(*[2.0] * 32, *[4.1] * 3, 2.0, 4.1), [32, 36]),
        (Kind.GRAD_NORM, norms(*[2.0] * 32, 3.9), []),
        (Kind.GRAD_NORM, norms(*[1.0] * 32, 2.9), []),
        (Kind.GRAD_NORM, norms(*[1.0] * 32, 3.1), [32]),
        (Kind.GRAD_NORM, norms(*[1.5, 2.0, 2.7] * 20, 8.0), []),
        (Kind.GRAD_NORM, norms(*[1.5, 2.0, 2.7] * 20, 30.0), [60]),
        # Three bad rows in a row, or five of ten, are acted on; one is told again after a hundred good ones.
        (Kind.NON_FINITE, bad(1, 2, 9), [1]),
        (Kind.NON_FINITE, bad(50, 150), [50]),
        (Kind.NON_FINITE, bad(50, 151), [50, 151]),
        (Kind.NON_FINITE, bad(50, 51, 53, 54), [50]),
        (Kind.NON_FINITE, bad(50, 52, 54, 56, 58), [50, -58]),
        (Kind.NON_FINITE, bad(50, 52, 54, 56, 60), [50]),
        (Kind.NON_FINITE, bad(50, 51, 52, 54, 55, 56), [50, -52]),
        # Fifty equal losses, twenty zeros, or three times the most repetitions before; twice that is acted on.
        (Kind.FROZEN_LOSS, repeated(2.3, 49), []),
        (Kind.FROZEN_LOSS, repeated(2.3, 100), [250, -300]),
        (Kind.FROZEN_LOSS, repeated(0.0, 19), []),
        (Kind.FROZEN_LOSS, repeated(0.0, 40), [220, -240]),
        (Kind.FROZEN_LOSS, repeated(0.0, 48, before=8), [231, -255]),
    ],
)
def test_a_finding_about_the_loss_comes_at_its_row(kind, rows, expected) -> None:
    assert list_rows(rows, kind, replace(DETECTION, grad_norm=True)) == expected
    assert kind is not Kind.GRAD_NORM or list_rows(rows, kind) == []


@pytest.mark.parametrize(
    ("limits", "row"), [({}, 322), ({"patience_steps": 70}, 372), ({"patience": timedelta(minutes=90)}, 393)]
)
def test_the_patience_is_over_in_rows_and_steps_and_time(limits, row) -> None:
    rows = [replace(sample, at=minutes(n)) for n, sample in enumerate(changed(400, (300, 400, 1.3)))]
    patient = replace(DETECTION, **{"patience_rows": 20, "patience_steps": 0, **limits})
    assert list_rows(rows, RISE, patient) == [303, -row]


@pytest.mark.parametrize(
    ("rises", "factor", "goes_on"),
    [
        ([1.0] * 9, 1, True),
        ([1.0] * 8, 1, False),
        ([1.0] * 4, 2, True),
        ([0.985**row for row in range(9)], 1, False),
        ([0.985**row for row in range(9)], 2, True),
        ([1.0, 0.2, *[0.6] * 24], 1, True),
        ([1.0, 0.2, *[0.6] * 23], 1, False),
        ([1.0, 0.2, *(0.25 + 0.05 * row for row in range(8)), *[0.6] * 20], 1, True),
        ([1.0, 0.2, *(0.25 + 0.05 * row for row in range(8)), *[0.6] * 19], 1, False),
        ([1.0, 0.05, *[0.2] * 30], 1, False),
        ([1.0, 0.2, 2.0, *[1.2] * 30], 1, False),
        ([0.05] * 30, 1, False),
    ],
)
def test_a_rise_goes_on_while_it_stays_or_once_it_turns(rises: list[float], factor: int, goes_on: bool) -> None:
    """A patience of ten rows, over the factor of sparse rows; 0.1 is a normal rise. The unit may change."""
    assert goes_on_after(rises, patience=10, factor=factor) is goes_on


@pytest.mark.parametrize(
    ("rises", "goes_on"),
    [
        ([*[1.0] * 5, *[0.3] * 30, *[0.75] * 25], True),
        ([*[1.0] * 5, *[0.3] * 30, *[0.75] * 24], False),
        ([*[1.0] * 5, *[0.3] * 30, *[0.75] * 8, 0.95], True),
        ([*[1.0] * 5, *[0.3] * 30, *[0.75] * 8, 0.93], False),
        # As of the next fold; and falls too short to hide what comes back each time.
        ([*[1.0] * 5, *[0.4] * 30, *(0.4 + 0.6 * 0.9**row for row in range(30))], False),
        ([*[*[1.0] * 12, *[0.6] * 8] * 5, 1.0], True),
    ],
)
def test_a_rise_that_jumps_from_where_it_was_low_for_long_must_last_anew(rises: list[float], goes_on: bool) -> None:
    assert goes_on_after(rises, patience=40) is goes_on


def goes_on_after(rises: Sequence[float], *, patience: int, factor: int = 1) -> bool:
    rise = LossRise(base=2.0, allowed=0.1, peak=rises[0], trough=rises[0], onset=None, since=None)
    row = SimpleNamespace(sample=Sample(), scale=SimpleNamespace(unit=0.0), find_patience_factor=lambda _: factor)
    detection = replace(DETECTION, patience_rows=patience)
    for value in rises[:-1]:
        rise.goes_on(value, row, restart=False, detection=detection)
    rise.scale(2.0)
    return rise.goes_on(2.0 * rises[-1], row, restart=False, detection=detection)
