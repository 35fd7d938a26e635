"""Every command of the documentation, run as it stands against a deployment in which nothing moves by itself.

A run `my-run` trains there, with a checkpoint and logs. The functions are switched off once it is known, so that each
command meets the same world whatever the ones before it asked for; what comes of a command has tests of its own."""

import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli import place
from cli.main import app
from rerail.model.run import Proposal, ProposedAction, RunState
from tests.deployed.jobs import ROOT, Account, checks, rerail
from tests.deployed.still import RUN, heed
from tests.docs.commands import Shown, blocks, leaf, options, pages

pytestmark = pytest.mark.slow

# Each once, wherever it is shown first.
SHOWN = {
    tuple(shown.words[1:]): shown
    for page in reversed(pages())
    for shown in blocks(page)
    if shown.words[0].removeprefix(".venv/bin/") == "rerail"
}
# What takes a whole deployment or training of its own, or a hub: the test that runs it.
ELSEWHERE = {
    ("acceptance",): "tests/deployed/test_acceptance.py",
    ("chain", "--state-machine"): "tests/deployed/test_orchestration.py",
    ("demo",): "tests/demo/test_demo.py",
    ("deploy",): "tests/deployed/test_deploying.py",
    ("destroy",): "tests/deployed/test_deploying.py",
    ("drill",): "tests/deployed/test_operations.py",
    ("local", "up"): "tests/deployed/conftest.py",
    ("local", "down"): "tests/deployed/conftest.py",
    ("status", "--organization"): "tests/cli/test_organization.py",
}
# What would take minutes as it stands takes these too, after its own.
SHORTER = {("simulate",): ["--days", "1", "--seeds", "1"]}
FILES = {
    "train.py": "print('rerail step=1 loss=0.5')\n",
    "vpc.toml": '[submit]\nsubnets = ["subnet-0123456789abcdef0"]\nsecurity_groups = ["sg-0123456789abcdef0"]\n',
    "data.csv": "1,2\n",
    "labels.csv": "1\n",
    "train.log": "".join(f"step {n} loss: {2 / n:.4f}\n" for n in range(1, 200)),
    "rerail-acceptance/acceptance.json": '{"schema": 1, "kind": "rerail acceptance", "region": "eu-west-1", '
    '"clock_scale": 1, "made_at": "2026-11-23T12:00:00+00:00", "measurements": {"stop_s": {"median": 40}}}',
    "logs/night.log": "".join(f"rerail step={n} loss={2 / n:.4f}\n" for n in range(1, 200)),
}


@pytest.fixture
def desk(still: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reader's folder, with the files that the examples are about."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(place, "LOCAL_STATE", still.aws.state_dir)
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


@pytest.mark.parametrize("shown", SHOWN.values(), ids=str)
def test_a_documented_command_does_what_it_is_shown_for(still: Account, desk: Path, shown: Shown):
    """It ends with status 0, as it stands on the page."""
    words = shown.words[1:]
    command, path, _ = leaf(words)
    if elsewhere := ELSEWHERE.get(tuple(path)) or ELSEWHERE.get((*path, words[-1])):
        assert (ROOT / elsewhere).exists()
        return
    _prepare(still, path, words)
    for word in words:  # what a page names of this repository
        if (ROOT / word).is_file() and word not in FILES:
            (desk / word).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / word, desk / word)
        elif (ROOT / word).is_dir() and "/" in word:
            shutil.copytree(ROOT / word, desk / word)
    local = ["--local"] if "--local" in options(command) and "--local" not in words else []
    cut = words.index("--") if "--" in words else len(words)
    heed(still, path == ["doctor"])  # which would say that they do not
    done = CliRunner().invoke(app, [*words[:cut], *SHORTER.get(tuple(path), []), *local, *words[cut:]], input="y\n" * 3)
    assert done.exit_code == 0, f"{done.output}\n{done.exception!r}"


def _prepare(account: Account, path: list[str], words: list[str]) -> None:
    """The run as the command expects it: trained and watched, and where a word is asked for, with its proposal."""
    run = account.runs.load(RUN)
    assert run is not None
    at = run.created_at
    proposal = None
    if path in (["approve"], ["deny"]):
        name = words[words.index("--proposal") + 1] if "--proposal" in words else "p7"
        until = at + timedelta(days=1)
        proposal = Proposal(name, ProposedAction.STOP, 1, "stop the job and relaunch it", "the loss is NaN", at, until)
    state = RunState.HELD if path == ["release"] else RunState.WATCHING
    account.runs.save(replace(run, state=state, proposal=proposal, version=run.version + 1))


def test_two_broken_settings_are_found_and_fixed(still: Account):
    """A rule that somebody has switched off, and a pause that is not valid."""
    environment = {"RERAIL_LOCAL_STATE": str(still.aws.state_dir), "COLUMNS": "200"}
    events, ssm = still.aws.client("events"), still.aws.client("ssm")
    rule = next(rule["Name"] for rule in events.list_rules()["Rules"] if "JobEvents" in rule["Name"])
    heed(still, True)
    try:
        events.disable_rule(Name=rule)
        ssm.put_parameter(Name=still.aws.outputs["PauseParameter"], Value="maybe", Overwrite=True, Type="String")
        status, found = checks(environment)
        events.enable_rule(Name=rule)
        assert rerail(environment, "resume", "--local").returncode == 0
        results = checks(environment)
    finally:
        heed(still, False)
    assert status == 1
    assert [name for name, check in found.items() if check["verdict"] == "broken"] == ["rules", "pause"]
    assert rule in found["rules"]["said"] and "rerail resume" in found["pause"]["remedy"]
    assert results[0] == 0, results
