"""Compare the findings on real logs with recorded ones, so that a change of any rule shows up as a changed line.

`make bench` scores findings against labels; this test does not. After an intended change, rewrite the file with
RERAIL_SNAPSHOT=write and review the difference.
"""

import json
import os
from pathlib import Path

from cli.backtest.corpus import read_corpus, read_log
from cli.backtest.minutes import minutes
from rerail.detection.detectors import evaluate_series
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds

RECORDED = Path(__file__).with_name("recorded_findings.json")
CORPUS = Path(__file__).resolve().parents[2] / "bench" / "corpus"


def list_findings(samples: list[Sample]) -> list[str]:
    found = evaluate_series(samples, Thresholds())
    return [f"{row} {finding.kind} {finding.level} {finding.onset_step} {finding.evidence}" for row, finding in found]


def test_the_findings_on_real_logs_are_the_recorded_ones():
    corpus = read_corpus(CORPUS)
    recorded = json.loads(RECORDED.read_text())
    found = {}
    for run in corpus.runs:
        if run.id in recorded:
            samples = read_log(corpus.file(run))
            found[run.id] = {"rows": list_findings(samples), "minutes": list_findings(minutes(samples).samples)}
    if os.environ.get("RERAIL_SNAPSHOT") == "write":
        RECORDED.write_text(json.dumps(found, indent=1) + "\n")
    assert found == json.loads(RECORDED.read_text())
