"""Write the bill of materials of what is shipped: `python -m tools.sbom`; and check the licences in it.

cyclonedx-py lists all packages of an environment. The two bills are the parts of that list that a deployment puts into
Lambda, and that the training image adds to its base image: the required packages with all that they need.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".local" / "sbom"
IMAGE_LINES = (ROOT / "container" / "requirements.txt").read_text(encoding="utf-8").splitlines()
# Requirements by the name of the bill; then the packages that the Lambda runtime or the base image has already.
SHIPPED = {
    "functions": (("aws-lambda-powertools[tracer]", "jinja2", "pygal"), {"botocore"}),
    "training-image": (tuple(line for line in IMAGE_LINES if line and not line.startswith("#")), {"torch"}),
}
FREE_LICENCES = {
    *("MIT", "MIT-0", "Apache-2.0", "Apache Software License", "BSD License", "BSD-2-Clause", "BSD-3-Clause"),
    *("PSF-2.0", "0BSD", "Zlib", "CC0-1.0"),
    "LGPL-3.0-or-later",  # pygal: unchanged, and replaceable in a layer of its own
}


def closure(requirements: Iterable[str], provided: Iterable[str] = ()) -> set[str]:
    """Return the names of these packages and of all that they need, without what is provided."""
    names: set[str] = set()
    pending = [Requirement(line) for line in requirements]
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        if name in names or name in provided:
            continue
        try:
            lines = distribution(name).requires or ()
        except PackageNotFoundError:
            continue  # needed by an extra or on another platform only
        names.add(name)
        needed = [Requirement(line) for line in lines]
        extras = ("", *requirement.extras)
        pending += [
            need
            for need in needed
            if not need.marker or any(need.marker.evaluate({"extra": extra}) for extra in extras)
        ]
    return names


def read_environment() -> dict[str, Any]:
    """Return the bill of everything that is installed here."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", sys.executable, "--output-reproducible"]
    bill: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=120).stdout)
    for component in bill["components"]:
        references = component.get("externalReferences", [])
        component["externalReferences"] = [
            reference for reference in references if reference["url"].startswith("https://")
        ]
    return bill


def restrict(bill: Mapping[str, Any], title: str, names: set[str]) -> dict[str, Any]:
    """Return the part of a bill that lists these packages."""
    components = [component for component in bill["components"] if canonicalize_name(component["name"]) in names]
    refs = {component["bom-ref"] for component in components}
    edges = [
        {**edge, "dependsOn": [ref for ref in edge.get("dependsOn", []) if ref in refs]}
        for edge in bill["dependencies"]
        if edge["ref"] in refs
    ]
    root = {"type": "application", "name": f"rerail-{title}", "bom-ref": f"rerail-{title}"}
    edges.append({"ref": root["bom-ref"], "dependsOn": sorted(refs)})
    return {
        **bill,
        "metadata": {**bill["metadata"], "component": root},
        "components": components,
        "dependencies": edges,
    }


def find_other_licences(bill: Mapping[str, Any]) -> list[str]:
    """Return the packages of a bill with a licence that is not in FREE_LICENCES, or with none."""
    found = []
    for component in bill["components"]:
        entries = component.get("licenses", [])
        texts = [entry.get("expression") or _name(entry["license"]) for entry in entries]
        words = {word for text in texts for word in text.replace(" AND ", " OR ").split(" OR ")}
        if not words or not words <= FREE_LICENCES:
            found.append(f"{component['name']} {component['version']}: {', '.join(sorted(words)) or 'no licence'}")
    return found


def _name(licence: Mapping[str, Any]) -> str:
    return str(licence.get("id") or licence.get("name", "").rpartition(":: ")[2])


def main() -> int:
    """Write both bills; return 1 where a licence is not free."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    environment, others = read_environment(), []
    for title, (requirements, provided) in SHIPPED.items():
        bill = restrict(environment, title, closure(requirements, provided))
        file = FOLDER / f"{title}.cdx.json"
        file.write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
        print(f"{file.relative_to(ROOT)}: {len(bill['components'])} packages")
        others += find_other_licences(bill)
    print("\n".join(others) or "every licence is free")
    return 1 if others else 0


if __name__ == "__main__":
    sys.exit(main())
