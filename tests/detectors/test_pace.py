"""The detectors that read the clock: slower steps, long steps, and silence."""

import math
import random
from dataclasses import replace
from datetime import timedelta

import pytest

from rerail.detection import checkpoint_stall
from rerail.detection.detectors import OVERDUE_DETECTORS, DetectorState, evaluate_sample, find_overdue
from rerail.model.finding import Kind, Level
from rerail.model.liveness import Liveness, Phase, with_phase, with_row
from rerail.model.sample import Sample
from rerail.model.thresholds import PlannedChange, Thresholds
from tests.detectors.runs import DETECTION, START, levels, list_rows, minutes, said, slow

DICE = random.Random(5)
PACE = (Kind.STALL, Kind.THROUGHPUT_DROP)


@pytest.fixture(autouse=True)
def seed_dice() -> None:
    DICE.seed(5)  # whatever ran before


def steps(rows: int, seconds: float = 0.5) -> list[float]:
    """Step times with two per cent of noise."""
    return [seconds * (1 + DICE.gauss(0, 0.02)) for _ in range(rows)]


def test_steps_of_one_pace_are_left_in_peace() -> None:
    """Noise, and an evaluation of ten times a step every hundred rows, are no trouble."""
    rows = [value * (10 if row % 100 == 99 else 1) for row, value in enumerate(steps(3000))]
    assert said(slow(rows), *PACE) == []


def test_steps_of_hardly_any_time_end_no_evaluation() -> None:
    """Their median may be 0; a script chooses what it prints as the time of a step."""
    rows = [30.0 if row % 100 == 99 else 5e-324 for row in range(2600)]
    assert said(slow([*rows, 4000.0]), Kind.STALL) == []


@pytest.mark.parametrize(("suspect", "level"), [("", Level.WARN), ("rank 3 on algo-2: 2x its peers", Level.INTERVENE)])
def test_a_drop_is_acted_on_only_if_something_shows_a_fault(suspect: str, level: Level) -> None:
    """Twice as long may be planned, as longer sequences are: told once, with its cost. A slow rank shows a fault."""
    found = said(slow(steps(600) + steps(900, 1.0), suspect=suspect), Kind.THROUGHPUT_DROP)
    assert levels(found)[-1] is level
    text = found[0][1].evidence
    assert text.endswith(suspect or ": 12.0 h a day; no slow rank and no idle machine shows a fault"), text
    assert suspect or len(found) == 1


def test_a_launch_that_begins_again_is_not_compared_with_the_one_before() -> None:
    """On slower machines, or with other settings; nor is one that goes on from a checkpoint."""
    first, second = slow(steps(600)), slow(steps(600, 1.0))
    assert said([*first, *second], Kind.THROUGHPUT_DROP) == []
    resumed = [replace(sample, step=450 + row) for row, sample in enumerate(second)]
    assert said([*first, *resumed], Kind.THROUGHPUT_DROP) == []


def test_a_planned_change_is_no_finding_and_what_follows_is_judged_by_itself() -> None:
    """Steps take five times as long and the loss doubles, by the policy or by the script's word."""
    losses = [4 / math.sqrt(row + 10) * (2 if row >= 600 else 1) * (1 + DICE.gauss(0, 0.01)) for row in range(1600)]
    seconds = steps(600) + steps(1000, 2.5)
    rows = [
        Sample(step=10 * row, loss=loss, step_time_s=s)
        for row, (loss, s) in enumerate(zip(losses, seconds, strict=True))
    ]
    assert {found.kind for _, found in said(rows)} >= {Kind.DIVERGENCE, Kind.THROUGHPUT_DROP}
    planned = replace(DETECTION, planned=(PlannedChange(5995, "longer sequences"),))
    assert said(rows, detection=planned) == []
    assert said([replace(row, is_changed=number == 600) for number, row in enumerate(rows)]) == []
    slower = [*rows, *(Sample(step=16_000 + 10 * row, step_time_s=s) for row, s in enumerate(steps(600, 8.0)))]
    assert {found.kind for _, found in said(slower, detection=planned)} == {Kind.THROUGHPUT_DROP}
    broken = [replace(row, loss=math.nan) if number > 600 else row for number, row in enumerate(rows)]
    assert Level.INTERVENE in levels(said(broken, Kind.NON_FINITE, detection=planned))


def test_a_drop_that_costs_next_to_nothing_is_reported_when_it_has_cost_enough(monkeypatch) -> None:
    """Steps of 2 ms instead of 1: five seconds are lost after five thousand of them, and not before."""
    rows = slow(steps(600, 0.001) + steps(7000, 0.002))
    monkeypatch.setattr(Thresholds, "throughput_cap_rows", 10_000)
    patient = replace(DETECTION, throughput_floor=timedelta(seconds=5))
    (warned, warning), *_ = found = said(rows, Kind.THROUGHPUT_DROP, detection=patient)
    assert (warning.level, 5400 < warned < 5900) == (Level.INTERVENE, True), found
    at_once = said(rows, Kind.THROUGHPUT_DROP, detection=replace(patient, throughput_floor=timedelta(0)))
    assert levels(at_once) == [Level.WARN, Level.INTERVENE]
    assert at_once[0][0] < 700


def test_a_drop_is_acted_on_as_soon_where_steps_begin_again() -> None:
    """The drop begins late in an epoch of 500 steps, so that the next epoch has smaller steps for long."""
    rows = slow(steps(2300) + steps(700, 1.0), suspect="rank 3 on algo-2: 2x its peers")
    epochs = [replace(row, step=number % 500, loss=2 + 8 / (number + 1)) for number, row in enumerate(rows)]
    found, expected = (said(series, Kind.THROUGHPUT_DROP) for series in (epochs, rows))
    assert levels(found) == [Level.WARN, Level.INTERVENE]
    assert [row for row, _ in found] == [row for row, _ in expected]


def test_a_slow_drop_is_reported_and_acted_on_once_it_is_steady() -> None:
    """From 0.4 s to 4 s over hundreds of rows: while the steps become slower and slower, the work may grow."""
    rows = [0.4 * 1.002 ** max(0, row - 600) * (1 + DICE.gauss(0, 0.02)) for row in range(1300)]
    assert levels(said(slow(rows), Kind.THROUGHPUT_DROP)) == [Level.WARN]
    assert levels(said(slow(rows + steps(200, 1.6)), Kind.THROUGHPUT_DROP)) == [Level.WARN, Level.INTERVENE]


def test_steps_that_were_not_steady_for_long_enough_are_a_warning_only() -> None:
    """A step time that has grown all the time is no reason to stop."""
    growing = [value * 1.0005 ** min(row, 1200) for row, value in enumerate(steps(1500))]
    assert levels(said(slow(growing), Kind.THROUGHPUT_DROP)) == [Level.WARN]


def test_tokens_a_second_stand_for_the_step_time() -> None:
    """Half the tokens a second are steps twice as long."""
    rows = [Sample(step=n, tokens_per_s=1000 / value) for n, value in enumerate(steps(600) + steps(300, 1.0))]
    assert said(rows, Kind.THROUGHPUT_DROP)


def stepping(step_s: float = 10.0) -> Liveness:
    """A run that has logged a row every ten seconds for five minutes."""
    pulse = with_phase(Liveness(Phase.CAPACITY, START), Phase.STARTUP, START)
    for row in range(30):
        pulse = with_row(pulse, minutes(row * step_s / 60), step=row + 1)
    return pulse


def test_a_save_has_a_limit_learnt_from_the_saves_before() -> None:
    """A save of four minutes makes twenty the limit, not ten; the second one is judged by it."""
    pulse = with_phase(with_phase(stepping(), Phase.SAVE, minutes(5)), Phase.STEP, minutes(9))
    saving = DetectorState(liveness=with_phase(pulse, Phase.SAVE, minutes(20)))
    kinds = {minute: {f.kind for f in find_overdue(saving, minutes(20 + minute), DETECTION)} for minute in (15, 25)}
    assert Kind.CHECKPOINT_STALL not in kinds[15]
    assert Kind.CHECKPOINT_STALL in kinds[25]


def test_rows_without_steps_count() -> None:
    """A run whose step stands still but whose rows come is stalled, not blind."""
    pulse = stepping()
    for minute in range(5, 30):
        pulse = with_row(pulse, minutes(minute), step=30)
    assert {f.kind for f in find_overdue(DetectorState(liveness=pulse), minutes(30), DETECTION)} == {Kind.STALL}


def test_samples_with_a_time_feed_the_pulse() -> None:
    """The watch learns the gaps from the rows themselves."""
    watch = DetectorState()
    for row in range(30):
        watch, _ = evaluate_sample(watch, Sample(step=row, at=minutes(row), loss=2.0 + row % 3), Thresholds())
    assert watch.liveness.step == 29 and watch.liveness.step_s == 60 and watch.liveness.phase is Phase.STEP


@pytest.mark.parametrize(
    ("phase", "kind", "limit_s", "text", "is_acted_on"),
    [
        (Phase.STEP, Kind.STALL, 500, "no step for {s} s, limit 500 s", True),
        (Phase.EVALUATION, Kind.STALL, 300, "no step for {s} s in phase evaluation, limit 300 s", True),
        (Phase.SAVE, Kind.CHECKPOINT_STALL, 1000, "a checkpoint has been running for {s} s, limit 1000 s", True),
        (Phase.STARTUP, Kind.STARTUP_STALL, 1800, "no first step {s} s after training began", True),
        (Phase.STARTUP, Kind.BLIND, 1800, "no metrics for {s} s while the job is training", False),
        (Phase.EVALUATION, Kind.BLIND, 600, "no metrics for {s} s while the job is training", False),
        (Phase.CAPACITY, Kind.CAPACITY_WAIT, 7200, "waiting for machines for {m} minutes", False),
    ],
)
def test_what_is_overdue_is_reported_after_its_limit(phase, kind, limit_s, text, is_acted_on) -> None:
    """Report it a second after the limit; intervene after twice the limit, or at once if the machines are idle."""
    began = minutes(60)
    alive = Liveness(phase, began, began, 7, began, step_s=100, save_s=200, evaluation_s=10, started_at=START)
    for seconds, level in ((0, None), (1, Level.WARN), (limit_s, Level.WARN), (limit_s + 1, Level.INTERVENE)):
        now, level = began + timedelta(seconds=limit_s + seconds), level if is_acted_on or not level else Level.WARN
        found = [f for f in find_overdue(DetectorState(liveness=alive), now, DETECTION) if f.kind is kind]
        assert [(f.level, f.step, f.onset_step, f.at, f.onset_at) for f in found] == (
            [(level, 7, 7, now, began)] if level else []
        )
        wanted = text.format(s=limit_s + seconds, m=round((limit_s + seconds) / 60))
        assert [f.evidence for f in found] == [wanted] * len(found)
    idle = find_overdue(
        DetectorState(liveness=replace(alive, idle=True)), began + timedelta(seconds=limit_s + 1), DETECTION
    )
    is_confirmed = kind in (Kind.STALL, Kind.STARTUP_STALL)
    assert {f.level for f in idle if f.kind is kind} == {Level.INTERVENE if is_confirmed else Level.WARN}


def test_every_question_is_silent_about_a_run_that_has_not_begun() -> None:
    """A pulse without a single time answers nothing."""
    assert [question(Liveness(), START, DETECTION) for question in OVERDUE_DETECTORS] == [None] * len(OVERDUE_DETECTORS)


def test_saves_are_overdue_by_their_own_intervals() -> None:
    """Three of the longest interval, and never less than the floor; two saves are too few to know an interval."""
    saves = [START + timedelta(minutes=20 * n) for n in range(4)]
    assert checkpoint_stall.find_missing_checkpoint(saves, saves[-1] + timedelta(minutes=60), Thresholds()) is None
    late = checkpoint_stall.find_missing_checkpoint(saves[::-1], saves[-1] + timedelta(minutes=61), Thresholds())
    assert (late.kind, late.level, late.onset_at) == (Kind.CHECKPOINT_STALL, Level.WARN, saves[-1])
    assert late.evidence == "no checkpoint for 61 min, they came at most 20 min apart"
    assert checkpoint_stall.find_missing_checkpoint(saves[:2], saves[-1] + timedelta(days=9), Thresholds()) is None
    often = [START + timedelta(seconds=n) for n in range(4)]
    assert checkpoint_stall.find_missing_checkpoint(often, often[-1] + timedelta(minutes=10), Thresholds()) is None
    at = often[-1] + timedelta(minutes=10, seconds=1)
    late = checkpoint_stall.find_missing_checkpoint(often[1:], at, Thresholds())
    assert late.evidence == "no checkpoint for 10 min, they came at most 1 s apart"
    begun = {"started_at": START}
    assert (
        checkpoint_stall.find_missing_checkpoint(saves, saves[-1] + timedelta(minutes=60), Thresholds(), **begun)
        is None
    )
    restarted = {"started_at": at - timedelta(minutes=10)}
    assert checkpoint_stall.find_missing_checkpoint(often, at, Thresholds(), **restarted) is None


def paced(*paces: tuple[int, float], suspect: str = "algo-1") -> list[Sample]:
    """Return rows with step times within one per cent of each pace, which is their median."""
    seconds = (pace for rows, pace in paces for _ in range(rows))
    return slow((pace * (0.99 + row * 7 % 5 / 200) for row, pace in enumerate(seconds)), suspect=suspect)


def paused(pauses: dict[int, float], *equal: int) -> list[Sample]:
    """Return steps of 1 s; `pauses` maps rows to longer ones, and the rows in `equal` take 1.5 s."""
    return slow(pauses.get(row, 1.5 if row in equal else 1.0) for row in range(750))


def spaced(fast: int) -> list[Sample]:
    """Return 400 rows, 2,000 steps apart from row 300 on; the first `fast` have half the step time."""
    rows = enumerate(paced((fast, 0.5), (400 - fast, 1.0)))
    return [replace(sample, step=row + 1999 * max(0, row - 300)) for row, sample in rows]


DROP, RISE = Kind.THROUGHPUT_DROP, Kind.THROUGHPUT_RISE


@pytest.mark.parametrize(
    ("kind", "rows", "expected"),
    [
        # 10 % for 50 rows is a drop, 20 % for 200 is a grave one; without a sign of a fault that is 150 %.
        (DROP, paced((600, 0.5), (400, 0.545)), []),
        (DROP, paced((600, 0.5), (400, 0.555)), [683]),
        (DROP, paced((600, 0.5), (400, 0.595)), [683]),
        (DROP, paced((600, 0.5), (400, 0.605)), [683, -834]),
        (DROP, paced((600, 0.5), (400, 1.24), suspect=""), [673]),
        (DROP, paced((600, 0.5), (400, 1.26), suspect=""), [673, -830]),
        # Steps that were steady for fewer rows than they are slow show no fault.
        (DROP, paced((165, 0.5), (280, 1.0)), [248]),
        (DROP, paced((166, 0.5), (280, 1.0)), [249, -400]),
        # Nor do they after a growth of more than a third of the drop, however long it lasts.
        (DROP, paced((500, 0.5), (60, 0.54), (800, 0.61)), [633]),
        (DROP, paced((500, 0.5), (60, 0.54), (800, 0.62)), [633, -784]),
        # What the run has recovered from is told again if it is larger by a fifth, or lasts twice as long.
        (DROP, paced((600, 0.5), (100, 1.0), (300, 0.5), (100, 1.09)), [673]),
        (DROP, paced((600, 0.5), (100, 1.0), (300, 0.5), (100, 1.11)), [673, 1073]),
        (DROP, paced((600, 0.5), (100, 1.0), (300, 0.5), (300, 1.09)), [673, -1228]),
        # A pace that has lasted for a thousand rows is the usual one.
        (DROP, paced((600, 0.5), (1400, 1.0), (300, 2.0)), [673, -824, 2073, -2224]),
        # Rows far apart make the window shorter, in which the last rows still count, and 20 % is a drop.
        (DROP, spaced(301), [307, -317]),
        (DROP, paced((120, 300.0), (60, 357.0)), []),
        (DROP, paced((120, 300.0), (60, 363.0)), [130, -149]),
        # 40 % less than before in nearly all of 16 rows, from the 200th row on; a level that lasted once is known.
        (RISE, paced((183, 1.0), (100, 0.59)), [199]),
        (RISE, paced((300, 1.0), (100, 0.61)), []),
        (RISE, paced((300, 1.0), (100, 0.59)), [314]),
        (RISE, paced((300, 1.0), (100, 0.59), (300, 1.0), (100, 0.5)), [314]),
        (RISE, paced((300, 1.0), (100, 0.59), (300, 1.0), (100, 0.35)), [314, 714]),
        (RISE, paced((300, 1.0), (200, 2.0), (100, 1.0), (100, 0.59)), [614]),
        (RISE, paced((300, 2.0), (60, 1.3), (100, 0.9)), []),
        # Five times the usual, twice the longest before, once two intervals between pauses were equal within two rows.
        (Kind.STALL, paused({550: 60.0}), []),
        (Kind.STALL, paused({550: 5.1}, 100, 200, 300), [550]),
        (Kind.STALL, paused({550: 4.9}, 100, 200, 300), []),
        (Kind.STALL, paused({550: 5.1}, 110, 200, 292), [550]),
        (Kind.STALL, paused({550: 5.1}, 110, 200, 293), []),
        (Kind.STALL, paused({300: 3.0, 550: 5.9}, 100, 200), []),
        (Kind.STALL, paused({300: 3.0, 550: 6.1, 600: 12.3}, 100, 200), [550, 600]),
        (Kind.STALL, paused({100: 1.24, 200: 1.24, 550: 6.1}), []),
        # Before the 500th row, only one that exceeds the floor; after ten pauses, one whatever their intervals.
        (Kind.STALL, paused({450: 299.0}, 100, 200, 300), []),
        (Kind.STALL, paused({450: 301.0}, 100, 200, 300), [450]),
        (Kind.STALL, paused({498: 5.1}, 100, 200, 300), []),
        (Kind.STALL, paused({499: 5.1}, 100, 200, 300), [499]),
        (Kind.STALL, paused({49: 301.0}, 10, 20, 30), []),
        (Kind.STALL, paused({50: 301.0}, 10, 20, 30), [50]),
        (Kind.STALL, paused({700: 5.1}, *(8 * n * n + 20 for n in range(9))), []),
        (Kind.STALL, paused({700: 5.1}, *(8 * n * n + 20 for n in range(10))), [700]),
    ],
)
def test_a_finding_about_the_pace_comes_at_its_row(kind, rows, expected) -> None:
    assert list_rows(rows, kind) == expected
