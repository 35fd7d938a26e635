"""What the supervisor decided on one message, as measures."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from rerail.decisions.decision import Decision
from rerail.messages import service_metrics as measures
from rerail.messages.service_metrics import ActionLabel, MetricValue
from rerail.model.actions import CreateJob, Notify, PostCommand, QuarantineCheckpoints, ReleaseWarmPool, StopJob
from rerail.model.run import Run

ASKED = {
    CreateJob: ActionLabel.CREATE,
    StopJob: ActionLabel.STOP,
    ReleaseWarmPool: ActionLabel.RELEASE,
    PostCommand: ActionLabel.COMMAND,
    QuarantineCheckpoints: ActionLabel.SET_ASIDE,
}


@dataclass(frozen=True, slots=True)
class RecordedDecision:
    """One decision that was recorded: the run as it was before, and what was decided."""

    before: Run
    decision: Decision


def list_metrics(turns: Iterable[RecordedDecision], *, waited_s: float) -> Iterator[MetricValue]:
    """What is published of a message's decisions; `waited_s` is how long ago the message came to the queue. Decisions
    that give no reason only note facts, and are not counted."""
    reasoned = [turn for turn in turns if turn.decision.reason]
    if not reasoned:
        return
    counts: Counter[tuple[measures.ServiceMetric, StrEnum]] = Counter()
    for turn in reasoned:
        asked = [ASKED[type(action)] for action in turn.decision.actions if not isinstance(action, Notify)]
        counts.update((measures.ACTIONS, each) for each in asked or [ActionLabel.NOTHING])
        counts.update((measures.NOTICES, a.severity) for a in turn.decision.actions if isinstance(a, Notify))
        new = turn.decision.run.incidents[len(turn.before.incidents) :]
        counts.update((measures.OPENED, incident.cause) for incident in new)
    yield measures.DECISIONS.of(len(reasoned))
    yield measures.DECIDED_IN.of(max(0.0, waited_s))
    yield from (measure.of(count, word) for (measure, word), count in counts.items())
