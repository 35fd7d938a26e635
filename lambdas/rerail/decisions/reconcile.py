"""Reconcile a run's record that is older than its jobs: its table was restored from a backup, or lost.

Jobs launched by Rerail identify themselves by their tags and their name, a function of run and attempt. Missing
attempts are rebuilt from them, and the newest attempt is watched again.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from rerail.decisions.decision import Decision, make_notice, with_facts, without_hold
from rerail.model.actions import Notify, Severity
from rerail.model.policy import Policy
from rerail.model.run import Attempt, Job, Run, RunState, make_job_name
from rerail.model.runbooks import Runbook
from rerail.model.signals import RecordOutdated
from rerail.requests.relaunch import ATTEMPT_TAG, RUN_TAG

# At most this many older jobs are described.
MAX_DESCRIBED_JOBS = 50
MAX_MISSED_ATTEMPTS = 1000
NUMBER = re.compile(r"[1-9][0-9]{0,5}")


class Claim(NamedTuple):
    """The run and attempt that a job's tags and name state."""

    run: str
    number: int


def read_claim(job_name: str, tags: Mapping[str, str]) -> Claim | None:
    """Return the claim of a job that Rerail launched as a later attempt; None for any other job."""
    run, number = tags.get(RUN_TAG, ""), tags.get(ATTEMPT_TAG, "")
    if not run or not NUMBER.fullmatch(number) or int(number) < 2:
        return None
    return Claim(run, int(number)) if job_name == make_job_name(run, int(number)) else None


def is_believable(claim: Claim, run: Run | None) -> bool:
    """Return whether the claim is plausible.

    Anyone who may create jobs can set the tags, and a record never misses more than 1000 attempts.
    """
    return claim.number - (run.current.number if run else 0) <= MAX_MISSED_ATTEMPTS


def on_outdated_record(run: Run, signal: RecordOutdated, policy: Policy) -> Decision:
    """Continue with the newest attempt that exists, and drop pending actions except notices.

    A hold by Rerail ends, because the run must have been released since. A hold by an operator stays.
    """
    number = signal.number
    if number <= run.current.number:
        return Decision(run)
    jobs = {job.name: job for job in signal.jobs}
    missing = [Attempt(n, make_job_name(run.id, n)) for n in range(run.current.number + 1, number + 1)]
    ended = [_with_outcome(attempt, jobs.get(attempt.job_name), signal.at) for attempt in (run.current, *missing)]
    attempts = [*run.attempts[:-1], *ended]
    newest = jobs[missing[-1].job_name]
    attempts[-1] = replace(missing[-1], created_at=newest.created_at)  # its status is recorded when it is observed next
    recorded_state = run.state
    stays_held = recorded_state is RunState.HELD and bool(run.held_by)
    if stays_held:  # held runs are observed only while their job is recorded as live
        attempts[-1] = with_facts(attempts[-1], newest, signal.at)
    reason = (
        f"{newest.name} is ours, and the record ended with attempt {run.current.number}: it was older than the world "
        f"(a table restored from a backup?), so attempt {number} is taken up"
    )
    run = replace(
        run,
        state=RunState.HELD if stays_held else RunState.STARTING,
        attempts=tuple(attempts),
        stop=None,
        wake_at=None,
        proposal=None,
        blocked_by=None,
        pending=tuple(action for action in run.pending if isinstance(action, Notify)),
    )
    if not stays_held:
        run = without_hold(run)
    else:
        reason += f"; {run.held_by} holds the run, so it goes on unsupervised"
    notice = make_notice(
        run,
        Severity.PAGE if stays_held else Severity.INFORM,
        "its job runs, and it is held" if stays_held else "its record was older than the world",
        f"{reason} (the record said {recorded_state})",
        key=f"overtaken-{number}",
        runbook=Runbook.BUDGET_SPENT if stays_held else Runbook.INFORMED,
        todo=f"If it is to be watched: rerail release {run.id}\nIf not: rerail stop {run.id}" if stays_held else "",
    )
    return Decision(run, (notice,), reason, finding="overtaken")


def rebuild_run(run: Run, number: int, job: Job) -> Run:
    """Return a run whose record is lost, as far as its newest job shows.

    The attempts before have nothing but their names.
    """
    earlier = [Attempt(1, run.id), *(Attempt(n, make_job_name(run.id, n)) for n in range(2, number))]
    return replace(run, attempts=(*earlier, Attempt(number, job.name, created_at=job.created_at)))


def _with_outcome(attempt: Attempt, job: Job | None, at: datetime) -> Attempt:
    """Return an attempt that another has followed, with the facts of its job if it still exists."""
    if job is None or (attempt.created_at and attempt.created_at != job.created_at):
        return attempt
    return with_facts(attempt, job, at)


def find_missed_jobs(run: Run, number: int) -> list[str]:
    """Return the names of jobs before the attempt that the record lacks or believes to be live.

    Of more than 50, only the newest are returned.
    """
    names = [run.current.job_name, *(make_job_name(run.id, n) for n in range(run.current.number + 1, number))]
    return names[-MAX_DESCRIBED_JOBS:]
