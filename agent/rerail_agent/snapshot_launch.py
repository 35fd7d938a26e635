"""Start the process that holds snapshots beside the ranks, where RERAIL_SNAPSHOT_STEPS asks for snapshots."""

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
# The variable by which the ranks find the snapshot process.
FOLDER = "RERAIL_KEEPER"
SOCKET = "keeper"


def read_snapshot_steps(environment: Mapping[str, str], log: Callable[[str], None]) -> int:
    """Return the steps between two snapshots, 0 for none; log a value that is not valid."""
    text = environment.get(STEPS, "")
    if re.fullmatch(r"[0-9]{0,9}", text):
        return int(text or 0)
    log(f"{STEPS}={text!r}: must be a whole number of steps, 0 for no snapshots; there are none now")
    return 0


class SnapshotProcessHandle:
    """The snapshot process of this container; it ends with the process that started it, not with the ranks."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.process, self.folder = process, folder

    @classmethod
    def start(cls, environment: Mapping[str, str], log: Callable[[str], None]) -> SnapshotProcessHandle | None:
        """Start it; None if no snapshots are asked for or it cannot start, and the job trains without."""
        if not read_snapshot_steps(environment, log):
            return None
        folder = make_folder_path(environment.get("SAGEMAKER_BASE_DIR") or "/opt/ml")
        code = str(Path(__file__).resolve().parents[1])
        path = os.pathsep.join([code, *(place for place in sys.path if place)])
        own = {name: value for name, value in os.environ.items() if "RANK" not in name} | {"PYTHONPATH": path}
        command = [sys.executable, "-m", "rerail_agent.checkpoints.snapshot_process", str(folder), str(os.getpid())]
        try:
            return cls(subprocess.Popen(command, env=own, stdin=subprocess.DEVNULL), folder)
        except OSError as error:
            log(f"no process to hold snapshots:  {error}")
            return None

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def rank_environment(self) -> dict[str, str]:
        """Return the variables by which the ranks find the process."""
        return {FOLDER: str(self.folder)}

    def stop(self) -> None:
        """End the process and release its memory."""
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def make_folder_path(base: str) -> Path:
    """Return the folder of the process's socket for a base folder: the same on every machine of a job."""
    name = hashlib.sha256(os.path.abspath(base).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"rerail-keeper-{os.getuid()}-{name}"
