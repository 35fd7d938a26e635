"""The people's commands on the deployed template: the doctor finds what breaks, TensorBoard draws what was learnt."""

import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.keys import KEYS
from tests.deployed.jobs import HANG_S, LOSSES, RERAIL, ROOT, Account, checks, rerail

pytestmark = pytest.mark.slow

# The suite's account has its policy on a fast clock, and nobody to page.
EXPECTED = {"deployed policies", "people", "agent", "checkpoint slash", "supervise"}
LOCAL = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture(scope="module")
def trained(account: Account) -> str:
    """A run that has died once and come to its end."""
    name = account.submit("drawn", script=LOSSES, steps=60)
    account.run_in(name, "watching", "completed")
    account.run_in(name, "completed")
    return name


def test_a_sound_deployment_with_a_sound_job_is_found_sound(
    account: Account, environment, trained: str, undisturbed: None
):
    """Every question is answered: nothing is broken, nothing is unknown."""
    status, found = checks(environment, "--run", trained)
    odd = {name: check for name, check in found.items() if check["verdict"] != "ok" and name not in EXPECTED}
    assert odd == {}, status
    assert {"sweep", "functions code", "dead letters", "metrics", "checkpoint bucket", "room"} <= found.keys()


def test_a_request_is_looked_at_before_it_is_sent(account: Account, environment, tmp_path: Path):
    """What `rerail submit --dry-run` prints; then without its checkpoints."""
    script = tmp_path / "train.py"
    script.write_text("print('rerail step=1 loss=2.5')\n")
    printed = rerail(environment, "submit", str(script), "--local", "--dry-run", "--name", "to-come")
    assert printed.returncode == 0, printed.stderr
    request = json.loads(printed.stdout)
    file = tmp_path / "request.json"
    file.write_text(json.dumps(request))
    _, found = checks(environment, "--request", str(file))
    assert found["supervision"]["verdict"] == "ok" and found["checkpoints"]["verdict"] == "ok"
    file.write_text(json.dumps({key: value for key, value in request.items() if key != "CheckpointConfig"}))
    status, found = checks(environment, "--request", str(file))
    assert status == 1 and found["checkpoints"]["verdict"] == "broken"


@contextmanager
def board(environment: dict[str, str], run: str) -> Iterator[dict[str, Any]]:
    """`rerail tensorboard` as somebody has it running, ended as by Ctrl-C."""
    command = [*RERAIL, "tensorboard", run, "--local", "--json"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True)
    try:
        assert process.stdout and process.stderr
        assert any("http://" in line for line in process.stderr), f"it ended with {process.wait()}"  # it listens
        text = ""
        while not text.endswith("}\n") or text.count("{") != text.count("}"):
            text += process.stdout.readline()
        yield json.loads(text)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(timeout=HANG_S) == 0
        finally:
            process.kill()


def ask(url: str, path: str) -> Any:
    with LOCAL.open(f"{url}data/{path}", timeout=HANG_S) as answer:
        return json.load(answer)


def test_tensorboard_serves_the_losses_of_a_run(account: Account, environment, trained: str):
    """The real program, asked over its own interface: every step's loss as the job printed it. It ends with us."""
    with board(environment, trained) as shown:
        url = shown["url"]
        assert url.startswith("http://127.0.0.1:")
        assert [(attempt["attempt"], attempt["job"]) for attempt in shown["attempts"]] == [(1, trained)]
        assert account.wait("the run", lambda: "attempt-001" in ask(url, "runs"))
        losses = "plugin/scalars/scalars?run=attempt-001&tag=loss"
        points = account.wait("its losses", lambda: ask(url, losses))
    assert shown["source"] == "metrics"
    assert len(points) == shown["attempts"][0]["points"] > 10
    steps = [step for _, step, _ in points]
    assert steps == sorted(set(steps))
    with pytest.raises(OSError):
        LOCAL.open(url, timeout=2)


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("show", "drawn"),
        ("checkpoints", "drawn"),
        ("report", "drawn"),
        ("resume",),
        ("policy", "list"),
        ("tensorboard", "drawn", "--logdir-only"),
        ("follow", "drawn"),
        ("chain", "--dry-run", "--file", str(ROOT / "local" / "examples" / "chain")),
        ("wait", "drawn"),
        ("logs", "drawn"),
        ("search", "name=drawn", "status=Completed", "created>1d"),
    ],
    ids=lambda words: words[0] if words[0] != "policy" else "policy list",
)
def test_json_has_the_keys_that_the_reference_promises(account: Account, environment, trained: str, words):
    """On stdout there is JSON and nothing else."""
    answer = rerail(environment, *words, "--local", "--json")
    assert answer.returncode == 0, answer.stderr
    promised = KEYS[" ".join(words[:2]) if words[0] == "policy" else words[0]]
    printed = json.loads(answer.stdout.splitlines()[0] if words[0] == "logs" else answer.stdout)
    assert promised.keys.keys() - promised.sparse <= (printed[0] if words[0] == "search" else printed).keys()
