"""What a decision asks of the world, as data; every one may be carried out again without harm."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from rerail.model.mailbox import Command
from rerail.model.runbooks import Runbook


@dataclass(frozen=True, slots=True)
class Machines:
    """Other machines than the first job's: instance types in the order in which they are wanted, and subnets."""

    instance_types: tuple[str, ...] = ()
    subnets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CreateJob:
    """Launch the attempt's job from the run's stored request; the name makes a repetition collide with itself.

    `skip_samples` are the samples to pass over, as `first-last,first-last`; `rate` is the factor on the learning rate;
    `machines` and `max_runtime_s` (seconds) replace the request's own where they are given. `drill`: what was saved
    after that step is as good, and stays where it is.
    """

    job_name: str
    attempt: int
    resume_step: int | None
    skip_samples: str = ""
    rate: float = 1.0
    machines: Machines | None = None
    max_runtime_s: int | None = None
    drill: bool = False


@dataclass(frozen=True, slots=True)
class StopJob:
    """Stop a job; one that is stopping or has ended counts as stopped."""

    job_name: str


@dataclass(frozen=True, slots=True)
class ReleaseWarmPool:
    """Give a job's instances back, so that a relaunch does not land on the same bad node."""

    job_name: str


@dataclass(frozen=True, slots=True)
class PostCommand:
    """Leave a command in the run's mailbox in place of the one before; the agent heeds each id once."""

    command: Command


@dataclass(frozen=True, slots=True)
class QuarantineCheckpoints:
    """Move what a script saved after `resume_step` (None: all of it), and before `saved_before`, out of the folder that
    the next job is given: that script resumes from whatever it finds. `attempt` is the one that was rolled back.

    `strict`: refuse where there is something of which nobody can tell the step; where not, a human has looked.
    `is_vital`: without it the job must not be created; where not, the script may only stumble over what is there.
    """

    run: str
    attempt: int
    uri: str
    resume_step: int | None
    saved_before: datetime
    strict: bool = True
    is_vital: bool = True


Action = CreateJob | StopJob | ReleaseWarmPool | PostCommand | QuarantineCheckpoints


class Severity(StrEnum):
    """Who is told: somebody now, whoever looks, or those who were paged, that it is over."""

    PAGE = "page"
    INFORM = "inform"
    CLEAR = "clear"


class ClearedBy(StrEnum):
    """What ends a page: `Notify.about` says which proposal, or which kind of finding, it is about."""

    RELEASED = "released"  # the run is held no more
    ANSWERED = "answered"  # the proposal stands no more
    LAUNCHED = "launched"  # the brake on all relaunches has let the launch pass
    MENDED = "mended"  # the trouble is over, or the attempt that it befell is


@dataclass(frozen=True, slots=True)
class Notify:
    """A notice for people; `key` is its dedup key.

    `body` says what happened, `did` what Rerail did about it, `todo` what the reader must do, in the imperative, and
    `by` until when; `since` is when the trouble began. `until` and `about` say what ends a page; `clears` is the key of
    the page that an all-clear ends.
    """

    severity: Severity
    title: str
    body: str
    key: str
    runbook: Runbook = Runbook.INFORMED
    did: str = ""
    todo: str = ""
    since: datetime | None = None
    by: datetime | None = None
    clears: str = ""
    until: ClearedBy = ClearedBy.RELEASED
    about: str = ""
