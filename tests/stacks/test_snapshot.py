"""The template, compared with the one that was looked at last; any change of it is to be made on purpose.

To keep a change, and then to look at it:
RERAIL_SNAPSHOT=write pytest tests/stacks/test_snapshot.py; git diff tests/stacks/snapshot
"""

import json
import os
import re
from pathlib import Path

import pytest

from tests.stacks.template import Template

SNAPSHOT = Path(__file__).parent / "snapshot"
ASSET = re.compile(r"\b[0-9a-f]{64}\b")


def settled(template: Template) -> str:
    """The template without what changes with every edit of the functions' code or of a policy's text."""
    body = json.loads(ASSET.sub("<asset>", json.dumps(template.body)))
    for resource in body["Resources"].values():
        if resource["Type"] == "AWS::SSM::Parameter":
            resource["Properties"]["Value"] = "<text of the policy>"
        resource.pop("Metadata", None)
    return json.dumps(body, indent=1, sort_keys=True) + "\n"


@pytest.mark.parametrize("stack", ["Rerail", "RerailTrainingImage"])
def test_the_template_is_the_one_that_was_looked_at(assembly, stack):
    """Resource by resource the same as the stored one."""
    stored, now = SNAPSHOT / f"{stack}.json", settled(Template.read(assembly, stack))
    if os.environ.get("RERAIL_SNAPSHOT") == "write":
        stored.write_text(now)
    assert json.loads(now) == json.loads(stored.read_text())
