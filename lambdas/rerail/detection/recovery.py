"""Is a trouble with the loss over, and how: did the loss come back, or is where it has stayed its level now?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from rerail.detection.detectors import Detectors
from rerail.detection.onsets import OF_THE_LOSS
from rerail.model.finding import Finding, Kind, Level
from rerail.model.sample import Sample


@dataclass(frozen=True, slots=True)
class OpenFinding:
    """A trouble with the loss that was told and is not over; `onset` is the step at which it began, if that is known.

    `given_up`: its own detector looks no more, and it ends with the divergence that it has become.
    """

    kind: Kind
    onset: int | None = None
    given_up: bool = False


def follow_findings(
    troubles: Sequence[OpenFinding], told: Sequence[Finding], judges: Detectors, sample: Sample
) -> tuple[tuple[OpenFinding, ...], tuple[Finding, ...]]:
    """The troubles that go on after one more row of which this was told, and a finding for each that is over."""
    open_ = {trouble.kind: trouble for trouble in troubles}
    for finding in told:
        if finding.kind in OF_THE_LOSS:
            known = open_.get(finding.kind, OpenFinding(finding.kind, finding.onset_step))
            onset = min((step for step in (known.onset, finding.onset_step) if step is not None), default=None)
            open_[finding.kind] = OpenFinding(finding.kind, onset)
    ends = {kind: end for kind, each in open_.items() if not each.given_up and (end := find_ending(judges, kind))}
    if Kind.DIVERGENCE in open_ and Kind.DIVERGENCE not in ends and ends.get(Kind.LOSS_SPIKE) is Level.ACCEPTED:
        del ends[Kind.LOSS_SPIKE]  # nobody has accepted it: whether it lasts is being judged
        open_[Kind.LOSS_SPIKE] = replace(open_[Kind.LOSS_SPIKE], given_up=True)
    if Kind.DIVERGENCE in ends or Kind.DIVERGENCE not in open_:
        last = ends.get(Kind.DIVERGENCE, Level.ACCEPTED)
        ends |= {kind: last for kind, each in open_.items() if each.given_up}
    over = tuple(_finding(kind, end, open_[kind].onset, sample) for kind, end in ends.items())
    return tuple(each for kind, each in open_.items() if kind not in ends), over


def find_ending(judges: Detectors, kind: Kind) -> Level | None:
    """How a trouble has ended by its detector's state after the newest row; None while it goes on."""
    match kind:
        case Kind.NON_FINITE:
            return None if judges.non_finite.recent else Level.MENDED
        case Kind.FROZEN_LOSS:
            return None if judges.frozen_loss.repeats > 1 else Level.MENDED
        case Kind.LOSS_SPIKE:
            spike = judges.loss_spike
            # A level that was given up is forgotten whole; a spike that mended leaves the rows before it.
            return None if spike.up else Level.MENDED if len(spike.baseline.level) > 1 else Level.ACCEPTED
        case Kind.DIVERGENCE:
            rising = judges.divergence
            return None if rising.rise else Level.MENDED if rising.mended_row == rising.rows else Level.ACCEPTED
        case _:
            raise AssertionError(f"{kind} is no trouble with the loss")


def _finding(kind: Kind, level: Level, onset: int | None, sample: Sample) -> Finding:
    since = "" if onset is None else f" that began at step {onset}"
    match level:
        case Level.MENDED:
            text = f"the trouble{since} has mended"
        case Level.ACCEPTED:
            text = f"the loss has not come back from the trouble{since}: this is its level now"
        case Level.WARN | Level.INTERVENE:
            raise AssertionError("a trouble does not end with a warning")
        case _ as unreachable:
            assert_never(unreachable)
    return Finding(kind, level, sample.step, onset, text, sample.at)
