"""The agent's wheel: what is in it, that it works without anything else, and from an input channel in a stock image."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.house.sources import ROOT

pytestmark = pytest.mark.slow
DOCUMENT = (ROOT / "docs" / "agent.md").read_text()


def python(*arguments: str, interpreter: str = sys.executable, **environment: str) -> str:
    words = [interpreter, *arguments]
    kept = {"PATH": os.environ["PATH"]}
    done = subprocess.run(words, env={**kept, **environment}, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as from a clone, which has the agent and the core at their places."""
    folder = tmp_path_factory.mktemp("clone")
    for part in ("agent", "lambdas/rerail"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("LICENSE", "NOTICE"):
        shutil.copy2(ROOT / name, folder)
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    python("-m", "pip", "wheel", *options, "--wheel-dir", str(folder), str(folder / "agent"))
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_has_the_agent_and_the_core_that_thinks(wheel: Path) -> None:
    """All of its packages are found by themselves, nothing of what calls AWS from the functions comes along."""
    names = set(zipfile.ZipFile(wheel).namelist())
    agent = {str(path.relative_to(ROOT / "agent")) for path in (ROOT / "agent/rerail_agent").rglob("*.py")}
    assert agent <= names
    core = {
        f"rerail_agent/core/rerail/{name}.py"
        for name in ("model/mailbox", "detection/detectors", "requests/supervised")
    }
    assert core <= names
    packages = {name.partition("/")[0] for name in names if not name.startswith("rerail_agent-")}
    assert packages == {"rerail_agent", "rerail_agent_core.pth"} and not [
        name for name in names if "rerail/aws" in name
    ]


def test_what_the_wheel_asks_for(wheel: Path) -> None:
    """No torch: a training image has its own, and pip would put another one in its place."""
    metadata = zipfile.ZipFile(wheel).read("rerail_agent-0.1.0.dist-info/METADATA").decode()
    needed = re.findall(r"^Requires-Dist: (\w+)[^;\n]*$", metadata, re.MULTILINE)
    assert sorted(needed) == ["boto3", "xxhash"]
    assert set(re.findall(r"^Provides-Extra: (\w+)$", metadata, re.MULTILINE)) == {"s3", "hf", "lightning"}


def test_it_works_with_nothing_else_installed(wheel: Path, tmp_path: Path) -> None:
    """init and the mailbox's format in a bare Python; Guard beside torch; all of it from the wheel."""
    target, venv = str(tmp_path / "target"), tmp_path / "venv"
    python(
        "-m", "pip", "install", "--no-deps", "--no-index", "--disable-pip-version-check", "--target", target, str(wheel)
    )
    python("-m", "venv", "--without-pip", str(venv))
    bare = "import sys, rerail_agent.init, rerail.model.mailbox as core; print('torch' in sys.modules, core.__file__)"
    found = python("-c", bare, interpreter=str(venv / "bin" / "python"), PYTHONPATH=target)
    assert found == f"False {target}/rerail_agent/core/rerail/model/mailbox.py"
    script = "import sys, rerail_agent.guard, rerail; print('rerail.aws' in sys.modules, rerail.__file__)"
    # This interpreter is a checkout's, whose whole core comes first.
    assert python("-c", script, PYTHONPATH=target) == f"False {ROOT}/lambdas/rerail/__init__.py"


def test_it_can_be_installed_into_the_environment_of_a_checkout(wheel: Path, tmp_path: Path) -> None:
    """As docs/scripts.md has it: the checkout keeps its whole core; without one, the wheel's copy is there at once."""
    venv = tmp_path / "venv"
    python("-m", "venv", "--without-pip", str(venv))
    interpreter = str(venv / "bin" / "python")
    site = Path(python("-c", "import sysconfig; print(sysconfig.get_path('purelib'))", interpreter=interpreter))
    zipfile.ZipFile(wheel).extractall(site)
    of_the_wheel = python(
        "-c", "import rerail.requests.supervised as core; print(core.__file__)", interpreter=interpreter
    )
    assert of_the_wheel == str(site / "rerail_agent/core/rerail/requests/supervised.py")
    (site / "_rerail.pth").write_text(f"{ROOT / 'lambdas'}\n")
    script = "import rerail_agent.init, rerail.decisions.decide as whole; print(whole.__file__)"
    assert python("-c", script, interpreter=interpreter) == str(ROOT / "lambdas/rerail/decisions/decide.py")


def test_a_stock_image_runs_under_init_from_a_channel(wheel: Path, tmp_path: Path) -> None:
    """The request that the document's hook makes, run here: the script is below init and can import the agent."""
    request: dict[str, Any] = {"AlgorithmSpecification": {"TrainingImage": "any"}}
    hook: dict[str, Any] = {}
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    exec(code.replace("rerail_agent-0.1.0-py3-none-any.whl", wheel.name), hook)
    hook["under_init"](request)
    asked = request["AlgorithmSpecification"]
    assert asked["ContainerArguments"] == hook["IMAGES_OWN"]
    assert request["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"] == hook["WHEEL"]

    script = (
        "import os, rerail_agent, rerail.model.mailbox; print(rerail_agent.Guard.__module__, rerail_agent.__file__)"
    )
    entry = [word.replace("/opt/ml/input/data/rerail", str(wheel.parent)) for word in asked["ContainerEntrypoint"]]
    assert all(len(word) <= 256 for word in asked["ContainerEntrypoint"])
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [*entry, "python", "-c", f"{script}; raise SystemExit(7)"],
        env={"PATH": path, "SAGEMAKER_BASE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 7, done.stderr
    assert done.stdout.split() == ["rerail_agent.guard", f"{wheel}/rerail_agent/__init__.py"]
    assert '"exit_code": 7' in (tmp_path / "output" / "failure").read_text()
