"""The score: cases made by hand, and its definition written down a second time, compared on many generated findings."""

import random
from statistics import mean

import pytest

from cli.backtest.scoring import FAMILIES, FINDS, INTERVENE, WARN, Call, Label, Labelled, merged, score

SPIKE = Label("loss_spike", 100, 110)
DIVERGENCE = Label("divergence", 300, 400, recovered="no")


def run(*labels: Label, id: str = "a", group: str = "g", rows: int = 1000) -> Labelled:
    return Labelled(id, group, rows, labels)


@pytest.mark.parametrize(("row", "found"), [(97, False), (98, True), (100, True), (120, True), (121, False)])
def test_an_event_is_found_from_two_rows_before_to_ten_rows_after(row, found):
    """Later is too late, and earlier was luck."""
    result = score([run(SPIKE)], {"a": [Call(row, "divergence")]})
    assert result.families["loss"].micro == float(found)


def test_the_first_finding_in_time_sets_the_delay():
    """Never below 0, in rows from the onset."""
    assert score([run(SPIKE)], {"a": [Call(104, "loss_spike"), Call(103, "loss_spike")]}).hits[0].delay == 3
    assert score([run(SPIKE)], {"a": [Call(99, "loss_spike")]}).hits[0].delay == 0


def test_another_family_does_not_find_an_event_and_is_no_false_alarm_beside_it():
    """Something was going on, but it was called something else."""
    result = score([run(SPIKE)], {"a": [Call(100, "stall")]})
    assert (result.families["loss"].micro, result.false_alarms) == (0.0, 0)


@pytest.mark.parametrize(("kind", "of", "found"), [("nan", "frozen_loss", True), ("nan", "loss_spike", False)])
def test_a_nan_may_be_found_by_its_symptoms(kind, of, found):
    """A loss that reads exactly 0.0 ever after is one way to see a NaN gradient; a spike is not."""
    assert score([run(Label(kind, 100, 200))], {"a": [Call(150, of)]}).families["non_finite"].micro == float(found)


def test_false_alarms_in_a_row_are_one_alarm():
    """Fifty rows of silence begin a new one; what lies near a label of any score is none."""
    optional = Label("loss_spike", 900, 900, score="ignore")
    said = [Call(row, "loss_spike") for row in (200, 250, 300, 351, 890, 911)]
    result = score([run(SPIKE, optional)], {"a": said})
    assert (result.false_alarms, result.per_100k(result.false_alarms)) == (3, 300.0)


def test_macro_lets_every_group_speak_once():
    """Two runs of one group are averaged before the other group is looked at."""
    one, two = run(SPIKE, SPIKE, id="a"), run(SPIKE, id="b")
    other = run(SPIKE, id="c", group="h")
    result = score([one, two, other], {"a": [Call(100, "loss_spike")]}).families["loss"]
    assert (result.micro, result.macro) == (0.5, 0.25)


def test_an_intervention_is_right_only_where_nothing_mends():
    """Right beside a divergence, wrong beside a spike that mends or beside nothing, neutral where no one can tell."""
    unclear = Label("loss_spike", 600, 610, recovered="log ends")
    said = [Call(row, "loss_spike", INTERVENE) for row in (105, 350, 605, 800)]
    result = score([run(SPIKE, DIVERGENCE, unclear)], {"a": said})
    assert (result.right, result.wrong, result.neutral) == (1, 2, 1)
    assert result.lasting == {"loss": (1, 1)}


def test_a_warning_is_no_intervention():
    """Warnings cost a notice, never a cluster."""
    result = score([run(DIVERGENCE)], {"a": [Call(350, "divergence", WARN)]})
    assert (result.right, result.wrong, result.lasting) == (0, 0, {"loss": (0, 1)})


def test_silence_on_quiet_logs_is_perfect():
    """No label, no finding: nothing to divide by, nothing to blame."""
    result = score([run()], {})
    assert (result.families, result.false_alarms, result.wrong) == ({}, 0, 0)


def test_the_report_is_plain_data():
    """Rounded, with the missed events and the noisiest logs."""
    report = score([run(SPIKE, DIVERGENCE)], {"a": [Call(500, "stall"), Call(101, "loss_spike")]}).as_json()
    assert report["families"]["loss"] == {
        "labels": 2,
        "recall_micro": 0.5,
        "recall_macro": 0.5,
        "delay_rows_median": 1,
        "delay_rows_p90": 1,
    }
    assert report["missed"] == [["a", "divergence", 300, 400]]
    assert report["noisiest"] == [["a", 1]]


@pytest.mark.parametrize("seed", range(25))
def test_the_score_follows_its_definition(seed):
    """Random labels and findings, judged by the definition row by row, without any of the shortcuts."""
    chance = random.Random(seed)
    runs = [run(*_labels(chance), id=f"r{i}", group=f"g{i % 3}", rows=400) for i in range(6)]
    said = {one.id: _calls(chance) for one in runs}
    result = score(runs, said)

    for family in set(FAMILIES.values()):
        groups: dict[str, list[float]] = {}
        for one in runs:
            answers = [
                any(
                    family in FINDS[FAMILIES[call.kind]]
                    for row in range(label.onset - 2, label.end + 11)
                    for call in said[one.id]
                    if call.row == row
                )
                for label in one.labels
                if label.score == "count" and FAMILIES[label.kind] == family
            ]
            if answers:
                groups.setdefault(one.group, []).append(mean(answers))
        if groups:
            assert result.families[family].macro == pytest.approx(mean(mean(runs) for runs in groups.values()))
        else:
            assert family not in result.families

    verdicts = {"false": 0, "right": 0, "wrong": 0, "neutral": 0}
    for one in runs:
        rows: dict[str, set[int]] = {verdict: set() for verdict in verdicts}
        for call in said[one.id]:
            near = [label for label in one.labels if call.row in range(label.onset - 10, label.end + 11)]
            if not near:
                rows["false"].add(call.row)
            if call.level == "intervene":
                rows[_verdict(near)].add(call.row)
        for verdict, where in rows.items():
            verdicts[verdict] += _alarms(where)
    assert verdicts == {
        "false": result.false_alarms,
        "right": result.right,
        "wrong": result.wrong,
        "neutral": result.neutral,
    }


def test_merging_counts_from_the_last_row_not_from_the_first():
    """A long stretch of findings is one alarm, however long."""
    assert merged(range(0, 1000, 50)) == 1
    assert merged([0, 51]) == 2
    assert merged([]) == 0


def _verdict(near: list[Label]) -> str:
    never = [label for label in near if label.score == "count"]
    if any(label.kind in ("divergence", "nan") or label.recovered == "no" for label in never):
        return "right"
    return "wrong" if not near or "yes" in {label.recovered for label in near} else "neutral"


def _alarms(rows: set[int]) -> int:
    """A row begins an alarm when none of the 50 rows before it speaks."""
    return sum(not rows & set(range(row - 50, row)) for row in rows)


def _labels(chance: random.Random) -> list[Label]:
    labels = []
    for _ in range(chance.randrange(4)):
        onset = chance.randrange(400)
        kind, how = chance.choice(sorted(FAMILIES)), chance.choice(["count", "count", "optional", "ignore"])
        mends = chance.choice(["yes", "no", "slowly", "log ends"])
        labels.append(Label(kind, onset, onset + chance.randrange(60), how, mends))
    return labels


def _calls(chance: random.Random) -> list[Call]:
    kinds, levels = sorted(FAMILIES), [WARN, INTERVENE]
    said = [Call(chance.randrange(400), chance.choice(kinds), chance.choice(levels)) for _ in range(12)]
    return said[: chance.randrange(13)]
