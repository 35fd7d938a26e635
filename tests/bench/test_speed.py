"""The bench of speed: a function alone with its tape, and the arithmetic between what was noted and what is shown."""

from dataclasses import replace

import pytest

from bench import rates, speed, tapes
from bench.cold import Figures, Stage, Start
from bench.evidence import Evidence
from bench.rates import Rate
from bench.reaction import Call, Handshake, Relaunch, relaunch


@pytest.fixture(scope="module")
def recorded() -> dict[str, tapes.Tape]:
    return tapes.record()


def test_a_tape_holds_what_the_event_asks_for(recorded):
    """An event that changes nothing reads three things and writes none; a death ends in a successor."""
    asked = {name: [call["operation"].partition(".")[2] for call in tape.calls] for name, tape in recorded.items()}
    assert set(asked) == set(tapes.EVENTS)
    assert [each for each in asked["supervise"] if each != "GetParameter"] == [
        "GetItem",
        "GetItem",
        "DescribeTrainingJob",
    ]
    assert asked["relaunch"].count("CreateTrainingJob") == 1
    assert asked["sweep"].count("Query") >= 8
    assert recorded["notify"].services[0] == "sns"


def test_a_function_handles_its_event_alone(recorded, tmp_path):
    """In an interpreter of its own, from the tape, as the bare calls do; it is ready before it has handled anything."""
    stage = Stage(tmp_path, recorded)
    for start in (
        Start("first", "supervise", tape="relaunch", in_lambda=True),
        Start("first bare", "supervise", tape="relaunch"),
    ):
        ready, handled = stage.start(start)
        assert 0 < ready < handled < 30


def test_a_function_that_lacks_an_answer_is_not_measured(recorded, tmp_path):
    """It asks for something that the tape does not hold: that is said, and no figure is given."""
    tape = recorded["relaunch"]
    cut = tuple(call for call in tape.calls if "CreateTrainingJob" not in call["operation"])
    stage = Stage(tmp_path, {"relaunch": replace(tape, calls=cut)})
    with pytest.raises(RuntimeError, match="does the tape lack an answer"):
        stage.start(Start("first", "supervise", tape="relaunch", in_lambda=True))


def calls() -> list[Call]:
    """A worker that is born a second after the end, reads, thinks, writes and creates; and another one's business."""
    return [
        Call("supervise", 1, "GetItem", 90.0, 90.5),
        Call("supervise", 2, "", 101.0, 101.0),
        Call("sweep", 3, "Query", 101.1, 101.9),
        Call("supervise", 2, "GetItem", 102.0, 102.1),
        Call("supervise", 2, "DescribeTrainingJob", 102.1, 102.4),
        Call("supervise", 2, "TransactWriteItems", 102.5, 102.7),
        Call("supervise", 2, "CreateTrainingJob", 102.8, 103.0),
        Call("supervise", 2, "TransactWriteItems", 103.0, 103.2),
    ]


def test_a_relaunch_is_told_apart_by_what_it_waited_for():
    """Nothing of another worker, and nothing after the successor was created; the parts sum up to the whole."""
    found = relaunch(calls(), ended_at=100.0)
    expected = Relaunch(True, 2.0, 1.0, 0.4, 0.2, 0.2, 0.2, 4)
    for name in Relaunch.__slots__:
        assert getattr(found, name) == pytest.approx(getattr(expected, name)), name
    assert found.total == pytest.approx(3.0)


def test_what_was_measured_is_what_is_shown():
    """Each ratio stands beside its figures, and a goal that is missed is said."""
    figures = Figures("sweep", "sweep", "dynamodb", 130, 240, 100, 200, 260, 160, 200, 12, 10, 15, 12, 34)
    sheets, goals = speed.shown_starts([figures], {"as shipped": 2_000_000, "sources alone": 300_000})
    assert sheets[0].rows == (("sweep", "dynamodb", 100, 130, 1.3, 240, 2.4),)
    assert sheets[1].rows[0][-3:] == (260, 200, 1.3)
    assert [goal.met for goal in goals] == [False, False]
    slow = [Relaunch(is_cold, 2.0, 1.0 * is_cold, 0.4, 0.2, 0.2, 0.2, 4) for is_cold in (True, False)]
    reactions, (stop,) = speed.shown_reactions(slow, [Handshake(0.1, 0.5, 0.75), Handshake(0.1, 0.6, 0.7)])
    assert [row[0] for row in reactions[0].rows] == ["a fresh worker", "a warm worker"]
    assert stop.met and stop.measured == "0.25 s at most"
    fleet = {rates.OURS: Rate(rates.OURS, 1000, 0.02), rates.WHOLE: Rate(rates.WHOLE, 1000, 2.0)}
    shown, (full, quick) = speed.shown_rates({rates.OURS: Rate(rates.OURS, 1000, 0.01)}, fleet)
    assert shown[0].rows == ((rates.OURS, 100_000, 1.0),)
    assert (full.measured, full.met, quick.met) == ("1/100", True, False)
    assert Evidence("", (*sheets, *reactions, *shown)).holds


def test_each_piece_of_work_is_done_once_a_round():
    """They take turns, so that a busy minute strikes all of them."""
    done: list[str] = []
    found = rates.raced({name: (10, lambda name=name: done.append(name)) for name in "ab"}, 3)
    assert done == list("ababab")
    assert found["a"].per_second == pytest.approx(1e6 / found["a"].us)


def test_a_count_of_nothing_is_refused(capsys):
    with pytest.raises(SystemExit):
        speed.main(["--starts", "0"])
    assert "--starts: must be at least 1" in capsys.readouterr().err
