"""Measure in which container layouts a long save completes after a Stop: `python -m bench.signals [--save-seconds 40]`.

Each layout runs in a PID namespace of its own, as in a container: its first process is PID 1. SIGTERM goes to that one
alone, and SIGKILL to all 120 seconds later, as StopTrainingJob has it. Ranks take their time to save when they hear
SIGTERM. All layouts run at once, since they mostly sleep. Needs Linux with unprivileged user namespaces.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UNSHARE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child")
INIT = (sys.executable, "-m", "rerail_agent.init", "--")
START_S = 120.0

RANK = """
import os, signal, sys, time
folder = os.environ["SIGNALS_FOLDER"]
rank = os.environ.get("RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or "0"
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(time.time()) or note("heard", heard[0]))
def note(what, value):
    with open(f"{folder}/.{what}-{rank}", "w") as file:
        file.write(str(value))
    os.rename(f"{folder}/.{what}-{rank}", f"{folder}/{what}-{rank}")
note("ready", os.getpid())
while not heard:
    time.sleep(0.01)
until = heard[0] + float(os.environ["SIGNALS_SAVE_SECONDS"])
while time.time() < until:
    time.sleep(0.01)
note("saved", time.time())
"""
DRIVER = "import subprocess, sys; sys.exit(subprocess.Popen(sys.argv[1:]).wait())"


@dataclass(frozen=True)
class ProcessLayout:
    """The process that is PID 1, and the launcher between it and the ranks."""

    name: str
    command: tuple[str, ...]
    ranks: int
    init: bool


@dataclass(frozen=True)
class SignalOutcome:
    """The result of a stop in one process layout."""

    layout: str
    init: bool
    # When the last rank had received the signal; None if one never did.
    reached_ms: float | None
    saved: bool
    # 137 is SageMaker's SIGKILL.
    exit_code: int


def layouts(rank: Path) -> list[ProcessLayout]:
    """Return the process layouts, each without the init and with it as PID 1."""
    one = (sys.executable, str(rank))
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2")
    mpirun = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2")
    # Two commands, so that bash stays: a single one it would replace itself with.
    in_bash = ("bash", "-c", '"$@"; exit $?', "bash")
    rows = [
        ("bash", (*in_bash, *one), 1),
        ("python Popen (the stock toolkit)", (sys.executable, "-c", DRIVER, *one), 1),
        ("torchrun", (*torchrun, "PORT", str(rank)), 2),
        ("bash -c torchrun", (*in_bash, *torchrun, "PORT", str(rank)), 2),
    ]
    if shutil.which("mpirun"):
        rows.append(("mpirun", (*mpirun, *one), 2))
    return [ProcessLayout(name, command, ranks, init) for name, command, ranks in rows for init in (False, True)]


def refusal() -> str:
    """Return why namespaces cannot be created here; empty if they can."""
    try:
        made = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no PID namespaces here: {error}"
    return "" if made.returncode == 0 else f"no PID namespaces here: {made.stderr.strip()}"


class Namespace:
    """A command as PID 1 of a PID namespace; what it leaves behind dies with it."""

    def __init__(self, command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        self._out = (folder / "out.txt").open("wb")
        self._err = (folder / "err.txt").open("wb")
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        self._process = subprocess.Popen(
            [*UNSHARE, *command],
            env={**kept, "PYTHONPATH": str(ROOT / "agent"), "SIGNALS_FOLDER": str(folder), **environment},
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
        )

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def send(self, number: signal.Signals) -> None:
        """To PID 1, as from outside of a container."""
        pid = self._process.pid
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(child), number)

    def wait(self, timeout_s: float) -> int:
        """PID 1's exit code; 137 if it has to be killed for it."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            self._process.wait(10)
            return 128 + signal.SIGKILL
        finally:
            self._out.close()
            self._err.close()


def stop(layout: ProcessLayout, folder: Path, *, save_s: float, stop_s: float) -> SignalOutcome:
    """Start a layout, wait for its ranks, send SIGTERM and observe what becomes of their saves."""
    folder.mkdir()
    command = [f"--master-port={free_port()}" if word == "PORT" else word for word in layout.command]
    environment = {"SIGNALS_SAVE_SECONDS": str(save_s), "RERAIL_GRACE_SECONDS": str(stop_s - 5)}
    place = Namespace([*INIT, *command] if layout.init else command, folder, environment)
    await_files(place, folder, "ready", layout.ranks)
    time.sleep(0.3)  # launchers write a little more before they wait
    sent = time.time()
    place.send(signal.SIGTERM)
    code = place.wait(stop_s)
    delays = [float(path.read_text()) - sent for path in folder.glob("heard-*")]
    reached_ms = round(1000 * max(delays), 1) if len(delays) == layout.ranks else None
    saved = len(list(folder.glob("saved-*"))) == layout.ranks
    return SignalOutcome(layout.name, layout.init, reached_ms, saved, code)


def await_files(place: Namespace, folder: Path, what: str, count: int) -> None:
    deadline = time.monotonic() + START_S
    while len(list(folder.glob(f"{what}-*"))) < count:
        if place.is_over or time.monotonic() > deadline:
            place.wait(0)
            raise RuntimeError(f"no {what} in {folder}: {(folder / 'err.txt').read_text()[-2000:]}")
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_all(folder: Path, *, save_s: float, stop_s: float) -> list[SignalOutcome]:
    """Run all layouts at the same time."""
    rank = folder / "rank.py"
    rank.write_text(RANK)
    chosen = layouts(rank)
    with ThreadPoolExecutor(len(chosen)) as threads:
        runs = [
            threads.submit(stop, layout, folder / str(number), save_s=save_s, stop_s=stop_s)
            for number, layout in enumerate(chosen)
        ]
        return [run.result() for run in runs]


def table(outcomes: Sequence[SignalOutcome]) -> str:
    rows = [("PID 1 and below", "our init", "ranks reached", "saved", "exit code")]
    for outcome in outcomes:
        reached = "never" if outcome.reached_ms is None else f"after {outcome.reached_ms:.0f} ms"
        code = "137 (killed)" if outcome.exit_code == 137 else str(outcome.exit_code)
        rows.append((outcome.layout, "yes" if outcome.init else "no", reached, "yes" if outcome.saved else "NO", code))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save-seconds", type=float, default=40.0, help="how long each rank takes to save")
    parser.add_argument("--stop-seconds", type=float, default=120.0, help="from SIGTERM to SIGKILL")
    parser.add_argument("--json", type=Path, help="a file for the outcomes")
    options = parser.parse_args()
    if reason := refusal():
        sys.exit(reason)
    with tempfile.TemporaryDirectory() as folder:
        outcomes = run_all(Path(folder), save_s=options.save_seconds, stop_s=options.stop_seconds)
    print(table(outcomes))
    if options.json:
        options.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1) + "\n")


if __name__ == "__main__":
    main()
