"""Who is launched first where more wait than SageMaker takes: by the policy's priority, then who has waited longest.

CreateTrainingJob is throttled at one or two calls a second. The supervisor is woken for as many launches as a minute
can bring, or a little more: the others would only lie in its queue, before those that are more urgent."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from zlib import crc32

from rerail.decisions.decision import Decision, has_pending
from rerail.model.actions import CreateJob, PostCommand, QuarantineCheckpoints, ReleaseWarmPool
from rerail.model.run import Run
from rerail.sweep.shards import PARTITIONS

# Launches a minute, over the whole fleet. Most go by the order; the rest by turns, so that launches that come to
# nothing again and again never keep all others from theirs.
IN_ORDER, BY_TURNS = 120, 30
OF_A_LAUNCH = (PostCommand, QuarantineCheckpoints, ReleaseWarmPool, CreateJob)


@dataclass(frozen=True, slots=True)
class WaitingLaunch:
    """A run that waits for its next job, and its place among others."""

    run: str
    priority: int
    since: datetime


def make_launch(run: Run, decisions: Sequence[Decision], *, priority: int) -> WaitingLaunch | None:
    """The launch, if that is all that the run is to be woken for."""
    asked = [action for decision in decisions for action in decision.actions]
    creates = has_pending(run, CreateJob) or any(isinstance(action, CreateJob) for action in asked)
    if not creates or any(not isinstance(action, OF_A_LAUNCH) for action in run.pending):
        return None
    since = run.wake_at or (run.ledger.starts[-1] if run.ledger.starts else run.created_at)
    return WaitingLaunch(run.id, priority, since)


def choose_launches(launches: Sequence[WaitingLaunch], *, parts: int, at: datetime) -> list[str]:
    """The runs to be launched in this minute, first come those that go first, of `parts` parts of the fleet."""
    first, more = (-(-limit * parts // PARTITIONS) for limit in (IN_ORDER, BY_TURNS))
    order = sorted(launches, key=lambda launch: (-launch.priority, launch.since, launch.run))
    minute = int(at.timestamp() / 60)
    turns = sorted(order[first:], key=lambda launch: crc32(f"{minute} {launch.run}".encode()))
    return [launch.run for launch in (*order[:first], *turns[:more])]
