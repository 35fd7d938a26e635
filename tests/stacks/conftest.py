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
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800)


@pytest.fixture(scope="session")
def assembly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the cloud assembly, which the workers of pytest-xdist share."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    folder = shared / "assembly"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "whole").exists():
            run = synthesize(folder / "cdk.out")
            assert run.returncode == 0, run.stderr
            (folder / "whole").touch()
    return folder / "cdk.out"


@pytest.fixture(scope="session")
def template(assembly: Path) -> Template:
    """The supervisor's template."""
    return Template.read(assembly)
