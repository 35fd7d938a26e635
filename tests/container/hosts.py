"""Runs the training image's code: here in this process, or as real processes through launch.py."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import train
from job import TrainingJob
from local.sagemaker.hosts import JOB_SITE
from options import read_options
from rerail.model.finding import Finding
from rerail_agent import Guard, failure
from rerail_agent.checkpoints import Manifest, open_store

CONTAINER = Path(train.__file__).parent
# What the image has on its path, and local jobs.
IMPORT_PATH = os.pathsep.join(
    [*(str(CONTAINER.parent / name) for name in ("agent", "container", "lambdas")), str(JOB_SITE)]
)
OPTIONS = {"steps": "40", "checkpoint_every": "10", "batch_size": "12", "model_size": "tiny", "warmup_steps": "5"}
LIMIT_S = 300


def losses(text: str) -> dict[int, str]:
    """Step to loss, as printed."""
    return {int(step): loss for step, loss in re.findall(r"^rerail step=(\d+) loss=(\S+) ", text, re.MULTILINE)}


def agree(one: dict[int, str], other: dict[int, str]) -> bool:
    """Both have a step in common, and no such step has two losses."""
    common = one.keys() & other.keys()
    return bool(common) and all(one[step] == other[step] for step in common)


def weights(err: str) -> str:
    """Return the fingerprint of the final weights, as logged; empty without one."""
    found = re.search(r"finished after step \d+, weights (\S+)", err)
    return found[1] if found else ""


def saved(root: Path) -> dict[int, Manifest]:
    """Step to manifest of every checkpoint in a folder; all of their files are verified."""
    place = open_store(root)
    manifests = {step: manifest for step in sorted(place.steps()) if (manifest := place.manifest(step))}
    for step, manifest in manifests.items():
        for entry in manifest.files:
            place.check(step, entry)
    return manifests


class Listening(Guard):
    """Keeps what is reported, and gets a SIGTERM of its own in the middle of a step, if one is named."""

    def __init__(self, *, sigterm_in: int = 0) -> None:
        super().__init__(environment={})
        self.findings: list[Finding] = []
        self.refused: list[tuple[int, bool, int | None]] = []
        self.left = sigterm_in

    def reduce(self, loss: object) -> float:
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGTERM)
        return super().reduce(loss)

    def report(self, finding: Finding) -> None:
        self.findings.append(finding)

    def not_restored(self, step: int, reason: str, *, damaged: bool = False, saved_by: int | None = None) -> None:
        self.refused.append((step, damaged, saved_by))


class Host:
    """One machine of a job: its /opt/ml and the processes that were started on it."""

    def __init__(self, base: Path, **options: str) -> None:
        self.base = base
        self.options = {**OPTIONS, **options}
        self.processes: list[subprocess.Popen[str]] = []
        self.out = base / "out.txt"
        self.err = base / "err.txt"

    @property
    def checkpoints(self) -> Path:
        return self.base / "checkpoints"

    @property
    def failure(self) -> dict[str, object] | None:
        path = failure_path(self.base)
        return json.loads(path.read_text()) if path.exists() else None

    def launch(self, hosts: tuple[str, ...] = ("algo-1",), current: str = "algo-1", **environment: str) -> None:
        """Starts launch.py as SageMaker would, with its files in place; output goes to files."""
        config = self.base / "input" / "config"
        config.mkdir(parents=True, exist_ok=True)
        (config / "hyperparameters.json").write_text(json.dumps(self.options))
        (config / "resourceconfig.json").write_text(json.dumps({"hosts": hosts, "current_host": current}))
        scrubbed = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        with self.out.open("w") as out, self.err.open("w") as err:
            process = subprocess.Popen(
                [sys.executable, "launch.py"],
                cwd=CONTAINER,
                env={
                    **scrubbed,
                    "PYTHONPATH": IMPORT_PATH,
                    "SAGEMAKER_BASE_DIR": str(self.base),
                    "TRAINING_JOB_NAME": "night",
                    **environment,
                },
                stdout=out,
                stderr=err,
                text=True,
            )
        self.processes.append(process)

    def wait(self) -> int:
        """The exit code of the last launch."""
        return self.processes[-1].wait(timeout=LIMIT_S)

    def send(self, number: signal.Signals) -> None:
        self.processes[-1].send_signal(number)

    @property
    def losses(self) -> dict[int, str]:
        return losses(self.out.read_text())

    def kill_all(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def failure_path(base: Path) -> Path:
    return base / "output" / "failure"


class Here:
    """Trains with one rank in this process; a call returns the printed losses, also when a drill ended the run."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.base = base
        self.monkeypatch = monkeypatch
        self.capsys = capsys
        self.out = ""
        self.err = ""
        self.exit_code: object = None
        self.run: train.TrainingRun | None = None

    def __call__(
        self,
        base: Path | None = None,
        *,
        drill: str = "",
        attempt: int = 1,
        resume_at_most: int | None = None,
        skipped: tuple[range, ...] = (),
        rate: float = 1.0,
        restart: int = 0,
        rolled_back: int = 0,
        keeps_newer: bool = False,
        guard: Guard | None = None,
        **options: str,
    ) -> dict[int, str]:
        self.monkeypatch.setenv("RERAIL_DRILL", drill)
        asked = {"rate": rate, "restart": restart, "rolled_back": rolled_back}
        asked |= {"keeps_newer": keeps_newer}
        job = TrainingJob(base or self.base, "night", attempt, resume_at_most, skipped, **asked)
        chosen = read_options([f"--{name}={value}" for name, value in {**OPTIONS, **options}.items()])
        self.capsys.readouterr()
        guard = guard or Guard(environment={})
        try:
            with contextlib.closing(guard), failure.record_failure(job.failure_file, rank=0) as position:
                self.run = train.train(chosen, job, position=position, guard=guard)
        except (ValueError, RuntimeError):
            assert drill, "only a drill may end a run"
        except SystemExit as ending:
            self.exit_code = ending.code
        self.out, self.err = self.capsys.readouterr()
        return losses(self.out)
