"""What agent, container, local, cli, tools and bench may import: nothing imports bench or tests."""

import pytest

from tests.house.sources import ROOT, imports, modules, shown, within

FUNCTIONS = ("supervise", "sweep", "notify", "report", "wiring", "settings", "observability", "loading")
# Packages of this project that each folder may import besides its own.
ALLOWED = {
    "agent": ("rerail.model", "rerail.detection"),
    "container": ("rerail_agent", "rerail.model"),
    "local": (),
    "cli": ("rerail", "report_page", "local"),
    "tools": ("rerail", "report_page", "cli", "local"),
    "bench": ("rerail", "rerail_agent", "cli", "local", "stacks.parts.code", *FUNCTIONS),
}
OURS = ("rerail", "rerail_agent", "report_page", "cli", "local", "stacks", "tools", "bench", "tests", *FUNCTIONS)
# Top-level names of the modules of a folder.
OWN = {"agent": ("rerail_agent",)}


@pytest.mark.parametrize("path", [path for folder in ALLOWED for path in modules(folder)], ids=shown)
def test_a_folder_imports_only_what_it_may(path):
    """Move what two folders need into one that both may import."""
    folder = path.relative_to(ROOT).parts[0]
    allowed = (*OWN.get(folder, (folder,)), *ALLOWED[folder])
    ours = {name for name in imports(path) if within(name, *OURS)}
    assert {
        name for name in ours if not within(name, *allowed) and name not in ("rerail", "stacks", "stacks.parts")
    } == set()
