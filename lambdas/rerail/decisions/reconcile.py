"""A record that is older than the world: its table was restored from a backup, or lost, while the run's jobs went on.

A job that we have launched says so itself, by its tags and by its name, which are a function of run and attempt. So
what the record does not know is read off the world, and the newest attempt is watched again."""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from rerail.decisions.decision import Decision, make_notice, with_facts
from rerail.model.actions import Notify, Severity
from rerail.model.run import Attempt, Job, Run, RunState, make_job_name
from rerail.model.runbooks import Runbook
from rerail.model.signals import RecordOutdated
from rerail.requests.relaunch import ATTEMPT_TAG, RUN_TAG

# Of so many older jobs at most SageMaker is asked what has become of them.
MOST_ASKED = 50
MOST_MISSED = 1000
NUMBER = re.compile(r"[1-9][0-9]{0,5}")


class Claim(NamedTuple):
    """The attempt that a job says it is."""

    run: str
    number: int


def read_claim(job_name: str, tags: Mapping[str, str]) -> Claim | None:
    """What we have launched as a later attempt; None for any other job, whatever its tags say."""
    run, number = tags.get(RUN_TAG, ""), tags.get(ATTEMPT_TAG, "")
    if not run or not NUMBER.fullmatch(number) or int(number) < 2:
        return None
    return Claim(run, int(number)) if job_name == make_job_name(run, int(number)) else None


def is_believable(claim: Claim, run: Run | None) -> bool:
    """Whoever may create jobs may give them our tags: so many attempts cannot have passed without a record of them."""
    return claim.number - (run.current.number if run else 0) <= MOST_MISSED


def on_outdated_record(run: Run, signal: RecordOutdated) -> Decision:
    """Take up the newest attempt that there is. What the record still owes is owed no more, but for words to people.

    What Rerail has held is let go: somebody has released it since. What a human has held only a human lets go."""
    number = signal.number
    if number <= run.current.number:
        return Decision(run)
    jobs = {job.name: job for job in signal.jobs}
    missing = [Attempt(n, make_job_name(run.id, n)) for n in range(run.current.number + 1, number + 1)]
    over = [_over(attempt, jobs.get(attempt.job_name), signal.at) for attempt in (run.current, *missing)]
    attempts = [*run.attempts[:-1], *over]
    newest = jobs[missing[-1].job_name]
    attempts[-1] = replace(missing[-1], created_at=newest.created_at)  # its state is judged when it is looked at
    before = run.state
    stays_held = before is RunState.HELD and bool(run.held_by)
    if stays_held:  # nobody looks at a held run but for a job that is known to live
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
        hold_reason=run.hold_reason if stays_held else "",
        proposal=None,
        kept_back="",
        pending=tuple(action for action in run.pending if isinstance(action, Notify)),
    )
    if stays_held:
        reason += f"; {run.held_by} holds the run, so it goes on unsupervised"
    tell = make_notice(
        run,
        Severity.PAGE if stays_held else Severity.INFORM,
        "its job runs, and it is held" if stays_held else "its record was older than the world",
        f"{reason} (the record said {before})",
        key=f"overtaken-{number}",
        runbook=Runbook.BUDGET_SPENT if stays_held else Runbook.INFORMED,
        todo=f"If it is to be watched: rerail release {run.id}; if not: rerail stop {run.id}" if stays_held else "",
    )
    return Decision(run, (tell,), reason, finding="overtaken")


def rebuild_run(run: Run, number: int, job: Job) -> Run:
    """A run whose record is lost, as far as its newest job tells: enrolled under its own name, with attempts of which
    nothing but their names is known."""
    known = [Attempt(1, run.id), *(Attempt(n, make_job_name(run.id, n)) for n in range(2, number))]
    return replace(run, attempts=(*known, Attempt(number, job.name, created_at=job.created_at)))


def _over(attempt: Attempt, job: Job | None, at: datetime) -> Attempt:
    """An attempt that another has followed, with what its job still tells."""
    if job is None or (attempt.created_at and attempt.created_at != job.created_at):
        return attempt
    return with_facts(attempt, job, at)


def find_missed_jobs(run: Run, number: int) -> list[str]:
    """The names of the jobs that the attempt has followed and the record knows nothing of, or believes to be alive: of
    very many the newest."""
    names = [run.current.job_name, *(make_job_name(run.id, n) for n in range(run.current.number + 1, number))]
    return names[-MOST_ASKED:]
