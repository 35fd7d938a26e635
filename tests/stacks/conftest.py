"""The app, synthesized by its own command line, in an environment without credentials."""

import fcntl
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from local import deploy
from local.deploy import LOCAL_SCOPE, node_folder
from stacks import ROOT
from tests.stacks.template import Template
from tools.variants import CHOICES, EVERYTHING, ORGANIZATION, VIEW, find_templates


def synthesize(
    out: Path, context: Mapping[str, Any] | None = None, *, validate: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run `python app.py`, told what `cdk -c` would tell it; without validation it takes half as long."""
    environment = {"PATH": str(node_folder()), "HOME": str(out.parent), "CDK_OUTDIR": str(out)}
    # Unpacking the library for Node takes seconds: it is done once, wherever HOME is.
    environment |= {"JSII_RUNTIME_PACKAGE_CACHE_ROOT": str(ROOT / ".local" / "jsii")}
    environment |= {
        "CDK_CONTEXT_JSON": json.dumps(LOCAL_SCOPE | dict(context or {})),
        "CDK_VALIDATION": str(validate).lower(),
    }
    command = [sys.executable, "app.py"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800)


@pytest.fixture(scope="session")
def assembly() -> Path:
    """Return the folder of the cloud assembly with the defaults."""
    return _keep_assembly("default", {})


@pytest.fixture(scope="session")
def full_assembly() -> Path:
    """Return the folder of the cloud assembly of an account that asked for EVERYTHING."""
    return _keep_assembly("full", EVERYTHING)


@pytest.fixture(scope="session")
def organization() -> Path:
    """Return the folder of the cloud assembly of an organization's account with CHOICES; the view's is validated."""
    return _keep_assembly("organization", ORGANIZATION | CHOICES, validate=False)


@pytest.fixture(scope="session")
def organization_view() -> Path:
    """Return the folder of the cloud assembly of an organization whose members forward run events."""
    return _keep_assembly("organization_view", ORGANIZATION | CHOICES | VIEW)


def _keep_assembly(name: str, context: Mapping[str, Any], *, validate: bool = True) -> Path:
    """Synthesize once for all workers of pytest-xdist, and again only after a change of what a synthesis reads."""
    folder = ROOT / ".local" / "tested-assemblies" / name
    folder.mkdir(parents=True, exist_ok=True)
    inputs = (*deploy.INPUTS, "tests/stacks/conftest.py")
    fingerprint = deploy._fingerprint(ROOT, "app.py", inputs, context)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made_of = folder / "made-of"
        if not made_of.exists() or made_of.read_text() != fingerprint:
            made_of.unlink(missing_ok=True)
            shutil.rmtree(folder / "cdk.out", ignore_errors=True)
            run = synthesize(folder / "cdk.out", context, validate=validate)
            assert run.returncode == 0, run.stderr
            made_of.write_text(fingerprint)
    return folder / "cdk.out"


@pytest.fixture(scope="session")
def template(assembly: Path) -> Template:
    """Return the supervisor's template with the defaults."""
    return Template.read(assembly)


@pytest.fixture(scope="session")
def full(full_assembly: Path) -> Template:
    """Return the supervisor's template with EVERYTHING."""
    return Template.read(full_assembly)


@pytest.fixture(scope="session")
def templates(assembly: Path, full_assembly: Path, organization: Path) -> dict[str, Template]:
    """Return every template by its variant and name, the members' of an organization too."""
    folders = {"default": assembly, "full": full_assembly, "organization": organization}
    return {
        f"{variant}/{path.name.removesuffix('.template.json')}": Template(json.loads(path.read_text()))
        for variant, folder in folders.items()
        for path in find_templates(folder)
    }
