"""Runs the whole test suite, one suite after the other; a failure in one does not keep the others from running.

Most tests are quick and keep a core busy, two files at a time. Those below SLOW have a whole AWS and training runs on
this machine and mostly wait, so more of them run at once, after the others have left the cores.
"""

import subprocess
import sys
import time

SLOW = ("tests/demo", "tests/deployed")
SUITES = {
    "units, real processes and templates": (
        *("tests", *(f"--ignore={folder}" for folder in SLOW)),
        *("-n", "2", "--dist", "loadfile"),
    ),
    "demo and deployed template": (*SLOW, "-m", "not rehearsal and not load", "-n", "2", "--dist", "loadfile"),
}


def main() -> int:
    """Return 0 if every suite passed; pytest's own output says what failed."""
    failed = []
    began = time.monotonic()
    for name, options in SUITES.items():
        print(f"== {name}", flush=True)
        if subprocess.run([sys.executable, "-m", "pytest", *options, *sys.argv[1:]]).returncode:
            failed.append(name)
    print(f"== {time.monotonic() - began:.0f} s; failed suites: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
