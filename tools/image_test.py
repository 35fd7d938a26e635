"""Build the training image without Docker and run it as SageMaker would: `make image-test`.

The image is built by buildah from container/Dockerfile's `nccl` target, on a small Debian with the CPU build of PyTorch
in place of AWS's base image. bubblewrap runs it: /opt/ml from outside, `train` as argument, the entry point as PID 1,
no network but loopback. Neither needs a daemon or, with user namespaces, root. The first run takes minutes; the base
is kept in .local/image.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from tools.packages import torch_requirement

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / ".local" / "image"
PROGRAMS = {"buildah": "buildah", "mmdebstrap": "mmdebstrap", "bwrap": "bubblewrap"}
# The Debian that has the Python of this virtual environment, for which pip makes the packages.
DEBIANS = {(3, 11): "bookworm", (3, 13): "trixie"}
BASE, IMAGE = "localhost/rerail-test-base", "localhost/rerail-test"
# pip inside takes the packages that were fetched outside, with whatever index this machine uses.
CONTAINERFILE = """FROM scratch
ADD base.tar /
ENV PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels PIP_BREAK_SYSTEM_PACKAGES=1
RUN ln -s /usr/bin/python3 /usr/local/bin/python && python -m pip install --no-cache-dir {torch}
"""
OPTIONS = {"steps": "60", "checkpoint_every": "10", "batch_size": "8", "model_size": "tiny", "warmup_steps": "5"}
LIMIT_S = 600.0


@dataclass(frozen=True)
class ImageConfig:
    """The configuration of an image, and the folder in which its files are mounted."""

    files: Path
    entry_point: tuple[str, ...]
    environment: dict[str, str]
    work_folder: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Build and run the image; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.image_test", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rebuild", action="store_true", help="make the base again")
    options = parser.parse_args(arguments)
    missing = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    if missing:
        print(f"{', '.join(missing)} not found. On Debian and Ubuntu: apt-get install {' '.join(missing)}")
        return 2
    debian = DEBIANS.get(sys.version_info[:2])
    if debian is None:
        print("No Debian has this Python: make .venv with 3.11 or 3.13 (make clean; make image-test PYTHON=python3.11)")
        return 2
    if options.rebuild:
        shutil.rmtree(PLACE, ignore_errors=True)
    if os.geteuid() != 0 and "RERAIL_UNSHARED" not in os.environ:
        # The files of an image belong to several users, which only a user namespace gives.
        command = ["buildah", "unshare", sys.executable, "-m", "tools.image_test", *(arguments or sys.argv[1:])]
        return subprocess.run(command, cwd=ROOT, env=os.environ | {"RERAIL_UNSHARED": "1"}).returncode
    PLACE.mkdir(parents=True, exist_ok=True)
    make_base(debian)
    refuse_smddp_without_smddp()
    build("nccl", IMAGE)
    failed = 0
    with mounted(IMAGE) as config, tempfile.TemporaryDirectory(prefix="rerail-image-") as folder:
        for number, (name, check) in enumerate(CHECKS.items(), 1):
            print(f"{number}/{len(CHECKS)} {name} ...", flush=True)
            try:
                print(f"    {check(Container(config, Path(folder) / str(number)))}", flush=True)
            except (AssertionError, subprocess.TimeoutExpired) as error:
                failed += 1
                print(f"    FAILED: {error}", flush=True)
    print(f"{failed} of {len(CHECKS)} failed" if failed else f"all {len(CHECKS)} passed")
    return 1 if failed else 0


def make_base(debian: str) -> None:
    """Make the image that stands for AWS's: Debian, Python, PyTorch. Does nothing if it is there."""
    sources = [CONTAINERFILE, debian, torch_requirement(), (ROOT / "container" / "requirements.txt").read_text()]
    key = sha256("".join(sources).encode()).hexdigest()
    made = PLACE / "made"
    if made.exists() and made.read_text() == key:
        return
    say("packages of the image, as wheels")
    requirements = ["-r", str(ROOT / "container" / "requirements.txt"), torch_requirement()]
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(PLACE / "wheels"), *requirements)
    say(f"Debian {debian} with Python")
    (PLACE / "base.tar").unlink(missing_ok=True)
    included = "--include=python3,python3-pip,ca-certificates"
    run("mmdebstrap", "--quiet", "--variant=minbase", included, debian, str(PLACE / "base.tar"))
    say("PyTorch on it")
    (PLACE / "Containerfile").write_text(CONTAINERFILE.format(torch=torch_requirement()))
    run(*buildah("build"), *BUILD_OPTIONS, "-f", str(PLACE / "Containerfile"), "-t", BASE, str(PLACE))
    made.write_text(key)


def build(target: str, tag: str) -> None:
    """Build a target of container/Dockerfile on the base."""
    say(f"container/Dockerfile, target {target}")
    run(*_build_target(target), "-t", tag, str(ROOT))


def _build_target(target: str) -> list[str]:
    bases = [f"--build-arg={name}={BASE}" for name in ("NCCL_IMAGE", "SMDDP_IMAGE")]
    files = ["-f", str(ROOT / "container" / "Dockerfile"), f"--ignorefile={ROOT}/container/Dockerfile.dockerignore"]
    return [*buildah("build"), *BUILD_OPTIONS, *bases, *files, "--target", target]


def refuse_smddp_without_smddp() -> None:
    """Exit with an error if the `smddp` target can be built on a base image without SMDDP."""
    say("container/Dockerfile, target smddp: must be refused without SMDDP")
    done = subprocess.run([*_build_target("smddp"), str(ROOT)], capture_output=True, text=True)
    if done.returncode == 0 or "no SMDDP here" not in done.stderr + done.stdout:
        sys.exit(f"not refused for its lack of SMDDP: {done.stderr[-2000:]}")


def buildah(subcommand: str) -> list[str]:
    """Return a command of buildah on images of its own, beside those of this machine."""
    return ["buildah", f"--root={PLACE}/store", f"--runroot={PLACE}/run", subcommand]


# The host's network, and no runtime: neither needs more rights than a user namespace gives.
BUILD_OPTIONS = ["--quiet", "--isolation=chroot", f"--volume={PLACE}/wheels:/wheels:ro"]


def say(text: str) -> None:
    print(f"image-test: {text} ...", flush=True)


def run(*command: str) -> None:
    """Run a command that prints its own errors; exit with its status if it fails."""
    if status := subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
        sys.exit(f"image-test: {' '.join(command[:2])} ended with exit code {status}")


@contextmanager
def mounted(image: str) -> Iterator[ImageConfig]:
    """Yield an image's configuration, its files mounted for as long."""
    name = _read(*buildah("from"), image).strip()
    try:
        files = Path(_read(*buildah("mount"), name).strip())
        found = json.loads(_read(*buildah("inspect"), name))["OCIv1"]["config"]
        environment = dict(line.split("=", 1) for line in found["Env"])
        yield ImageConfig(files, tuple(found["Entrypoint"]), environment, found["WorkingDir"])
    finally:
        _read(*buildah("rm"), name)


def _read(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Container:
    """Containers of one job on one machine, which share /opt/ml as the starts of a job in SageMaker do."""

    def __init__(self, config: ImageConfig, base: Path) -> None:
        self.config, self.base = config, base
        self.process: subprocess.Popen[bytes] | None = None
        self.output = base / "output.txt"
        for folder in ("input/config", "input/data", "checkpoints", "model", "output"):
            (base / "ml" / folder).mkdir(parents=True)
        self.write_config("resourceconfig.json", {"hosts": ["algo-1"], "current_host": "algo-1"})
        self.write_config("inputdataconfig.json", {})

    def write_config(self, name: str, content: dict[str, Any]) -> None:
        (self.base / "ml" / "input" / "config" / name).write_text(json.dumps(content))

    def start(self, *, drill: str = "", **options: str) -> None:
        """Start it with the argument and the environment that SageMaker gives."""
        self.write_config("hyperparameters.json", OPTIONS | options)
        environment = self.config.environment | {"TRAINING_JOB_NAME": "image-test", "AWS_REGION": "us-east-1"}
        environment |= {"RERAIL_DRILL": drill} if drill else {}
        reading, writing = os.pipe()
        command = ["bwrap", "--unshare-all", "--as-pid-1", "--die-with-parent", "--clearenv", "--info-fd", str(writing)]
        for name, value in environment.items():
            command += ["--setenv", name, value]
        command += ["--bind", str(self.config.files), "/", "--bind", str(self.base / "ml"), "/opt/ml"]
        # Empty folders of the container's own, not this machine's.
        command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/dev/shm", "--tmpfs", "/tmp"]  # nosec B108
        command += ["--chdir", self.config.work_folder, *self.config.entry_point, "train"]
        with self.output.open("w") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, pass_fds=[writing])
        os.close(writing)
        with os.fdopen(reading) as information:
            described = information.read()
        assert described, f"bubblewrap did not start it: {self.text}"
        self.pid = int(json.loads(described)["child-pid"])

    def wait(self) -> int:
        """Return the exit code of the container."""
        assert self.process is not None
        return self.process.wait(LIMIT_S)

    def wait_for_line(self, pattern: str) -> None:
        """Return once the output has this line."""
        deadline = time.monotonic() + LIMIT_S
        while not re.search(pattern, self.text, re.MULTILINE):
            assert self.process is not None
            ended = self.process.poll()
            assert ended is None, f"it ended with exit code {ended} before {pattern!r}: {self.text[-2000:]}"
            assert time.monotonic() < deadline, f"no line {pattern!r} within {LIMIT_S:g} s: {self.text[-2000:]}"
            time.sleep(0.1)

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    @property
    def steps(self) -> list[int]:
        return [int(step) for step in re.findall(r"^rerail step=(\d+) ", self.text, re.MULTILINE)]

    @property
    def newest_manifest(self) -> dict[str, Any]:
        manifests = sorted((self.base / "ml" / "checkpoints").glob("step-*/manifest.json"))
        assert manifests, "no checkpoint was saved"
        found: dict[str, Any] = json.loads(manifests[-1].read_text())
        return found


def check_complete_run(container: Container) -> str:
    container.start()
    container.wait_for_line(r"^rerail step=1 ")
    namespaces = re.search(r"^NSpid:(.*)$", Path(f"/proc/{container.pid}/status").read_text(), re.MULTILINE)
    command = Path(f"/proc/{container.pid}/cmdline").read_text().split("\0")
    assert namespaces is not None and namespaces[1].split()[-1] == "1", "the entry point is not PID 1"
    assert "launch.py" in " ".join(command), f"PID 1 is {command}"
    status = container.wait()
    assert status == 0, f"exit code {status}: {container.text[-3000:]}"
    assert container.steps == list(range(1, 61)), container.steps
    assert container.newest_manifest["reason"] == "final"
    assert not (container.base / "ml" / "output" / "failure").exists(), "a failure file after a complete run"
    return f"60 steps with launch.py as PID 1, exit code 0, {len(list_models(container))} file(s) in /opt/ml/model"


def list_models(container: Container) -> list[Path]:
    return [path for path in (container.base / "ml" / "model").rglob("*") if path.is_file()]


def check_stop_and_resume(container: Container) -> str:
    container.start(drill="wait:step=20")
    container.wait_for_line(r"^rerail step=19 ")
    os.kill(container.pid, signal.SIGTERM)
    status = container.wait()
    assert status == 0, f"exit code {status} after SIGTERM: {container.text[-3000:]}"
    saved = container.newest_manifest
    assert saved["reason"] == "sigterm", f"the newest checkpoint was saved for: {saved['reason']}"
    container.start()
    status = container.wait()
    assert status == 0, f"exit code {status} of the second start: {container.text[-3000:]}"
    assert container.steps == list(range(saved["step"] + 1, 61)), container.steps
    return f"SIGTERM: saved at step {saved['step']}, exit code 0; a second start went on at step {saved['step'] + 1}"


def check_failure(container: Container) -> str:
    container.start(drill="bug:step=15")
    status = container.wait()
    assert status not in (0, 143), f"exit code {status} after an error in the script"
    failure = container.base / "ml" / "output" / "failure"
    assert failure.exists(), f"no failure file; the output ends with {container.text[-2000:]}"
    assert len(failure.read_text()) <= 1024, "SageMaker cuts a failure reason after 1,024 characters"
    return f"exit code {status}, /opt/ml/output/failure: {failure.read_text().splitlines()[0][:100]}"


CHECKS: dict[str, Callable[[Container], str]] = {
    "a complete run": check_complete_run,
    "SIGTERM and a second start": check_stop_and_resume,
    "an error in the script": check_failure,
}

if __name__ == "__main__":
    sys.exit(main())
