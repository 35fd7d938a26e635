"""All detectors over one run's samples, in one order, with the state that outlives a relaunch."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace

from rerail.detectors.detection import Detection
from rerail.detectors.finding import Finding
from rerail.detectors.non_finite import NonFinite
from rerail.detectors.sample import Sample


@dataclass(slots=True)
class Watch:
    """What each detector remembers; the order of the fields is the order in which they are asked."""

    non_finite: NonFinite = field(default_factory=NonFinite)


def see(watch: Watch, sample: Sample, detection: Detection) -> tuple[Watch, tuple[Finding, ...]]:
    """The watch after one more sample, and what it makes the detectors say; the old watch stays as it was."""
    watch = replace(watch, **{f.name: replace(getattr(watch, f.name)) for f in fields(watch)})
    return watch, tuple(_seen(watch, sample, detection))


def series(samples: Iterable[Sample], detection: Detection) -> Iterator[tuple[int, Finding]]:
    """Every finding of a whole series with the 0-based row at which it was spoken."""
    watch = Watch()
    for row, sample in enumerate(samples):
        for finding in _seen(watch, sample, detection):
            yield row, finding


def _seen(watch: Watch, sample: Sample, detection: Detection) -> Iterator[Finding]:
    for f in fields(watch):
        finding = getattr(watch, f.name).see(sample, detection)
        if finding is not None:
            yield finding
