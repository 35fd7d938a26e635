"""Choose which waiting launches go first: by the policy's priority, then by how long they have waited.

CreateTrainingJob is throttled at one or two calls a second. The supervisor is woken for as many launches as a minute
allows, or a few more: others would only queue before more urgent messages.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from zlib import crc32

from rerail.decisions.decision import Decision, has_pending
from rerail.model.actions import CreateJob, PostCommand, QuarantineCheckpoints, ReleaseWarmPool
from rerail.model.partitions import PARTITIONS
from rerail.model.run import Run

# Launches a minute, over the whole fleet. Most go by the order; the rest in rotation, so that launches that fail
# repeatedly cannot block all others.
IN_ORDER, BY_TURNS = 120, 30
LAUNCH_ACTIONS = (PostCommand, QuarantineCheckpoints, ReleaseWarmPool, CreateJob)


@dataclass(frozen=True, slots=True)
class WaitingLaunch:
    """A run that waits for its next job."""

    run: str  # id
    priority: int  # higher goes first
    since: datetime  # when its launch became due


def make_launch(run: Run, decisions: Sequence[Decision], *, priority: int) -> WaitingLaunch | None:
    """Return the waiting launch if it is all that the run needs to be visited for, else None."""
    actions = [action for decision in decisions for action in decision.actions]
    has_launch = has_pending(run, CreateJob) or any(isinstance(action, CreateJob) for action in actions)
    if not has_launch or any(not isinstance(action, LAUNCH_ACTIONS) for action in run.pending):
        return None
    since = run.wake_at or (run.ledger.starts[-1] if run.ledger.starts else run.created_at)
    return WaitingLaunch(run.id, priority, since)


def choose_launches(launches: Sequence[WaitingLaunch], *, parts: int, at: datetime) -> list[str]:
    """Return the ids of the runs to launch in this minute, in order, for `parts` parts of the fleet."""
    ordered_limit, rotating_limit = (-(-limit * parts // PARTITIONS) for limit in (IN_ORDER, BY_TURNS))
    order = sorted(launches, key=lambda launch: (-launch.priority, launch.since, launch.run))
    minute = int(at.timestamp() / 60)
    rotation = sorted(order[ordered_limit:], key=lambda launch: crc32(f"{minute} {launch.run}".encode()))
    return [launch.run for launch in (*order[:ordered_limit], *rotation[:rotating_limit])]
