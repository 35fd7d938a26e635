"""Metrics of the supervisor's decisions on one message."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from rerail.decisions.decision import Decision
from rerail.messages import service_metrics
from rerail.messages.service_metrics import ActionLabel, MetricValue
from rerail.model.actions import Notify
from rerail.model.run import Run


@dataclass(frozen=True, slots=True)
class RecordedDecision:
    """A decision that was recorded."""

    before: Run  # the run before the decision
    decision: Decision


def list_metrics(turns: Iterable[RecordedDecision], *, waited_s: float) -> Iterator[MetricValue]:
    """Yield the metrics of a message's decisions.

    `waited_s` is how many seconds ago the message was queued. Decisions without a reason only record facts and are not
    counted.
    """
    reasoned = [turn for turn in turns if turn.decision.reason]
    if not reasoned:
        return
    counts: Counter[tuple[service_metrics.ServiceMetric, StrEnum]] = Counter()
    for turn in reasoned:
        labels = [ActionLabel(item.METRIC_LABEL) for item in turn.decision.actions if not isinstance(item, Notify)]
        counts.update((service_metrics.ACTIONS, label) for label in labels or [ActionLabel.NOTHING])
        counts.update((service_metrics.NOTICES, a.severity) for a in turn.decision.actions if isinstance(a, Notify))
        new = turn.decision.run.incidents[len(turn.before.incidents) :]
        counts.update((service_metrics.OPENED, incident.cause) for incident in new)
    yield service_metrics.DECISIONS.of(len(reasoned))
    yield service_metrics.DECIDED_IN.of(max(0.0, waited_s))
    yield from (measure.of(count, dimension) for (measure, dimension), count in counts.items())
