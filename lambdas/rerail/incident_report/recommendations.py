"""Recommend changes that make the next incident cheaper, each based on what happened in this run."""

from collections.abc import Iterator

from rerail.accounting.costs import find_unpriced_type
from rerail.accounting.save_interval import NEAR, advise_interval, format_advice
from rerail.decisions.decision import has_agent
from rerail.decisions.failed_gpus import format_case
from rerail.incident_report.facts import Facts
from rerail.model.causes import Cause
from rerail.model.finding import Kind
from rerail.model.run import RunState

# More lost steps than this make the agent worth recommending.
MANY_STEPS = 10


def list_recommendations(known: Facts) -> Iterator[str]:
    """Yield the recommendations that apply, the most valuable first."""
    for recommend in (_agent, _saving, _checkpoints, _data, _memory, _hardware, _machines, _metrics, _prices):
        yield from recommend(known)


def _agent(known: Facts) -> Iterator[str]:
    lost = max((i.lost_steps or 0 for i in known.run.incidents if i.kind != "job_failed"), default=0)
    if lost > MANY_STEPS and not has_agent(known.run):
        yield f"Add the agent to the script (docs/agent.md): it saves before a stop; here {lost:,} steps were lost."


def _saving(known: Facts) -> Iterator[str]:
    advice = advise_interval(known.run, known.checkpoints, known.policy, at=known.at)
    if advice is None:
        return
    ratio = (advice.actual_s or 0.0) / advice.interval_s if advice.interval_s else 1.0
    if advice.actual_s is None or not 1 / NEAR <= ratio <= NEAR:
        yield f"How often to save: {format_advice(advice)}."


def _checkpoints(known: Facts) -> Iterator[str]:
    if not known.run.checkpoint_uri and known.run.incidents:
        yield "Give the job a CheckpointConfig, or an S3 prefix in RERAIL_CHECKPOINTS: it started from scratch."


def _data(known: Facts) -> Iterator[str]:
    skipped = [a.skip_samples for a in known.run.attempts if a.skip_samples]
    if skipped:
        yield f"Look at the samples {skipped[-1]}: the loss went wrong on them each time, and was normal without them."
    rates = [a.rate for a in known.run.attempts if a.rate != 1.0]
    if rates:
        yield f"Lower the learning rate in the script itself: the run continues with {rates[-1]:g} times of it."


def _memory(known: Facts) -> Iterator[str]:
    if any(incident.cause is Cause.OOM for incident in known.run.incidents):
        yield "Memory ran out: take smaller batches or declare `microbatch`, shard more, or list larger machines."


def _hardware(known: Facts) -> Iterator[str]:
    failed = sum(attempt.cause is Cause.HARDWARE for attempt in known.run.attempts)
    named = [attempt for attempt in known.run.attempts if attempt.gpu]
    if named:
        yield format_case(known.run, named[-1])
    elif failed > 1:
        yield f"Open a case with AWS: {failed} attempts failed because of broken hardware; their jobs are listed below."


def _machines(known: Facts) -> Iterator[str]:
    waited = known.run.ledger.capacity_since or any(e.finding == Kind.CAPACITY_WAIT for e in known.timeline)
    if waited and not known.policy.capacity.fallbacks:
        yield "Name other instance types in the policy's [capacity] fallbacks: the run waited for capacity."


def _metrics(known: Facts) -> Iterator[str]:
    trained = any(attempt.training_started_at for attempt in known.run.attempts)
    if trained and not known.series:
        yield "Give the job MetricDefinitions (`rerail metrics` prints them): Rerail needs them to detect a bad loss."
    if known.run.state is RunState.HELD and known.run.observe_only:
        yield "Choose a policy that acts: this one only observes."


def _prices(known: Facts) -> Iterator[str]:
    if kind := find_unpriced_type(known.run, known.policy.prices):
        yield f"Add the hourly price of {kind} to the policy's [prices]: budgets in dollars need it."
