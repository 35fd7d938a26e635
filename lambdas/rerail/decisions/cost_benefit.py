"""Estimate what waiting for a loss to recover costs and what a relaunch costs, in machine time and dollars."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from statistics import median

from rerail.accounting.costs import HOUR_S, dollars_per_hour
from rerail.model.finding import Finding, Kind, Level
from rerail.model.formatting import format_duration
from rerail.model.policy import Policy
from rerail.model.run import Attempt, Run

# (rows, probability): how likely a loss never recovers after this many rows of trouble.
# From 99 labelled spikes and divergences of real logs.
# Derived by bench/mending.py from bench/corpus/labels.csv.
NO_RECOVERY_RATES = ((0, 0.07), (4, 0.12), (8, 0.14), (16, 0.16), (32, 0.3), (64, 0.46), (128, 0.65))
# Findings that may recover by themselves; a non-finite loss does not.
KINDS = (Kind.LOSS_SPIKE, Kind.DIVERGENCE)
# Used until the run has a start of its own: queue, download, start-up and restore of a job on a few machines.
ASSUMED_START = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """The expected cost of waiting and of acting, for the whole job."""

    waiting: timedelta  # machine time lost if the job goes on
    acting: timedelta  # machine time lost by a relaunch
    dollars_an_hour: float | None  # of all machines; None where the price is unknown

    @property
    def says_act(self) -> bool:
        """Whether waiting is expected to cost more than acting."""
        return self.waiting > self.acting

    def __str__(self) -> str:
        waiting, acting = self._format_cost(self.waiting), self._format_cost(self.acting)
        return f"waiting is expected to cost {waiting}, a relaunch {acting}"

    def _format_cost(self, time: timedelta) -> str:
        if self.dollars_an_hour is None:
            return format_duration(time)
        return f"${_hours(time) * self.dollars_an_hour:,.2f} ({format_duration(time)})"


def with_cost_estimate(run: Run, finding: Finding, resume_step: int | None, *, at: datetime, policy: Policy) -> Finding:
    """Return the warning with both estimates.

    It becomes a finding to act on where waiting costs more and the trouble has lasted as long as the policy demands.
    Other findings are unchanged.
    """
    if not policy.weighing.enabled or finding.level is not Level.WARN or finding.kind not in KINDS:
        return finding
    estimate = estimate_costs(run, finding, resume_step, at=at, policy=policy)
    if estimate is None:
        return finding
    acts = estimate.says_act and _has_lasted(finding, at, policy)
    choice = "acting" if acts else "waiting"
    level = Level.INTERVENE if acts else Level.WARN
    return replace(finding, level=level, evidence=f"{finding.evidence}; {estimate}: {choice}")


def estimate_costs(
    run: Run, finding: Finding, resume_step: int | None, *, at: datetime, policy: Policy
) -> CostEstimate | None:
    """Return the expected costs of waiting and acting, or None where the run's pace is unknown.

    Waiting costs the steps until the detector's patience ends, weighted by the chance that the loss never recovers.
    Acting costs a start-up and the steps since the checkpoint.
    """
    step_s = step_seconds(run, finding, at)
    rows = count_lasting_rows(finding)
    if step_s is None or rows is None or finding.step is None:
        return None
    detection = policy.detection
    remaining_rows = max(0, max(detection.patience_rows, detection.patience_steps) - rows)
    waiting = timedelta(seconds=remaining_rows * step_s * chance_of_no_recovery(rows))
    replayed = max(0, finding.step - (resume_step or 0))
    acting = estimate_start_up(run) + timedelta(seconds=replayed * step_s)
    return CostEstimate(waiting, acting, dollars_per_hour(run, policy.prices))


def chance_of_no_recovery(rows: int) -> float:
    """Return the probability that a loss never recovers after this many rows of trouble."""
    return [chance for lasted, chance in NO_RECOVERY_RATES if lasted <= rows][-1]


def count_lasting_rows(finding: Finding) -> int | None:
    """Return for how many steps the trouble has lasted, or None where its onset is unknown."""
    if finding.step is None or finding.onset_step is None:
        return None
    return max(0, finding.step - finding.onset_step + 1)


def step_seconds(run: Run, finding: Finding, at: datetime) -> float | None:
    """Return the current attempt's seconds per step since it began to train, or None where unknown."""
    attempt = run.current
    if attempt.training_started_at is None or finding.step is None:
        return None
    steps = finding.step - (attempt.resumed_from_step or 0)
    return (at - attempt.training_started_at).total_seconds() / steps if steps > 0 else None


def estimate_start_up(run: Run) -> timedelta:
    """Return the run's median time from creation to training, or an assumption before its first start."""
    measured = [start_up for attempt in run.attempts if (start_up := _measure_start_up(attempt)) is not None]
    return timedelta(seconds=median(start_up.total_seconds() for start_up in measured)) if measured else ASSUMED_START


def relaunch_dollars(run: Run, prices: Mapping[str, float]) -> float | None:
    """Return what one start-up costs on all machines, or None where the price is unknown."""
    rate = dollars_per_hour(run, prices)
    return None if rate is None else rate * _hours(estimate_start_up(run))


def _has_lasted(finding: Finding, at: datetime, policy: Policy) -> bool:
    """Return whether the trouble has lasted the policy's least time and rows."""
    since = finding.onset_at or finding.at
    rows = count_lasting_rows(finding) or 0
    return since is not None and at - since >= policy.weighing.least and rows >= policy.weighing.least_rows


def _measure_start_up(attempt: Attempt) -> timedelta | None:
    """Return the time from creation to training, or None where the attempt never trained."""
    if attempt.created_at is None or attempt.training_started_at is None:
        return None
    return max(timedelta(0), attempt.training_started_at - attempt.created_at)


def _hours(time: timedelta) -> float:
    return time.total_seconds() / HOUR_S
