"""Start the emulator with the deployed stack, attach to a running one, and stop it."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from local import processes

# The AWS SDK, the emulator and the deployment are imported where they are used: to attach needs none of them.
if TYPE_CHECKING:
    import boto3

ACCOUNT = "000000000000"
REGION = "us-east-1"
# Credentials, profiles and proxies of the person at the keyboard must not reach functions and training scripts.
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "SYSTEMROOT")
ROOT = Path(__file__).resolve().parent.parent
# Deadlines end what hangs; a busy machine takes its time.
READY_WITHIN_S = 600.0
STOP_GRACE_S = 4.0
# Overrides cdk.json: an account's secrets are not here, and a trial must not page anyone. The demo, the tests and the
# soak have scripts without an agent, whose checkpoints are quarantined.
_ROLE = "arn:aws:iam::000000000000:role/"
LOCAL_CHOICES: dict[str, Any] = {
    "pagerDutySecret": "",
    "webhookUrl": "",
    "webhookSecret": "",
    # The emulator runs functions with its own interpreter, whose site-packages hold this SDK already.
    "sdkLayer": False,
    "quarantineFolders": {
        f"{_ROLE}DemoSageMakerRole": ["s3://sagemaker-rerail-demo/"],
        # The second is where `rerail submit --local` and `rerail acceptance --local` put their runs.
        f"{_ROLE}SageMakerRole": ["s3://sagemaker-deployed/", "s3://sagemaker-local/"],
        f"{_ROLE}SoakSageMakerRole": ["s3://sagemaker-soak/"],
    },
}

Progress = Callable[[str], None]


class LocalAwsError(Exception):
    """The emulator did not start, or is not running; the message has the reason."""


class LocalAws:
    """An emulator with a deployed stack.

    Everything it writes is below `state_dir`: `stack.json` has its address, `emulator.log` its output, and
    `assemblies/` keeps syntheses so that an unchanged tree is not synthesized again. Use it as a context manager, or
    call `start` and `stop`; `attach` finds one that another process started.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        scale: float = 60.0,
        schedule_scale: float = 1.0,
        root: Path = ROOT,
        app: str = "app.py",
        stack: str | None = "Rerail",
        assemblies: Path | None = None,
        policies: Path | None = None,
    ) -> None:
        """`stack=None` deploys nothing. `root` and `app` name the CDK app, `assemblies` the folder of syntheses, and
        `policies` a folder of policies outside of `root`."""
        self.state_dir = Path(state_dir).resolve()
        self.scale, self.schedule_scale = scale, schedule_scale
        self.root, self.app, self.stack = root, app, stack
        self.policies = policies
        self.assemblies = assemblies or self.state_dir / "assemblies"
        self.endpoint_url = ""
        self.pid = 0
        self.outputs: dict[str, str] = {}
        self._child: subprocess.Popen[bytes] | None = None

    @classmethod
    def attach(cls, state_dir: Path) -> Self:
        """Return the local AWS that runs with this state folder; raise `LocalAwsError` if there is none."""
        aws = cls(state_dir)
        known = aws._record()
        if known is None:
            raise LocalAwsError(f"no local AWS runs in {aws.state_dir}; start one first")
        aws.pid, aws.endpoint_url, aws.outputs = known["pid"], known["endpoint"], known["outputs"]
        aws.scale = known.get("scale", aws.scale)
        return aws

    def start(self, progress: Progress = lambda line: None, *, detached: bool = False) -> Self:
        """Start and deploy. `progress` gets a line for each step; a detached emulator outlasts this process."""
        if self._record() is not None:
            raise LocalAwsError(f"a local AWS already runs in {self.state_dir}: `rerail local down` ends it")
        if not 0 < self.scale < float("inf"):
            raise LocalAwsError(f"scale {self.scale:g} must be above 0: 1 is AWS's pace, 60 makes a minute a second")
        for name in ("ministack", *(("aws_cdk",) if self.stack else ())):
            if find_spec(name) is None:
                raise LocalAwsError(f"the local AWS needs the package {name}: pip install 'rerail[local]'")
        began = time.monotonic()
        try:
            self._launch(detached)
            progress(f"emulator at {self.endpoint_url} ({time.monotonic() - began:.1f} s)")
            if self.stack:
                self.outputs = self._deploy(self.stack, progress)
            self._write_record()
        except BaseException:
            self.stop()
            raise
        progress(f"ready ({time.monotonic() - began:.1f} s)")
        return self

    def _launch(self, detached: bool) -> None:
        home = self.state_dir / "emulator"
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        command = [sys.executable, "-m", "local.emulator", "--state", str(home)]
        command += ["--scale", str(self.scale), "--schedule-scale", str(self.schedule_scale)]
        with self.log_file.open("wb") as log:
            self._child = subprocess.Popen(
                command if detached else [*command, "--with-parent"],
                cwd=ROOT,
                env={name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._child.pid
        self.endpoint_url = self._wait_until_ready(home / "ready.json")

    def _wait_until_ready(self, ready: Path) -> str:
        """Wait for the ready file of this very process: an older server on a port must not answer for it."""
        deadline = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < deadline:
            if ready.exists() and (known := json.loads(ready.read_text()))["pid"] == self.pid:
                return str(known["endpoint"])
            if self._child and self._child.poll() is not None:
                raise LocalAwsError(f"the emulator ended with {self._child.returncode}:\n{self._last_words()}")
            time.sleep(0.05)
        raise LocalAwsError(f"the emulator is not ready after {READY_WITHIN_S:.0f} s:\n{self._last_words()}")

    def _deploy(self, stack: str, progress: Progress) -> dict[str, str]:
        from local import deploy

        began = time.monotonic()
        progress("synthesizing the template (some ten seconds when something changed)")
        context = LOCAL_CHOICES | deploy.LOCAL_SCOPE | deploy.LOCAL_BOOTSTRAP
        context |= {"policiesFolder": str(self.policies)} if self.policies else {}
        assembly = deploy.synthesize(self.root, self.assemblies, app=self.app, context=context, validate=False)
        progress(f"template synthesized ({time.monotonic() - began:.1f} s)")
        return deploy.deploy(assembly, stack, self.client, progress=progress)

    def client(self, service: str) -> Any:
        """Return a boto3 client of the emulator, with invented credentials and without the user's AWS configuration."""
        from botocore.config import Config

        patient = {"retries": {"max_attempts": 2}, "connect_timeout": 60, "read_timeout": 300}
        config = Config(**patient, s3={"addressing_style": "path"})
        return self._session.client(service, endpoint_url=self.endpoint_url, config=config)

    @cached_property
    def _session(self) -> "boto3.Session":
        import boto3
        import botocore.session

        nothing_of_the_user: dict[str, tuple[Any, ...]] = {
            "profile": (None, [], None, None),
            "config_file": (None, None, os.devnull, None),
            "credentials_file": (None, None, os.devnull, None),
        }
        return boto3.Session(
            aws_access_key_id=ACCOUNT,
            aws_secret_access_key="local",
            region_name=REGION,
            botocore_session=botocore.session.Session(session_vars=nothing_of_the_user),
        )

    @property
    def log_file(self) -> Path:
        """Return the output of the emulator and of the functions in it."""
        return self.state_dir / "emulator.log"

    def _last_words(self) -> str:
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-20:])

    def stop(self) -> None:
        """End the emulator and all it started, and wipe its state; the log and the syntheses stay."""
        if self.pid:
            processes.end_tree(self.pid, grace_s=STOP_GRACE_S)
        if self._child:
            self._child.wait()
            self._child = None
        self.pid = 0
        shutil.rmtree(self.state_dir / "emulator", ignore_errors=True)
        self._record_file.unlink(missing_ok=True)

    def redeployed(self, outputs: dict[str, str]) -> None:
        """Note what a deployment into the running emulator gave out; nothing for a stack that is gone."""
        self.outputs = outputs
        self._write_record()

    @property
    def _record_file(self) -> Path:
        return self.state_dir / "stack.json"

    def _write_record(self) -> None:
        started = processes.table()[self.pid].started
        record = {"endpoint": self.endpoint_url, "pid": self.pid, "started": started, "scale": self.scale}
        record["outputs"] = self.outputs
        partial = self._record_file.with_suffix(".partial")
        partial.write_text(json.dumps(record, indent=2))
        partial.rename(self._record_file)

    def _record(self) -> dict[str, Any] | None:
        """Return the content of `stack.json` if the process that wrote it still runs."""
        if not self._record_file.exists():
            return None
        record: dict[str, Any] = json.loads(self._record_file.read_text())
        running = processes.table().get(record["pid"])
        return record if running and running.started == record["started"] else None

    def __enter__(self) -> Self:
        return self if self.pid else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
