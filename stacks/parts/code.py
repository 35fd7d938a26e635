"""The functions' code as it is shipped: the sources of lambdas/ and the runbooks, and nothing else.

So the same checkout makes the same asset everywhere. Bytecode would need a Python of the runtime's version on the
machine that deploys: two people would replace each other's code at every deployment.
"""

import shutil
from pathlib import Path

from stacks import ROOT

LAMBDAS = ROOT / "lambdas"
RUNBOOKS = ROOT / "docs" / "runbooks"  # incident reports contain them
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc")


def fill(folder: Path) -> None:
    """Copy the code into a folder that does not exist yet."""
    shutil.copytree(LAMBDAS, folder, ignore=LEFT_OUT)
    shutil.copytree(RUNBOOKS, folder / "report_page" / "runbooks", ignore=LEFT_OUT)
    make_readable(folder)


def make_readable(folder: Path) -> None:
    """Let everyone read the files, whatever the umask was: Lambda runs functions as another user."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
