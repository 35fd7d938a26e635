"""Starts the process that keeps snapshots beside the ranks, where RERAIL_SNAPSHOT_STEPS asks for them."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

STEPS = "RERAIL_SNAPSHOT_STEPS"
FOLDER = "RERAIL_KEEPER"  # tells the ranks where the keeper is
SOCKET = "keeper"


def snapshot_steps(environment: Mapping[str, str], tell: Callable[[str], None]) -> int:
    """Steps between two snapshots, 0 for none; what cannot be read is told, and there are none."""
    text = environment.get(STEPS, "")
    if re.fullmatch(r"[0-9]{0,9}", text):
        return int(text or 0)
    tell(f"{STEPS}={text!r}: must be a whole number of steps, 0 for no snapshots; there are none now")
    return 0


class SnapshotKeeper:
    """The keeper of this container. It dies with the process that started it, and not with the ranks."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.process, self.folder = process, folder

    @classmethod
    def start(cls, environment: Mapping[str, str], tell: Callable[[str], None]) -> SnapshotKeeper | None:
        """None where no snapshots are asked for, or where there is no process to be had; a job trains without."""
        if not snapshot_steps(environment, tell):
            return None
        folder = folder_for(environment.get("SAGEMAKER_BASE_DIR") or "/opt/ml")
        code = str(Path(__file__).resolve().parents[1])
        path = os.pathsep.join([code, *(place for place in sys.path if place)])
        own = {name: value for name, value in os.environ.items() if "RANK" not in name} | {"PYTHONPATH": path}
        command = [sys.executable, "-m", "rerail_agent.checkpoints.snapshot_process", str(folder), str(os.getpid())]
        try:
            return cls(subprocess.Popen(command, env=own, stdin=subprocess.DEVNULL), folder)
        except OSError as error:
            tell(f"no process to keep snapshots: {error}")
            return None

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def told(self) -> dict[str, str]:
        """What the ranks are to find in their environment."""
        return {FOLDER: str(self.folder)}

    def end(self) -> None:
        """Ends it, and gives its memory back."""
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def folder_for(base: str) -> Path:
    """Where the keeper of the container with this base folder has its socket: the same on every machine of a job."""
    name = hashlib.sha256(os.path.abspath(base).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"rerail-keeper-{os.getuid()}-{name}"
