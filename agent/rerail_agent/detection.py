"""What the detectors make of each step: findings, told once, and whether a checkpoint saved now can be trusted."""

import json
import math
from typing import Any

from rerail.detection.detectors import Detectors, DetectorState, evaluate_sample
from rerail.detection.onsets import Onsets, with_onsets
from rerail.detection.recovery import OpenFinding, follow_findings
from rerail.model import codec
from rerail.model.finding import Finding, Kind, Level
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds

CLEAN, SUSPECT = "clean", "suspect"
TRIAL = Sample(step=1, loss=1.0, grad_norm=1.0, step_time_s=1.0)


class StepDetection:
    """The detectors of one run, asked in each step, and the troubles with the loss that are still open.

    A trouble is over when its detector says so: the loss has mended, or has stayed where it is for so long that this is
    its level now. Where the supervisor acts, it has acted long before that.
    """

    def __init__(self, detection: Thresholds) -> None:
        self._detection = detection
        self._judges = Detectors()
        self._troubles: tuple[OpenFinding, ...] = ()
        self._told: set[tuple[Kind, Level, int | None]] = set()
        self._finite = True
        self._rows = 0
        self._onsets: Onsets = ()

    @property
    def health(self) -> str:
        return SUSPECT if self._troubles or not self._finite else CLEAN

    def see(self, sample: Sample) -> list[Finding]:
        """The new findings of one step. The detectors learn in place: watch.see keeps the old state, at thrice the
        price, which nobody asks for here."""
        self._finite = sample.loss is None or math.isfinite(sample.loss)
        self._rows += 1
        found = self._judges.run(sample, self._detection)
        if not found and not self._troubles:
            return found
        self._onsets, told = with_onsets(self._onsets, found, row=self._rows, detection=self._detection)
        self._troubles, over = follow_findings(self._troubles, told, self._judges, sample)
        return [finding for finding in (*told, *over) if self.is_new(finding)]

    def is_new(self, finding: Finding) -> bool:
        """True the first time that a trouble of this kind, level and onset is heard of."""
        name = finding.kind, finding.level, finding.onset_step
        new = name not in self._told
        self._told.add(name)
        return new

    def state(self) -> str:
        """All that was learnt, as JSON text."""
        table = {
            "watch": json.loads(codec.dumps(DetectorState(self._judges))),
            "open": sorted(trouble.kind for trouble in self._troubles),
            "onsets": {trouble.kind: trouble.onset for trouble in self._troubles if trouble.onset is not None},
            "given_up": sorted(trouble.kind for trouble in self._troubles if trouble.given_up),
        }
        return json.dumps(table, separators=(",", ":"))

    def restore(self, text: str) -> None:
        """Goes on with what an earlier process has learnt; raises what is wrong with it, and then nothing changed."""
        table: Any = json.loads(text)
        if not isinstance(table, dict):
            raise ValueError("must be a JSON object")
        watch = codec.loads(DetectorState, json.dumps(table.get("watch")))
        evaluate_sample(watch, TRIAL, self._detection)  # on a copy: the codec does not look at what is in the windows
        onsets, given_up = table.get("onsets", {}), table.get("given_up", ())
        troubles = tuple(
            OpenFinding(Kind(kind), _step(onsets.get(kind)), kind in given_up) for kind in table.get("open", ())
        )
        self._judges, self._troubles = watch.detectors, troubles


def _step(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
