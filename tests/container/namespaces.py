"""Commands as PID 1 of a PID namespace, as in a container. Needs Linux with unprivileged user namespaces."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

AGENT = Path(__file__).resolve().parents[2] / "agent"
UNSHARE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child")
START_S = 120.0


def find_refusal() -> str:
    """Return why namespaces cannot be created here; empty if they can."""
    try:
        made = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no PID namespaces here: {error}"
    return "" if made.returncode == 0 else f"no PID namespaces here: {made.stderr.strip()}"


class Namespace:
    """A command as PID 1 of a PID namespace; what it leaves behind dies with it."""

    def __init__(self, command: Sequence[str], folder: Path, **environment: str) -> None:
        self.folder = folder
        self._out = (folder / "out.txt").open("wb")
        self._err = (folder / "err.txt").open("wb")
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        self._process = subprocess.Popen(
            [*UNSHARE, *command],
            env={**kept, "PYTHONPATH": str(AGENT), "FOLDER": str(folder), **environment},
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
        )

    def send(self, number: signal.Signals) -> None:
        """Signal PID 1, as from outside of a container."""
        pid = self._process.pid
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(child), number)

    def wait(self, timeout_s: float) -> int:
        """Return PID 1's exit code; 137 if it has to be killed for it."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            self._process.wait(10)
            return 128 + signal.SIGKILL
        finally:
            self._out.close()
            self._err.close()

    def await_files(self, what: str, count: int) -> None:
        deadline = time.monotonic() + START_S
        while len(list(self.folder.glob(f"{what}-*"))) < count:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.wait(0)
                raise RuntimeError(f"no {what} in {self.folder}: {(self.folder / 'err.txt').read_text()[-2000:]}")
            time.sleep(0.02)
