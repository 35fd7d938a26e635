"""Wait for a loss to mend, or act: what each is expected to cost, in machine time and in money."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from statistics import median

from rerail.accounting.costs import HOUR_S, dollars_per_hour
from rerail.decisions.remedies import format_duration
from rerail.model.finding import Finding, Kind, Level
from rerail.model.policy import Policy
from rerail.model.run import Attempt, Run

# How likely a loss that went wrong mends no more, after so many rows: 99 labelled spikes and divergences of real logs.
# Derived by bench/mending.py from bench/corpus/labels.csv.
NEVER_MENDS = ((0, 0.07), (4, 0.12), (8, 0.14), (16, 0.16), (32, 0.3), (64, 0.46), (128, 0.65))
# What may mend of its own accord; a loss that is no number does not.
KINDS = (Kind.LOSS_SPIKE, Kind.DIVERGENCE)
# Until a run has started up once itself: queue, download, start-up and restore of a job of a few machines.
ASSUMED_START = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """What either way is expected to cost: machine time of the whole job, and dollars where the price is known."""

    waiting: timedelta
    acting: timedelta
    dollars_an_hour: float | None

    @property
    def says_act(self) -> bool:
        """Waiting is the dearer of the two."""
        return self.waiting > self.acting

    def __str__(self) -> str:
        return f"waiting is expected to cost {self._spoken(self.waiting)}, a relaunch {self._spoken(self.acting)}"

    def _spoken(self, time: timedelta) -> str:
        if self.dollars_an_hour is None:
            return format_duration(time)
        return f"${_hours(time) * self.dollars_an_hour:,.2f} ({format_duration(time)})"


def with_cost_estimate(run: Run, finding: Finding, resume_step: int | None, *, at: datetime, policy: Policy) -> Finding:
    """The warning with both figures; one to act upon where waiting is the dearer, and the trouble has lasted as long as
    the policy demands. Anything else is returned as it is."""
    if not policy.weighing.enabled or finding.level is not Level.WARN or finding.kind not in KINDS:
        return finding
    found = estimate_costs(run, finding, resume_step, at=at, policy=policy)
    if found is None:
        return finding
    acts = found.says_act and _has_lasted(finding, at, policy)
    chosen = "acting" if acts else "waiting"
    level = Level.INTERVENE if acts else Level.WARN
    return replace(finding, level=level, evidence=f"{finding.evidence}; {found}: {chosen}")


def estimate_costs(
    run: Run, finding: Finding, resume_step: int | None, *, at: datetime, policy: Policy
) -> CostEstimate | None:
    """Waiting: the steps until the patience is at an end, lost if it never mends. Acting: a start-up, and the steps
    since the checkpoint once more. None where the pace of the run is not known."""
    step_s = step_seconds(run, finding, at)
    rows = count_lasting_rows(finding)
    if step_s is None or rows is None or finding.step is None:
        return None
    detection = policy.detection
    ahead = max(0, max(detection.patience_rows, detection.patience_steps) - rows)
    waiting = timedelta(seconds=ahead * step_s * chance_of_no_recovery(rows))
    replayed = max(0, finding.step - (resume_step or 0))
    acting = estimate_start_up(run) + timedelta(seconds=replayed * step_s)
    return CostEstimate(waiting, acting, dollars_per_hour(run, policy.prices))


def chance_of_no_recovery(rows: int) -> float:
    """The chance, after it has lasted for so many rows."""
    return [chance for lasted, chance in NEVER_MENDS if lasted <= rows][-1]


def count_lasting_rows(finding: Finding) -> int | None:
    """For how many steps the trouble has lasted; None where its onset is not known."""
    if finding.step is None or finding.onset_step is None:
        return None
    return max(0, finding.step - finding.onset_step + 1)


def step_seconds(run: Run, finding: Finding, at: datetime) -> float | None:
    """The pace of the current attempt, over all it has trained; None where that cannot be told."""
    attempt = run.current
    if attempt.training_started_at is None or finding.step is None:
        return None
    steps = finding.step - (attempt.resumed_from_step or 0)
    return (at - attempt.training_started_at).total_seconds() / steps if steps > 0 else None


def estimate_start_up(run: Run) -> timedelta:
    """How long this run's jobs take from creation to training: the median of its own, else an assumption."""
    measured = [each for attempt in run.attempts if (each := _start_up(attempt)) is not None]
    return timedelta(seconds=median(each.total_seconds() for each in measured)) if measured else ASSUMED_START


def relaunch_dollars(run: Run, prices: Mapping[str, float]) -> float | None:
    """What a start-up costs on all machines; None where no price is known."""
    rate = dollars_per_hour(run, prices)
    return None if rate is None else rate * _hours(estimate_start_up(run))


def _has_lasted(finding: Finding, at: datetime, policy: Policy) -> bool:
    since = finding.onset_at or finding.at
    rows = count_lasting_rows(finding) or 0
    return since is not None and at - since >= policy.weighing.least and rows >= policy.weighing.least_rows


def _start_up(attempt: Attempt) -> timedelta | None:
    if attempt.created_at is None or attempt.training_started_at is None:
        return None
    return max(timedelta(0), attempt.training_started_at - attempt.created_at)


def _hours(time: timedelta) -> float:
    return time.total_seconds() / HOUR_S
