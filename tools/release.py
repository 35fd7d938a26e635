"""Build everything that a release consists of: `make release` writes it to .local/release.

Wheels and source distributions of the command line and of the agent, the template for deployments without the CDK,
a Grafana dashboard, bills of materials, the version's notes, and the SHA-256 of each file. Nothing is uploaded.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

from tools import grafana, sbom, standalone_template

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".local" / "release"
STANDALONE = ROOT / "stacks" / "standalone"


def main() -> None:
    """Write all files, and print their names."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    build_distributions(FOLDER)
    number = version_of(FOLDER)
    if number != version("rerail"):
        print(f"note: the environment has version {version('rerail')}; this release is {number}")
    write_standalone(FOLDER, number)
    grafana.main(FOLDER / f"rerail-grafana-{number}.json")
    sbom.main()
    for bill in sorted(sbom.FOLDER.glob("*.cdx.json")):
        shutil.copy2(bill, FOLDER / bill.name)
    notes = read_notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), number)
    (FOLDER / "NOTES.md").write_text(notes, encoding="utf-8")
    files = sorted(file for file in FOLDER.iterdir() if not file.name.startswith("."))
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (FOLDER / "SHA256SUMS").write_text("".join(sums))
    print("".join(f"{file.stat().st_size:>10,}  {file.relative_to(ROOT)}\n" for file in files), end="")


def build_distributions(folder: Path) -> None:
    """Build both projects with the locked build tools: a source distribution, and the wheel from it."""
    for project in (ROOT, ROOT / "agent"):
        command = ["uv", "build", "--quiet", "--no-build-isolation", "--python", sys.executable, "--out-dir", folder]
        subprocess.run([sys.executable, "-m", *map(str, command), str(project)], check=True)


def version_of(folder: Path) -> str:
    """Return the version of the command line's wheel."""
    (wheel,) = folder.glob("rerail-*.whl")
    return wheel.name.split("-")[1]


def write_standalone(folder: Path, number: str) -> None:
    """Write the archive of the template, its assets, its instructions and the Terraform module."""
    content = folder / "rerail-standalone"
    shutil.copytree(STANDALONE / "terraform", content)
    shutil.copy2(STANDALONE / "README.md", content)
    shutil.copy2(ROOT / "LICENSE", content)
    standalone_template.write(ROOT, ROOT / ".local" / "assemblies", content)
    with zipfile.ZipFile(folder / f"rerail-standalone-{number}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(path for path in content.rglob("*") if path.is_file()):
            archive.write(file, file.relative_to(folder))
    shutil.rmtree(content)


def read_notes(changes: str, number: str) -> str:
    """Return the change log's section of a version; that of unreleased changes if it has none."""
    sections = re.split(r"^## ", changes, flags=re.MULTILINE)[1:]
    for name in (number, "Unreleased"):
        for section in sections:
            if section.split("\n", 1)[0].strip("[] ").startswith(name):
                return f"# Rerail {number}\n{section.split(chr(10), 1)[1]}"
    raise SystemExit(f"CHANGELOG.md has no section for {number} and no unreleased one: add it")


if __name__ == "__main__":
    main()
