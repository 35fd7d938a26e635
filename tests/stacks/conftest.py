"""The app's assemblies, synthesized in an environment without credentials."""

import json
from pathlib import Path

import pytest

from local import deploy
from stacks import ROOT
from tests.stacks.template import Template
from tools.variants import CHOICES, EVERYTHING, VARIANTS, find_templates

# With the last one everything is chosen but the buckets.
CONTEXTS = {**VARIANTS, "without_buckets": EVERYTHING | CHOICES | {"checkpointBuckets": []}}


@pytest.fixture(scope="session")
def assemblies() -> Path:
    """Return the folder with each of CONTEXTS, validated; all workers of xdist share it while its inputs stay."""
    cache, variants = ROOT / ".local" / "tested-assemblies", {"variants": CONTEXTS}
    return deploy.synthesize(ROOT, cache, app="tests/stacks/synthesize.py", context=variants)


@pytest.fixture(scope="session")
def assembly(assemblies: Path) -> Path:
    """Return the folder of the cloud assembly with the defaults."""
    return assemblies / "default" / "cdk.out"


@pytest.fixture(scope="session")
def organization(assemblies: Path) -> Path:
    """Return the folder of the cloud assembly of an organization's account with CHOICES."""
    return assemblies / "organization" / "cdk.out"


@pytest.fixture(scope="session")
def organization_view(assemblies: Path) -> Path:
    """Return the folder of the cloud assembly of an organization whose members forward run events."""
    return assemblies / "organization_view" / "cdk.out"


@pytest.fixture(scope="session")
def template(assembly: Path) -> Template:
    """Return the supervisor's template with the defaults."""
    return Template.read(assembly)


@pytest.fixture(scope="session")
def full(assemblies: Path) -> Template:
    """Return the supervisor's template with EVERYTHING."""
    return Template.read(assemblies / "full" / "cdk.out")


@pytest.fixture(scope="session")
def templates(assemblies: Path) -> dict[str, Template]:
    """Return every template by its variant and name, the members' of an organization too."""
    return {
        f"{variant}/{path.name.removesuffix('.template.json')}": Template(json.loads(path.read_text()))
        for variant in ("default", "full", "organization")
        for path in find_templates(assemblies / variant / "cdk.out")
    }
