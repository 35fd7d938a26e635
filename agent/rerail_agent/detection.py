"""Run the detectors on each step: report each finding once, and say whether a checkpoint of now can be trusted."""

import json
import math
from typing import Any

from rerail.detection.detectors import Detectors, DetectorState, evaluate_sample
from rerail.detection.onsets import OF_THE_LOSS, Onsets, with_onsets
from rerail.detection.recovery import OpenFinding, follow_findings
from rerail.model import codec
from rerail.model.finding import Finding, Kind, Level
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds
from rerail_agent.learning_rate import RateMemory

CLEAN, SUSPECT = "clean", "suspect"
TRIAL = Sample(step=1, loss=1.0, grad_norm=1.0, step_time_s=1.0)


class StepDetection:
    """The detectors of one run, evaluated in each step, and their findings that are still open.

    A finding closes when its detector says so: the loss has recovered, or has stayed at its level so long that this is
    the normal level now. Where the supervisor acts, it has acted long before that.
    """

    def __init__(self, thresholds: Thresholds, *, rate_scale: float = 1.0) -> None:
        # May be replaced between two steps: the detectors keep what they have learned.
        self.thresholds = thresholds
        self._detectors = Detectors()
        self._open_findings: tuple[OpenFinding, ...] = ()
        self._reported: set[tuple[Kind, Level, int | None]] = set()
        self._finite = True
        self._rows = 0
        self._onsets: Onsets = ()
        self._rates = RateMemory(rate_scale)

    @property
    def health(self) -> str:
        return SUSPECT if self._loss_findings or not self._finite else CLEAN

    @property
    def onset(self) -> int | None:
        """Return the first step of the problems with the loss that are open; None if none has a known one."""
        return min((trouble.onset for trouble in self._loss_findings if trouble.onset is not None), default=None)

    @property
    def _loss_findings(self) -> list[OpenFinding]:
        return [finding for finding in self._open_findings if finding.kind in OF_THE_LOSS]

    def evaluate(self, sample: Sample) -> list[Finding]:
        """Return the new findings of one step.

        The detectors learn in place. evaluate_sample keeps the old state, takes three times as long, and is not needed
        here.
        """
        self._finite = sample.loss is None or math.isfinite(sample.loss)
        self._rows += 1
        found, restarted = self._detectors.run(sample, self.thresholds), self._rates.add_row(sample)
        if not found and not self._open_findings:
            return [restarted] if restarted else []
        self._onsets, dated = with_onsets(self._onsets, found, row=self._rows, detection=self.thresholds)
        self._open_findings, recovered = follow_findings(self._open_findings, dated, self._detectors, sample)
        news = [finding for finding in (*dated, *recovered) if self.is_new(finding)]
        return [*news, restarted] if restarted else news

    def is_new(self, finding: Finding) -> bool:
        """Return whether this is the first finding of its kind, level and onset."""
        name = finding.kind, finding.level, finding.onset_step
        new = name not in self._reported
        self._reported.add(name)
        return new

    def dump_state(self) -> str:
        """Return everything that was learned, as JSON text."""
        table = {
            "watch": json.loads(codec.dumps(DetectorState(self._detectors))),
            "open": sorted(finding.kind for finding in self._open_findings),
            "onsets": {finding.kind: finding.onset for finding in self._open_findings if finding.onset is not None},
            "given_up": sorted(finding.kind for finding in self._open_findings if finding.given_up),
            "rates": self._rates.dump_state(),
        }
        return json.dumps(table, separators=(",", ":"))

    def restore(self, text: str) -> None:
        """Continue with what an earlier process has learned; raise, and change nothing, if it is not valid."""
        table: Any = json.loads(text)
        if not isinstance(table, dict):
            raise ValueError("must be a JSON object")
        watch = codec.loads(DetectorState, json.dumps(table.get("watch")))
        evaluate_sample(watch, TRIAL, self.thresholds)  # on a copy: the codec does not look at what is in the windows
        onsets, given_up = table.get("onsets", {}), table.get("given_up", ())
        open_findings = tuple(
            OpenFinding(Kind(kind), _step(onsets.get(kind)), kind in given_up) for kind in table.get("open", ())
        )
        self._rates.restore(table.get("rates", [0, 0, False, 1]))
        self._detectors, self._open_findings = watch.detectors, open_findings


def _step(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
