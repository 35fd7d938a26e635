"""The page of proofs says what was found, and nothing else."""

import json
from importlib import import_module
from pathlib import Path

import pytest
from rich.console import Console

from bench import proof
from bench.evidence import Evidence, Failure, Goal, Sheet, finish, read, section
from bench.proof import PAGE, PROOFS, RECORDED, Proof, page, prove, recorded

FOUND = Evidence(
    claim="Nothing is lost.",
    sheets=(Sheet("points", ("way", "tried", "ratio"), (("killed | before", 1200, 1.23456), ("[b]lost[/b]", 3, 4.0))),),
    goals=(Goal("lost", "none", "0", met=True), Goal("minutes", "at most 1", "2", met=False)),
    notes=("*Points* are calls.",),
    failures=(Failure("the 7th point", "the queue was full"), Failure("the 8th point")),
)
MEASURED = {"at": "2026-01-01", "commit": "abcdef1", "machine": "2 cores"}


def test_evidence_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    """With the day, the version and the machine of the measurement beside it."""
    FOUND.write(tmp_path / "deep" / "found.json")
    evidence, measured = read(tmp_path / "deep" / "found.json")
    assert evidence == FOUND
    assert set(measured) == {"at", "commit", "machine"}


def test_a_section_shows_figures_goals_and_each_failure_with_its_cause() -> None:
    """A pipe in a cell does not break the table, markup is shown as it is, and what nobody understood is said so."""
    text = section("Crashes", FOUND, MEASURED, "make proof")
    assert "| killed \\| before | 1,200 | 1.235 |" in text
    assert "| [b]lost[/b] | 3 | 4 |" in text
    assert "| met | lost | none | 0 |" in text
    assert "| missed | minutes | at most 1 | 2 |" in text
    assert "- the 7th point: the queue was full\n- the 8th point: not understood yet" in text
    assert text.endswith("Measured 2026-01-01 at abcdef1 on 2 cores, by `make proof`.")


def test_whoever_runs_a_proof_hears_the_same_and_its_exit_status_tells_whether_it_holds(tmp_path: Path) -> None:
    console = Console(record=True, width=120)
    assert finish(FOUND, None, console) == 1
    said = console.export_text()
    assert "missed: minutes: 2 (asked: at most 1)" in said
    assert "failed: the 8th point: not understood yet" in said
    assert "[b]lost[/b]" in said
    whole = Evidence("It holds.", goals=FOUND.goals)
    assert finish(whole, tmp_path / "found.json", console) == 0
    assert read(tmp_path / "found.json")[0] == whole


def test_the_page_leads_with_a_line_a_proof() -> None:
    proofs = (Proof("one", "The first, of all", 3), Proof("two", "The second", 4))
    text = page({"one": (FOUND, MEASURED), "two": (Evidence("Fine."), MEASURED)}, proofs)
    assert "(7 minutes)" in text
    assert "| The second |  | not measured yet |" in page({"one": (FOUND, MEASURED)}, proofs)
    assert "| [The first, of all](#the-first-of-all) | 1 of 2 | 2 named below |" in text
    assert "| [The second](#the-second) |  | none |" in text
    assert text.index("## The first, of all") < text.index("## The second")


def test_a_proof_that_ends_without_evidence_does_not_pass_for_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it found earlier stays in its file, and the run says that it broke; one that fails is recorded as well."""
    programs = tmp_path / "bench"
    programs.mkdir()
    (programs / "__init__.py").touch()
    (programs / "dying.py").write_text("raise SystemExit(3)")
    (programs / "failing.py").write_text("import sys\nopen(sys.argv[-1], 'w').write('found')\nraise SystemExit(1)")
    (programs / "holding.py").write_text("import sys\nopen(sys.argv[-1], 'w').write(' '.join(sys.argv[1:3]))")
    monkeypatch.setattr(proof, "ROOT", tmp_path)
    folder, console = tmp_path / "recorded", Console(record=True, width=120)
    folder.mkdir()
    (folder / "dying.json").write_text("before")
    proofs = [Proof(name, name, 1, ("--small", "1")) for name in ("dying", "failing", "holding")]
    assert prove(proofs, folder, console, quick=True) == ["dying", "failing"]
    assert (folder / "dying.json").read_text() == "before"
    assert (folder / "failing.json").read_text() == "found"
    assert (folder / "holding.json").read_text() == "--small 1"
    assert "dying left no evidence" in console.export_text()


def test_an_unknown_proof_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        proof.main(["crashs"])
    assert refused.value.code == 2
    assert "there is no proof crashs; there are crashes, chaos," in capsys.readouterr().err


def test_the_page_is_what_is_recorded_and_every_failure_has_its_cause() -> None:
    """`make proof` writes both."""
    found = recorded()
    assert {file.stem for file in RECORDED.glob("*.json")} == set(found)
    assert PAGE.read_text(encoding="utf-8") == page(found)
    causeless = [
        (name, each.what) for name, (evidence, _) in found.items() for each in evidence.failures if not each.cause
    ]
    assert not causeless, json.dumps(causeless)


@pytest.mark.parametrize("each", PROOFS, ids=lambda each: each.name)
def test_each_proof_is_a_program_that_takes_its_options(each: Proof, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of the full version and of the small one, and a place for its evidence."""
    program = import_module(f"bench.{each.module or each.name}")
    with pytest.raises(SystemExit) as asked:
        program.main(["--help"])
    assert asked.value.code == 0
    known = capsys.readouterr().out
    wanted = [word for word in (*each.small, *each.full, "--evidence") if word.startswith("--")]
    assert not [word for word in wanted if word not in known]
