"""docs/security.md says of every role what the template says."""

import json

from bench import roles
from stacks import ROOT

PAGE = ROOT / "docs" / "security.md"


def test_the_page_lists_every_permission_as_the_template_has_it(template, assembly):
    """If this fails, look at what has changed, then: python -m bench.roles --page docs/security.md"""
    metadata = json.loads((assembly / "Rerail.metadata.json").read_text())
    page = PAGE.read_text(encoding="utf-8")
    assert roles.filled(page, roles.roles(template.body, metadata)) == page


def test_every_function_has_its_line(template):
    """Also in the short table, which people read first."""
    short = PAGE.read_text(encoding="utf-8").split("## Trust boundaries")[0]
    for function in template.of("Lambda::Function").values():
        assert f"| `{function['Handler'].split('.')[0]}` |" in short
