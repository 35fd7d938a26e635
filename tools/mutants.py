"""Change the code that decides in small ways, and report the changes that no test notices: `make mutants`.

mutmut makes the changes and runs the tests that cover each; `[tool.mutmut]` of pyproject.toml names modules and tests.
The slow tests are run for a change that these do not reach, because they start processes that inherit it. The survivors
are printed with what to call to see one. The exit status is 1 if in one package more survive than `MOST_SURVIVORS`.
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

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / ".local" / "mutants"
# The share of a package's changes that may go unnoticed: some change nothing, such as the text of an assertion.
MOST_SURVIVORS = 0.05
# mutmut finds modules by their path, so the copy has the packages in its root.
PACKAGES = ("lambdas/rerail/", "agent/rerail_agent/")
NOTICED = ("killed", "timeout", "segfault", "suspicious")
MUTMUT = [sys.executable, "-m", "mutmut"]
# What covers a package's changes in processes of its own, and the most seconds that it may take.
SLOW_TESTS = {"rerail_agent": ["tests/agent/checkpoints", "tests/agent/test_manifests.py"]}
SLOW_LIMIT_S = 600


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
        names = draw_sample(list(read_results("not checked")), options.sample, options.seed)
    run_mutmut("--max-children", str(options.processes), *names)
    results = {name: status for name, status in read_results().items() if status != "not checked"}
    if not results:
        sys.exit("mutmut has checked nothing; what it printed says why")
    for name in [name for name, status in results.items() if status == "no tests" and name.split(".")[0] in SLOW_TESTS]:
        results[name] = check_slowly(name)
    return report(results)


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


def read_results(*statuses: str) -> dict[str, str]:
    """Return the status of each mutant by its name; of all, or of those with one of some statuses."""
    listing = subprocess.run(
        [*MUTMUT, "results", "--all", "true"], cwd=COPY, check=True, capture_output=True, text=True
    )
    pairs = (line.strip().rsplit(": ", 1) for line in listing.stdout.splitlines() if ": " in line)
    return {name: status for name, status in pairs if not statuses or status in statuses}


def get_package(name: str) -> str:
    """Return the package of a mutant, such as `rerail.detection`."""
    return ".".join(name.split(".")[:2])


def draw_sample(names: Sequence[str], count: int, seed: int) -> list[str]:
    """Return so many names of each package; all of them where there are fewer."""
    draw = random.Random(seed)
    packages = [list(group) for _, group in groupby(sorted(names), key=get_package)]
    return [name for group in packages for name in draw.sample(group, min(count, len(group)))]


def check_slowly(name: str) -> str:
    """Return whether a slow test notices a change: mutmut reads its name from the environment, in any process."""
    tests = SLOW_TESTS[name.split(".")[0]]
    command = [sys.executable, "-m", "pytest", *tests, "-m", "slow", "-x", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "MUTANT_UNDER_TEST": name}
    try:
        ended = subprocess.run(
            command, cwd=COPY / "mutants", env=environment, capture_output=True, check=False, timeout=SLOW_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return "timeout"
    return "killed" if ended.returncode else "survived"


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
