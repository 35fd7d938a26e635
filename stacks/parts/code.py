"""The functions' code as it is shipped: lambdas/, with bytecode where a Python of the runtime's version is here.

Lambda cannot keep what it compiles: without bytecode every cold start compiles every module anew, a third of its CPU.
Bytecode is of one version of Python, whatever the machine. Where that version is not at hand the sources go alone.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from stacks import ROOT

LAMBDAS = ROOT / "lambdas"
RUNBOOKS = ROOT / "docs" / "runbooks"  # incident reports contain them
RUNTIME = (3, 13)
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc")
WHICH = "import sys; print(*sys.version_info[:2])"
ANSWERS_WITHIN_S = 20


def fill(folder: Path, python: str | None) -> None:
    """Copy the code into a folder that does not exist yet, and compile it with this Python, if any.

    Nobody looks at the time of the sources there (`unchecked-hash`): a zip has its own idea of it."""
    shutil.copytree(LAMBDAS, folder, ignore=LEFT_OUT)
    shutil.copytree(RUNBOOKS, folder / "report_page" / "runbooks", ignore=LEFT_OUT)
    if python:
        # The name of this folder would be in it otherwise, and differ each time.
        strip = ["-s", str(folder), "-p", "/var/task"]
        how = ["--invalidation-mode", "unchecked-hash", "-q", *strip]
        subprocess.run([python, "-m", "compileall", *how, str(folder)], check=True, capture_output=True)
    make_readable(folder)


def make_readable(folder: Path) -> None:
    """Let everyone read the files, whatever the umask was: Lambda runs functions as another user."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def interpreter(version: tuple[int, int] = RUNTIME) -> str | None:
    """A Python of this version: the one that runs, or one of that name on the path; None where there is none."""
    return next((python for python in _candidates(version) if _is(python, version)), None)


def _candidates(version: tuple[int, int]) -> Iterator[str]:
    if sys.version_info[:2] == version:
        yield sys.executable
    if named := shutil.which("python{}.{}".format(*version)):
        yield named


def _is(python: str, version: tuple[int, int]) -> bool:
    """It says so itself: what carries the name may be a stand-in that only tells that it is not installed."""
    try:
        asked = subprocess.run([python, "-c", WHICH], capture_output=True, text=True, timeout=ANSWERS_WITHIN_S)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0 and asked.stdout.split() == [str(part) for part in version]
