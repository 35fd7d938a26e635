"""Run what must pass on a clean clone on a new machine, each step with a deadline, the cheapest first.

`.ci/run` calls it. Standard library only: it starts before anything is installed.
"""

import signal
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from local.pace import measure_pace
from tools.deadlines import LimitedCommand, make_records, print_line

ROOT = Path(__file__).resolve().parent.parent
# A step may take this many times its seconds, scaled by the pace; all steps together take at most the whole.
PATIENCE = 4.0
LEAST_S = 60.0
# Two cores of a slow host took about 2,500 s: 2,700 s is the goal.
WHOLE_S = 4_500.0


@dataclass(frozen=True)
class CiStep:
    """One command, and the seconds that it takes on two quiet cores at reference speed."""

    name: str
    seconds: float
    command: str


STEPS = (
    CiStep("packages", 90, "make .venv/check.ready .venv/audit.ready .venv/checkov.ready"),
    CiStep("browser", 30, "make browser || { apt-get update && apt-get install -y chromium; }"),
    CiStep("check", 90, "make check"),
    # Each computes on one core.
    CiStep("bench and audit", 200, "make --jobs 2 bench audit"),
    CiStep("test-load", 150, "make test-load"),
    CiStep("test", 900, "make test"),
)


def main(steps: tuple[CiStep, ...] = STEPS, whole_s: float = WHOLE_S) -> int:
    """Run the steps in order; return 0 if all passed, otherwise the status of the first that failed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    slowdown, records = measure_pace().slowdown, make_records()
    began = time.monotonic()
    for step in steps:
        left = whole_s - (time.monotonic() - began)
        limit = min(left, max(LEAST_S, PATIENCE * step.seconds * slowdown))
        print_line(f"step {step.name}: {step.command}")
        with closing(
            LimitedCommand(f"step {step.name}", ["bash", "-c", step.command], limit_s=limit, records=records)
        ) as run:
            status = run.wait()
            ended = "passed" if status == 0 else f"FAILED with status {status}"
            print_line(f"step {step.name}: {ended} after {run.seconds:.0f} s (limit {limit:.0f} s)")
        if status:
            return status
    print_line(f"all {len(steps)} steps passed after {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
