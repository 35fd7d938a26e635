"""The table of a run's attempts, as `rerail show` and the demo print it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO

from rich.console import Console

from cli.runs import make_attempts_table
from rerail.model.causes import Cause
from rerail.model.run import Attempt, Incident, InPlaceRestart, JobStatus, Run, RunState

NIGHT = datetime(2026, 1, 31, tzinfo=UTC)
ORDER = InPlaceRestart(1, "c1", "non_finite", asked_at=NIGHT, deadline=NIGHT + timedelta(minutes=5), resume_step=600)


def printed(*attempts: Attempt, incidents: tuple[Incident, ...] = ()) -> str:
    run = Run("gpt", "default", RunState.WATCHING, created_at=NIGHT, attempts=attempts, incidents=incidents)
    console = Console(file=StringIO(), width=150)
    console.print(make_attempts_table(run))
    return console.file.getvalue()


def test_restarts_in_place_stand_with_their_attempt():
    """Where each has begun, and which came to nothing."""
    done = replace(ORDER, restarted_at=NIGHT)
    orders = (done, replace(done, number=2, resume_step=None), replace(ORDER, number=3, failed="no word"), ORDER)
    shown = printed(Attempt(1, "gpt", in_place_restarts=orders))
    assert "in place: 600, in place: the newest save, in place: 600, failed, in place: 600, ordered" in shown


def test_an_error_that_the_reason_cuts_off_stands_with_each_attempt_that_it_ended():
    """The incident has it once, from the log of its first failure, or of the processes that a restart replaced."""
    failed = Attempt(1, "gpt", JobStatus.FAILED, failure_reason="Traceback (most recent call last):", fingerprint="f")
    again, other = replace(failed, number=2), replace(failed, number=3, fingerprint="g")
    crash = replace(other, number=1, in_place_restarts=(replace(ORDER, fingerprint="f"),))
    error = Incident(1, "job_failed", 1, Cause.USER_CODE, "attempt 1 failed", "KeyError: 'eos'", NIGHT, NIGHT)
    assert printed(failed, again, other, incidents=(error,)).count("KeyError: 'eos'") == 2
    assert printed(crash, again, incidents=(replace(error, kind="crashed"),)).count("KeyError: 'eos'") == 2
