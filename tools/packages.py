"""Install the packages of a command into this virtual environment, and write the lock files to install from.

    python tools/packages.py install demo     # what `make demo` needs; `make` calls it
    python tools/packages.py lock             # after a change in pyproject.toml: resolve again, with the hashes of all

requirements/<group>.txt pins every package that a group adds to the group it builds on, with the hashes of its files.
uv installs them; INSTALLER=pip has pip do it instead. PyTorch stands apart, because its builds differ by hardware: the
version is pinned, the build is chosen by `torch_sources`. Standard library only: it runs before anything is installed.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
# The extras of pyproject.toml that each command needs, and the group that is installed before.
GROUPS: dict[str, tuple[str, ...]] = {
    "demo": ("functions", "stacks", "local", "container", "report"),
    "test": ("frameworks", "backtest", "docs", "audit", "test"),
    "check": ("check",),
    "docs": ("docs",),
    "audit": ("audit",),
    "mutants": ("mutants",),
}
# The dependency groups of pyproject.toml that do not fit beside the others: each has an environment of its own.
APART = ("checkov", "airflow")
BUILT_ON = {"test": "demo", "check": "test", "audit": "demo", "mutants": "test"}
# PyTorch itself, and what only its CUDA builds need: installed with the build that is chosen.
HARDWARE_PACKAGES = re.compile(r"(torch|triton|cuda|nvidia)\b")
BUILD_BACKENDS = ("hatchling", "hatch-vcs")
HEADER = "# Written by `make lock` from pyproject.toml.\n"


def main() -> None:
    """Run the subcommand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("install").add_argument("group", choices=(*GROUPS, *APART))
    commands.add_parser("lock")
    arguments = parser.parse_args()
    if arguments.command == "lock":
        lock()
    elif arguments.group in APART:
        install_apart(arguments.group)
    else:
        install(arguments.group)


def install(group: str) -> None:
    """Install a group's packages, PyTorch if it needs that, and the project itself as an editable one."""
    pip, groups = _installer(), chain(group)
    files = [option for name in groups for option in ("-r", str(REQUIREMENTS / f"{name}.txt"))]
    # The files name all that is needed but PyTorch, which some of them depend on.
    run(*pip, "--no-deps", "--require-hashes", *files)
    if "demo" in groups:
        install_torch(pip)
    run(*pip, "--no-deps", "--no-build-isolation", "--editable", str(ROOT))


def install_apart(group: str) -> None:
    """Install a group into an environment of its own, without the project."""
    folder = Path(sys.prefix) / group
    run(sys.executable, "-m", "venv", "--clear", str(folder))
    pip = _installer(str(folder / "bin" / "python"))
    run(*pip, "--no-deps", "--require-hashes", "-r", str(REQUIREMENTS / f"{group}.txt"))


def chain(group: str) -> list[str]:
    """Return the groups that this one is built on, and itself."""
    below = BUILT_ON.get(group)
    return [*(chain(below) if below else ()), group]


def _installer(python: str = sys.executable) -> list[str]:
    """Return the install command of uv, or of pip where INSTALLER=pip, for the environment of this Python."""
    if os.environ.get("INSTALLER", "uv") == "pip":
        return [python, "-m", "pip", "install", "--disable-pip-version-check"]
    return [sys.executable, "-m", "uv", "pip", "install", "--python", python]


def install_torch(pip: list[str]) -> None:
    """Install the pinned PyTorch from the first source that has it."""
    wanted = torch_requirement()
    if _installed_torch() == wanted.partition("==")[2]:
        return
    *preferred, last = torch_sources(is_uv="uv" in pip)
    for source in preferred:
        if subprocess.run([*pip, *source, wanted], cwd=ROOT).returncode == 0:
            return
        print(f"packages: {' '.join(source)} does not offer {wanted}; trying the next source", flush=True)
    run(*pip, *last, wanted)


def torch_requirement() -> str:
    """Return PyTorch as pyproject.toml pins it."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return next(str(package) for package in extras["container"] if package.startswith("torch=="))


def _installed_torch() -> str:
    script = "import importlib.metadata as m; print(m.version('torch').partition('+')[0])"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip()


def torch_sources(*, is_uv: bool) -> list[list[str]]:
    """Return the options that choose PyTorch's build, the preferred first.

    A folder of wheels that pip is configured with comes first, then the backend that TORCH_BACKEND names to uv (`cpu`
    unless set; `auto` detects the GPU), then the default index, whose build for Linux on x86 brings gigabytes of CUDA.
    """
    if not is_uv:
        return [[]]  # pip reads its own configuration, and knows no backends
    sources = [["--find-links", folder] for folder in _find_links()]
    return [*sources, ["--torch-backend", os.environ.get("TORCH_BACKEND") or "cpu"], []]


def _find_links() -> list[str]:
    """Return the folders of wheels in pip's configuration and environment which hold a PyTorch; uv reads neither."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    found = [match[1] for match in re.finditer(r"find-links='([^']*)'", listed)]
    folders = dict.fromkeys(folder for folders in found for folder in folders.split())
    return [folder for folder in folders if Path(folder).is_dir() and any(Path(folder).glob("torch-*.whl"))]


def lock() -> None:
    """Resolve all groups together, then each with the versions found, so that any two can share an environment."""
    with tempfile.TemporaryDirectory() as folder:
        everything = Path(folder) / "everything.txt"
        extras = sorted({extra for group in GROUPS.values() for extra in group})
        _compile(extras, everything)
        apart = sorted({match[0] for match in re.finditer(r"^[\w.-]+", everything.read_text(), re.MULTILINE)})
        apart = [name for name in apart if HARDWARE_PACKAGES.match(name)]
        for group in GROUPS:
            whole = Path(folder) / f"{group}.txt"
            extras = [extra for name in chain(group) for extra in GROUPS[name]]
            _compile(extras, whole, constraints=everything, left_out=apart)
            below = Path(folder) / f"{BUILT_ON.get(group)}.txt"
            known = _blocks(below) if below.exists() else []
            added = [block for block in _blocks(whole) if block not in known]
            (REQUIREMENTS / f"{group}.txt").write_text(HEADER + "".join(added))
        for group in APART:
            alone = Path(folder) / f"{group}.txt"
            _resolve(["--group", f"pyproject.toml:{group}"], alone)
            (REQUIREMENTS / f"{group}.txt").write_text(HEADER + alone.read_text())


def _blocks(file: Path) -> list[str]:
    """Return each package's lines: the pin, and its hashes below it."""
    return re.findall(r"^\S.*\n(?:[ \t].*\n)*", file.read_text(), re.MULTILINE)


def _compile(
    extras: list[str],
    file: Path,
    *,
    constraints: Path | None = None,
    left_out: list[str] | None = None,
) -> None:
    options = [option for extra in extras for option in ("--extra", extra)]
    options += ["--constraint", str(constraints)] if constraints else []
    options += [option for name in left_out or [] for option in ("--no-emit-package", name)]
    # What builds the project is installed before it, so that no unpinned copy is fetched for it.
    with tempfile.NamedTemporaryFile("w", suffix=".in") as backend:
        backend.write("\n".join(BUILD_BACKENDS))
        backend.flush()
        _resolve(["pyproject.toml", backend.name, *options], file)


def _resolve(sources: list[str], file: Path) -> None:
    lowest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    how = ["--universal", "--python-version", lowest, "--generate-hashes", "--no-annotate", "--no-header", "--quiet"]
    run(sys.executable, "-m", "uv", "pip", "compile", *sources, *how, "--output-file", str(file))


def run(*command: str) -> None:
    """Run a command that prints its own progress and errors; leave with its exit status if it fails."""
    status = subprocess.run(command, cwd=ROOT).returncode
    if status:
        sys.exit(status)


if __name__ == "__main__":
    main()
