"""The account's rate limit on relaunches: decide whether one more may go ahead now."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

MIN_RETENTION = timedelta(hours=1)
# After this many relaunches of runs that failed with one error, further runs with it wait for one of them to recover.
SHARED_ERROR_TRIES = 5
SHARED_ERROR_INTERVAL = timedelta(minutes=10)  # between two looks at whether one has
SHARED_ERROR_PERIOD = timedelta(hours=4)  # between two pages; the longest wait, and how long a relaunch counts
MAX_SHARED_ERRORS, MAX_TRIES = 20, 20
ADOPTION_NOTICES = 10  # an hour: anybody can tag a thousand jobs


@dataclass(frozen=True, slots=True)
class SharedError:
    """An error that several runs may have failed with, which was met within the last hour."""

    met_at: datetime  # the time of the newest relaunch or page
    tries: Mapping[str, datetime] = field(default_factory=dict)  # time of the last relaunch by run
    solved_at: datetime | None = None  # when a run with this error was last seen to have recovered
    paged_by: str = ""  # the run that paged on-call last
    paged_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Launches:
    """The account's recent relaunches."""

    at: Mapping[str, datetime] = field(default_factory=dict)  # time of the last request by job name
    paged_by: str = ""  # the job whose launch paged on-call last
    paged_at: datetime | None = None
    errors: Mapping[str, SharedError] = field(default_factory=dict)  # by a digest of the error and the image
    adoptions: Mapping[str, datetime] = field(default_factory=dict)  # time of the last notices by job name


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """A request for one relaunch."""

    job_name: str
    run: str = ""
    error: str = ""  # the key of the error that the run failed with, if other runs may share it
    failed_at: datetime | None = None  # when it failed with this error
    is_approved: bool = False  # an operator launches the job
    is_solved: bool = False  # another run that failed with this error has recovered


@dataclass(frozen=True, slots=True)
class Admission:
    """The rate limit's answer to one launch."""

    granted: bool
    count: int  # relaunches in the window
    until: datetime  # when to try again, if not granted
    # Set for the one launch that pages on-call, with the same value each time that it is requested again; else None.
    paged_at: datetime | None = None
    # Only if the error's tries are spent: the time of each by its run.
    tries: Mapping[str, datetime] = field(default_factory=dict)


def admit(
    launches: Launches, request: LaunchRequest, *, at: datetime, limit: int, window: timedelta
) -> tuple[Launches, Admission]:
    """Return the account's launches after one more request, and the answer; a limit of 0 is none.

    A job that is requested again is counted once, at its last request: it is never created later than it is counted.
    """
    shared = replace(_find_shared_error(launches, request.error, at), met_at=at)
    if request.is_solved:
        shared = SharedError(at, solved_at=at)
    is_solved = shared.solved_at and request.failed_at and request.failed_at <= shared.solved_at
    wait_ends = (request.failed_at or at) + SHARED_ERROR_PERIOD
    is_free = not limit or not request.error or request.is_approved or is_solved or at >= wait_ends
    others = {run: tried_at for run, tried_at in shared.tries.items() if run != request.run}
    if not is_free and len(others) >= SHARED_ERROR_TRIES:
        shared = _with_page(shared, request.run, at)
        paged_at = shared.paged_at if shared.paged_by == request.run else None
        updated = _with_shared_error(launches, request.error, shared)
        return updated, Admission(False, len(others), min(at + SHARED_ERROR_INTERVAL, wait_ends), paged_at, others)
    launches, admission = _admit_by_rate(launches, request.job_name, at=at, limit=limit, window=window)
    if admission.granted and request.error:
        tries = shared.tries if is_solved else {**others, request.run: at}
        launches = _with_shared_error(launches, request.error, replace(shared, tries=tries))
    return launches, admission


def claim_page(launches: Launches, run: str, error: str, *, at: datetime) -> tuple[Launches, str]:
    """Return the launches after a run was about to page on-call about this error, and the run whose page stands."""
    shared = _with_page(replace(_find_shared_error(launches, error, at), met_at=at), run, at)
    return _with_shared_error(launches, error, shared), shared.paged_by


def claim_adoption_notice(launches: Launches, job_name: str, *, at: datetime) -> tuple[Launches, int]:
    """Return the launches after a notice about a job that is not adopted as asked, and its number; 0 for no notice.

    A job that asks again has the number that it had.
    """
    recent = {name: sent_at for name, sent_at in launches.adoptions.items() if abs(at - sent_at) < MIN_RETENTION}
    if job_name not in recent:
        if len(recent) >= ADOPTION_NOTICES:
            return launches, 0
        recent[job_name] = at
        return replace(launches, adoptions=recent), len(recent)
    return replace(launches, adoptions=recent), sum(sent_at <= recent[job_name] for sent_at in recent.values())


def _find_shared_error(launches: Launches, error: str, at: datetime) -> SharedError:
    """Return the error as it was met within the last hour, with its recent tries, or a new one."""
    known = launches.errors.get(error)
    if known is None or abs(at - known.met_at) >= MIN_RETENTION:
        return SharedError(at)
    newest = sorted(known.tries.items(), key=lambda item: item[1])[-MAX_TRIES:]
    return replace(known, tries={run: time for run, time in newest if abs(at - time) < SHARED_ERROR_PERIOD})


def _with_page(shared: SharedError, run: str, at: datetime) -> SharedError:
    """Return the error paged by this run, unless another run's page stands."""
    is_open = shared.paged_at is not None and abs(at - shared.paged_at) < SHARED_ERROR_PERIOD
    return shared if is_open else replace(shared, paged_by=run, paged_at=at)


def _with_shared_error(launches: Launches, error: str, shared: SharedError) -> Launches:
    """Return the launches with this error among those that were met last."""
    errors = {key: known for key, known in launches.errors.items() if shared.met_at - known.met_at < MIN_RETENTION}
    newest = sorted({**errors, error: shared}.items(), key=lambda item: item[1].met_at)[-MAX_SHARED_ERRORS:]
    return replace(launches, errors=dict(newest))


def _admit_by_rate(
    launches: Launches, job_name: str, *, at: datetime, limit: int, window: timedelta
) -> tuple[Launches, Admission]:
    """Return the launches and the answer by their number within the window alone."""
    recent = {
        name: requested_at
        for name, requested_at in launches.at.items()
        if abs(at - requested_at) < max(window, MIN_RETENTION)
    }
    others = sorted(asked_at for name, asked_at in recent.items() if name != job_name and at - asked_at < window)
    if not limit or len(others) < limit:
        return replace(launches, at={**recent, job_name: at}), Admission(True, len(others) + 1, at)
    updated = replace(launches, at=recent)
    if launches.paged_at is None or abs(at - launches.paged_at) >= window:
        updated = replace(updated, paged_by=job_name, paged_at=at)
    paged_at = updated.paged_at if updated.paged_by == job_name else None
    return updated, Admission(False, len(others), others[-limit] + window, paged_at)
