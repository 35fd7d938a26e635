"""A million bad inputs: does every parser that meets the outside answer with one clear error, and nothing else?

    python -m bench.fuzz [--inputs N] [--target NAME]... [--jobs N] [--seed S] [--keep FOLDER] [--evidence FILE]

Each target is a parser with real samples of what it reads (bench/hostile/targets.py). Atheris, a fuzzer that is guided
by the branches that an input reaches, changes the samples so many times; most changes keep JSON and TOML well formed,
so that the checks behind the syntax are reached too. A parser may answer, or raise one of our own errors whose message
is one short line; anything else is a defect: what did it is named, and its input kept."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bench.evidence import Evidence, Failure, Goal, Sheet, finish
from bench.hostile.targets import TARGETS, Target

CLAIM = (
    "Whatever comes from outside, each parser answers with a value or with one clear error; no bad message keeps a "
    "good one from being handled, and none stops a healthy job."
)
MILLION = 1_000_000
COVERED = re.compile(r"cov: (\d+)")


@dataclass
class Outcome:
    """What became of one target: inputs read, the slowest one in milliseconds of the processor, branches reached."""

    target: Target
    inputs: int = 0
    slowest_ms: float = 0.0
    branches: int = 0
    seconds: float = 0.0
    defects: list[str] = field(default_factory=list)

    @property
    def per_second(self) -> int:
        """Inputs in a second of wall clock, the start of its process not counted."""
        return round(self.inputs / self.seconds) if self.seconds else 0


def fuzz(target: Target, *, inputs: int, seed: int, keep: Path, advance: Callable[[int], None]) -> Outcome:
    """The target under so many inputs, in a process of its own."""
    outcome, keep = Outcome(target), keep / re.sub(r"[^a-z0-9]+", "-", target.name.lower()).strip("-")
    keep.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "bench.hostile.inside", target.name, str(keep)]
    log = keep / "log"
    with log.open("w") as errors:
        began = 0.0
        process = subprocess.Popen(
            [*command, "--inputs", str(inputs), "--seed", str(seed)], stdout=subprocess.PIPE, stderr=errors, text=True
        )
        for line in _lines(process):
            if "defect" in line:
                outcome.defects.append(line["defect"])
                continue
            advance(line["inputs"] - outcome.inputs)
            began = began or line["at"]
            outcome.inputs, outcome.slowest_ms = line["inputs"], line["slowest_ms"]
        outcome.seconds = time.monotonic() - began if began else 0.0
    said = log.read_text(errors="replace")
    if process.returncode:
        outcome.defects.append(f"the fuzzer ended with status {process.returncode}: {_last_words(said)}")
    else:
        advance(inputs - outcome.inputs)
        outcome.inputs = inputs
    outcome.branches = max(map(int, COVERED.findall(said)), default=0)
    return outcome


def _lines(process: "subprocess.Popen[str]") -> Iterator[dict[str, Any]]:
    assert process.stdout
    yield from map(json.loads, process.stdout)
    process.wait()


def _last_words(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    told = next((n for n, line in enumerate(lines) if "Uncaught Python exception" in line or "ERROR:" in line), None)
    said = lines[-1:] if told is None else lines[told:][:2]
    return " ".join(said)[:300] or "it ended without a word"


def shares(targets: Sequence[Target], inputs: int) -> list[tuple[Target, int]]:
    """How many inputs each gets of so many, in its proportion: each a few."""
    whole = sum(target.inputs for target in targets)
    return [(target, max(100, -(-target.inputs * inputs // whole))) for target in targets]


def evidence(outcomes: Sequence[Outcome]) -> Evidence:
    """The table of all parsers, and each defect by its name."""
    order = list(TARGETS)
    rows = tuple(
        (
            each.target.name,
            each.inputs,
            each.per_second,
            each.branches or "-",
            round(each.slowest_ms, 1),
            len(each.defects),
        )
        for each in sorted(outcomes, key=lambda each: order.index(each.target.name))
    )
    total = sum(each.inputs for each in outcomes)
    failures = [Failure(f"{each.target.name}: {defect}") for each in outcomes for defect in each.defects]
    sheet = Sheet(
        "Bad input, by parser",
        ("parser", "inputs", "inputs/s", "branches reached", "slowest ms", "defects"),
        (*rows, ("all", total, "", "", "", len(failures))),
    )
    return Evidence(
        claim=CLAIM,
        sheets=(sheet,),
        goals=(
            Goal("inputs", f"at least {MILLION:,}", f"{total:,}", total >= MILLION),
            Goal("defects", "0", str(len(failures)), not failures),
        ),
        notes=NOTES,
        failures=tuple(failures),
    )


NOTES = (
    "A defect is any exception that is not one of Rerail's own errors, an error that is empty, longer than 2,000 "
    "characters or of several lines, an input that takes more than 2 s of the processor, or a broken promise: a "
    "healthy job that is stopped, a good message that is not handled, a run that the sweep passes over for what was "
    "said of another.",
    "API answers are bytes on the wire, read by the real SDK and the real adapters; no network is reached. Metric "
    "lines are checked against a second reader, which knows nothing of regular expressions with groups.",
    "Branches are those of the modules under test that atheris has seen taken; modules without any (a table of regular "
    "expressions) show none. Python's own parsers of JSON, TOML, XML and CSV are not watched.",
    "The sweep's own wake-ups, operators and the job's own agent may stop a job: such messages are left out where a "
    "healthy job must go on, and are what the threat model in docs/security.md is about.",
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fuzz")
    parser.add_argument("--inputs", type=int, help="over all targets, in their proportions; a full run's otherwise")
    parser.add_argument("--target", choices=list(TARGETS), action="append", help="only these")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="targets at a time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="keep inputs that found a defect, and logs, in this folder")
    parser.add_argument("--evidence", type=Path, help="write what was found to this file")
    options = parser.parse_args(arguments)
    targets = [TARGETS[name] for name in options.target or TARGETS]
    inputs = sum(target.inputs for target in targets) if options.inputs is None else options.inputs
    if inputs < 1 or options.jobs < 1:
        parser.error("--inputs and --jobs must be at least 1")
    if find_spec("atheris") is None:
        parser.error("atheris is not installed; `pip install -e '.[fuzz]'` installs it (Linux on x86 only)")
    console = Console()
    chosen = shares(targets, inputs)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with tempfile.TemporaryDirectory() as folder, Progress(*columns, console=console) as progress:
        bar = progress.add_task("bad inputs", total=sum(inputs for _, inputs in chosen))

        def work(task: tuple[Target, int]) -> Outcome:
            found = fuzz(
                task[0],
                inputs=task[1],
                seed=options.seed,
                keep=options.keep or Path(folder),
                advance=lambda count: progress.advance(bar, count),
            )
            for defect in found.defects:
                progress.console.print(f"{found.target.name}: {defect}", markup=False, highlight=False)
            return found

        with ThreadPoolExecutor(options.jobs) as pool:
            outcomes = list(pool.map(work, chosen))
    return finish(evidence(outcomes), options.evidence, console)


if __name__ == "__main__":
    sys.exit(main())
