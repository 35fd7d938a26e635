"""The template for Opsgenie makes a valid alert of every notice, and closes it by the same alias."""

import json
import re
from collections.abc import Mapping
from typing import Any

from tests.house.sources import ROOT

RESOURCES = json.loads((ROOT / "docs" / "assets" / "opsgenie.template.json").read_text())["Resources"]
# What Opsgenie's API takes for an alert.
FIELDS = {"message", "alias", "description", "note", "source", "entity", "priority", "details"}


def transform(rule: str, notice: Mapping[str, Any]) -> Any:
    """Return what EventBridge sends: each <name> is the JSON of the value at its path."""
    (target,) = RESOURCES[rule]["Properties"]["Targets"]
    paths = target["InputTransformer"]["InputPathsMap"]
    values = {name: notice[path.removeprefix("$.detail.")] for name, path in paths.items()}
    return json.loads(
        re.sub(r"<(\w+)>", lambda match: json.dumps(values[match[1]]), target["InputTransformer"]["InputTemplate"])
    )


def test_pages_become_alerts_and_all_clears_close_them() -> None:
    golden = ROOT / "tests" / "notices" / "golden"
    page, clear = (json.loads((golden / f"{name}.webhook.json").read_text()) for name in ("held", "all_clear"))
    alert = transform("Pages", page)
    assert set(alert) <= FIELDS
    assert alert["alias"] == clear["clears"]
    assert alert["message"] == page["title"] and alert["note"] == page["todo"]
    (target,) = RESOURCES["AllClears"]["Properties"]["Targets"]
    assert target["HttpParameters"]["PathParameterValues"] == ["$.detail.clears"]
    assert transform("AllClears", clear)["note"] == clear["body"]
    for rule, notice in (("Pages", page), ("AllClears", clear)):
        pattern = RESOURCES[rule]["Properties"]["EventPattern"]
        assert notice["severity"] in pattern["detail"]["severity"]
        assert pattern["detail-type"] == ["Rerail Notice"]
