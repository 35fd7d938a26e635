"""Every line of the threat model, with the tests that show it, tried now: python -m bench.threats [--evidence FILE].

The lines stand in docs/threats.md; the tests are those that are marked for them, and one test more or less there fails
tests/docs/test_threats.py. Some of them deploy the template, or open a browser: a minute or two in all.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.evidence import ROOT, Cell, Evidence, Failure, Sheet, finish

PAGE = ROOT / "docs" / "threats.md"
LINE = re.compile(r"^\| (T\d+) \|(.*)\|$", re.MULTILINE)
TEST = re.compile(r"`(test_\w+)`")
NODE = re.compile(r"^(\S+\.py::\S.*?) (PASSED|FAILED|ERROR|SKIPPED)")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the model: what somebody tries, what stops it, what remains, and the names of its tests."""

    number: str
    tried: str
    stopped_by: str
    remains: str
    tests: tuple[str, ...]


def lines(page: Path = PAGE) -> list[Line]:
    """The lines of the page, in their order of numbers; raises ValueError for one that has other cells."""
    found = []
    for number, cells in LINE.findall(page.read_text(encoding="utf-8")):
        tried, stopped_by, remains, shown = (cell.strip() for cell in cells.split("|"))
        found.append(Line(number, tried, stopped_by, remains, tuple(TEST.findall(shown))))
    return sorted(found, key=lambda line: int(line.number[1:]))


def results(report: Path) -> dict[str, Counter[str]]:
    """By a test's name, how many of its cases have passed and how many have not: pytest's report in JUnit's form."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for case in ElementTree.parse(report).iter("testcase"):  # nosec B314: pytest's own
        bad = {child.tag for child in case} & {"failure", "error", "skipped"}
        found[case.get("name", "").partition("[")[0]]["failed" if bad else "passed"] += 1
    return found


def evidence(model: Sequence[Line], seen: Mapping[str, Mapping[str, int]]) -> Evidence:
    """The table; a test that failed, or that was not run, is a failure of its line."""
    rows: list[tuple[Cell, ...]] = []
    failures: list[Failure] = []
    for line in model:
        passed = sum(seen.get(test, {}).get("passed", 0) for test in line.tests)
        bad = [test for test in line.tests if seen.get(test, {}).get("failed") or not seen.get(test, {}).get("passed")]
        failures += [Failure(f"{line.number}: {test} did not pass") for test in bad]
        told = "holds" if not bad else f"{len(bad)} of {len(line.tests)} did not pass"
        rows.append((line.number, line.tried, line.stopped_by, line.remains or "nothing known", passed, told))
    return Evidence(
        claim="Each line of the threat model is stopped as the page says, as tests show that play the attacker.",
        sheets=(
            Sheet(
                "The threat model",
                ("", "somebody tries to", "what stops it", "what remains", "cases tried", "result"),
                tuple(rows),
                words=4,
            ),
        ),
        notes=(
            f"{sum(row[4] for row in rows if isinstance(row[4], int)):,} cases of "
            f"{sum(len(line.tests) for line in model)} tests. They play on the core with pretend ports, on the "
            "synthesized template's own policies, on moto, in a real browser, and in the local deployment. "
            "IAM itself is not emulated: that a policy is enforced as it is written is taken from AWS.",
        ),
        failures=tuple(failures),
    )


def run(report: Path, console: Console) -> None:
    """Run the marked tests, with a bar."""
    command = [sys.executable, "-m", "pytest", "-m", "threat", "-v", "--color=no", "-p", "no:cacheprovider"]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("attacks", total=None)
        with subprocess.Popen(
            [*command, f"--junitxml={report}"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as tests:
            for said in tests.stdout or ():
                if selected := re.search(r"collected \d+ items.* (\d+) selected", said):
                    bar.update(task, total=int(selected[1]))
                if NODE.match(said):
                    bar.advance(task)
                if " FAILED" in said or " ERROR" in said:
                    console.print(said.rstrip(), markup=False)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.threats", description=__doc__)
    parser.add_argument("--evidence", type=Path, help="write what was found into this file, as JSON")
    options = parser.parse_args(arguments)
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "tests.xml"
        run(report, console)
        found = evidence(lines(), results(report))
    return finish(found, options.evidence, console)


if __name__ == "__main__":
    sys.exit(main())
