"""Run the whole test suite: several runs of pytest beside each other, of which none keeps another from running.

Tests that deploy the template, or play a demo, mostly wait for an AWS on this machine, whose clock runs fast: they get
a core first. All others fill the gaps, at a lower priority and four files at a time, since many wait for processes. The
clocks follow the speed measured first, with an allowance for what the other runs take.
"""

import os
import re
import subprocess
import sys
import threading
import time

from local.pace import SLOWEST, VARIABLE, measure_pace

# The runs share the cores.
SHARED = 2.0
RUNS = {
    # One at a time would take as long as all the others together; "load" gives neighbours to the same worker.
    "demo": (
        *("tests/demo", "-m", "not rehearsal and not load"),
        *("-n", "4", "--dist", "loadgroup", "--no-loadscope-reorder"),
    ),
    # The longest files of the folder begin first, which xdist would reorder.
    "deployed": ("tests/deployed", "-m", "not rehearsal", "-n", "5", "--dist", "loadfile", "--no-loadscope-reorder"),
    "unit": (
        *("tests", "--ignore=tests/deployed", "--ignore=tests/demo", "-m", "not rehearsal"),
        *("-n", "4", "--dist", "loadfile", "--no-loadscope-reorder"),
    ),
}

# The runs that yield to the others, but little: beside a busy program they must not starve.
PATIENT_RUNS = ("unit",)
NICE = ("nice", "-n", "3")
FAILURES_BEGIN = re.compile("=+ (FAILURES|ERRORS) =+")
FAILURE_LINES = 400


def main() -> int:
    """Return 0 if every test passed; otherwise print the failures of each suite once more, at the end."""
    began = time.monotonic()
    slowdown = min(SLOWEST, SHARED * measure_pace().slowdown)
    environment = {VARIABLE: str(slowdown), **os.environ}
    share = f"1/{float(environment[VARIABLE]):g}"
    print(f"the clocks of demos and deployed stacks run at {share} of their usual speed", flush=True)
    runs = {name: SuiteRun(name, (*options, *sys.argv[1:]), environment) for name, options in RUNS.items()}
    failed = [name for name, run in runs.items() if run.wait()]
    print(f"tests took {time.monotonic() - began:.0f} s; failed: {', '.join(failed) or 'none'}")
    for name in failed:
        print(runs[name].format_failures())
    return 1 if failed else 0


class SuiteRun:
    """One run of pytest, whose lines appear under its name as they come."""

    def __init__(self, name: str, options: tuple[str, ...], environment: dict[str, str]) -> None:
        pytest = [sys.executable, "-m", "pytest", *options, "-o", f"cache_dir=.pytest_cache/{name}"]
        command = [*NICE, *pytest] if name in PATIENT_RUNS else pytest
        self._name = name
        self._process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        # The lines from the first failure's traceback to the end.
        self._failures: list[str] = []
        self._thread = threading.Thread(target=self._show)
        self._thread.start()

    def wait(self) -> int:
        """Return pytest's exit status once its last line is shown."""
        self._thread.join()
        return self._process.wait()

    def format_failures(self) -> str:
        """Return the tracebacks and the names of the failed tests, the names last; the other runs hid them."""
        return "".join(self._failures[-FAILURE_LINES:]) or f"{self._name} ended without a report\n"

    def _show(self) -> None:
        assert self._process.stdout, "started with a pipe"
        for line in self._process.stdout:
            print(f"{self._name:>8} | {line}", end="", flush=True)
            if self._failures or FAILURES_BEGIN.match(line):
                self._failures.append(line)


if __name__ == "__main__":
    sys.exit(main())
