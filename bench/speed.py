"""Measure the functions' imports and the detectors: `python -m bench.speed [--starts 9] [--rounds 5] [--logs 12]`.

Each figure is CPU time beside a floor of the same run: boto3 with one client for the imports, the published rules for
the detectors. The least of several measurements counts, and the kinds take turns, so that a busy machine delays all.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track

from bench.evidence import ROOT, Evidence, GoalResult, Sheet, finish
from bench.rules import RULES
from cli.backtest.corpus import LogCorpus, read_corpus, read_log
from rerail.detection.detectors import DetectorState, evaluate_sample, evaluate_series
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds
from stacks.parts.code import fill

FUNCTIONS = ("supervise", "sweep", "notify", "report")
IMPORT = "import sys, time; sys.path.insert(0, {code!r}); import {module}; print(time.process_time())"
FLOOR = "import time, boto3; boto3.Session().client('dynamodb'); print(time.process_time())"
SDK = {"AWS_DEFAULT_REGION": "eu-west-1", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
# In Lambda every cold start compiles the sources.
NO_BYTECODE = {"PYTHONDONTWRITEBYTECODE": "1"}
IMPORT_GOAL = 1.1
HISTORY, LEAST_ROWS, MOST_ROWS = 180, 1_000, 5_000
OURS, NEW_MINUTE, THREE_HOURS = "Rerail, all detectors", "a new minute", "the whole three hours"
REPEAT_GOAL, FLEET_GOAL_MS = 1 / 30, 10.0

Work = Mapping[str, Callable[[], object]]


def measure_imports(starts: int) -> tuple[Sheet, list[GoalResult]]:
    """Measure each function's import in fresh interpreters, from the sources that are shipped."""
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder) / "code"
        fill(code)
        scripts = {name: IMPORT.format(code=str(code), module=name) for name in FUNCTIONS} | {"": FLOOR}
        least = dict.fromkeys(scripts, float("inf"))
        for _ in track(range(starts), "fresh interpreters"):
            for name, script in scripts.items():
                least[name] = min(least[name], _start(script))
        size = sum(file.stat().st_size for file in code.rglob("*") if file.is_file())
    floor = least.pop("")
    rows = tuple((name, 1000 * seconds, 1000 * floor, seconds / floor) for name, seconds in least.items())
    name, ratio = max(((name, seconds / floor) for name, seconds in least.items()), key=lambda pair: pair[1])
    sheet = Sheet("Import of a function, CPU milliseconds", ("function", "import", "boto3, one client", "ratio"), rows)
    what = "the slowest import beside boto3 and one client"
    goals = [
        GoalResult(what, f"at most {IMPORT_GOAL:g} x", f"{ratio:.2f} x ({name})", ratio <= IMPORT_GOAL),
        GoalResult("the functions' code, unpacked", "at most 5 MB", f"{size / 1e6:.1f} MB", size <= 5e6),
    ]
    return sheet, goals


def _start(script: str) -> float:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    run = subprocess.run(
        [sys.executable, "-c", script], env=kept | SDK | NO_BYTECODE, capture_output=True, text=True, check=True
    )
    return float(run.stdout)


def measure_detectors(corpus: LogCorpus, rounds: int, logs: int, runs: int) -> tuple[Sheet, Sheet, list[GoalResult]]:
    """Measure whole histories beside the published rules, and a new minute of many runs beside three hours of them."""
    series = (tuple(row for row in read_log(corpus.file(run)) if row.loss is not None) for run in corpus.runs)
    chosen = sorted((log[:MOST_ROWS] for log in series if len(log) >= LEAST_ROWS), key=len, reverse=True)[:logs]
    histories = race(list_history_work(chosen), rounds)
    points = sum(map(len, chosen))
    ours = points / histories[OURS]
    rows = tuple((name, round(points / spent), points / spent / ours) for name, spent in histories.items())
    whole = Sheet("Histories of the corpus, on one core", ("rule", "points/s", "x ours"), rows)
    fleet = race(list_fleet_work(chosen, runs), rounds)
    new = Sheet(
        f"{runs:,} runs, CPU milliseconds", ("what", "ms"), tuple((name, 1000 * spent) for name, spent in fleet.items())
    )
    ratio, new_ms = fleet[NEW_MINUTE] / fleet[THREE_HOURS], 1000 * fleet[NEW_MINUTE]
    goals = [
        GoalResult("a new minute beside all three hours", "at most 1/30", f"1/{1 / ratio:.0f}", ratio <= REPEAT_GOAL),
        GoalResult(
            f"a new minute of {runs:,} runs",
            f"at most {FLEET_GOAL_MS:g} ms",
            f"{new_ms:.0f} ms",
            new_ms <= FLEET_GOAL_MS,
        ),
    ]
    return whole, new, goals


def list_history_work(logs: Sequence[Sequence[Sample]]) -> Work:
    """Return the work of each rule over these logs, ours first."""
    thresholds = Thresholds()
    work: dict[str, Callable[[], object]] = {OURS: lambda: [_drain(evaluate_series(log, thresholds)) for log in logs]}
    for rule in RULES:
        work[rule.name] = lambda rule=rule: [_drain(rule.calls(log)) for log in logs]  # type: ignore[misc]
    return work


def list_fleet_work(logs: Sequence[Sequence[Sample]], runs: int) -> Work:
    """Return the work of one new minute of a fleet, of its whole history, and of parsing the new values as JSON."""
    thresholds = Thresholds()
    states = []
    for log in logs:
        state = DetectorState()
        for sample in log[:HISTORY]:
            state, _ = evaluate_sample(state, sample, thresholds)
        states.append(state)
    fleet = [(states[number % len(logs)], logs[number % len(logs)]) for number in range(runs)]
    text = json.dumps([{"Id": str(number), "Values": [log[HISTORY].loss]} for number, (_, log) in enumerate(fleet)])
    return {
        NEW_MINUTE: lambda: [evaluate_sample(state, log[HISTORY], thresholds) for state, log in fleet],
        THREE_HOURS: lambda: [_drain(evaluate_series(log[:HISTORY], thresholds)) for _, log in fleet],
        "json.loads of the new values": lambda: json.loads(text),
    }


def race(work: Work, rounds: int) -> dict[str, float]:
    """Return the least CPU seconds of each piece of work; the pieces take turns."""
    least = dict.fromkeys(work, float("inf"))
    gc.collect()
    gc.freeze()  # as in the functions: objects that exist already are not searched for garbage
    try:
        for _ in track(range(rounds), "detectors"):
            for name, act in work.items():
                began = time.process_time()
                act()
                least[name] = min(least[name], time.process_time() - began)
    finally:
        gc.unfreeze()
    return {name: max(spent, 1e-9) for name, spent in least.items()}


def _drain(values: Iterable[object]) -> int:
    return sum(1 for _ in values)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.speed", description=__doc__.partition("\n")[0])
    parser.add_argument("--starts", type=int, default=9, help="fresh interpreters of each kind")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in which the detectors take turns")
    parser.add_argument("--logs", type=int, default=12, help="training logs of the corpus")
    parser.add_argument("--runs", type=int, default=1000, help="runs that have a new minute")
    parser.add_argument("--evidence", type=Path, help="write the figures to this file as JSON")
    options = parser.parse_args(arguments)
    for name in ("starts", "rounds", "logs", "runs"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: must be at least 1")
    imports, import_goals = measure_imports(options.starts)
    whole, new, detector_goals = measure_detectors(
        read_corpus(ROOT / "bench" / "corpus"), options.rounds, options.logs, options.runs
    )
    notes = (
        "Ratios hold on other machines, milliseconds do not.",
        "`python -m bench.agent` measures what the agent adds to a training step.",
    )
    evidence = Evidence(
        "An import costs little more than boto3, and a new minute of a run is judged in a tenth of a millisecond.",
        sheets=(imports, whole, new),
        goals=(*import_goals, *detector_goals),
        notes=notes,
    )
    return finish(evidence, options.evidence, Console())


if __name__ == "__main__":
    sys.exit(main())
