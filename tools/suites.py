"""Run the whole test suite: several runs of pytest beside each other, of which none keeps another from running.

Most tests keep a core busy or start something that does, so three files run at a time. Those that deploy the template,
or play a demo, mostly wait for an AWS on this machine, and fill the gaps. Their clocks follow the speed measured first,
with an allowance for what the other runs take.
"""

import os
import subprocess
import sys
import threading
import time
from typing import IO

from local.pace import SLOWEST, VARIABLE, measure_pace

# The runs share the cores.
SHARED = 2.0
RUNS = {
    # One at a time would take as long as all the others together.
    "demo": ("tests/demo", "-m", "not rehearsal and not load", "-n", "4", "--dist", "load"),
    # The longest files of the folder begin first, which xdist would reorder.
    "deployed": ("tests/deployed", "-n", "5", "--dist", "loadfile", "--no-loadscope-reorder"),
    "unit": (
        *("tests", "--ignore=tests/deployed", "--ignore=tests/demo", "-m", "not rehearsal"),
        *("-n", "3", "--dist", "loadfile"),
    ),
}


def main() -> int:
    """Return 0 if every test passed; pytest's own output says what failed."""
    began = time.monotonic()
    slowdown = min(SLOWEST, SHARED * measure_pace().slowdown)
    environment = {VARIABLE: str(slowdown), **os.environ}
    share = f"1/{float(environment[VARIABLE]):g}"
    print(f"the clocks of demos and deployed stacks run at {share} of their usual speed", flush=True)
    runs = {name: _start(name, options, environment) for name, options in RUNS.items()}
    failed = [name for name, run in runs.items() if run.wait()]
    print(f"tests took {time.monotonic() - began:.0f} s; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def _start(name: str, options: tuple[str, ...], environment: dict[str, str]) -> subprocess.Popen[str]:
    """Start one run, whose lines appear under its name as they come."""
    command = [sys.executable, "-m", "pytest", *options, "-o", f"cache_dir=.pytest_cache/{name}", *sys.argv[1:]]
    run = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert run.stdout, "started with a pipe"
    # Not a daemon: the interpreter waits until the last line is shown.
    threading.Thread(target=_show, args=(name, run.stdout)).start()
    return run


def _show(name: str, lines: IO[str]) -> None:
    for line in lines:
        print(f"{name:>8} | {line}", end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
