"""Run the whole test suite: tests within one process, then deployed stacks, then demos and all that starts processes.

The clocks of local AWSs follow the speed that is measured first, with an allowance for what the other suites take. Each
suite has a deadline; see `tools.deadlines`.
"""

import os
import re
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from local.pace import SLOWEST, VARIABLE, measure_pace, measure_reference
from tools.deadlines import LimitedCommand, make_records, print_line

ROOT = Path(__file__).resolve().parent.parent
BUDGETS = ROOT / "tests" / "house" / "budgets.toml"
# A suite may take this many times the seconds that it took at reference speed.
PATIENCE = 4.0
# Workers and suites share the cores: with clocks at full speed, demos and deployed stacks fail on two of them.
SHARED = 2.0
ELSEWHERE = ("--ignore=tests/deployed", "--ignore=tests/demo")
FAILURES_BEGIN = re.compile("=+ (FAILURES|ERRORS) =+")
FAILURE_LINES = 400


@dataclass
class Suite:
    """One run of pytest, whose lines appear under its name as they come."""

    name: str
    # What it takes on two cores at reference speed, beside the other suites of its stage.
    seconds: float
    options: tuple[str, ...]
    # The lines from the first failure's traceback to the end.
    failures: list[str] = field(default_factory=list)

    def run(self, pace: float, clock: float, more: list[str]) -> int:
        """Return pytest's exit status, or that of a command ended at its deadline.

        The machine is `pace` times as slow as the reference; clocks run `clock` times as slow as they may there.
        """
        options = (*self.options, "--durations=20", "-o", f"cache_dir=.pytest_cache/{self.name}", *more)
        with closing(
            LimitedCommand(
                f"the suite {self.name}",
                [sys.executable, "-m", "pytest", *options],
                limit_s=PATIENCE * self.seconds * pace,
                records=make_records(),
                environment={**os.environ, VARIABLE: f"{clock:g}"},
                on_line=self.show,
            )
        ) as command:
            status = command.wait(self.report)
            self.show(f"exit status {status} after {command.seconds:.0f} s")
        return status

    def show(self, line: str) -> None:
        """Print a line of pytest, and keep it from the first failure on."""
        print_line(f"{self.name:>9} | {line}")
        if self.failures or FAILURES_BEGIN.match(line):
            self.failures.append(line)

    def report(self, line: str) -> None:
        """Print a line about the suite, and keep it."""
        self.failures.append(line)
        print_line(f"{self.name:>9} | {line}")


STAGES = (
    (Suite("unit", 360, ("tests", *ELSEWHERE, "-m", "not slow", "-n", "2", "--dist", "worksteal")),),
    # The longest files of the folder begin first, which xdist would reorder.
    (
        Suite(
            "deployed",
            500,
            ("tests/deployed", "-m", "not rehearsal", "-n", "3", "--dist", "loadfile", "--no-loadscope-reorder"),
        ),
    ),
    (
        # "load" gives neighbours to the same worker.
        Suite(
            "demo",
            400,
            (
                *("tests/demo", "-m", "not rehearsal and not load"),
                *("-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder"),
            ),
        ),
        Suite(
            "processes",
            500,
            (
                *("tests", *ELSEWHERE, "-m", "slow and not rehearsal"),
                *("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"),
            ),
        ),
    ),
)


def main() -> int:
    """Return 0 if all tests passed within the budget; at the end print the failures of each suite once more."""
    reference = measure_reference()
    pace = measure_pace(lambda: reference).slowdown
    clock = pace if VARIABLE in os.environ else min(SLOWEST, SHARED * pace)
    began, cpu_began = time.monotonic(), measure_children()
    print_line(f"the clocks of demos and deployed stacks run at 1/{clock:g} of their usual speed")
    failed = []
    for suites in STAGES:
        stage_began, stage_cpu_began = time.monotonic(), measure_children()
        with ThreadPoolExecutor(len(suites)) as threads:
            statuses = threads.map(lambda suite: suite.run(pace, clock, sys.argv[1:]), suites)
            failed += [suite for suite, status in zip(suites, statuses, strict=True) if status]
        print_line(f"{' and '.join(suite.name for suite in suites)}: {describe_use(stage_began, stage_cpu_began)}")
    took, use = time.monotonic() - began, describe_use(began, cpu_began)
    for suite in failed:
        print("\n".join(suite.failures[-FAILURE_LINES:]) or f"{suite.name} ended without a report")
    names = ", ".join(suite.name for suite in failed) or "none"
    # The load may have come or gone meanwhile: the slower reference counts.
    ratio, budget = took / max(reference, measure_reference()), read_budget()
    print(f"tests took {use}; failed: {names}")
    print(f"that is {ratio:.0f} times the reference of local/pace.py; the budget is {budget}")
    if ratio > budget and not sys.argv[1:]:
        print(f"FAILED: over the budget in {BUDGETS.relative_to(ROOT)}: make tests faster, or raise it there")
        return 1
    return 1 if failed else 0


def measure_children() -> float:
    """Return the CPU seconds of the processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def describe_use(began: float, cpu_began: float) -> str:
    """Return the seconds since these readings, and the share of the processors' time that was used."""
    took = time.monotonic() - began
    share = (measure_children() - cpu_began) / took / (os.cpu_count() or 1)
    return f"{took:.0f} s, {share:.0%} of the processors' time"


def read_budget() -> int:
    """Return how many times as long as the reference the whole suite may take."""
    budget: int = tomllib.loads(BUDGETS.read_text())["test_suite"]["ratio"]
    return budget


if __name__ == "__main__":
    sys.exit(main())
