"""The parts of a release work where they are used: outside of a checkout, and without the CDK.

`make release` runs the tests that build one.
"""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from local.stack import LocalAws
from tests.house.sources import ROOT
from tools import release

# Packages that the demo's lock file has for all that an installed command can do on this machine.
LOCKED = ROOT / "requirements" / "demo.txt"
SCRIPT = """
import argparse
import time

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
for step in range(parser.parse_args().steps):
    print(f"step {step} loss {1 / (step + 1):.3f}", flush=True)
    time.sleep(0.5)  # for the functions' first start: a job that ends before is not supervised
"""


# A program whose modules have the names of the command line's own folders.
PROGRAM = {
    "cli.py": "def square(number):\n    return number * number\n",
    "sums.py": "import cli\nfrom rerail_cli import remote\n\n\n@remote(local=True)\ndef total(numbers):\n"
    "    return sum(map(cli.square, numbers))\n",
    "program.py": "import sums\n\nprint(sums.total([1, 2, 3]))\n",
}


def call(*words: object, cwd: Path | None = None, **environment: str) -> str:
    kept = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    release.build_distributions(folder)
    release.write_standalone(folder, release.version_of(folder))
    return folder


@pytest.mark.slow
@pytest.mark.rehearsal
def test_each_distribution_has_packages_of_its_own(files: Path) -> None:
    """Installing both overwrites nothing, and a common name such as `cli` stays free."""
    names = [set(zipfile.ZipFile(wheel).namelist()) for wheel in sorted(files.glob("*.whl"))]
    packages = [{name.split("/")[0] for name in part if ".dist-info" not in name} for part in names]
    assert packages == [{"rerail_cli"}, {"rerail_agent", "rerail_agent_core.pth"}]
    assert not [name for part in names for name in part if "__pycache__" in name or "/tests/" in name]
    sources = sorted(files.glob("*.tar.gz"))
    for source, package in zip(sources, ("app.py", "rerail_agent/core/rerail/model/mailbox.py"), strict=True):
        with tarfile.open(source) as archive:
            assert f"{source.name.removesuffix('.tar.gz')}/{package}" in archive.getnames()


@pytest.mark.slow
@pytest.mark.rehearsal
def test_the_installed_command_works_outside_of_a_checkout(files: Path, tmp_path: Path) -> None:
    """In a bare environment: a run, a remote function, a backtest, a policy, a planned deployment."""
    venv, work = tmp_path / "venv", tmp_path / "work"
    work.mkdir()
    call(sys.executable, "-m", "venv", "--without-pip", venv)
    install = (
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--python",
        venv / "bin" / "python",
    )
    for what in (["--require-hashes", "-r", LOCKED], list(files.glob("*.whl"))):
        # With this environment, which may name an index and its certificates.
        subprocess.run([*map(str, install), *map(str, what)], check=True, timeout=1800)

    def rerail(*words: object) -> str:
        return call(venv / "bin" / "rerail", *words, cwd=work, XDG_DATA_HOME=str(tmp_path / "data"), COLUMNS="160")

    assert rerail("--version") == f"rerail {release.version_of(files)}\n"
    (work / "train.py").write_text(SCRIPT)
    for name, text in PROGRAM.items():
        (tmp_path / "program").mkdir(exist_ok=True)
        (tmp_path / "program" / name).write_text(text)
    (work / "losses.csv").write_text("step,loss\n" + "".join(f"{step},{2 - step / 1000}\n" for step in range(100)))
    assert "1 log, 100 rows" in rerail("backtest", "losses.csv")
    assert "default" in rerail("policy", "show", "default")
    rerail("local", "up")
    try:
        said = rerail("submit", "train.py", "--local", "--name", "outside", "--follow", "--", "--steps", "40")
        assert "step 39" in said
        assert json.loads(rerail("status", "--local", "--json"))["runs"][0]["state"] == "completed"
        assert "resources:" in rerail("deploy", "--local", "--plan")
        environment = {"XDG_DATA_HOME": str(tmp_path / "data"), "PYTHONDONTWRITEBYTECODE": "1"}
        assert call(venv / "bin" / "python", "program.py", cwd=tmp_path / "program", **environment) == "14\n"
    finally:
        rerail("local", "down")
    assert sorted(path.name for path in work.iterdir()) == ["losses.csv", "train.py"]
    assert (tmp_path / "data" / "rerail" / "assemblies").is_dir()


@pytest.mark.slow
@pytest.mark.rehearsal
def test_the_template_without_the_cdk_deploys(files: Path, tmp_path: Path) -> None:
    """Uploaded and created as its instructions say; the functions run, and doctor finds them in their places."""
    (archive,) = files.glob("rerail-standalone-*.zip")
    zipfile.ZipFile(archive).extractall(tmp_path)
    content = tmp_path / "rerail-standalone"
    module, template = (content / "main.tf").read_text(), json.loads((content / "Rerail.template.json").read_text())
    asked = {name for name, parameter in template["Parameters"].items() if "SSM" not in parameter["Type"]}
    assert all(f"    {name} " in module for name in asked)
    with LocalAws(tmp_path / "aws", stack=None) as aws:
        s3, cloudformation = aws.client("s3"), aws.client("cloudformation")
        s3.create_bucket(Bucket="releases")
        for asset in (content / "assets").iterdir():
            s3.upload_file(str(asset), "releases", f"rerail/assets/{asset.name}")
        s3.upload_file(str(content / "Rerail.template.json"), "releases", "rerail/Rerail.template.json")
        given = {
            "TrainingRoleArns": "arn:aws:iam::000000000000:role/One,arn:aws:iam::000000000000:role/Two",
            "CheckpointBucket": "weights",
            "PageEmail": "on-call@example.com",
            "AssetBucket": "releases",
        }
        cloudformation.create_stack(
            StackName="Rerail",
            TemplateURL=f"{aws.endpoint_url}/releases/rerail/Rerail.template.json",
            Parameters=[{"ParameterKey": name, "ParameterValue": value} for name, value in given.items()],
            Capabilities=["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"],
        )
        cloudformation.get_waiter("stack_create_complete").wait(StackName="Rerail")
        (stack,) = cloudformation.describe_stacks(StackName="Rerail")["Stacks"]
        aws.redeployed({output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]})
        state = {"RERAIL_LOCAL_STATE": str(tmp_path / "aws")}
        checks = json.loads(call(sys.executable, "-m", "cli", "doctor", "--local", "--json", cwd=ROOT, **state))
        assert {check["name"]: check["verdict"] for check in checks["checks"]}["supervise"] == "ok"


def test_notes_are_those_of_the_version() -> None:
    """Or those of what is unreleased, for a build that has no tag."""
    changes = "# Change log\n\n## Unreleased\n\n- b\n\n## 1.2.0 (2026-01-01)\n\n- a\n"
    assert release.read_notes(changes, "1.2.0") == "# Rerail 1.2.0\n\n- a\n"
    assert release.read_notes(changes, "1.2.1.dev3") == "# Rerail 1.2.1.dev3\n\n- b\n\n"
    with pytest.raises(SystemExit, match="CHANGELOG.md has no section"):
        release.read_notes("# Change log\n", "1.2.0")
