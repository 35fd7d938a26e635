"""The emulator as a process: it starts, serves one machine only, and leaves nothing behind."""

import io
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.local_aws import app
from local import processes
from local.stack import ROOT, LocalAws, LocalAwsError
from tests.local.waiting import HANG_S, eventually

pytestmark = pytest.mark.slow

SLEEPER = "import time\ndef handler(event, context):\n    time.sleep(event['seconds'])\n    return 'woke'\n"


@pytest.fixture
def bare(tmp_path: Path) -> LocalAws:
    """An emulator without a stack, not yet started."""
    return LocalAws(tmp_path / "aws", stack=None)


def add_sleeper(aws: LocalAws) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("sleeper.py", SLEEPER)
    aws.client("iam").create_role(RoleName="any", AssumeRolePolicyDocument='{"Statement": []}')
    aws.client("lambda").create_function(
        FunctionName="sleeper", Runtime="python3.13", Handler="sleeper.handler", Timeout=900,
        Role="arn:aws:iam::000000000000:role/any", Code={"ZipFile": archive.getvalue()},
    )  # fmt: skip


def start_sleeping(aws: LocalAws) -> list[processes.ProcessEntry]:
    """A function at work for ten minutes; the processes of the emulator, with the worker."""
    add_sleeper(aws)
    aws.client("lambda").invoke(FunctionName="sleeper", InvocationType="Event", Payload=b'{"seconds": 600}')
    return eventually(lambda: processes.descendants(aws.pid))


def test_stop_leaves_no_process_and_no_folder(bare: LocalAws) -> None:
    """A stop in the middle of a function's run ends the worker too and removes the temporary files."""
    with bare:
        family = [processes.table()[bare.pid], *start_sleeping(bare)]
        assert len(family) >= 2
    assert not any(processes.alive(process) for process in family)
    assert sorted(path.name for path in bare.state_dir.iterdir()) == ["emulator.log"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_it_cleanly(bare: LocalAws, number: signal.Signals) -> None:
    """Either signal ends it with exit code 0, worker and temporary files included, and no run is waited for."""
    bare.start()
    family = start_sleeping(bare)
    assert bare._child is not None
    os.kill(bare.pid, number)
    assert bare._child.wait(timeout=HANG_S) == 0
    assert not any(processes.alive(process) for process in family)
    assert not list((bare.state_dir / "emulator").glob("*"))
    bare.stop()


def test_killed_emulator_takes_its_worker_along(bare: LocalAws) -> None:
    """Stop ends the worker of an emulator that does not react to SIGTERM."""
    bare.start()
    family = start_sleeping(bare)
    os.kill(bare.pid, signal.SIGSTOP)
    bare.stop()
    assert not any(processes.alive(process) for process in family)


def test_emulator_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """When the starting process dies without a stop, the emulator notices and ends."""
    script = (
        "import os, pathlib; from local.stack import LocalAws\n"
        f"aws = LocalAws(pathlib.Path({str(tmp_path)!r}), stack=None).start()\n"
        "print(aws.pid, flush=True); os._exit(1)\n"
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    pid = int(run.stdout)
    assert eventually(lambda: pid not in processes.table())


def test_up_prints_the_credentials_beside_the_endpoint(monkeypatch) -> None:
    monkeypatch.setattr(LocalAws, "start", lambda *_, **__: None)
    assert "AWS_ACCESS_KEY_ID=000000000000 AWS_SECRET_ACCESS_KEY=local " in CliRunner().invoke(app, ["up"]).stdout


def test_another_process_can_attach_and_stop(bare: LocalAws) -> None:
    """`attach` finds endpoint and outputs of a running one; after its stop there is nothing to attach to."""
    bare.start()
    found = LocalAws.attach(bare.state_dir)
    assert found.endpoint_url == bare.endpoint_url
    assert found.client("sts").get_caller_identity()["Account"] == "000000000000"
    with pytest.raises(LocalAwsError, match="already runs"):
        LocalAws(bare.state_dir, stack=None).start()
    found.stop()
    with pytest.raises(LocalAwsError, match="no local AWS runs"):
        LocalAws.attach(bare.state_dir)
    bare.stop()


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's table of sockets")
def test_it_listens_on_the_loopback_address_only(aws: LocalAws) -> None:
    """No port of the emulator is open to other machines."""
    sockets = {os.readlink(path) for path in Path(f"/proc/{aws.pid}/fd").iterdir() if path.is_symlink()}
    listening = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                listening.append(fields[1])
    assert [address.partition(":")[0] for address in listening] == ["0100007F"]


def test_taken_port_is_refused(aws: LocalAws, tmp_path: Path) -> None:
    """A second emulator on the same port says so and ends."""
    port = aws.endpoint_url.rpartition(":")[2]
    command = [sys.executable, "-m", "local.emulator", "--state", str(tmp_path), "--port", port]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S)
    assert run.returncode != 0
    assert f"--port {port}" in run.stderr


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_no_clock_can_have_is_refused_without_a_traceback(tmp_path, scale):
    with pytest.raises(LocalAwsError, match="^scale .* must be above 0: "):
        LocalAws(tmp_path / "aws", stack=None, scale=scale).start()
