"""What an account chooses: the context of cdk.json, values given with -c, and who is paged."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cli import place

FILE = place.ROOT / "cdk.json"
PAGE = "pageEmail"
ADDRESS = re.compile(r"[^@\s,;]+@[^@\s,;]+\.[^@\s,;]+")


def read(given: Sequence[str], file: Path = FILE) -> dict[str, str]:
    """Return the values given as `name=value`; exit with an error for a name that cdk.json does not have."""
    known = read_context(file)
    chosen = {}
    for choice in given:
        name, equals, value = choice.partition("=")
        if not equals:
            place.fail(f"-c {choice}: there is no value", f"write -c {choice}=VALUE")
        if name not in known:
            place.fail(f"-c {name}: there is no such choice", f"cdk.json has: {', '.join(sorted(known))}")
        chosen[name] = value
    return chosen


def read_context(file: Path = FILE) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))["context"]
    return found


def find_page_address(template: Mapping[str, Any] | None) -> str:
    """Return the address that a deployed template subscribes to the topic `page`; "" if there is none."""
    resources = (template or {}).get("Resources", {})
    for resource in resources.values():
        properties = resource.get("Properties", {})
        if resource["Type"] == "AWS::SNS::Subscription" and properties.get("Protocol") == "email":
            topic = properties.get("TopicArn", {})
            name = topic.get("Ref", "") if isinstance(topic, dict) else ""
            if "somebody is needed" in str(resources.get(name, {}).get("Properties", {}).get("DisplayName")):
                return str(properties["Endpoint"])
    return ""


def check(address: str) -> None:
    """Exit with an error if this is not an e-mail address."""
    if not ADDRESS.fullmatch(address):
        place.fail(f"{address!r} is not an e-mail address", "write one such as on-call@example.com")


def remember(address: str, file: Path = FILE) -> None:
    """Write the address into cdk.json, and leave its other text unchanged."""
    text = file.read_text(encoding="utf-8")
    changed, times = re.subn(rf'("{PAGE}"\s*:\s*)"[^"]*"', lambda match: match[1] + json.dumps(address), text)
    if times != 1:
        place.fail(f"{file.name} has no place for {PAGE!r}", f'write "{PAGE}": "{address}" into its context')
    file.write_text(changed, encoding="utf-8")
