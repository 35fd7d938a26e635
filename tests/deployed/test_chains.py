"""Chains on the deployed stack: killed in the middle and resumed, changed, held and continued."""

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.deployed.jobs import RERAIL, ROOT, Account, rerail

pytestmark = pytest.mark.slow

EXAMPLE = ROOT / "local" / "examples" / "chain"
TASKS = ["prepare", "pretrain", "finetune", "evaluate"]
STEP_SECONDS, KILLED_AT = 0.05, 20


@pytest.fixture
def chain(tmp_path: Path, account: Account) -> list[str]:
    """The example, slow enough to be killed while it pretrains; the words that run it."""
    folder = tmp_path / "chain"
    shutil.copytree(EXAMPLE, folder)
    file = folder / "rerail.toml"
    slow = f'"--step-seconds", {account.pace.real(STEP_SECONDS)}, "--steps", 60'
    file.write_text(file.read_text().replace('"--steps", 60', slow))
    return ["chain", "--file", str(file), "--local", "--json"]


def read(printed: str) -> dict[str, Any]:
    """Return the tasks by name."""
    return {task["task"]: task for task in json.loads(printed)["tasks"]}


def test_a_chain_that_was_killed_is_resumed_and_starts_each_task_once(
    account: Account, environment: dict[str, str], chain: list[str]
):
    """SIGKILL hits it while a task trains, a fault hits that task's job, the second attempt's model is read."""
    planned = read(rerail(environment, *chain, "--dry-run").stdout)
    assert [planned[task]["does"] for task in TASKS] == ["start", "wait", "wait", "wait"]
    assert {planned[task]["why"].rpartition(": ")[2] for task in TASKS} == {"first run"}
    runs = {task: planned[task]["run"] for task in TASKS}
    account.inject_at_step(runs["pretrain"], "kill", at_step=KILLED_AT)

    first = subprocess.Popen([*RERAIL, *chain], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        account.run_in(runs["pretrain"], "watching")
        assert first.poll() is None
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()

    resumed = rerail(environment, *chain)
    assert resumed.returncode == 0, resumed.stderr
    assert f"prepare: skipped: complete, and nothing has changed ({runs['prepare']})" in resumed.stderr
    assert "prepare: starts" not in resumed.stderr and "pretrain: starts" not in resumed.stderr
    assert "finetune: starts: first run" in resumed.stderr
    done = read(resumed.stdout)
    assert {task: done[task]["run"] for task in TASKS} == runs
    jobs = {task: account.jobs(run) for task, run in runs.items()}
    assert jobs == {task: [run] for task, run in runs.items()} | {
        "pretrain": [runs["pretrain"], f"{runs['pretrain']}-a002"]
    }
    assert done["pretrain"]["artifacts"]["model"].endswith(f"/{runs['pretrain']}-a002/output/model.tar.gz")
    read_from = account.sagemaker.describe_training_job(TrainingJobName=runs["finetune"])["InputDataConfig"]
    uris = {channel["ChannelName"]: channel["DataSource"]["S3DataSource"]["S3Uri"] for channel in read_from}
    assert uris == {"base": done["pretrain"]["artifacts"]["model"], "data": done["prepare"]["artifacts"]["output"]}

    again = rerail(environment, *chain)
    assert again.returncode == 0 and len(re.findall("skipped: complete", again.stderr)) == len(TASKS)

    file = Path(chain[2])
    file.write_text(file.read_text().replace('"--lr", 0.05', '"--lr", 0.1'))
    changed = read(rerail(environment, *chain, "--dry-run").stdout)
    assert [changed[task]["does"] for task in TASKS] == ["skip", "skip", "start", "wait"]
    assert changed["finetune"]["why"] == "arguments changed: --lr 0.05 -> 0.1"
    assert changed["evaluate"]["why"].startswith("for finetune: input model changed: another finetune.model (")
    assert [len(account.jobs(run)) for run in runs.values()] == [1, 2, 1, 1]


def test_the_run_of_a_held_task_goes_on_with_a_fixed_script(
    account: Account, environment: dict[str, str], tmp_path: Path
):
    """Without --continue the fix would be a change, and start another run; its dependent waits meanwhile."""
    for name, text in (("fit", "raise ValueError('a bug')\n"), ("use", "print('used')\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "main.py").write_text(text)
    (tmp_path / "rerail.toml").write_text(
        '[chain.fixed.fit]\nscript = "fit"\n[chain.fixed.use]\nscript = "use"\nafter = ["fit"]\n'
    )
    chain = ["chain", "--file", str(tmp_path), "--local", "--json"]
    held = rerail(environment, *chain)
    found = read(held.stdout)
    run = found["fit"]["run"]
    assert (held.returncode, found["fit"]["does"], found["use"]["does"]) == (1, "held", "wait")
    assert f"to do: fix the script, then `rerail chain fixed --file {tmp_path} --local --continue fit`" in held.stderr
    same = rerail(environment, *chain, "--continue", "fit")
    assert same.returncode == 2 and f"nothing has changed since its run {run} began" in same.stderr

    (tmp_path / "fit" / "main.py").write_text("print('fixed')\n")
    changed = read(rerail(environment, *chain, "--dry-run").stdout)
    assert changed["fit"]["why"] == "code changed: main.py" and changed["fit"]["run"] != run
    fixed = rerail(environment, *chain, "--continue", "fit")
    assert fixed.returncode == 0, fixed.stderr
    assert f"fit: continues {run}: code changed: main.py" in fixed.stderr
    assert read(fixed.stdout)["fit"]["run"] == run and account.jobs(run) == [run, f"{run}-a002", f"{run}-a003"]
    assert account.jobs(changed["fit"]["run"]) == []
    again = read(rerail(environment, *chain).stdout)
    assert {task["does"] for task in again.values()} == {"skip"} and len(account.jobs(again["use"]["run"])) == 1
