"""The table of permissions and docs/security.md cover every function of the template."""

import json

from stacks import ROOT
from tools import roles

PAGE = ROOT / "docs" / "security.md"


def test_the_table_has_a_part_for_every_function(template, assembly):
    """Each function has its permissions listed under its own heading."""
    metadata = json.loads((assembly / "Rerail.metadata.json").read_text())
    table = roles.roles(template.body, metadata)
    for function in template.of("Lambda::Function").values():
        assert f"### The function {function['Handler'].split('.')[0]}\n" in table


def test_every_function_has_its_line(template):
    """The summary of what may act names each function."""
    summary = PAGE.read_text(encoding="utf-8").split("## Trust boundaries")[0]
    for function in template.of("Lambda::Function").values():
        assert f"| `{function['Handler'].split('.')[0]}` |" in summary
