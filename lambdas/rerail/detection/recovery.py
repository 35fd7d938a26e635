"""Detect the end of a problem with the loss or the step time: it recovered, or its new level is the normal one now."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from rerail.detection.detectors import Detectors
from rerail.detection.onsets import OF_THE_LOSS
from rerail.model.finding import Finding, Kind, Level
from rerail.model.sample import Sample

FOLLOWED = OF_THE_LOSS | {Kind.THROUGHPUT_DROP}


@dataclass(frozen=True, slots=True)
class OpenFinding:
    """A problem with the loss or the step time that was reported and is not over."""

    kind: Kind
    # The step at which it began; None: unknown.
    onset: int | None = None
    # Its own detector no longer follows it: it ends with the divergence that it has become.
    given_up: bool = False


def follow_findings(
    troubles: Sequence[OpenFinding], findings: Sequence[Finding], detectors: Detectors, sample: Sample
) -> tuple[tuple[OpenFinding, ...], tuple[Finding, ...]]:
    """Return the problems still open after one more row with these findings, and a finding for each that ended."""
    open_ = {trouble.kind: trouble for trouble in troubles}
    for finding in findings:
        if finding.kind in FOLLOWED:
            known = open_.get(finding.kind, OpenFinding(finding.kind, finding.onset_step))
            onset = min((step for step in (known.onset, finding.onset_step) if step is not None), default=None)
            open_[finding.kind] = OpenFinding(finding.kind, onset)
    ends = {
        kind: end for kind, trouble in open_.items() if not trouble.given_up and (end := find_ending(detectors, kind))
    }
    if Kind.DIVERGENCE in open_ and Kind.DIVERGENCE not in ends and ends.get(Kind.LOSS_SPIKE) is Level.ACCEPTED:
        del ends[Kind.LOSS_SPIKE]  # not final: the divergence detector is still checking whether it lasts
        open_[Kind.LOSS_SPIKE] = replace(open_[Kind.LOSS_SPIKE], given_up=True)
    if Kind.DIVERGENCE in ends or Kind.DIVERGENCE not in open_:
        last = ends.get(Kind.DIVERGENCE, Level.ACCEPTED)
        ends |= {kind: last for kind, trouble in open_.items() if trouble.given_up}
    over = tuple(_finding(kind, end, open_[kind].onset, sample) for kind, end in ends.items())
    return tuple(trouble for kind, trouble in open_.items() if kind not in ends), over


def find_ending(detectors: Detectors, kind: Kind) -> Level | None:
    """Return how a problem ended, by its detector's state after the newest row; None while it continues."""
    match kind:
        case Kind.NON_FINITE:
            return None if detectors.non_finite.recent else Level.RECOVERED
        case Kind.FROZEN_LOSS:
            return None if detectors.frozen_loss.repeats > 1 else Level.RECOVERED
        case Kind.LOSS_SPIKE:
            spike = detectors.loss_spike
            # A detector that accepts a new level clears its baseline; after a recovery the earlier rows remain.
            return None if spike.up else Level.RECOVERED if len(spike.baseline.level) > 1 else Level.ACCEPTED
        case Kind.DIVERGENCE:
            rising = detectors.divergence
            return None if rising.rise else Level.RECOVERED if rising.recovered_row == rising.rows else Level.ACCEPTED
        case Kind.THROUGHPUT_DROP:
            # As above: a level that is accepted, or another launch, clears the earlier step times.
            drop = detectors.throughput_drop
            return None if drop.slow else Level.RECOVERED if len(drop.before) > 1 else Level.ACCEPTED
        case _:
            raise AssertionError(f"the end of {kind} is not followed")


def _finding(kind: Kind, level: Level, onset: int | None, sample: Sample) -> Finding:
    since = "" if onset is None else f" that began at step {onset}"
    match level:
        case Level.RECOVERED:
            text = f"the problem{since} is resolved"
        case Level.ACCEPTED if kind is Kind.THROUGHPUT_DROP:
            text = f"the slow steps{since} are no longer compared with the faster ones before"
        case Level.ACCEPTED:
            text = f"the loss has not recovered from the problem{since}: this counts as its normal level now"
        case Level.WARN | Level.INTERVENE:
            raise AssertionError("a problem does not end with a warning")
        case _ as unreachable:
            assert_never(unreachable)
    return Finding(kind, level, sample.step, onset, text, sample.at)
