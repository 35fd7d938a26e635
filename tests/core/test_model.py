"""The nouns: names that fit, and the questions that a run answers about itself."""

import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.model.actions import Notify, Severity, StopJob
from rerail.model.causes import Cause
from rerail.model.run import Attempt, Incident, Job, JobStatus, OpenPage, Run, RunState, make_job_name, make_run_id
from tests.core.strategies import job_names

# The pattern of TrainingJobName in CreateTrainingJob.
SAGEMAKER = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
RUN = Run("gpt", "default", RunState.WATCHING, NOON, (Attempt(1, "gpt", status=JobStatus.IN_PROGRESS),))
INCIDENT = Incident(1, "job_failed", 1, Cause.HARDWARE, "why", "evidence", NOON, NOON)


@given(job_names, st.integers(2, 999))
def test_every_name_of_ours_is_a_name_to_sagemaker(job_name, attempt):
    for name in (make_run_id(job_name), make_job_name(make_run_id(job_name), attempt)):
        assert len(name) <= 63
        assert SAGEMAKER.fullmatch(name)


@given(job_names, job_names)
def test_distinct_jobs_are_distinct_runs(one, other):
    assert (make_run_id(one) == make_run_id(other)) == (one == other)


@given(st.integers(55, 62), st.text("ab-", min_size=1, max_size=8))
def test_long_names_that_differ_at_the_end_stay_distinct(length, ending):
    one, other = ("x" * length + ending)[:63] + "", ("x" * length + "z" + ending)[:63]
    assert (make_run_id(one) == make_run_id(other)) == (one == other)


def test_a_short_name_is_the_runs_name():
    """Up to 56 characters the run is called as its first job, so that people find it."""
    assert make_run_id("a" * 56) == "a" * 56
    assert make_run_id("a" * 57) == "a" * 47 + "-" + make_run_id("a" * 57)[-8:]
    assert make_job_name("gpt", 2) == "gpt-a002"


def test_a_name_of_ours_is_stable():
    """A run's name is a function of its job's: the same on every machine and every day."""
    assert make_run_id("a" * 63) == "a" * 47 + "-7d3e74a0"


@pytest.mark.parametrize("text", ["Melting", "", "completed"])
def test_a_status_that_sagemaker_invents_changes_nothing(text):
    """An unknown status reads as UNKNOWN, which is no end."""
    assert JobStatus(text) is JobStatus.UNKNOWN
    assert not JobStatus(text).is_terminal


def test_a_job_trains_when_both_statuses_agree():
    """InProgress alone may mean that machines are still sought."""
    job = Job("gpt", "arn", JobStatus.IN_PROGRESS, "Training", NOON)
    assert job.is_training
    assert not replace(job, secondary="Starting").is_training
    assert not replace(job, status=JobStatus.STOPPING).is_training


def test_an_attempt_may_live_once_sagemaker_has_it():
    attempt = Attempt(2, "gpt-a002")
    assert not attempt.exists and not attempt.may_be_live
    assert replace(attempt, status=JobStatus.UNKNOWN).may_be_live
    assert not replace(attempt, status=JobStatus.FAILED).may_be_live


def test_an_open_run_is_one_that_the_sweep_must_ask_about():
    """Not ended, or owing an action, or with a job that may still burn money."""
    over = replace(RUN, state=RunState.HELD, attempts=(replace(RUN.current, status=JobStatus.FAILED),))
    assert RUN.is_open
    assert not over.is_open
    assert replace(over, pending=(StopJob("gpt"),)).is_open
    assert replace(over, attempts=RUN.attempts).is_open


def test_a_held_run_is_swept_while_its_page_stands():
    """Nothing comes of it by itself, but the page is to be told again some time."""
    over = replace(RUN, state=RunState.HELD, attempts=(replace(RUN.current, status=JobStatus.FAILED),))
    page = OpenPage(Notify(Severity.PAGE, "gpt: held", "why", "gpt/held-1"), attempt=1, notified_at=NOON)
    paged = replace(over, pages=(page,))
    assert (over.is_swept, paged.is_swept, paged.is_open) == (False, True, False)
    assert RUN.is_swept


def test_only_the_last_incident_can_be_open():
    assert RUN.open_incident is None
    assert replace(RUN, incidents=(INCIDENT,)).open_incident == INCIDENT
    assert replace(RUN, incidents=(replace(INCIDENT, closed_at=NOON),)).open_incident is None


@pytest.mark.parametrize(
    ("step", "resume", "lost"),
    [(None, 5, None), (110, 100, 10), (110, None, None), (110, 0, 110), (50, 100, 0), (49, 100, None)],
)
def test_lost_steps_are_those_to_train_again(step, resume, lost):
    """From where it died back to where it resumes; unknown where the end is, or in another unit; never negative."""
    assert replace(INCIDENT, step=step, resume_step=resume).lost_steps == lost
