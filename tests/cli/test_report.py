"""`rerail report`: the page as a file, in the browser where one is asked for, or as JSON; one clear error where not."""

import builtins
import json
import webbrowser
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli import place
from cli import report as command
from cli.main import app
from cli.place import Place
from tests.report.conftest import held


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Runs the command on a run that is held; what could not be read may be said."""
    known = [held()]
    monkeypatch.setattr(place, "LOCAL_STATE", tmp_path / "state")
    monkeypatch.setattr(place, "find", lambda local: Place("a test", {}, is_local=True))
    monkeypatch.setattr(command, "gather_facts", lambda where, run: known[0] if run == "gpt" else None)
    monkeypatch.setattr(command, "explain_unknown_run", lambda where, run: (f"there is no run {run!r}", "look again"))

    def run(*words: str, unread: tuple[str, ...] = ()) -> Result:
        known[0] = replace(held(), unread=unread)
        return CliRunner().invoke(app, ["report", *words])

    return run


def test_the_page_is_written_to_the_given_path(asked, tmp_path: Path):
    """Below the local state where no place is named; the folder is made."""
    said = asked("gpt")
    page = tmp_path / "state" / "reports" / "gpt.html"
    assert (said.exit_code, said.stdout) == (0, f"report: {page}\n")
    assert "Held: waiting for an operator" in page.read_text()


def test_the_browser_is_opened_on_the_local_file(asked, tmp_path: Path, monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or len(opened) == 1)
    out = tmp_path / "a folder" / "page.html"
    assert asked("gpt", "--open", "--out", str(out)).stderr == ""
    assert opened == [out.resolve().as_uri()]
    said = asked("gpt", "--open", "--out", str(out))
    assert said.exit_code == 0
    assert "no browser could be opened here" in said.stderr


def test_unreadable_parts_are_reported_and_the_page_is_made(asked, tmp_path: Path):
    """Without the permission for metrics there is a page without curves, and it says so."""
    said = asked("gpt", "--out", str(tmp_path / "page.html"), unread=("metrics of gpt: AccessDenied",))
    assert said.exit_code == 0
    assert said.stderr == "could not be read: metrics of gpt: AccessDenied\n"
    assert "metrics of gpt: AccessDenied" in (tmp_path / "page.html").read_text()


def test_the_report_is_json_for_another_program(asked):
    """The same facts, and no file."""
    printed = json.loads(asked("gpt", "--json").stdout)
    assert (printed["run"], printed["tone"], printed["runbook"]) == ("gpt", "needed", "out-of-memory")
    assert printed["commands"] == ["rerail release gpt --local", "rerail show gpt --local"]
    assert {chart["name"] for chart in printed["charts"]} >= {"loss", "progress"}


def test_a_wrong_name_and_a_wrong_place_are_one_clear_error_each(asked, tmp_path: Path):
    """Exit status 2, and what to do."""
    said = asked("gpd")
    assert (said.exit_code, said.stderr) == (2, "error: there is no run 'gpd'\nto do: look again\n")
    (tmp_path / "file").write_text("")
    said = asked("gpt", "--out", str(tmp_path / "file" / "page.html"))
    assert said.exit_code == 2
    assert "cannot write" in said.stderr
    assert "--out" in said.stderr


def test_missing_libraries_are_named_with_the_install_command(asked, monkeypatch):
    found = builtins.__import__

    def importing(name: str, *rest: object) -> object:
        if name.startswith("report_page"):
            raise ModuleNotFoundError("No module named 'pygal'", name="pygal")
        return found(name, *rest)

    monkeypatch.setattr(builtins, "__import__", importing)
    said = asked("gpt")
    assert said.exit_code == 2
    assert "pygal, which is not installed" in said.stderr
    assert "pip install 'rerail[report]'" in said.stderr
