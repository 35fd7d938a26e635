"""What the start of the command line pays for: the command that is called, and no other."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import typer
from typer.testing import CliRunner

from bench.turns import measure_in_turns
from cli.commands import COMMANDS, DeferredCommand
from cli.main import app
from local import processes
from rerail.model.run import RunState
from tests.cli.cloud import OUTPUTS
from tests.house.sources import ROOT

pytestmark = pytest.mark.slow

HEAVY = (
    *("boto3", "botocore.session", "botocore.client", "s3transfer", "urllib3", "pydantic", "asyncio"),
    *("numpy", "torch", "tensorboard", "jinja2", "pygal", "aws_cdk", "ministack", "hypercorn", "moto"),
    *("rich.markdown", "rich.traceback", "markdown_it", "pygments"),
)
# The list of commands needs nothing of a command, and nothing of what it works with.
OF_COMMANDS = ("botocore", "cli.place", "cli.console", "rerail.model.run", "rerail.model.policy", "local", "bench")
DRAWN = ("rich", "typer.rich_utils")
LOOK = """
import json, sys
from cli.main import app
try:
    app({words!r}, prog_name="rerail")
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""
RERAIL = (sys.executable, "-m", "cli")
NOTHING = (sys.executable, "-c", "pass")
CLIENT = (sys.executable, "-c", "import boto3; boto3.Session().client('dynamodb')")
# Measured at 7 to 9; with every command imported it is 27.
MOST_TIMES_NOTHING = 12
# Measured at 2.3, and at 2.9 beside many busy processes; with every command imported it was 3.2.
MOST_TIMES_CLIENT = 3.0
KEYS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}


def environment(**more: str) -> dict[str, str]:
    """Return an environment with the search path, the home folder and a fixed width of the terminal."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return kept | {"COLUMNS": "100", "PYTHONDONTWRITEBYTECODE": "1"} | more


def loaded(*words: str, **more: str) -> set[str]:
    """Return the modules that a command line has imported when it ends, which it must do well."""
    script = LOOK.format(words=list(words))
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment(**more), capture_output=True, text=True, timeout=1800
    )
    assert ran.returncode == 0, ran.stderr
    return set(json.loads(ran.stderr.splitlines()[-1]))


def below(modules: set[str], *packages: str) -> set[str]:
    """Return those of the modules that are one of the packages or lie in one."""
    return {name for name in modules for package in packages if name == package or name.startswith(f"{package}.")}


def test_the_list_of_commands_imports_no_command():
    """Neither a command's module nor what these work with."""
    modules = loaded("--help")
    assert not below(modules, *HEAVY, *OF_COMMANDS, *DRAWN)
    assert not modules & {listed.module for listed in COMMANDS.values()}


def test_the_version_needs_no_rich():
    assert not below(loaded("--version"), *HEAVY, *OF_COMMANDS, *DRAWN)


@pytest.mark.parametrize(
    "words", [("status",), ("submit",), ("deploy",), ("policy", "check"), ("local", "up")], ids=" ".join
)
def test_a_commands_own_help_imports_no_sdk(words):
    """It imports the command's module, and neither the AWS SDK nor what draws, serves or validates."""
    modules = loaded(*words, "--help")
    assert COMMANDS[words[0]].module in modules
    assert not below(modules, *HEAVY)


@pytest.mark.parametrize("typed", ["checkp", "policy show de", "status --state he"])
def test_a_completion_imports_the_command_that_is_typed_and_no_other(typed):
    asked = {
        "_RERAIL_COMPLETE": "complete_bash",
        "COMP_WORDS": f"rerail {typed}",
        "COMP_CWORD": str(len(typed.split())),
    }
    modules = loaded(**asked)
    first, *more = typed.split()
    # Typer converts the state that is completed by Pydantic, since it is a choice.
    assert not below(modules, *{*HEAVY} - ({"pydantic"} if first == "status" else set()))
    found = modules & {listed.module for listed in COMMANDS.values()}
    assert found <= {COMMANDS[first].module, "cli.runs"} if more else not found


def test_the_list_of_commands_has_the_summary_of_each():
    """The table is written by hand: its names and first paragraphs are those of the commands."""
    group = typer.main.get_command(app)
    real = {name: (command.name, command.help.partition("\n\n")[0]) for name, command in group.commands.items()}
    assert real == {name: (name, listed.help) for name, listed in COMMANDS.items()}
    assert not [name for name, command in group.commands.items() if command.hidden or command.deprecated]


def test_the_list_of_commands_has_each_summary_in_full():
    printed = " ".join(CliRunner().invoke(app, ["--help"]).stdout.split())
    assert printed.endswith(" ".join(f"{name} {listed.help}" for name, listed in COMMANDS.items()))


def test_what_is_listed_becomes_the_command_itself():
    """Its context is the command's own, with its options."""
    context = DeferredCommand(name="status", help="x").make_context("status", ["--local"])
    assert context.command.callback.__module__ == "cli.status" and context.params["local"] is True


def test_a_defect_has_a_traceback_without_values():
    """It is Rich's, which is imported when there is something to print."""
    script = """
from cli.main import app
import cli.status
def fail(*, local):
    raise LookupError("a defect of ours")
cli.status.place.find = fail
app(["status"])
"""
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert ran.returncode == 1
    assert "Traceback (most recent call last)" in ran.stderr and "LookupError: a defect of ours" in ran.stderr
    assert "╭" in ran.stderr


class Answers(BaseHTTPRequestHandler):
    """The API of an AWS with a deployment and no runs."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked = self.headers.get("X-Amz-Target", "").rpartition(".")[2]
        known = {"Scan": {"Items": [], "Count": 0}, "Query": {"Items": [], "Count": 0}}
        known["GetParameter"] = {"Parameter": {"Name": "x", "Value": "on", "Type": "String"}}
        refusal = {"__type": "AccessDeniedException", "message": "no"}
        body = json.dumps(known.get(asked, refusal)).encode()
        self.send_response(200 if asked in known else 400)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *words: object) -> None:
        """Say nothing of each request."""


@pytest.fixture
def state(tmp_path) -> Iterator[Path]:
    """The state folder of a local AWS, which this process answers for."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    Thread(target=server.serve_forever, daemon=True).start()
    started = processes.table()[os.getpid()].started
    endpoint = f"http://127.0.0.1:{server.server_port}"
    record = {"endpoint": endpoint, "pid": os.getpid(), "started": started, "outputs": OUTPUTS}
    (tmp_path / "stack.json").write_text(json.dumps(record))
    yield tmp_path
    server.shutdown()
    server.server_close()


def cpu_seconds(command: Sequence[str], settings: Mapping[str, str]) -> float:
    """Return the CPU time of a process that must end well, user's and system's."""
    child = subprocess.Popen(command, cwd=ROOT, env=settings, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return used.ru_utime + used.ru_stime


def compare(command: Sequence[str], floor: Sequence[str], settings: Mapping[str, str], most: float) -> float:
    """Return how many times the CPU time of the floor the command takes; both have bytecode, which a first run writes.

    Measured in turns, and again while it is more than `most`.
    """
    measures = {name: partial(cpu_seconds, words, settings) for name, words in (("it", command), ("floor", floor))}
    for measure in measures.values():
        measure()
    cost = measure_in_turns(measures, lambda cost: cost["it"] <= most * cost["floor"])
    return cost["it"] / cost["floor"]


def with_bytecode(folder: Path, **more: str) -> dict[str, str]:
    """Return an environment that keeps bytecode of its own, whatever the checkout and the packages have."""
    settings = environment(PYTHONPYCACHEPREFIX=str(folder / "bytecode"), **KEYS, **more)
    del settings["PYTHONDONTWRITEBYTECODE"]
    return settings


def test_the_list_of_commands_costs_little_more_than_python(tmp_path):
    """CPU time beside that of an interpreter which does nothing."""
    times = compare((*RERAIL, "--help"), NOTHING, with_bytecode(tmp_path), MOST_TIMES_NOTHING)
    assert times <= MOST_TIMES_NOTHING


def test_a_look_at_the_fleet_costs_little_more_than_a_client(state):
    """CPU time beside that of importing boto3 and making one client, which every look needs at least."""
    settings = with_bytecode(state, RERAIL_LOCAL_STATE=str(state))
    expected = subprocess.run([*RERAIL, "status", "--local"], cwd=ROOT, env=settings, capture_output=True, text=True)
    assert "active   supervisor" in expected.stdout and "no runs yet" in expected.stdout, expected.stderr
    times = compare((*RERAIL, "status", "--local"), CLIENT, settings, MOST_TIMES_CLIENT)
    assert times <= MOST_TIMES_CLIENT


def test_a_look_at_the_fleet_imports_no_other_command(state):
    """Nor the emulator's own libraries, nor what a deployment needs."""
    modules = loaded("status", "--local", RERAIL_LOCAL_STATE=str(state), **KEYS)
    assert not below(modules, "ministack", "hypercorn", "local.deploy", "bench", "cli.deploy", "cli.simulate")
    assert not below(modules, "rich.markdown", "rich.traceback", "typer.rich_utils", "jinja2", "pydantic")


def test_a_value_is_converted_and_refused_as_typer_does_it():
    """What is taken as it is, and what is not: a default and text, numbers, a choice, and a path."""
    context = DeferredCommand(name="status", help="x").make_context("status", ["--every", "3", "--state", "held"])
    assert context.params["every"] == 3.0 and type(context.params["every"]) is float
    assert context.params["state"] == [RunState.HELD] and context.params["policy"] == ""
    plain = DeferredCommand(name="status", help="x").make_context("status", ["--policy", "large"])
    assert (plain.params["every"], plain.params["policy"], plain.params["watch"]) == (5.0, "large", False)
    assert plain.params["state"] == ()
    assert DeferredCommand(name="doctor", help="x").make_context("doctor", ["--request", "a.json"]).params[
        "request"
    ] == Path("a.json")
    for words, expected in (
        (["--every", "0.5"], "greater than or equal to 1"),
        (["--every", "soon"], "number"),
        (["--state", "helt"], "held"),
    ):
        answer = CliRunner().invoke(app, ["status", *words])
        assert answer.exit_code == 2 and expected in answer.stderr
