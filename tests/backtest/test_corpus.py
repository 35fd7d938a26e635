"""Corpora: the one in this folder is whole, and a broken one is refused with one clear sentence."""

import gzip
from pathlib import Path

import pytest

from cli.backtest import tables
from cli.backtest.corpus import BadCorpus, read_corpus, read_log
from tests.house.sources import ROOT

CORPUS = ROOT / "bench" / "corpus"
INDEX = "id,n_points,group\na,2,g\n"
LABELS = "run_id,kind,onset_row,end_row,score,recovered\na,loss_spike,1.0,1,count,yes\n"
ROWS = "step,loss,step_time_s,grad_norm,lr\n1,2.5,,0.5,\n,nan,0.1,,3e-4\n"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    (tmp_path / "index.csv").write_text(INDEX)
    (tmp_path / "labels.csv").write_text(LABELS)
    (tmp_path / "runs" / "a.csv.gz").write_bytes(gzip.compress(ROWS.encode()))
    return tmp_path


def test_the_corpus_is_whole():
    """Every run of the index is there, named with its source, and every label lies in its run."""
    corpus = read_corpus(CORPUS)
    assert len(corpus.runs) == 182
    assert sum(run.rows for run in corpus.runs) == 494_166
    assert all(corpus.file(run).exists() for run in corpus.runs)
    assert all(0 <= label.onset <= label.end < run.rows for run in corpus.runs for label in run.labels)
    assert len(read_log(corpus.file(corpus.runs[0]))) == corpus.runs[0].rows


def test_a_row_becomes_a_sample(corpus):
    """Empty is not logged; nan is what the log printed."""
    found = read_corpus(corpus)
    first, second = read_log(found.file(found.runs[0]))
    assert (first.step, first.loss, first.step_time_s, first.grad_norm, first.lr) == (1, 2.5, None, 0.5, None)
    assert (second.step, second.loss != second.loss, second.lr) == (None, True, 3e-4)
    assert found.runs[0].labels[0].onset == 1


def test_a_table_with_semicolons_may_have_commas_in_its_numbers(tmp_path):
    """As spreadsheets of many countries write it."""
    file = tmp_path / "log.csv"
    file.write_text("Schritt;Verlust, Mittel;Rate\n1;2,5;0,1\n2;2;0,1\n")
    assert [sample.loss for sample in tables.read(file, loss="Verlust, Mittel").samples] == [2.5, 2.0]


def test_labels_are_not_needed(corpus):
    """One's own logs have none."""
    (corpus / "labels.csv").unlink()
    assert not read_corpus(corpus).labelled
    assert read_corpus(corpus).runs[0].labels == ()


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("index.csv", None, "index.csv"),
        ("index.csv", "id,group\na,g\n", "no column n_points"),
        ("index.csv", "id,n_points\n", "names no run"),
        ("index.csv", "id,n_points\na,many\n", "n_points is 'many'"),
        ("labels.csv", LABELS.replace("loss_spike", "hiccup"), "no kind 'hiccup'"),
        ("labels.csv", "run_id,kind\n", "no column onset_row"),
    ],
)
def test_a_broken_corpus_names_what_is_wrong(corpus, file, content, problem):
    """File, field and remedy, in one line."""
    (corpus / file).unlink() if content is None else (corpus / file).write_text(content)
    with pytest.raises(BadCorpus, match=problem) as refused:
        read_corpus(corpus)
    assert file in str(refused.value) and ";" in str(refused.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "is missing"),
        (b"no gzip", "cannot be read"),
        (gzip.compress(b"step,loss\n1,2\n"), "no column step_time_s"),
        (gzip.compress(ROWS.encode() + b"3,many,,,\n"), "cannot be read"),
        (gzip.compress(ROWS.encode())[:-9], "cannot be read"),
    ],
    ids=["missing", "not packed", "a column missing", "a word for a number", "cut off"],  # a pack holds its hour
)
def test_a_broken_log_names_what_is_wrong(tmp_path, content, problem):
    """The same of the logs themselves."""
    file = tmp_path / "a.csv.gz"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BadCorpus, match=problem):
        read_log(file)
