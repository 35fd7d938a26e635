"""`rerail backtest`: what it prints, what it writes, and how it refuses."""

import gzip
import json
import os
import shutil
from pathlib import Path

import pytest

from cli import text_files
from cli.backtest.scoring import FAMILIES
from tests.backtest.command import DATA, refused, run
from tests.house.sources import ROOT

CSV, STATE = DATA / "metrics.csv", DATA / "trainer_state.json"
CORPUS = ROOT / "bench" / "corpus"
RUNS = ("algoperf-079", "derinhelm-001", "reddyn12-001")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs of the corpus, with their labels."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "runs").mkdir()
    header, *lines = (CORPUS / "index.csv").read_text().splitlines()
    kept = [line for line in lines if line.partition(",")[0] in RUNS]
    (folder / "index.csv").write_text("\n".join([header, *kept]) + "\n")
    shutil.copy(CORPUS / "labels.csv", folder)
    for name in RUNS:
        shutil.copy(CORPUS / "runs" / f"{name}.csv.gz", folder / "runs")
    return folder


def test_a_trainer_state_with_nan_gradients_is_found_out():
    """The loss looks good; the command says at which step it is not, and what each level means."""
    result = run(STATE)
    assert result.exit_code == 0
    assert "non_finite" in result.stdout
    assert "intervene: stop the job" in result.stdout


def test_a_quiet_log_is_left_alone(tmp_path: Path):
    """Nothing to report is said in so many words."""
    head = CSV.read_text().splitlines()[:120]
    (tmp_path / "calm.csv").write_text("\n".join(head) + "\n")
    result = run(tmp_path / "calm.csv")
    assert result.exit_code == 0
    assert "no findings" in result.stdout


@pytest.mark.slow
def test_a_corpus_is_scored_against_its_labels(corpus: Path):
    """A row a log with findings, and how right they were."""
    result = run(corpus)
    assert result.exit_code == 0
    assert "3 logs, 22,142 rows" in result.stdout
    assert "derinhelm-001" in result.stdout
    assert "false alarms" in result.stdout


@pytest.mark.slow
def test_findings_are_written_as_scorers_read_them(corpus: Path, tmp_path: Path):
    """run_id, row, kind and level on each line, only in kinds that labels have."""
    assert run(corpus, "--findings", tmp_path / "out.jsonl").exit_code == 0
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert {"run_id", "row", "kind", "level"} <= set(lines[0])
    assert {line["run_id"] for line in lines} <= set(RUNS)
    assert {line["kind"] for line in lines} <= set(FAMILIES)
    assert {line["level"] for line in lines} <= {"warn", "intervene"}


@pytest.mark.slow
def test_json_is_all_there_is_on_stdout(corpus: Path):
    """For programs: counts, every finding by log with its evidence, and the score."""
    report = json.loads(run(corpus, "--json").stdout)
    assert (report["logs"], report["rows"], report["policy"]) == (3, 22142, "default")
    by_log = {entry["log"]: entry["findings"] for entry in report["by_log"]}
    assert all(finding["evidence"] for findings in by_log.values() for finding in findings)
    assert report["score"]["families"]["non_finite"]["recall_macro"] == 1.0


def test_a_log_without_labels_has_no_score():
    """Nobody said what is right."""
    assert json.loads(run(STATE, "--json").stdout)["score"] is None


def test_the_policy_decides(tmp_path: Path):
    """A name in policies/ or a file of one's own."""
    policy = tmp_path / "mine.toml"
    policy.write_text((ROOT / "policies" / "default.toml").read_text())
    assert run(CSV, "--policy", "observe").exit_code == 0
    assert run(CSV, "--policy", policy).exit_code == 0


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("no.csv", None, "there is no"),
        ("log.parquet", b"x", "has a loss with its name"),
        ("empty.csv", b"", "is empty"),
        ("header.csv", b"step,loss\n", "no row with a number in loss"),
        ("columns.csv", b"step,accuracy\n1,2\n", "no column loss (it has step, accuracy)"),
        ("words.csv", b"step,loss\n1,2.5\n2,high\n", "line 3: column loss says 'high'"),
        ("binary.csv", b"step,loss\n\xff\xfe,1\n", "column step says"),
        ("plain.csv.gz", b"step,loss\n", "cannot be read"),
        ("cut.csv.gz", gzip.compress(b"step,loss\n1,2\n", mtime=0)[:-9], "its compressed content is damaged"),
        ("broken.json", b"{", "is no log in JSON"),
        ("other.json", b"[]", "is no log in JSON"),
        ("young.json", b'{"log_history": []}', "has a loss"),
        ("words.json", b'{"log_history": [{"loss": "high"}]}', "log_history[0].loss is 'high'"),
    ],
)
def test_an_unusable_file_is_refused_in_one_line(tmp_path: Path, name, content, problem):
    """Status 2, the file and the place in it, and what to give instead."""
    if content is not None:
        (tmp_path / name).write_bytes(content)
    line = refused(tmp_path / name)
    assert problem in line and name in line


@pytest.mark.parametrize("name", ["train.log", "a.csv", "a.csv.gz", "a.json", "trainer_state.json", "index.csv"])
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path, name):
    """Nobody may ever write to it."""
    os.mkfifo(tmp_path / name)
    assert "it is not a regular file" in refused(tmp_path / name)
    if name in ("trainer_state.json", "index.csv"):
        assert "it is not a regular file" in refused(tmp_path)


@pytest.mark.parametrize("name", ["train.log", "a.csv", "a.csv.gz", "a.json"])
def test_more_than_memory_holds_is_not_read(tmp_path: Path, monkeypatch, name):
    """A gzipped file may have a thousand times its size, and a sparse one any."""
    monkeypatch.setattr(text_files, "MOST_BYTES", 1 << 20)
    text = b"step,loss\n1,2.5\n" + b"2,2.5\n" * (1 << 18)
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    assert "more than 1 MiB of text: give a part of it" in refused(tmp_path / name)


def test_names_and_cells_that_others_chose_are_refused_in_one_line(tmp_path: Path):
    """A superscript is no number of a checkpoint; a cell may have more than the reader takes."""
    (tmp_path / "checkpoint-\u00b2").mkdir()
    (tmp_path / "checkpoint-\u00b2" / "trainer_state.json").write_text("{}")
    assert "holds no log" in refused(tmp_path)
    (tmp_path / "index.csv").write_text(f"id,n_points\n{'x' * 200_000},1\n")
    assert "index.csv cannot be read: field larger than" in refused(tmp_path)


@pytest.mark.slow
def test_an_unusable_folder_is_refused_in_one_line(tmp_path: Path, corpus: Path):
    """Nothing in it; a corpus with a run missing, found in a worker process."""
    assert "holds no log" in refused(tmp_path)
    shutil.copytree(corpus, tmp_path / "corpus")
    (tmp_path / "corpus" / "runs" / f"{RUNS[0]}.csv.gz").unlink()
    assert f"{RUNS[0]}.csv.gz is missing" in refused(tmp_path / "corpus")
    (tmp_path / "corpus" / "runs" / f"{RUNS[0]}.csv.gz").write_bytes(gzip.compress(b"step\n"))
    assert "no column loss" in refused(tmp_path / "corpus")


def test_an_unusable_option_is_refused_in_one_line(tmp_path: Path):
    """The policy, and the places to write to."""
    assert "no policy 'mine'" in refused(CSV, "--policy", "mine")
    (tmp_path / "bad.toml").write_text("moode = 1")
    assert "moode" in refused(CSV, "--policy", tmp_path / "bad.toml")
    assert "cannot write" in refused(CSV, "--findings", tmp_path / "no" / "out.jsonl")
    assert "names no job" in refused("job:")
