"""The thresholds for a source are chosen without its own logs."""

from bench.generalization import Calls, compare, make_candidates, make_table
from cli.backtest.scoring import Call, Label, Labelled
from rerail.model.thresholds import Thresholds

EVENT = Label("loss_spike", onset=100, end=104)
HIT, FALSE_ALARM = Call(100, "loss_spike"), Call(500, "loss_spike")


def log(source: str, *by_candidate: tuple[Call, ...]) -> Calls:
    return Calls(Labelled(f"{source}-001", source, 1000, (EVENT,)), by_candidate)


def test_a_source_has_no_part_in_its_own_choice() -> None:
    """The second candidate is better only on the source a: it is not chosen for a."""
    judged = [log("a", (), (HIT,)), log("b", (HIT,), (HIT, FALSE_ALARM)), log("c", (HIT,), (HIT,))]
    scores = compare(judged)
    assert scores["best candidate, all sources in view"].false_alarms == 0
    assert scores["chosen without the source"].families["loss"].micro == 2 / 3
    judged = [log("a", (), (HIT,)), log("b", (), (HIT,)), log("c", (HIT,), (HIT,))]
    scores = compare(judged)
    assert scores["defaults"].families["loss"].micro == 1 / 3
    assert scores["chosen without the source"].families["loss"].micro == 1
    assert make_table(scores).row_count == 3


def test_the_defaults_are_the_first_candidate() -> None:
    candidates = make_candidates()
    assert candidates[0] == Thresholds()
    assert len(set(candidates)) == len(candidates) > 20
