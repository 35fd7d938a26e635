"""A resume that does not repeat the losses after the checkpoint is reported; one that cannot be compared says why."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from replay import COUNT, Replay, ReplayResult

CONDITIONS = {"ranks": 2, "skipped": [[5, 9]]}
LOSSES = {11: 2.5, 12: float.fromhex("0x1.3333340000000p+1"), 13: math.nan}


def kept(losses: dict[int, float] = LOSSES, *, step: int = 10, is_last: bool = False) -> list[tuple[int, bytes]]:
    """What a run writes that has saved this step and then seen these losses."""
    first = Replay(CONDITIONS)
    first.start_recording(step)
    for number, loss in losses.items():
        first.compare(number, loss)
    first.committed.add(step)
    return list(first.take_complete(is_last=is_last))


def make_resumed(text: bytes | None, **options: float) -> Replay:
    again = Replay(CONDITIONS, **options)
    assert again.set_expected(10, text) == ""
    return again


@given(st.lists(st.floats(width=32), min_size=COUNT, max_size=COUNT))
def test_what_was_kept_is_repeated_bit_for_bit(values: list[float]) -> None:
    """Any three float32, infinities and nan among them, come back as they were."""
    losses = dict(enumerate(values, start=11))
    [(step, text)] = kept(losses)
    again = make_resumed(text)
    assert step == 10
    text = "the losses of steps 11 to 13 are those of before the resume, bit for bit"
    outcomes = [again.compare(number, loss) for number, loss in losses.items()]
    assert outcomes == [None, None, ReplayResult(True, text)]


def test_one_different_bit_is_reported_once() -> None:
    [(_, text)] = kept()
    again = make_resumed(text)
    assert again.compare(11, 2.5) is None
    text = "loss 2.4000003 at step 12, but 2.4000001 (0x1.3333340000000p+1) before the resume"
    assert again.compare(12, 2.4000003) == ReplayResult(False, text)
    assert again.compare(13, 1.0) is None


def test_a_tolerance_forgives_a_thousandth_and_no_more() -> None:
    """Relative to the loss; a loss that is no number is close to none."""
    [(_, text)] = kept({11: 2.0, 12: 2.0, 13: math.nan})
    near, far = (make_resumed(text, tolerance=1e-3).compare(11, loss) for loss in (2.0019, 2.0021))
    assert (near, far is None) == (None, False)
    assert make_resumed(text, tolerance=1e-3).compare(12, math.nan) is not None
    assert make_resumed(text, tolerance=1e-3).compare(13, 2.0) is not None


def test_losses_come_when_the_checkpoint_stands_and_three_are_known() -> None:
    """Not before its commit, not before the third, and once."""
    replay = Replay(CONDITIONS)
    replay.start_recording(10)
    replay.compare(11, 1.0)
    replay.start_recording(11)
    replay.compare(12, 1.0)
    replay.committed |= {10, 11}
    assert list(replay.take_complete()) == []
    replay.compare(13, 1.0)
    assert [step for step, _ in replay.take_complete()] == [10]
    assert [step for step, _ in replay.take_complete()] == []
    assert [(step, len(json.loads(text)["losses"])) for step, text in replay.take_complete(is_last=True)] == [(11, 2)]


def test_a_checkpoint_without_losses_gets_them_from_its_resume() -> None:
    """The run died before they were known; the next resume can be compared."""
    second = Replay(CONDITIONS)
    assert "nothing to compare" in second.set_expected(10, None)
    for step, loss in LOSSES.items():
        second.compare(step, loss)
    [(step, text)] = second.take_complete()
    assert (step, text) == kept()[0]


def test_other_conditions_are_not_compared() -> None:
    [(_, text)] = kept()
    other = Replay({**CONDITIONS, "ranks": 4})
    assert other.set_expected(10, text) == "this resume is not compared: ranks was 2, it is 4"
    assert other.set_expected(10, text.replace(b"ranks", b"a\\nRuntimeError\\u001b[2J")).isprintable()
    assert other.compare(11, 99.0) is None


def test_a_file_of_another_shape_is_no_reason_to_stop() -> None:
    """It is said to be unreadable, and training goes on uncompared."""
    huge = b'{"losses": {"11": "0x1p9999"}, "conditions": {}, "schema": 1}'
    for text in (b"", b"[1]", b"{}", huge.replace(b"0x1p9999", b"x"), huge, b"[" * 100_000, b"\xff"):
        again = Replay(CONDITIONS)
        assert "cannot be read" in again.set_expected(10, text)
        assert again.compare(11, 2.5) is None
