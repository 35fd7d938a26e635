"""The benchmark as a whole, on two small logs."""

import gzip
import json
import math
from pathlib import Path

import pytest

from bench import detection
from bench.judging import CONTENDERS, PER_MINUTE, PER_STEP

pytestmark = pytest.mark.slow


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A log whose loss becomes NaN for good, and a quiet one."""
    calm = [2.0 + 0.02 * math.sin(2.3 * i) for i in range(300)]
    (tmp_path / "runs").mkdir()
    for name, losses in {"broken": [*calm[:200], *[math.nan] * 100], "calm": calm}.items():
        rows = "".join(f"{step},{loss},1.0,,\n" for step, loss in enumerate(losses))
        text = f"step,loss,step_time_s,grad_norm,lr\n{rows}"
        (tmp_path / "runs" / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "index.csv").write_text("id,n_points,group\nbroken,300,a\ncalm,300,b\n")
    header = "run_id,kind,onset_row,end_row,score,recovered\n"
    (tmp_path / "labels.csv").write_text(f"{header}broken,nan,200,299,count,no\n")
    return tmp_path


def test_ours_and_theirs_are_scored_side_by_side(corpus, capsys):
    """A row each in the table, every number in the file, delays in rows and seconds for both inputs."""
    assert detection.main(["--corpus", str(corpus), "--json", str(corpus / "out.json")]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in CONTENDERS)
    report = json.loads((corpus / "out.json").read_text())
    assert report["Composer"]["families"]["non_finite"]["recall_macro"] == 1.0
    assert report[PER_STEP]["families"]["non_finite"]["recall_macro"] == 1.0
    assert report[PER_STEP]["delays"]["non_finite"] == {
        "rows": {"median": 0, "p90": 0},
        "seconds": {"median": 0, "p90": 0},
    }
    assert 0 < report[PER_MINUTE]["delays"]["non_finite"]["seconds"]["median"] <= 60
    assert report[PER_STEP]["samples_per_cpu_second"] > 0


def test_being_worse_than_the_floor_is_exit_status_1(corpus, capsys):
    """And the sentence says what is worse."""
    floor = corpus / "floor.json"
    assert detection.main(["--corpus", str(corpus), "--write-floor", str(floor)]) == 0
    assert detection.main(["--corpus", str(corpus), "--floor", str(floor)]) == 0
    floor.write_text(json.dumps({PER_STEP: {"loss recall, macro": 0.5}}))
    assert detection.main(["--corpus", str(corpus), "--floor", str(floor)]) == 1
    assert "loss recall, macro is 0.000" in capsys.readouterr().out


def test_an_unusable_corpus_is_exit_status_2(tmp_path, capsys):
    """One line, no traceback."""
    assert detection.main(["--corpus", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
