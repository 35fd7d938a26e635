"""What a decision asks of the world, as data; every one may be carried out again without harm."""

from dataclasses import dataclass
from enum import StrEnum

from rerail.mailbox import Command


@dataclass(frozen=True, slots=True)
class Machines:
    """Other machines than the first job's: instance types in the order in which they are wanted, and subnets."""

    instance_types: tuple[str, ...] = ()
    subnets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CreateJob:
    """Launch the attempt's job from the run's stored request; the name makes a repetition collide with itself.

    `skip_samples` are the samples to pass over, as `first-last,first-last`; `rate` is the factor on the learning rate;
    `machines` and `max_runtime_s` (seconds) replace the request's own where they are given.
    """

    job_name: str
    attempt: int
    resume_step: int | None
    skip_samples: str = ""
    rate: float = 1.0
    machines: Machines | None = None
    max_runtime_s: int | None = None


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


Action = CreateJob | StopJob | ReleaseWarmPool | PostCommand


class Severity(StrEnum):
    """Who is told: somebody now, or whoever looks."""

    PAGE = "page"
    INFORM = "inform"


@dataclass(frozen=True, slots=True)
class Tell:
    """A notice for people; `key` is its dedup key."""

    severity: Severity
    title: str
    body: str
    key: str
