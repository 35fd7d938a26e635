"""Train a small GPT through dozens of random faults and compare it with an undisturbed training.

    python -m bench.soak [--faults N] [--seed S] [--scenario NAME] [--beside N] [--evidence FILE]

The synthesized template is deployed into the local AWS, and a small GPT is trained there in several runs, some at the
same time. The seed draws the faults, their order and their steps: killed processes and lost nodes, refused launches,
events that are lost or late, damaged checkpoints, kills during a save, hardware, hangs, bugs, bad data, losses that
jump. A run that is held by design is released, as an operator would. Each run is compared with a reference run, an
undisturbed one of the same seed: every loss to the last bit, every sample, every checkpoint. A soak that fails leaves
its files in .local/soak/<seed>."""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from bench.evidence import BenchFailed, Evidence, GoalResult, Sheet, finish
from bench.soaking.account import ReferenceRun, SoakAccount
from bench.soaking.faults import FAULTS
from bench.soaking.judging import Judgement, evaluate_run
from bench.soaking.plan import choose_faults, make_plans
from bench.soaking.soak_run import Injection, SoakRun
from cli import place
from local.stack import LocalAws

SCALE = 60.0
ROOT = Path(__file__).resolve().parent.parent
FAULTS_BY_DEFAULT, BESIDE = 40, 3
LOOK_EVERY_S = 0.3
CLAIM = (
    "Whatever breaks, the model is the one that an undisturbed training gives: a small GPT is trained through random "
    "faults of every scenario in the local AWS, by the deployed template, and compared with its reference runs."
)
NOTES = (
    "A loss is compared as the process has it, not as it is printed; samples are those that the model was given. Steps "
    "that had to be trained again are lost, and in no other count.",
    "Where a remedy changes what is trained on (samples skipped, a lower learning rate), the reference run has the "
    "same remedy from the same step on; how far the run ends from the undisturbed one stands beside it.",
)


@dataclass
class Soak:
    """One soak of one seed: what is being played, what is over, and what must hold of all of it together."""

    account: SoakAccount
    seed: int
    log: Callable[[str], None]
    references: dict[str, ReferenceRun] = field(default_factory=dict)
    soak_runs: list[SoakRun] = field(default_factory=list)
    judged: list[Judgement] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def run(self, names: Sequence[str], *, beside: int) -> None:
        """Run every run with its faults, a number of them at the same time."""
        waiting = make_plans(self.seed, names)
        active: list[SoakRun] = []
        while waiting or active or not all(reference.is_over for reference in self.references.values()):
            while waiting and len(active) < beside:
                active.append(SoakRun(self.account, waiting.pop(0), self.log))
                self.soak_runs.append(active[-1])
                self._reference_of(active[-1])
            for reference in self.references.values():
                reference.look()
            for soak_run in active:
                soak_run.look()
            active = [soak_run for soak_run in active if not soak_run.is_over]
            time.sleep(LOOK_EVERY_S)

    def _reference_of(self, soak_run: SoakRun) -> ReferenceRun:
        setup, steps = soak_run.setup, soak_run.plan.steps
        key = f"{setup.hosts}x{steps}"
        if key not in self.references:
            self.references[key] = ReferenceRun(self.account, setup, steps)
        return self.references[key]

    def evaluate(self, folder: Path, state: Path) -> None:
        """Return the state of each run and of the account."""
        for soak_run in self.soak_runs:
            if soak_run.run is None:
                self.wrong.append(f"{soak_run.name} was never adopted")
                continue
            soak_run.notes.read([attempt.job_name for attempt in soak_run.run.attempts])
            soak_run.keep_timeline()
            self.judged.append(evaluate_run(soak_run, self._reference_of(soak_run), folder, self.log))
        for reference in self.references.values():
            if reference.description["TrainingJobStatus"] != "Completed":
                self.wrong.append(f"{reference.name} is {reference.description['TrainingJobStatus']}")
        queues = [url for url in self.account.aws.client("sqs").list_queues()["QueueUrls"] if "DeadLetter" in url]
        letters = {url.rpartition("/")[2]: self.account.waiting_in(url) for url in queues}
        self.wrong += [f"{count} dead letters in {name}" for name, count in letters.items() if count]
        self.wrong += [f"a process of an ended job is left: {orphan}" for orphan in _orphans(state)]

    @property
    def injections(self) -> list[Injection]:
        """Return every fault that was caused."""
        return [injection for soak_run in self.soak_runs for injection in soak_run.injections]


def _orphans(state: Path) -> Iterator[str]:
    """Return the processes of this machine whose job has its files below this folder."""
    for entry in Path("/proc").iterdir() if Path("/proc").is_dir() else ():
        with suppress(OSError):
            environment = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
            if any(word.startswith(f"SAGEMAKER_BASE_DIR={state}".encode()) for word in environment.split(b"\0")):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if command:  # a zombie has none
                    yield f"{entry.name} {command[:80]}"


def soak(seed: int, names: Sequence[str], beside: int, state: Path, console: Console) -> Soak:
    """Run one soak with its own local AWS."""
    shutil.rmtree(state, ignore_errors=True)
    folder = state / "notes"
    folder.mkdir(parents=True)
    began = time.monotonic()

    def log(line: str) -> None:
        console.print(f"[{time.monotonic() - began:5.0f} s] {line}", markup=False, highlight=False, soft_wrap=True)

    with LocalAws(state / "aws", scale=SCALE, schedule_scale=SCALE, assemblies=place.SYNTHESES) as aws:
        soaked = Soak(SoakAccount(aws, folder, SCALE), seed, log)
        soaked.run(names, beside=beside)
        soaked.evaluate(folder, state)
    soaked.wrong += [f"a process has outlived the local AWS: {process}" for process in _orphans(state)]
    return soaked


def evidence(soaked: Soak) -> Evidence:
    """Return the figures of a soak."""
    judged, injections = soaked.judged, soaked.injections
    failures = [BenchFailed(problem) for problem in soaked.wrong]
    failures += [BenchFailed(f"{judgement.run}: {problem}") for judgement in judged for problem in judgement.wrong]
    compared = sum(judgement.compared for judgement in judged)
    other = sum(judgement.other_bits for judgement in judged)
    resolved = sum(injection.is_resolved for injection in injections)
    scenarios = {injection.planned.name for injection in injections}
    goals = (
        GoalResult("losses with other bits than the reference's", "none", f"{other} of {compared:,}", other == 0),
        GoalResult(
            *("faults diagnosed as what they were, and resolved", "all"),
            *(f"{resolved} of {len(injections)}", resolved == len(injections)),
        ),
        GoalResult("scenarios", f"all {len(FAULTS)}", str(len(scenarios)), scenarios == set(FAULTS)),
    )
    return Evidence(CLAIM, (_runs(judged), _scenarios(injections)), goals, NOTES, tuple(failures))


def _runs(judged: Sequence[Judgement]) -> Sheet:
    columns = (
        *("run", "reference", "faults", "attempts", "steps", "steps lost", "samples", "checkpoints"),
        *("losses compared", "other bits", "last loss off the undisturbed"),
    )
    rows = tuple(
        (
            *(each.run, each.reference, each.faults, each.attempts, each.steps, each.lost, each.samples, each.saves),
            *(each.compared, each.other_bits, each.from_plain),
        )
        for each in judged
    )
    return Sheet("Each run beside its reference", columns, rows, words=2)


def _scenarios(injections: Sequence[Injection]) -> Sheet:
    rows = []
    for name, fault in FAULTS.items():
        if here := [injection for injection in injections if injection.planned.name == name]:
            found = sorted({", ".join((*injection.causes, *injection.findings)) or "no trouble" for injection in here})
            resolved = sum(injection.is_resolved for injection in here)
            rows.append((name, fault.description, " / ".join(found), len(here), resolved))
    columns = ("scenario", "what breaks", "diagnosed as", "times", "as it must be")
    return Sheet("Each scenario", columns, tuple(rows), words=3)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=0, help=f"how many (at least {FAULTS_BY_DEFAULT}, all scenarios)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scenario", choices=list(FAULTS), action="append", help="only this one; may be repeated")
    parser.add_argument("--beside", type=int, default=BESIDE, help="runs at the same time")
    parser.add_argument("--state", type=Path, default=ROOT / ".local" / "soak", help="where it works")
    parser.add_argument("--evidence", type=Path, help="write the evidence to this file")
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 200)
    names = options.scenario or choose_faults(options.seed, options.faults or max(FAULTS_BY_DEFAULT, len(FAULTS)))
    state = (options.state / str(options.seed)).resolve()
    found = evidence(soak(options.seed, names, options.beside, state, console))
    if found.holds:
        shutil.rmtree(state)
    else:
        again = " ".join(f"--scenario {name}" for name in options.scenario or ()) or f"--faults {len(names)}"
        again = f"python -m bench.soak --seed {options.seed} {again}"
        console.print(f"what it wrote is in {os.path.relpath(state)}; again: {again}")
    return finish(found, options.evidence, console)


if __name__ == "__main__":
    sys.exit(main())
