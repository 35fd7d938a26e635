"""The table of a run's attempts, as `rerail show` and the demo print it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO

from rich.console import Console

from cli.runs import make_attempts_table
from rerail.model.run import Attempt, InPlaceRestart, Run, RunState

NIGHT = datetime(2026, 1, 31, tzinfo=UTC)
ORDER = InPlaceRestart(1, "c1", "non_finite", asked_at=NIGHT, deadline=NIGHT + timedelta(minutes=5), resume_step=600)


def printed(*orders: InPlaceRestart) -> str:
    attempt = Attempt(1, "gpt", in_place_restarts=orders)
    run = Run("gpt", "default", RunState.WATCHING, created_at=NIGHT, attempts=(attempt,))
    console = Console(file=StringIO(), width=150)
    console.print(make_attempts_table(run))
    return console.file.getvalue()


def test_restarts_in_place_stand_with_their_attempt():
    """Where each has begun, and which came to nothing."""
    done = replace(ORDER, restarted_at=NIGHT)
    shown = printed(done, replace(done, number=2, resume_step=None), replace(ORDER, number=3, failed="no word"), ORDER)
    assert "in place: 600, in place: the newest save, in place: 600, failed, in place: 600, ordered" in shown
