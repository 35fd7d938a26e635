"""Change the code that decides in small ways, and report the changes that no test notices: `make mutants`.

mutmut makes the changes and runs the tests that cover each; `[tool.mutmut]` of pyproject.toml names modules and tests.
For a change that these do not reach, the slow tests are run, whose processes inherit it. The survivors are printed with
the command that shows one. The exit status is 1 if in one package more survive than `MOST_SURVIVORS`.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from tools.deadlines import LATE, LimitedCommand, make_records

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / ".local" / "mutants"
# The share of a package's changes that may go unnoticed: some change nothing, such as the text of an assertion.
MOST_SURVIVORS = 0.05
# mutmut finds modules by their path, so the copy has the packages in its root.
PACKAGES = ("lambdas/rerail/", "agent/rerail_agent/")
NOTICED = ("killed", "timeout", "segfault", "suspicious")
MUTMUT = [sys.executable, "-m", "mutmut"]
# The package with code that only the processes of slow tests reach, these tests, and their deadline.
SLOW_PACKAGE = "rerail_agent."
SLOW_TESTS = ("tests/agent/checkpoints", "tests/agent/test_manifests.py")
SLOW_LIMIT_S = 600.0
# By the exit status of pytest: 1 if a test failed.
SLOW_STATUSES = {0: "survived", 1: "killed", LATE: "timeout"}


def main() -> int:
    """Return 0 if the tests notice enough changes, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="patterns of mutants, such as 'rerail.model.signatures*'; all if none")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--sample", type=int, help="only this many of each package, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    make_copy()
    names = options.names
    if options.sample:
        run_mutmut("none")  # makes the changes and finds out which tests cover them
        names = draw_sample(list(read_results()), options.sample, options.seed)
    run_mutmut("--max-children", str(options.processes), *names)
    results = {name: status for name, status in read_results().items() if status != "not checked"}
    if not results:
        sys.exit("mutmut has checked nothing; what it printed says why")
    unreached = [name for name, status in results.items() if status == "no tests" and name.startswith(SLOW_PACKAGE)]
    if unreached and check_slowly("") != "survived":
        sys.exit("the slow tests do not pass without a change")
    return report(results | {name: check_slowly(name) for name in unreached})


def make_copy() -> None:
    """Copy the files that git knows into a folder in which the packages with changes lie in the root."""
    shutil.rmtree(COPY, ignore_errors=True)
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True
    )
    for name in listing.stdout.decode().splitlines():
        source, target = ROOT / name, COPY / (name.partition("/")[2] if name.startswith(PACKAGES) else name)
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def run_mutmut(*arguments: str) -> None:
    subprocess.run([*MUTMUT, "run", *arguments], cwd=COPY, check=False)


def read_results() -> dict[str, str]:
    """Return the status of each mutant by its name."""
    listing = subprocess.run(
        [*MUTMUT, "results", "--all", "true"], cwd=COPY, check=True, capture_output=True, text=True
    )
    return dict(line.strip().rsplit(": ", 1) for line in listing.stdout.splitlines() if ": " in line)


def get_package(name: str) -> str:
    """Return the package of a mutant, such as `rerail.detection`."""
    return ".".join(name.split(".")[:2])


def draw_sample(names: Sequence[str], count: int, seed: int) -> list[str]:
    """Return so many names of each package; all of them where there are fewer."""
    draw = random.Random(seed)
    packages = [list(group) for _, group in groupby(sorted(names), key=get_package)]
    return [name for group in packages for name in draw.sample(group, min(count, len(group)))]


def check_slowly(name: str) -> str:
    """Return the status of a mutant ("" for none) under the slow tests.

    The changed code reads from the environment, in any process, which mutant it is. Tests that cannot be run raise
    RuntimeError.
    """
    ended = LimitedCommand(
        f"the slow tests of {name or 'no mutant'}",
        [sys.executable, "-m", "pytest", *SLOW_TESTS, "-m", "slow", "-x", "-q", "-p", "no:cacheprovider"],
        limit_s=SLOW_LIMIT_S,
        records=make_records(),
        environment={**os.environ, "MUTANT_UNDER_TEST": name},
        folder=COPY / "mutants",
    ).wait()
    if ended not in SLOW_STATUSES:
        raise RuntimeError(f"pytest ended with {ended} for the slow tests of {name or 'no mutant'}")
    return SLOW_STATUSES[ended]


def report(results: dict[str, str]) -> int:
    """Print the score by package and the survivors; return the exit status, 1 if a package has too many."""
    noticed, total = Counter[str](), Counter[str]()
    for name, status in results.items():
        total[get_package(name)] += 1
        noticed[get_package(name)] += status in NOTICED
    for name in sorted(name for name, status in results.items() if status not in NOTICED):
        print(f"{results[name]}: cd {COPY.relative_to(ROOT)} && python -m mutmut show {name}")
    for package in sorted(total):
        print(f"{package}: {noticed[package]} of {total[package]} noticed, {noticed[package] / total[package]:.1%}")
    (ROOT / ".local" / "mutants.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return int(any(noticed[package] < (1 - MOST_SURVIVORS) * total[package] for package in total))


if __name__ == "__main__":
    sys.exit(main())
