"""Every signal has a handler, and every decision goes through the same passes in the same order."""

from typing import get_args

from rerail.decisions.decide import HANDLERS, PASSES
from rerail.model.signals import Signal


def test_every_signal_has_a_handler() -> None:
    assert set(HANDLERS) == set(get_args(Signal))


def test_deferrals_come_before_pages_and_actions_are_recorded_last() -> None:
    assert [apply.__name__ for apply in PASSES] == [
        "with_deferrals",
        "with_pages",
        "with_copies",
        "with_save_steps_noted",
        "_with_actions_pending",
        "_with_state_change",
    ]
