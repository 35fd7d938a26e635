"""What each action states about itself: its order, its metric label, and what holds it back."""

from typing import get_args

from rerail.messages.service_metrics import ActionLabel
from rerail.model.actions import Action, CreateJob, Notify, PostCommand, QuarantineCheckpoints, StopJob

ACTIONS = (*get_args(Action), Notify)


def test_each_action_states_its_order_and_its_label():
    """Two actions with one rank would be performed in the order in which they were decided."""
    ranks = [action.RANK for action in ACTIONS]
    assert len(set(ranks)) == len(ranks)
    assert {action.METRIC_LABEL for action in get_args(Action)} <= {label.value for label in ActionLabel}


def test_the_job_is_created_last_but_for_notices():
    """Agents of older attempts get their command first; what a launch depends on comes before it."""
    first = [action for action in ACTIONS if action.PRECEDES_CREATE]
    assert first and max(action.RANK for action in (*first, PostCommand, StopJob)) < CreateJob.RANK < Notify.RANK


def test_a_pause_blocks_stops_launches_and_the_quarantine_before_them():
    """Notices, commands and the release of machines go on."""
    assert {action for action in ACTIONS if action.IS_BLOCKED_BY_PAUSE} == {StopJob, QuarantineCheckpoints, CreateJob}
