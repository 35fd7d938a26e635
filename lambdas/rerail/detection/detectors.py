"""Run all detectors over a run's samples, with state that is kept across relaunches."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Protocol

from rerail.detection import blind, capacity_wait, checkpoint_stall, stall, startup_stall
from rerail.detection.copying import copy_state
from rerail.detection.divergence import Divergence
from rerail.detection.frozen_loss import FrozenLoss
from rerail.detection.grad_norm import GradNorm
from rerail.detection.loss_drop import LossDrop
from rerail.detection.loss_spike import LossSpike
from rerail.detection.non_finite import NonFinite
from rerail.detection.plateau import Plateau
from rerail.detection.row import Row, RowReader
from rerail.detection.stall import Stall
from rerail.detection.throughput_drop import ThroughputDrop
from rerail.detection.throughput_rise import ThroughputRise
from rerail.model.finding import Finding, Kind
from rerail.model.liveness import Liveness, with_row
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds


class Detector(Protocol):
    """A detector that runs on each row, with small state of its own."""

    def see(self, row: Row, detection: Thresholds) -> Finding | None:
        """Update the state with one more row, and return what was found."""


@dataclass(slots=True)
class Detectors:
    """The reader of the rows, then the state of each detector in the order in which they run."""

    rows: RowReader = field(default_factory=RowReader)
    non_finite: NonFinite = field(default_factory=NonFinite)
    frozen_loss: FrozenLoss = field(default_factory=FrozenLoss)
    loss_spike: LossSpike = field(default_factory=LossSpike)
    highest_spike: LossSpike = field(default_factory=partial(LossSpike, of_highest=True))
    divergence: Divergence = field(default_factory=Divergence)
    loss_drop: LossDrop = field(default_factory=LossDrop)
    plateau: Plateau = field(default_factory=Plateau)
    grad_norm: GradNorm = field(default_factory=GradNorm)
    stall: Stall = field(default_factory=Stall)
    throughput_drop: ThroughputDrop = field(default_factory=ThroughputDrop)
    throughput_rise: ThroughputRise = field(default_factory=ThroughputRise)

    def run(self, sample: Sample, detection: Thresholds) -> list[Finding]:
        """Update the state with one more sample, and return the findings, one of each kind."""
        row = self.rows.read(sample, detection.planned)
        detectors: tuple[Detector, ...] = _list_detectors(self)
        findings: dict[Kind, Finding] = {}
        for detector in detectors:
            if finding := detector.see(row, detection):
                findings.setdefault(finding.kind, finding)  # a spike may show in the mean and in the maximum
        return list(findings.values())


# The detectors that run on the liveness at a point in time, because they detect missing samples.
OVERDUE_DETECTORS = (
    stall.find_overdue,
    startup_stall.find_overdue,
    checkpoint_stall.find_overdue,
    blind.find_overdue,
    capacity_wait.find_overdue,
)


@dataclass(frozen=True, slots=True)
class DetectorState:
    """The detector state of one run, kept across attempts."""

    detectors: Detectors = field(default_factory=Detectors)
    liveness: Liveness = field(default_factory=Liveness)


def evaluate_sample(
    state: DetectorState, sample: Sample, detection: Thresholds
) -> tuple[DetectorState, tuple[Finding, ...]]:
    """Return the state after one more sample, and the findings; the given state is not changed."""
    detectors = Detectors(*(copy_state(getattr(state.detectors, name)) for name in ("rows", *_DETECTOR_NAMES)))
    moved = sample.step_time_s is not None
    liveness = with_row(state.liveness, sample.at, step=sample.step, moved=moved) if sample.at else state.liveness
    return DetectorState(detectors, liveness), tuple(detectors.run(sample, detection))


def find_overdue(state: DetectorState, now: datetime, detection: Thresholds) -> tuple[Finding, ...]:
    """Return the findings about steps, checkpoints, metrics or machines that are overdue now."""
    findings = (find(state.liveness, now, detection) for find in OVERDUE_DETECTORS)
    return tuple(finding for finding in findings if finding is not None)


def evaluate_series(samples: Iterable[Sample], detection: Thresholds) -> Iterator[tuple[int, Finding]]:
    """Yield every finding of a whole series with the 0-based row at which it was made."""
    detectors = Detectors()
    for row, sample in enumerate(samples):
        for finding in detectors.run(sample, detection):
            yield row, finding


_DETECTOR_NAMES = tuple(f.name for f in fields(Detectors) if f.name != "rows")
_list_detectors = attrgetter(*_DETECTOR_NAMES)
