"""Bills of materials as CycloneDX has them: python -m bench.sbom [--folder .local/sbom]

Three of them, each with the versions, licences and sources of what is in it, and what requires what: `functions` (what
a deployment puts into Lambda: the code, its layers), `training-image` (what the image adds to its base), `development`
(all that is installed here). What the packages say of themselves is read by cyclonedx-bom from this environment, in
which everything that is shipped has the same pinned version."""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rich.console import Console
from rich.progress import track

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".local" / "sbom"
FORMAT = SchemaVersion.V1_6
ENDING = ".cdx.json"
Bill = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shipped:
    """What is put together somewhere: its name, what it is, and what is installed there by a requirement of ours; with
    no requirements it is all that is installed here. `beneath` is what it stands on and we do not ship; the packages in
    `provided` are of that."""

    name: str
    description: str
    requires: tuple[str, ...] = ()
    beneath: str = ""
    provided: tuple[str, ...] = ()


def image_requirements(file: Path = ROOT / "container" / "requirements.txt") -> tuple[str, ...]:
    """What the Dockerfile installs beside its base image."""
    lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))


def shipped() -> tuple[Shipped, ...]:
    """All there is a bill of."""
    return (
        Shipped(
            "functions",
            "Rerail's functions in AWS Lambda with the layers that they are deployed with",
            ("aws-lambda-powertools[tracer]", "jinja2", "pygal"),
            "boto3 and botocore as the Lambda runtime has them",
            ("botocore",),
        ),
        Shipped(
            "training-image",
            "Rerail's training image: what it adds to the AWS Deep Learning Container that it is built on",
            image_requirements(),
            "the base image that container/Dockerfile names, with its PyTorch and CUDA",
            ("torch",),
        ),
        Shipped("development", "All that is installed to develop, test and deploy Rerail"),
    )


def closure(requirements: Iterable[str], provided: Iterable[str] = ()) -> set[str]:
    """The canonical names of all that these requirements bring with them here, but for what is provided; raises
    PackageNotFoundError."""
    found: set[str] = set()
    known = set(provided)
    waiting = [Requirement(each) for each in requirements]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        found.add(name)
        for extra in ("", *wanted.extras):
            for each in _needed(distribution(name), extra):
                if canonicalize_name(each.name) not in found | known:
                    waiting.append(each)
    return found


def _needed(of: Distribution, extra: str) -> Iterable[Requirement]:
    for text in of.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None:
            is_asked = not extra
        else:
            # What an extra adds, and not what is needed in any case.
            is_asked = requirement.marker.evaluate({"extra": extra}) and (
                not extra or not requirement.marker.evaluate({"extra": ""})
            )
        if is_asked:
            try:
                distribution(requirement.name)
            except PackageNotFoundError:
                if not extra:
                    raise
                continue  # an extra's extra that nobody has installed
            yield requirement


def environment(python: str = sys.executable) -> Bill:
    """All that is installed where this Python lives, as cyclonedx-bom tells it; reproducible, and no path in it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "environment.json"
        words = ["environment", python, "--output-reproducible", "--no-validate", "--sv", FORMAT.to_version()]
        words += ["-o", str(file)]
        subprocess.run([sys.executable, "-m", "cyclonedx_py", *words], check=True, capture_output=True, timeout=120)
        bill: Bill = json.loads(file.read_text(encoding="utf-8"))
    for component in bill["components"]:
        sources = component.get("externalReferences", [])
        component["externalReferences"] = [each for each in sources if each["url"].startswith("https://")]
    return bill


def bill_of(each: Shipped, everything: Bill) -> Bill:
    """The bill of what is shipped, cut out of all that is installed."""
    ours = canonicalize_name("rerail")
    installed = {_name(component) for component in everything["components"]}
    names = closure(each.requires, each.provided) if each.requires else installed
    kept = [component for component in everything["components"] if _name(component) in names - {ours}]
    refs = {component["bom-ref"] for component in kept}
    root = {
        "type": "application",
        "name": f"rerail-{each.name}",
        "version": version("rerail"),
        "description": each.description,
        "bom-ref": f"rerail-{each.name}",
        "properties": [{"name": "rerail:stands-on", "value": each.beneath}] if each.beneath else [],
    }
    depending = [
        {**one, "dependsOn": [ref for ref in one.get("dependsOn", []) if ref in refs]}
        for one in everything["dependencies"]
        if one["ref"] in refs
    ]
    return {
        **everything,
        "metadata": {**everything["metadata"], "component": {key: value for key, value in root.items() if value}},
        "components": kept,
        "dependencies": [*depending, {"ref": root["bom-ref"], "dependsOn": sorted(refs)}],
    }


def _name(component: Mapping[str, Any]) -> str:
    return canonicalize_name(component["name"])


def faults(bill: Bill) -> list[str]:
    """What CycloneDX's own schema has against it."""
    found = JsonStrictValidator(FORMAT).validate_str(json.dumps(bill), all_errors=True)
    return [str(fault) for fault in found or ()]


def licences(bill: Bill) -> dict[str, str]:
    """Component to licence, as its package declares it; "" where it declares none."""
    found = {}
    for component in bill["components"]:
        told = [each.get("expression") or _spoken(each["license"]) for each in component.get("licenses", [])]
        found[f"{component['name']} {component['version']}"] = " or ".join(dict.fromkeys(filter(None, told)))
    return found


def _spoken(licence: Mapping[str, Any]) -> str:
    return str(licence.get("id") or licence.get("name", "").rpartition(":: ")[2])


def write(
    folder: Path = FOLDER, *, chosen: Sequence[Shipped] | None = None, console: Console | None = None
) -> list[Path]:
    """The bills, all of them where none are chosen, into a folder; raises ValueError for one that CycloneDX would
    refuse."""
    folder.mkdir(parents=True, exist_ok=True)
    everything, files = environment(), []
    for each in track(chosen or shipped(), "bills of materials", console=console, disable=console is None):
        bill = bill_of(each, everything)
        if wrong := faults(bill):
            raise ValueError(f"the bill of {each.name} is not as CycloneDX has it: {'; '.join(wrong)}")
        file = folder / f"{each.name}{ENDING}"
        file.write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
        files.append(file)
    return files


def main(arguments: Sequence[str] | None = None) -> int:
    """Write them, and say where they are."""
    parser = argparse.ArgumentParser(prog="python -m bench.sbom", description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where to (.local/sbom)")
    folder = parser.parse_args(arguments).folder
    console = Console()
    for file in write(folder, console=console):
        count = len(json.loads(file.read_text(encoding="utf-8"))["components"])
        console.print(f"{file}: {count} packages", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
