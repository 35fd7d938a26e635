"""The app, synthesized once by its own command line, in an environment without credentials."""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from local.deploy import node_folder
from stacks import ROOT
from tests.stacks.template import Template


def synthesize(
    out: Path, context: Mapping[str, Any] | None = None, *, validate: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run `python app.py`, told what `cdk -c` would tell it; without validation it takes half as long."""
    environment = {"PATH": str(node_folder()), "HOME": str(out.parent), "CDK_OUTDIR": str(out)}
    # Unpacking the library for Node takes seconds: it is done once, wherever HOME is.
    environment |= {"JSII_RUNTIME_PACKAGE_CACHE_ROOT": str(ROOT / ".local" / "jsii")}
    environment |= {"CDK_CONTEXT_JSON": json.dumps(context or {}), "CDK_VALIDATION": str(validate).lower()}
    command = [sys.executable, "app.py"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="session")
def assembly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the cloud assembly, synthesized by the first worker that needs it."""
    shared = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        shared = shared.parent
    out = shared / "cdk" / "cdk.out"
    out.parent.mkdir(exist_ok=True)
    with (shared / "cdk.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (out.parent / "done").exists():
            run = synthesize(out)
            assert run.returncode == 0, run.stderr
            (out.parent / "done").touch()
    return out


@pytest.fixture(scope="session")
def template(assembly: Path) -> Template:
    """The supervisor's template."""
    return Template.read(assembly)
