"""Every command of the documentation, run as it stands against a deployment in which nothing moves by itself.

A run `my-run` trains there, with a checkpoint and logs. The functions are switched off once it is known, so that each
command meets the same world whatever the ones before it asked for; what comes of a command has tests of its own."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli import place
from cli.main import app
from rerail.model import Plan, Proposal, RunState
from tests.deployed.conftest import ASSEMBLIES
from tests.deployed.jobs import ROOT, Account, apart
from tests.docs.commands import Shown, blocks, leaf, options, pages

pytestmark = pytest.mark.slow

RUN = "my-run"
# Each once, wherever it is shown first.
SHOWN = {
    tuple(shown.words[1:]): shown
    for page in reversed(pages())
    for shown in blocks(page)
    if shown.words[0].removeprefix(".venv/bin/") == "rerail"
}
# What takes a whole deployment or training of its own: the test that runs it.
ELSEWHERE = {
    ("demo",): "tests/demo/test_demo.py",
    ("deploy",): "tests/deployed/test_deploying.py",
    ("destroy",): "tests/deployed/test_deploying.py",
    ("drill",): "tests/deployed/test_operations.py",
    ("local", "up"): "tests/deployed/conftest.py",
    ("local", "down"): "tests/deployed/conftest.py",
}
# What would take minutes as it stands takes these too, after its own.
SHORTER = {("simulate",): ["--days", "1", "--seeds", "1"]}
TRUST = '{"Statement": [{"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}}]}'
FILES = {
    "train.py": "print('rerail step=1 loss=0.5')\n",
    "data.csv": "1,2\n",
    "labels.csv": "1\n",
    "logs/night.log": "".join(f"rerail step={n} loss={2 / n:.4f}\n" for n in range(1, 200)),
}


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    """A deployment with a run that trains, whose functions then heed nothing any more."""
    with apart(tmp_path_factory.mktemp("still"), scale=60, assemblies=ASSEMBLIES) as aws:
        account = Account(aws)
        account.set_up()
        aws.client("iam").create_role(RoleName="TrainingRole", AssumeRolePolicyDocument=TRUST)
        account.submit(RUN, steps=100_000)
        account.run_in(RUN, RunState.WATCHING)
        account.has_saved(RUN, steps=20)
        _heed(account, False)
        yield account


def _heed(account: Account, heeds: bool) -> None:
    """Whether the functions take what lies in their queues; what was laid there meanwhile they never see."""
    functions, sqs = account.aws.client("lambda"), account.aws.client("sqs")
    sqs.purge_queue(QueueUrl=account.aws.outputs["SignalsQueueUrl"])
    for mapping in functions.list_event_source_mappings()["EventSourceMappings"]:
        functions.update_event_source_mapping(UUID=mapping["UUID"], Enabled=heeds)


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
    if elsewhere := ELSEWHERE.get(tuple(path)):
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
    _heed(still, path == ["doctor"])  # which would say that they do not
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
        proposal = Proposal(name, Plan.STOP, 1, "stop the job and relaunch it", "the loss is NaN", at, until)
    account.runs.save(replace(run, proposal=proposal, version=run.version + 1))
