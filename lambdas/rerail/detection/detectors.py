"""All detectors over one run's samples, in one order, with the state that outlives a relaunch."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from rerail.detection import blind, capacity_wait, checkpoint_stall, stall, startup_stall
from rerail.detection.divergence import Divergence
from rerail.detection.frozen_loss import FrozenLoss
from rerail.detection.grad_norm import GradNorm
from rerail.detection.loss_spike import LossSpike
from rerail.detection.non_finite import NonFinite
from rerail.detection.plateau import Plateau
from rerail.detection.stall import Stall
from rerail.detection.throughput_drop import ThroughputDrop
from rerail.model import liveness as pulse
from rerail.model.finding import Finding
from rerail.model.liveness import Liveness
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds


@dataclass(slots=True)
class Detectors:
    """What each detector of a series remembers; the order of the fields is the order in which they are asked."""

    non_finite: NonFinite = field(default_factory=NonFinite)
    frozen_loss: FrozenLoss = field(default_factory=FrozenLoss)
    loss_spike: LossSpike = field(default_factory=LossSpike)
    divergence: Divergence = field(default_factory=Divergence)
    plateau: Plateau = field(default_factory=Plateau)
    grad_norm: GradNorm = field(default_factory=GradNorm)
    stall: Stall = field(default_factory=Stall)
    throughput_drop: ThroughputDrop = field(default_factory=ThroughputDrop)


# The questions that silence answers, and no sample: asked at a time, of the pulse.
QUESTIONS = (
    stall.find_overdue,
    startup_stall.find_overdue,
    checkpoint_stall.find_overdue,
    blind.find_overdue,
    capacity_wait.find_overdue,
)


@dataclass(frozen=True, slots=True)
class DetectorState:
    """All that is remembered of one run's metrics, from attempt to attempt."""

    judges: Detectors = field(default_factory=Detectors)
    pulse: Liveness = field(default_factory=Liveness)


def evaluate_sample(
    watch: DetectorState, sample: Sample, detection: Thresholds
) -> tuple[DetectorState, tuple[Finding, ...]]:
    """The watch after one more sample, and what it makes the detectors say; the old watch stays as it was."""
    judges = Detectors(*(_twin(getattr(watch.judges, name)) for name in _ORDER))
    beat = pulse.with_row(watch.pulse, sample.at, step=sample.step) if sample.at else watch.pulse
    return DetectorState(judges, beat), tuple(_judged(judges, sample, detection))


def _twin(judge: Any) -> Any:
    """Another judge that remembers the same; `dataclasses.replace` does no more, and takes twice as long."""
    twin = object.__new__(type(judge))
    for name in judge.__slots__:
        setattr(twin, name, getattr(judge, name))
    if hasattr(twin, "__post_init__"):
        twin.__post_init__()
    return twin


def find_overdue(watch: DetectorState, now: datetime, detection: Thresholds) -> tuple[Finding, ...]:
    """What is overdue at this moment: the findings that silence makes."""
    answers = (question(watch.pulse, now, detection) for question in QUESTIONS)
    return tuple(answer for answer in answers if answer is not None)


def evaluate_series(samples: Iterable[Sample], detection: Thresholds) -> Iterator[tuple[int, Finding]]:
    """Every finding of a whole series with the 0-based row at which it was spoken."""
    judges = Detectors()
    for row, sample in enumerate(samples):
        for finding in _judged(judges, sample, detection):
            yield row, finding


def _judged(judges: Detectors, sample: Sample, detection: Thresholds) -> Iterator[Finding]:
    for name in _ORDER:
        finding: Finding | None = getattr(judges, name).see(sample, detection)
        if finding is not None:
            yield finding


_ORDER = tuple(f.name for f in fields(Detectors))
