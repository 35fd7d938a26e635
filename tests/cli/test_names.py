"""Names on the command line: the nearest to a wrong one, and completion by the shell."""

import os
import subprocess
import sys
import threading
from functools import reduce
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli import names, place
from cli.commands import COMMANDS, import_command
from cli.main import app
from cli.place import Place
from tests.cli.cloud import Cloud, Deployed

ROOT = Path(__file__).parents[2]
RUNS = ("gpt", "gpt-large", "llama-70b")
HANG_S = 120


def scan(ExpressionAttributeValues: Any, **_: Any) -> dict[str, Any]:
    prefix = ExpressionAttributeValues[":prefix"]["S"]
    keys = [f"run#{run}" for run in RUNS]
    return {"Items": [{"pk": {"S": key}} for key in keys if key.startswith(prefix)]}


@pytest.fixture
def deployed(monkeypatch) -> Place:
    """Three runs."""
    where = Deployed(Cloud({"dynamodb.scan": scan}))
    monkeypatch.setattr(place, "find", lambda *, local: where)
    monkeypatch.setattr(Place, "runs", property(lambda self: type("Runs", (), {"load": lambda self, run: None})()))
    return where


def completed(*words: str, shell: str = "bash") -> list[str]:
    """What the shell is told, by the machinery that its script calls; the last word is not finished."""
    line = {"COMP_WORDS": " ".join(("rerail", *words)), "COMP_CWORD": str(len(words))}
    answer = CliRunner().invoke(
        app, [], prog_name="rerail", env={"_RERAIL_COMPLETE": f"complete_{shell}", **line}, complete_var=None
    )
    return answer.stdout.split()


@pytest.mark.parametrize(
    "typed, meant",
    [
        ("gptt", "did you mean gpt"),
        ("gpt-lrage", "gpt-large"),
        ("gpt-a002", "did you mean gpt?"),
        ("llama-70b-a013", "did you mean llama-70b?"),
        ("zzzz", "`rerail status` lists the runs"),
    ],
)
@pytest.mark.parametrize("command", [("checkpoints",), ("hold",), ("rollback", "--to", "5"), ("tensorboard",)])
def test_a_wrong_name_is_answered_with_the_nearest(deployed, command, typed, meant):
    """By every command that takes a run; the name of a job leads to its run."""
    first, *more = command
    answer = CliRunner().invoke(app, [first, typed, *more])
    assert answer.exit_code == 2
    assert f"there is no run '{typed}' in stack Rerail" in answer.stderr
    assert meant in answer.stderr


def test_where_there_are_no_runs_nothing_is_suggested():
    empty = Deployed(Cloud({"dynamodb.scan": {"Items": []}}))
    assert "rerail:policy=default" in names.explain_unknown_run(empty, "gpt")[1]


def test_each_command_that_is_printed_names_the_local_aws(deployed):
    """The option is added where the command has it, and once."""
    answer = CliRunner().invoke(app, ["hold", "zzzz", "--local"])
    assert "to do: `rerail status --local` lists the runs\n" in answer.stderr
    for name, command in ((name, import_command(name)) for name in COMMANDS):
        for words in [f"{name} {each}" for each in getattr(command, "commands", ())] or [name]:
            last = reduce(lambda group, word: group.commands[word], words.split()[1:], command)
            more = " --local" if any("--local" in parameter.opts for parameter in last.params) else ""
            assert place.complete_text(f"`rerail {words} X`") == f"`rerail {words} X{more}`"
            assert place.complete_text(f"rerail {words}") == f"rerail {words}{more}"
    text = "Now: rerail stop gpt\nThe line `rerail step=1 loss=2` of `rerail show gpt --local`, é: rerail init"
    assert place.complete_text(text) == text.replace("stop gpt", "stop gpt --local")
    here = place.Place("here", {}, is_local=True)
    plain = {"checks": [{"remedy": "`rerail resume`", "steps": 3}], "commands": ("rerail show gpt",)}
    completed_plain = {
        "checks": [{"remedy": "`rerail resume --local`", "steps": 3}],
        "commands": ("rerail show gpt --local",),
    }
    assert here.complete_plain(plain) == completed_plain


def test_runs_are_completed_from_the_table(deployed, monkeypatch):
    monkeypatch.setattr(names, "_quick_place", lambda *, local: deployed)
    assert completed("show", "gpt") == ["gpt", "gpt-large"]
    assert completed("hold", "") == list(RUNS)
    assert completed("doctor", "--run", "lla") == ["llama-70b"]


def test_the_local_table_is_read_with_local(monkeypatch):
    """--local may stand before or after the name."""
    asked: list[bool] = []

    def look(*, local: bool) -> Place:
        asked.append(local)
        return Deployed(Cloud({"dynamodb.scan": scan}))

    monkeypatch.setattr(names, "_quick_place", look)
    assert completed("show", "--local", "gpt-") == ["gpt-large"]
    assert completed("show", "gpt-") == ["gpt-large"]
    assert asked == [True, False]


def test_a_completion_never_waits_and_never_complains(monkeypatch):
    """Neither a table that does not answer nor an error reaches the shell."""
    monkeypatch.setattr(names, "COMPLETED_WITHIN_S", 0.1)

    release, ended = threading.Event(), threading.Event()

    def silent(*, local: bool) -> Place:
        release.wait(HANG_S)
        ended.set()
        raise AssertionError("too late to matter")

    def failing(*, local: bool) -> Place:
        place.fail("no credentials", "log in")

    for look in (silent, failing):
        monkeypatch.setattr(names, "_quick_place", look)
        assert completed("show", "g") == []
        assert not ended.is_set(), "it waited for a table that does not answer"
    release.set()


def test_policies_states_scenarios_and_commands_are_completed():
    assert completed("policy", "show", "de") == ["default"]
    assert completed("simulate", "--policy", "la") == ["large"]
    assert completed("status", "--state", "he") == ["held"]
    assert completed("demo", "--scenario", "cra") == ["crash"]
    assert completed("checkp") == ["checkpoints"]
    assert completed("policy", "") == ["check", "list", "show"]


@pytest.mark.slow
def test_the_shells_own_way_of_asking_works():
    """The real process, as bash's completion calls it."""
    line = {"COMP_WORDS": "rerail policy show obs", "COMP_CWORD": "3", "_RERAIL_COMPLETE": "complete_bash"}
    code = "from cli.main import app; app(prog_name='rerail')"
    asked = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **line},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert asked.stdout.split() == ["observe"], asked.stderr


def test_an_unknown_command_is_answered_with_the_nearest():
    answer = CliRunner().invoke(app, ["chekpoints"])
    assert answer.exit_code == 2 and "checkpoints" in answer.stderr


@pytest.mark.slow
def test_the_version_is_printed():
    assert CliRunner().invoke(app, ["--version"]).stdout == f"rerail {version('rerail')}\n"
    asked = subprocess.run([sys.executable, "-m", "cli", "--version"], cwd=ROOT, capture_output=True, text=True)
    assert asked.stdout == f"rerail {version('rerail')}\n"
