"""What to change, so that the next incident costs less: a few hints, each from what this run has shown."""

from collections.abc import Iterator

from rerail.accounting.costs import find_unpriced_type
from rerail.accounting.save_interval import NEAR, advise_interval, format_advice
from rerail.decisions.decision import has_agent
from rerail.incident_report.facts import Facts
from rerail.model.causes import Cause
from rerail.model.finding import Kind
from rerail.model.run import RunState

MANY_STEPS = 10


def list_recommendations(known: Facts) -> Iterator[str]:
    """The hints that apply, the dearest first."""
    for hint in (_agent, _saving, _checkpoints, _data, _memory, _hardware, _machines, _watched, _prices):
        yield from hint(known)


def _agent(known: Facts) -> Iterator[str]:
    lost = max((i.lost_steps or 0 for i in known.run.incidents if i.kind != "job_failed"), default=0)
    if lost > MANY_STEPS and not has_agent(known.run):
        yield f"Put the agent into the script (docs/agent.md): it saves before a stop; here {lost:,} steps were lost."


def _saving(known: Facts) -> Iterator[str]:
    found = advise_interval(known.run, known.checkpoints, known.policy, at=known.at)
    if found is None:
        return
    ratio = (found.actual_s or 0.0) / found.interval_s if found.interval_s else 1.0
    if found.actual_s is None or not 1 / NEAR <= ratio <= NEAR:
        yield f"How often to save: {format_advice(found)}."


def _checkpoints(known: Facts) -> Iterator[str]:
    if not known.run.checkpoint_uri and known.run.incidents:
        yield "Give the job a CheckpointConfig, or an S3 prefix in RERAIL_CHECKPOINTS: it started from scratch."


def _data(known: Facts) -> Iterator[str]:
    skipped = [a.skip_samples for a in known.run.attempts if a.skip_samples]
    if skipped:
        yield f"Look at the samples {skipped[-1]}: the loss went wrong on them each time, and well without them."
    rates = [a.rate for a in known.run.attempts if a.rate != 1.0]
    if rates:
        yield f"Lower the learning rate in the script itself: the run goes on with {rates[-1]:g} times of it."


def _memory(known: Facts) -> Iterator[str]:
    if any(incident.cause is Cause.OOM for incident in known.run.incidents):
        yield "Take smaller batches, shorter sequences, more sharding or larger machines: memory ran out."


def _hardware(known: Facts) -> Iterator[str]:
    failed = sum(attempt.cause is Cause.HARDWARE for attempt in known.run.attempts)
    if failed > 1:
        yield f"Open a case with AWS: {failed} attempts failed of broken hardware; their jobs are named below."


def _machines(known: Facts) -> Iterator[str]:
    waited = known.run.ledger.capacity_since or any(e.finding == Kind.CAPACITY_WAIT for e in known.timeline)
    if waited and not known.policy.capacity.fallbacks:
        yield "Name other machines in the policy's [capacity] fallbacks: the run has waited for its own."


def _watched(known: Facts) -> Iterator[str]:
    trained = any(attempt.training_started_at for attempt in known.run.attempts)
    if trained and not known.series:
        yield "Give the job MetricDefinitions (`rerail metrics` prints them): nobody sees the loss go wrong."
    if known.run.state is RunState.HELD and known.run.observe_only:
        yield "Take a policy that acts: this one only observes."


def _prices(known: Facts) -> Iterator[str]:
    if kind := find_unpriced_type(known.run, known.policy.prices):
        yield f"Write what a machine {kind} costs an hour into the policy's [prices]: budgets in money need it."
