"""Restart in place, with init and ranks as real processes and the mailbox as a bucket service of this machine."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import launch
from job import TrainingCluster
from rerail.model.mailbox import Command, CommandKind, Durability, Report, ReportKind, make_command_key
from rerail.model.signatures import sign
from rerail_agent import in_place_restarts, init_channel
from rerail_agent.guard import Guard
from tests.agent.fake_s3 import HANG_S, Bucket, serving
from tests.agent.jobs import RUN, command, environment_of
from tests.container.hosts import Here, Host
from tests.container.namespaces import AGENT

pytestmark = pytest.mark.slow
CODE = [str(AGENT.parent / folder) for folder in ("agent", "container", "lambdas")]
PYTHON = sys.executable
KEY = "ab" * 32
FOREVER = "3600"  # what lasts so long ends the test by its deadline
FAILED = '{"rerail": 1, "cause": "user_code", "error": "ValueError: %s", "step": 7, "rank": 0, "exit_code": 1}'

# A rank: leaves a note of what it was started with, then does what the test has written, by the number of the restart.
RANK = """
import json, os, signal, sys, time
folder, restart = os.environ["FOLDER"], int(os.environ.get("RERAIL_RESTART", "0"))
me = f"{restart}-{os.environ.get('RANK', '0')}-{os.environ.get('NODE', '0')}"
def note(what, value=""):
    with open(f"{folder}/.{what}-{me}", "w") as file: file.write(str(value))
    os.rename(f"{folder}/.{what}-{me}", f"{folder}/{what}-{me}")
def fail(text):
    os.makedirs(os.environ["SAGEMAKER_BASE_DIR"] + "/output", exist_ok=True)
    open(os.environ["SAGEMAKER_BASE_DIR"] + "/output/failure", "w").write(text)
    note("failed"); sys.exit(1)
def train(save_s=0.0, seconds=600.0):
    heard = []
    signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    note("ready", json.dumps(dict(os.environ) | {"PID": os.getpid()}))
    end = time.monotonic() + seconds
    while not heard and time.monotonic() < end: time.sleep(0.01)
    if heard: time.sleep(save_s); note("saved")
"""


class Node:
    """One machine: a command under init, with a mailbox, in a folder of its own."""

    def __init__(self, bucket: Bucket, folder: Path, rank: str, **variables: str) -> None:
        self.folder = folder
        base = folder / f"ml-{variables.get('NODE', '0')}"
        (base / "input" / "config").mkdir(parents=True)
        hosts = variables.pop("HOSTS", "algo-1").split(",")
        here = {"current_host": hosts[int(variables.get("NODE", "0"))], "hosts": hosts}
        (base / "input" / "config" / "resourceconfig.json").write_text(json.dumps(here))
        self.base, script = base, folder / "rank.py"
        script.write_text(f"{RANK}\n{rank}")
        defaults = {"RERAIL_HOLD_SECONDS": FOREVER, "RERAIL_RESTART_GRACE_SECONDS": "60", "FOLDER": str(folder)}
        environment = environment_of(bucket, base=base, **defaults | variables)
        environment |= {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(CODE)}
        self._command, self._environment = [PYTHON, "-m", "rerail_agent.init", PYTHON, str(script)], environment
        self.process = self.start()

    def start(self) -> "subprocess.Popen[bytes]":
        """A container with the environment of the first."""
        return subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def await_note(self, name: str) -> str:
        deadline = time.monotonic() + HANG_S
        while not (self.folder / name).exists():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, (name, sorted(path.name for path in self.folder.iterdir()))
            time.sleep(0.01)
        return (self.folder / name).read_text()

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def end(self) -> int:
        _, err = self.process.communicate(timeout=HANG_S)
        self.err = err.decode()
        return self.process.returncode

    @property
    def failure(self) -> dict[str, Any] | None:
        path = self.base / "output" / "failure"
        return json.loads(path.read_text()) if path.exists() else None


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    with serving(Bucket()) as served:
        yield served


@pytest.fixture
def new_node(bucket: Bucket, tmp_path: Path) -> Iterator[Callable[..., Node]]:
    made: list[Node] = []

    def make(rank: str, **variables: str) -> Node:
        made.append(Node(bucket, tmp_path, rank, **variables))
        return made[-1]

    yield make
    for node in made:
        if node.process.poll() is None:
            node.process.kill()
            node.process.communicate()


NewNode = Callable[..., Node]


def order(number: int = 1, **fields: Any) -> Command:
    return command(f"o{number}", kind=CommandKind.RESTART, restart=number, reason="non_finite", **fields)


def list_reports(bucket: Bucket, what: ReportKind) -> list[Report]:
    return [report for report in bucket.reports().values() if report.kind is what]


def test_a_restart_command_starts_the_ranks_with_its_settings(bucket: Bucket, new_node: NewNode) -> None:
    """The same container, other processes, another environment, another port; the supervisor gets a report."""
    node = new_node("train(seconds=600 if restart == 0 else 0.1)", MASTER_PORT="29400", RERAIL_SKIP_SAMPLES="1-2")
    first = json.loads(node.await_note("ready-0-0-0"))
    assert first["RERAIL_INIT"] == "1"
    bucket.command(order(resume_step=400, skip_samples="10-20", rate=0.9))
    second = json.loads(node.await_note("ready-1-0-0"))
    names = ("RERAIL_RESTART", "RERAIL_RESUME_STEP", "RERAIL_ROLLED_BACK", "RERAIL_SKIP_SAMPLES", "RERAIL_LR_SCALE")
    assert [second[name] for name in names] == ["1", "400", "1", "10-20", "0.9"]
    assert (second["MASTER_PORT"], first["MASTER_PORT"]) == ("29401", "29400")
    assert node.has("saved-0-0-0"), "they were asked first, and had the time to save"
    assert not Path(f"/proc/{first['PID']}").exists()
    assert node.end() == 0
    (report,) = list_reports(bucket, ReportKind.RESTARTED)
    assert (report.command, report.restart, report.job, report.attempt) == ("o1", 1, RUN, 1)
    assert "restart 1 in place, by the supervisor's command (non_finite): from step 400" in node.err


def test_orders_follow_one_another(bucket: Bucket, new_node: NewNode) -> None:
    """What a later one does not speak of stays as it was; an old one, or one of another attempt, changes nothing."""
    node = new_node("train(seconds=600 if restart < 2 else 0.1)")
    node.await_note("ready-0-0-0")
    bucket.command(order(1, resume_step=400, rate=0.9))
    node.await_note("ready-1-0-0")
    bucket.command(replace(order(1, resume_step=100), id="again"))
    bucket.command(order(7, attempt=0, resume_step=100))
    bucket.command(order(2))
    second = json.loads(node.await_note("ready-2-0-0"))
    names = ("RERAIL_RESTART", "RERAIL_RESUME_STEP", "RERAIL_ROLLED_BACK", "RERAIL_LR_SCALE")
    assert [second[name] for name in names] == ["2", "400", "1", "0.9"]
    assert node.end() == 0
    assert [report.restart for report in list_reports(bucket, ReportKind.RESTARTED)] == [1, 2]


def test_a_container_that_sagemaker_starts_again_goes_on_as_it_was_ordered_to(
    bucket: Bucket, new_node: NewNode
) -> None:
    """Its environment is that of the first, and another command has taken the order's place long ago. Another job,
    which is given the same folder, knows nothing of it."""
    node = new_node("train(seconds=600 if restart == 0 else 60)", RERAIL_SEAL_KEY=KEY)
    (node.base / "checkpoints").mkdir()
    node.await_note("ready-0-0-0")
    bucket.command(order(2, resume_step=400, skip_samples="10-20", rate=0.9), KEY)
    node.await_note("ready-2-0-0")
    bucket.command(command("asked", kind=CommandKind.CHECKPOINT), KEY)
    node.process.kill()
    node.process.communicate()
    (node.folder / "ready-2-0-0").unlink()
    node.process = node.start()
    again = json.loads(node.await_note("ready-2-0-0"))
    names = ("RERAIL_RESTART", "RERAIL_RESUME_STEP", "RERAIL_ROLLED_BACK", "RERAIL_SKIP_SAMPLES", "RERAIL_LR_SCALE")
    assert [again[name] for name in names] == ["2", "400", "2", "10-20", "0.9"]
    said: list[str] = []
    assert in_place_restarts.read_restart_file(node.base, "another-job", KEY, said.append) == {} and not said


@pytest.mark.threat("T32")
@pytest.mark.parametrize("key", [KEY, ""], ids=["signed-run", "no-key"])
def test_what_a_stranger_left_in_the_checkpoint_folder_commands_nothing(tmp_path: Path, key: str) -> None:
    """SageMaker copies the folder to the next job, whose name is known before: learning rate and step stay its own."""
    file = in_place_restarts.make_restart_file_path(tmp_path)
    file.parent.mkdir()
    forged_variables = {
        "RERAIL_RESTART": "1",
        "RERAIL_ROLLED_BACK": "1",
        "RERAIL_RESUME_STEP": "0",
        "RERAIL_LR_SCALE": "1000",
    }
    text = json.dumps({"job": "gpt-a002", "told": forged_variables}).encode()
    for forged in (text, sign(text, name=f"{file.name}/gpt-a002", key="cd" * 32)):
        file.write_bytes(forged)
        said: list[str] = []
        environment = environment_of(None, base=tmp_path, TRAINING_JOB_NAME="gpt-a002", RERAIL_MAILBOX="s3://mailbox")
        restarts = in_place_restarts.Restarts({**environment, "RERAIL_SEAL_KEY": key}, tmp_path, said.append)
        assert restarts.number == 0 and restarts.environment.keys().isdisjoint(forged_variables)
        assert [line for line in said if ".rerail-restart.json" in line and "ignored" in line]


@pytest.mark.parametrize(
    "text", ["", "a pipe", "{", "[]", '{"job": "night"}', '{"job": "night", "told": {"RERAIL_RESTART": "x"}}']
)
def test_what_cannot_be_read_of_older_orders_changes_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "checkpoints").mkdir()
    file = in_place_restarts.make_restart_file_path(tmp_path)
    os.mkfifo(file) if text == "a pipe" else file.write_text(text)
    assert in_place_restarts.read_restart_file(tmp_path, "night", KEY, [].append) == {}


def test_ranks_that_do_not_leave_are_killed(bucket: Bucket, new_node: NewNode) -> None:
    """As one that waits in a collective for a peer, or saves for longer than a restart waits."""
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN); note('ready', os.getpid()); time.sleep(600)"
    node = new_node(f"if restart: train(seconds=0.1)\nelse: {stubborn}", RERAIL_RESTART_GRACE_SECONDS="0.2")
    pid = node.await_note("ready-0-0-0")
    bucket.command(order())
    node.await_note("ready-1-0-0")
    assert not Path(f"/proc/{pid}").exists()
    assert node.end() == 0


def test_a_crash_waits_for_an_order(bucket: Bucket, new_node: NewNode) -> None:
    """The supervisor gets the reason, and the failure file of the ended processes is moved away."""
    node = new_node(f"fail('{FAILED % 'first'}') if restart == 0 else fail('{FAILED % 'second'}')")
    crashed = bucket.wait_for_report("crashed")
    assert json.loads(crashed.evidence)["error"] == "ValueError: first"
    bucket.command(order())
    bucket.wait_for(lambda: len(list_reports(bucket, ReportKind.CRASHED)) == 2)
    assert [report.restart for report in list_reports(bucket, ReportKind.CRASHED)] == [0, 1]
    bucket.command(command("no", kind=CommandKind.TRAIN))
    assert node.end() == 1
    assert node.failure["error"] == "ValueError: second"
    kept = node.base / "output" / "data" / "rerail-failure-before-restart-1"
    assert json.loads(kept.read_text())["error"] == "ValueError: first"


def test_init_reports_an_exception_that_the_script_does_not(bucket: Bucket, new_node: NewNode) -> None:
    """An exception without a failure file: its traceback, and not that of the processes before."""
    node = new_node("raise KeyError('a') if restart == 0 else ValueError('b')")
    assert "KeyError: 'a'" in json.loads(bucket.wait_for_report("crashed").evidence)["error"]
    bucket.command(order())
    bucket.wait_for(lambda: len(list_reports(bucket, ReportKind.CRASHED)) == 2)
    last = next(report for report in list_reports(bucket, ReportKind.CRASHED) if report.restart == 1)
    assert "ValueError: b" in json.loads(last.evidence)["error"]
    bucket.command(command("no", kind=CommandKind.TRAIN))
    assert node.end() == 1
    assert "ValueError: b" in node.failure["error"]


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        (FAILED % "x", {"RERAIL_HOLD_SECONDS": "0"}),
        (FAILED % "x", {"RERAIL_RESTARTS": "off"}),
        (FAILED % "x", {"RERAIL_MAILBOX": "off"}),
        ((FAILED % "x").replace("user_code", "oom"), {}),
        ((FAILED % "x").replace("user_code", "infrastructure"), {}),
    ],
)
def test_a_crash_that_cannot_be_restarted_ends_at_once(
    bucket: Bucket, new_node: NewNode, text: str, variables: dict[str, str]
) -> None:
    """Switched off, hopeless on this machine, or a lost peer where there is no other machine."""
    node = new_node(f"fail('{text}')", **variables)
    assert node.end() == 1
    assert list_reports(bucket, ReportKind.CRASHED) == []


def test_a_wait_without_an_answer_has_an_end(bucket: Bucket, new_node: NewNode) -> None:
    """And one without a mailbox does not begin."""
    node = new_node(f"fail('{FAILED % 'x'}')", RERAIL_HOLD_SECONDS="1")
    bucket.wait_for_report("crashed")
    assert node.end() == 1
    assert node.failure["error"] == "ValueError: x"


def test_a_bucket_that_is_forbidden_is_not_waited_for(bucket: Bucket, new_node: NewNode) -> None:
    bucket.broken = {"GET": (403, "AccessDenied"), "PUT": (403, "AccessDenied")}
    node = new_node(f"fail('{FAILED % 'x'}')")
    assert node.end() == 1


def test_a_command_that_is_denied_because_there_is_none_may_yet_come(bucket: Bucket, new_node: NewNode) -> None:
    """S3 says so to a role that may not list the bucket."""
    bucket.broken = {"GET": (403, "AccessDenied")}
    node = new_node(f"fail('{FAILED % 'x'}') if restart == 0 else train(seconds=0.1)")
    bucket.wait_for_report("crashed")
    time.sleep(0.3)
    bucket.broken = {}
    bucket.command(order())
    assert node.end() == 0
    assert node.has("ready-1-0-0")


def test_a_stop_wins_over_an_order(bucket: Bucket, new_node: NewNode) -> None:
    """SIGTERM while the ranks are leaving for a restart: they may save for as long as at any stop, and none begin."""
    save = "note('asked')\nwhile not os.path.exists(folder + '/go'): time.sleep(0.01)\nnote('saved')"
    node = new_node(f"train(); {save}", RERAIL_RESTART_GRACE_SECONDS="2")
    node.await_note("ready-0-0-0")
    bucket.command(order())
    deadline = time.monotonic() + HANG_S
    os.set_blocking(node.process.stderr.fileno(), False)
    said = b""
    while b"to restart them" not in said and time.monotonic() < deadline:
        said += node.process.stderr.read() or b""
        time.sleep(0.01)
    node.process.send_signal(signal.SIGTERM)
    time.sleep(2.5)  # longer than a restart waits
    (node.folder / "go").touch()
    assert node.end() == 0
    assert node.has("saved-0-0-0")
    assert not node.has("ready-1-0-0")


def test_a_stop_while_waiting_for_an_order_ends_the_job(bucket: Bucket, new_node: NewNode) -> None:
    node = new_node(f"fail('{FAILED % 'x'}')")
    bucket.wait_for_report("crashed")
    node.process.send_signal(signal.SIGTERM)
    assert node.end() == 1
    assert node.failure["error"] == "ValueError: x"


def test_an_order_that_comes_after_its_deadline_is_refused(bucket: Bucket, new_node: NewNode) -> None:
    """The supervisor has called for the stop by then."""
    node = new_node("note('ready')\nwhile not os.path.exists(folder + '/go'): time.sleep(0.01)")
    node.await_note("ready-0-0-0")
    bucket.command(order(left_s=-1))
    refused = bucket.wait_for_report("refused")
    assert (refused.command, refused.reason) == ("o1", "the command came after its deadline")
    (node.folder / "go").touch()
    assert node.end() == 0
    assert not node.has("ready-1-0-0")


def test_an_order_from_before_the_container_still_stands(bucket: Bucket, new_node: NewNode) -> None:
    """SageMaker itself has restarted the machine, with the environment of the job's first start."""
    bucket.command(order(2, resume_step=400, left_s=-60))
    node = new_node("train(seconds=600 if restart == 0 else 0.1)")
    assert json.loads(node.await_note("ready-2-0-0"))["RERAIL_RESUME_STEP"] == "400"
    assert node.end() == 0


def test_two_machines_restart_together(bucket: Bucket, tmp_path: Path, new_node: NewNode) -> None:
    """Each has an init of its own. The second's ranks follow the first's out before it has read the order."""
    rank = """
import socket
port, first = int(os.environ["MASTER_PORT"]), os.environ["NODE"] == "0"
def meet():
    if first:
        with socket.create_server(("127.0.0.1", port)) as door: return door.accept()[0]
    for _ in range(6000):
        try: return socket.create_connection(("127.0.0.1", port))
        except OSError: time.sleep(0.02)
peer = meet()
peer.sendall(str(restart).encode()); assert peer.recv(1).decode() == str(restart)
if restart: note("ready", port); sys.exit(0)
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
note("ready", port)
peer.settimeout(0.02)
while not heard:
    try:
        if not peer.recv(1): sys.exit(0)  # the peer has left: so does this one, as after an agreement
    except TimeoutError: pass
"""
    port = str(free_pair())
    both = {"HOSTS": "algo-1,algo-2", "MASTER_PORT": port}
    nodes = [
        new_node(rank, NODE="0", RERAIL_POLL_SECONDS="0.05", **both),
        new_node(rank, NODE="1", RERAIL_POLL_SECONDS="30", **both),
    ]
    for number, node in enumerate(nodes):
        node.await_note(f"ready-0-0-{number}")
    bucket.wait_for(lambda: len({r.at for r in bucket.requests if r.key == make_command_key(RUN)}) > 2)
    bucket.command(order(resume_step=3))
    assert [node.await_note(f"ready-1-0-{number}") for number, node in enumerate(nodes)] == [str(int(port) + 1)] * 2
    assert [node.end() for node in nodes] == [0, 0]
    said = {id: report.restart for id, report in bucket.reports().items()}
    assert said == {"a001-r1-restarted-algo-1": 1, "a001-r1-restarted-algo-2": 1}


def free_pair() -> int:
    """A port that is free, as is the next one."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                other.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return int(port)


# ---- The training script itself.


def test_a_real_run_is_rolled_back_within_its_job(
    bucket: Bucket, new_host: Callable[..., Host], train_here: Here, tmp_path: Path
) -> None:
    """Its loss is no number from step 25 on; ordered back to step 20 it ends with the losses of the undisturbed run."""
    whole = train_here(tmp_path / "whole", steps="60")
    host = new_host(steps="60", step_seconds="0.03")
    variables = {"RERAIL_DRILL": "nan:step=25:restart=0", "RERAIL_RUN": RUN}
    host.launch(**environment_of(bucket, base=host.base, **variables))
    deadline = time.monotonic() + HANG_S
    while max(host.losses, default=0) < 27:
        assert time.monotonic() < deadline, host.err.read_text()
        time.sleep(0.02)
    assert host.losses[26] == "nan"
    bucket.command(order(resume_step=20))
    assert host.wait() == 0, host.err.read_text()
    assert host.losses == whole, "of a step that was trained twice, the later loss counts"
    hello = bucket.reports()["a001-hello"]
    assert hello.abilities == ("skip", "rate", "restart", "microbatch")
    assert {(report.command, report.step) for report in list_reports(bucket, ReportKind.RESTARTED)} == {
        ("o1", None),
        ("", 21),
    }
    quarantined = {path.name for path in (host.checkpoints / "quarantine").iterdir()}
    assert quarantined, "what it has saved of the state that was wrong"
    assert all(name.startswith("a1-step-") and int(name[-9:]) > 24 for name in quarantined)


# ---- What the agent says as a restart's processes.


def test_the_agent_reports_the_restart_ability_and_the_restart(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = environment_of(bucket, base=tmp_path, RERAIL_INIT="1", RERAIL_RESTART="2")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    before = signal.getsignal(signal.SIGTERM)
    guard = Guard(environment=environment, abilities=("skip",))
    try:
        hello = bucket.wait_for_report("hello")
        assert (hello.id, hello.abilities, hello.restart) == ("a001-r2-hello", ("skip", "restart"), 2)
        for step in (401, 402):
            guard.step(step=step, loss=2.0, log=False)
        first = bucket.wait_for_report("restarted")
        assert (first.step, first.restart) == (401, 2)
        guard.committed("s3://b/p", 402, Durability.REMOTE)
        bucket.wait_for(lambda: (heartbeat := bucket.heartbeat()) and heartbeat.restart == 2)
        assert len(list_reports(bucket, ReportKind.RESTARTED)) == 1
    finally:
        guard.close(within_s=0.2)
        signal.signal(signal.SIGTERM, before)


def test_a_job_without_a_mailbox_has_no_line(tmp_path: Path) -> None:
    job = {"TRAINING_JOB_NAME": "gpt", "RERAIL_MAILBOX": "s3://somewhere"}
    assert init_channel.connect(job, tmp_path, print) is not None
    for environment in ({}, {**job, "RERAIL_MAILBOX": "off"}, {**job, "RERAIL_RESTARTS": "off"}):
        assert init_channel.connect(environment, tmp_path, print) is None
    assert "rerail-init-channel" not in {thread.name for thread in threading.enumerate()}, (
        "its thread starts after the first fork"
    )


def test_our_launcher_has_the_ranks_meet_elsewhere_after_a_restart() -> None:
    """Several machines reckon the same port; one alone takes any that is free."""
    two, one = (TrainingCluster(hosts, "algo-1", "", "") for hosts in (("algo-1", "algo-2"), ("algo-1",)))
    restarted = {"RERAIL_RESTART": "2"}
    assert launch.choose_rendezvous(two, restarted)["MASTER_PORT"] == "7779"
    assert launch.choose_rendezvous(two, {**restarted, "MASTER_PORT": "29400"})["MASTER_PORT"] == "29402"
    assert launch.choose_rendezvous(one, {**restarted, "MASTER_PORT": "29400"})["MASTER_PORT"] != "29400"


def test_a_port_moves_on_with_each_restart_and_never_off_the_end() -> None:
    assert [in_place_restarts.next_port(port, 2) for port in (7777, 65535)] == [7779, 65533]
    assert in_place_restarts.with_another_port({"MASTER_PORT": "x", "RERAIL_RESTART": "1"})["MASTER_PORT"] == "x"


@pytest.mark.threat("T8")
def test_init_with_a_key_obeys_signed_commands_only(bucket: Bucket, new_node: NewNode) -> None:
    """A forged restart is passed over; the supervisor's own is carried out."""
    key = "ab" * 32
    node = new_node("train(seconds=600 if restart == 0 else 0.1)", RERAIL_SEAL_KEY=key)
    node.await_note("ready-0-0-0")
    bucket.command(order(1, resume_step=0, rate=1000.0))
    polls = len(bucket.requests)
    bucket.wait_for(lambda: sum(request.status == 304 for request in bucket.requests[polls:]) > 2)
    bucket.command(order(1, resume_step=400), key)
    assert json.loads(node.await_note("ready-1-0-0"))["RERAIL_RESUME_STEP"] == "400"
    assert node.end() == 0
    assert "a command that cannot be read is passed over" in node.err
