"""Change the code that decides in small ways, and report the changes that no test notices: `make mutants`.

mutmut makes the changes and runs the tests that cover each; `[tool.mutmut]` of pyproject.toml names modules and tests.
The survivors are printed with what to call to see one. The exit status is 1 if more survive than `MOST_SURVIVORS`.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / ".local" / "mutants"
# The share of changes that may go unnoticed: some change nothing, such as the text of an assertion.
MOST_SURVIVORS = 0.1
PACKAGE = "lambdas/rerail/"
NOTICED = ("killed", "timeout", "segfault", "suspicious")


def main() -> int:
    """Return 0 if the tests notice enough changes, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="patterns of mutants, such as 'rerail.model.signatures*'; all if none")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    make_copy()
    mutmut = [sys.executable, "-m", "mutmut"]
    subprocess.run([*mutmut, "run", "--max-children", str(options.processes), *options.names], cwd=COPY, check=False)
    listing = subprocess.run(
        [*mutmut, "results", "--all", "true"], cwd=COPY, check=True, capture_output=True, text=True
    )
    return report(read_results(listing.stdout))


def make_copy() -> None:
    """Copy the files that git knows into a folder in which the package `rerail` lies in the root."""
    shutil.rmtree(COPY, ignore_errors=True)
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True
    )
    for name in listing.stdout.decode().splitlines():
        source, target = ROOT / name, COPY / (name.removeprefix("lambdas/") if name.startswith(PACKAGE) else name)
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def read_results(text: str) -> dict[str, str]:
    """Return the status of each mutant that was run, by its name."""
    pairs = (line.strip().rsplit(": ", 1) for line in text.splitlines() if ": " in line)
    return {name: status for name, status in pairs if status != "not checked"}


def report(results: dict[str, str]) -> int:
    """Print the score by module and the survivors; return the exit status, 1 if there are too many."""
    noticed, total = Counter[str](), Counter[str]()
    for name, status in results.items():
        module = name.rpartition(".")[0]
        total[module] += 1
        noticed[module] += status in NOTICED
    survivors = sorted(name for name, status in results.items() if status not in NOTICED)
    for module in sorted(total):
        print(f"{module}: {noticed[module]} of {total[module]} changes noticed")
    print(f"all: {sum(noticed.values())} of {sum(total.values())} noticed")
    for name in survivors:
        print(f"{results[name]}: cd {COPY.relative_to(ROOT)} && python -m mutmut show {name}")
    (ROOT / ".local" / "mutants.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return int(len(survivors) > MOST_SURVIVORS * len(results))


if __name__ == "__main__":
    sys.exit(main())
