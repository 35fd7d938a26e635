"""Train a small GPT through dozens of random faults and compare it with an undisturbed training.

    python -m bench.soak [--faults N] [--seed S] [--scenario NAME] [--minutes M] [--beside N] [--evidence FILE]

The synthesized template is deployed into the local AWS, and a small GPT is trained there in several runs, some at the
same time. The seed draws the faults, their order and their steps: killed processes and lost nodes, refused launches,
events that are lost or late, damaged checkpoints, kills during a save, hardware, hangs, bugs, bad data, losses that
jump. A run that is held by design is released, as an operator would. Each run is compared with a reference run, an
undisturbed one of the same seed: every loss to the last bit, every sample, every checkpoint, seconds. A soak that fails
leaves its files in .local/soak/<seed>."""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.evidence import BenchFailed, Evidence, GoalResult, Sheet, finish
from bench.soaking.account import STEP_SECONDS, ReferenceRun, SoakAccount
from bench.soaking.faults import FAULTS, STORM
from bench.soaking.judging import Judgement, evaluate_run
from bench.soaking.notes import Step
from bench.soaking.plan import choose_faults, make_plans
from bench.soaking.soak_run import Injection, SoakRun, led_by, shifted
from cli import place
from cli.report import save_for
from local.stack import LocalAws
from rerail.model.actions import Severity

SCALE = 60.0
ROOT = Path(__file__).resolve().parent.parent
FAULTS_BY_DEFAULT, BESIDE = 40, 3
LOOK_EVERY_S = 0.3
QUIET_S = 1.1 * STEP_SECONDS  # a step on a machine that has time for it
CLAIM = (
    "Whatever breaks, the model is the one that an undisturbed training gives: a small GPT is trained through random "
    "faults of every scenario in the local AWS, by the deployed template, and compared with its reference runs."
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
    checks: dict[str, int] = field(default_factory=dict)

    def run(self, names: Sequence[str], *, beside: int, progress: Callable[[Sequence[SoakRun]], None]) -> None:
        """Run every run with its faults, a number of them at the same time; the storm when the others have ended."""
        waiting = make_plans(self.seed, names)
        active: list[SoakRun] = []
        while waiting or active:
            while waiting and len(active) < beside and (waiting[0].setup is not STORM or not active):
                plan = waiting.pop(0)
                group = [
                    SoakRun(self.account, shifted(plan, number), shifted(plan, number).name, self.log)
                    for number in range(1, plan.setup.at_once + 1)
                ]
                led_by(group[0], group[1:])
                self.soak_runs += group
                active += group
                self._reference_of(group[0])
            for reference in self.references.values():
                reference.look()
            for soak_run in active:
                soak_run.look()
            progress(active)
            active = [soak_run for soak_run in active if not soak_run.is_over]
            time.sleep(LOOK_EVERY_S)
        while not all(reference.is_over for reference in self.references.values()):
            for reference in self.references.values():
                reference.look()
            time.sleep(LOOK_EVERY_S)

    def _reference_of(self, soak_run: SoakRun) -> ReferenceRun:
        setup, steps = soak_run.setup, soak_run.plan.steps
        key = f"{setup.script_name}-{setup.hosts}-{steps}"
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
            soak_run.timeline = self.account.runs.timeline(soak_run.name)
            self.judged.append(evaluate_run(soak_run, self._reference_of(soak_run), folder, self.log))
        for reference in self.references.values():
            if reference.description["TrainingJobStatus"] != "Completed":
                self.wrong.append(f"{reference.name} is {reference.description['TrainingJobStatus']}")
        queues = [url for url in self.account.aws.client("sqs").list_queues()["QueueUrls"] if "DeadLetter" in url]
        letters = {url.rpartition("/")[2]: self.account.waiting_in(url) for url in queues}
        self.wrong += [f"{count} dead letters in {name}" for name, count in letters.items() if count]
        orphans = list(_orphans(state))
        self.wrong += [f"a process of an ended job is left: {orphan}" for orphan in orphans]
        starts = sum(len(soak_run.notes.starts) for soak_run in self.soak_runs)
        self.checks = {
            "starts of training processes, each alone in its run": starts,
            "jobs, none created while the one before lived": sum(judgement.attempts for judgement in self.judged),
            "checkpoints seen in S3, all of them still there": sum(judgement.saves for judgement in self.judged),
            "queues for dead letters, all empty": len(queues),
            "processes of ended jobs that are left": len(orphans),
            **self._count_messages(state),
        }

    def _count_messages(self, state: Path) -> dict[str, int]:
        """Return the notices about the runs and the alarms of Rerail itself."""
        found: dict[str, int] = {}
        for kind in ("pages", "informs"):
            subjects = self.account.read_subjects(kind)
            (state / f"{kind}.txt").write_text("\n".join(subjects) + "\n")
            ours = sum(any(soak_run.name in subject for soak_run in self.soak_runs) for subject in subjects)
            alarms = [subject for subject in subjects if subject.startswith("ALARM:")]
            found |= {f"{kind} about runs that arrived": ours, f"alarms of Rerail itself among the {kind}": len(alarms)}
        return found

    @property
    def injections(self) -> list[Injection]:
        """Return every fault that was caused, a storm once for each run that it hit."""
        return sorted(
            (injection for soak_run in self.soak_runs for injection in soak_run.injections),
            key=lambda injection: injection.at,
        )


def _orphans(state: Path) -> Iterator[str]:
    """Return the processes of this machine whose job has its files below this folder."""
    for entry in Path("/proc").iterdir() if Path("/proc").is_dir() else ():
        with suppress(OSError):
            environment = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
            if any(word.startswith(f"SAGEMAKER_BASE_DIR={state}".encode()) for word in environment.split(b"\0")):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if command:  # a zombie has none
                    yield f"{entry.name} {command[:80]}"


def soak(seed: int, names: Sequence[str], beside: int, state: Path, console: Console) -> tuple[Soak, list[str]]:
    """Run one soak with its own local AWS; return what is wrong after its end."""
    shutil.rmtree(state, ignore_errors=True)
    folder = state / "notes"
    folder.mkdir(parents=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    began = time.monotonic()

    def log(line: str) -> None:
        console.print(f"[{time.monotonic() - began:5.0f} s] {line}", markup=False, highlight=False, soft_wrap=True)

    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("deploying", total=len(names))

        def show(active: Sequence[SoakRun]) -> None:
            over = sum(soak_run.index for soak_run in soaked.soak_runs if not soak_run.is_led)
            progress.update(task, completed=over, description="; ".join(soak_run.state for soak_run in active)[:100])

        with LocalAws(state / "aws", scale=SCALE, schedule_scale=SCALE, assemblies=place.SYNTHESES) as aws:
            soaked = Soak(SoakAccount(aws, folder, SCALE), seed, log)
            soaked.run(names, beside=beside, progress=show)
            soaked.evaluate(folder, state)
            for soak_run in soaked.soak_runs:
                if soak_run.run is not None:
                    save_for(soaked.account.here, soak_run.name, state / f"{soak_run.name}.html", ())
                    soak_run.keep_timeline()
    left = list(_orphans(state))
    return soaked, [*soaked.wrong, *(f"a process has outlived the local AWS: {process}" for process in left)]


def evidence(soaked: Sequence[Soak], wrong: Sequence[str]) -> Evidence:
    """Return the figures of one soak or of several."""
    judged = [judgement for soak in soaked for judgement in soak.judged]
    injections = [injection for soak in soaked for injection in soak.injections]
    failures = [BenchFailed(problem) for problem in wrong]
    failures += [BenchFailed(f"{judgement.run}: {problem}") for judgement in judged for problem in judgement.wrong]
    missed = sorted(
        {injection.planned.name for injection in injections if injection.problems or injection.over_at is None}
    )
    compared, other = (
        sum(judgement.learnt.compared for judgement in judged),
        sum(judgement.learnt.other_bits for judgement in judged),
    )
    goals = (
        GoalResult("losses with other bits than the reference's", "none", f"{other} of {compared:,}", other == 0),
        GoalResult(
            "faults diagnosed as what they were, and resolved",
            "all",
            f"{sum(not s.problems and s.over_at is not None for s in injections)} of {len(injections)}",
            not missed,
        ),
        GoalResult(
            "scenarios",
            f"all {len(FAULTS)}",
            str(len({injection.planned.name for injection in injections})),
            {injection.planned.name for injection in injections} == set(FAULTS),
        ),
    )
    return Evidence(
        CLAIM,
        (_runs(judged), _scenarios(injections), _counts(soaked)),
        goals,
        _notes(soaked, judged, injections),
        tuple(failures),
    )


def _runs(judged: Sequence[Judgement]) -> Sheet:
    columns = (
        *("run", "reference", "faults", "attempts", "steps", "steps lost", "samples", "skipped"),
        *(
            "losses compared",
            "other bits",
            "last loss off the undisturbed",
            "s",
            "reference s",
            "reference's share",
            "goodput",
        ),
    )
    rows = tuple(
        (
            *(
                judgement.run,
                judgement.learnt.reference,
                judgement.faults,
                judgement.attempts,
                judgement.learnt.steps,
                judgement.learnt.lost,
            ),
            *(
                judgement.learnt.samples,
                judgement.skipped,
                judgement.learnt.compared,
                judgement.learnt.other_bits,
                judgement.learnt.from_plain,
            ),
            *(round(judgement.run_s, 1), round(judgement.reference_s, 1)),
            f"{judgement.reference_s / judgement.run_s:.0%}" if judgement.is_complete else "",
            f"{judgement.share:.0%}" if judgement.share is not None else "",
        )
        for judgement in judged
    )
    return Sheet("Each run beside its reference", columns, rows, words=2)


def _scenarios(injections: Sequence[Injection]) -> Sheet:
    columns = (
        *("scenario", "what breaks", "diagnosed as"),
        *(
            "times",
            "as it must be",
            "detected after, s",
            "recovered after, s",
            "steps lost",
            "attempts",
            "pages",
            "informs",
        ),
    )
    rows = []
    for name in FAULTS:
        if here := [injection for injection in injections if injection.planned.name == name]:
            found = sorted(
                {
                    ", ".join(dict.fromkeys((*injection.causes, *injection.findings))) or "no trouble"
                    for injection in here
                }
            )
            rows.append(
                (
                    *(name, FAULTS[name].description, " / ".join(found), len(here)),
                    sum(not injection.problems and injection.over_at is not None for injection in here),
                    _median([injection.detected_s for injection in here]),
                    _median([injection.recovered_s for injection in here]),
                    sum(injection.lost_steps for injection in here),
                    sum(injection.attempts for injection in here),
                    sum(injection.notices.get(Severity.PAGE, 0) for injection in here),
                    sum(injection.notices.get(Severity.INFORM, 0) for injection in here),
                )
            )
    return Sheet("Each scenario", columns, tuple(rows), words=3)


def _counts(soaked: Sequence[Soak]) -> Sheet:
    rows = tuple((what, sum(soak.checks.get(what, 0) for soak in soaked)) for what in soaked[0].checks)
    return Sheet("What was watched all the time; a failure of any is listed below", ("", "number"), rows)


def _median(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{median(known):.1f}" if known else ""


def _pairs(reference: ReferenceRun) -> Iterator[tuple[Step, Step]]:
    """Yield each step of a reference run with the next one."""
    for start in reference.notes.starts:
        steps = list(start.steps.values())
        yield from zip(steps, steps[1:], strict=False)


def _notes(soaked: Sequence[Soak], judged: Sequence[Judgement], injections: Sequence[Injection]) -> tuple[str, ...]:
    ended = [judgement for judgement in judged if judgement.is_complete]
    run_s, reference_s = sum(judgement.run_s for judgement in ended), sum(judgement.reference_s for judgement in ended)
    share = reference_s / run_s if run_s else 0.0
    gaps = [
        step.at - before.at
        for soak in soaked
        for reference in soak.references.values()
        for before, step in _pairs(reference)
    ]
    pace = median(gaps) if gaps else 0.0
    return (
        f"The runs took {run_s:,.0f} s in all, their reference runs {reference_s:,.0f} s: {share:.0%}, with "
        f"{len(injections)} faults in {run_s / 60:.0f} minutes of training. SageMaker's pace, the sweep and the "
        f"policy's durations are divided by {SCALE:g}; Python's start, queues and polls are not. A step was to take "
        f"{STEP_SECONDS:g} s and took {pace:.3f} s in the median of the references: the machine was "
        f"{'quiet' if pace < QUIET_S else 'busy'}.",
        "A loss is compared as the process has it, not as it is printed; samples are those that the model was given. "
        "Steps that were trained and have come to nothing are lost; they are in no other count.",
        "Where a remedy changes what is trained on (samples skipped, a lower learning rate), the reference run has the "
        "same remedy from the same step on; how far the run ends from the undisturbed one stands beside it.",
        "Of a script that is not ours only the losses are known, and no samples. Detected: until the first decision or "
        "finding; recovered: until the step was trained again by processes that were started since. Seconds are this "
        "machine's, medians over the times. A storm counts once for each run that it hit.",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=0, help=f"how many (at least {FAULTS_BY_DEFAULT}, all scenarios)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scenario", choices=list(FAULTS), action="append", help="only this one; may be repeated")
    parser.add_argument("--minutes", type=float, default=0.0, help="further seeds, until so much time is spent")
    parser.add_argument("--beside", type=int, default=BESIDE, help="runs at the same time")
    parser.add_argument("--state", type=Path, default=ROOT / ".local" / "soak", help="where it works")
    parser.add_argument("--evidence", type=Path, help="write the evidence to this file")
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 200)
    soaked, wrong = [], []
    end = time.monotonic() + 60 * options.minutes
    seed = options.seed
    while True:
        names = options.scenario or choose_faults(seed, options.faults or max(FAULTS_BY_DEFAULT, len(FAULTS)))
        state = (options.state / str(seed)).resolve()
        here, problems = soak(seed, names, options.beside, state, console)
        soaked.append(here)
        wrong += problems
        if problems or any(judgement.wrong for judgement in here.judged):
            again = " ".join(f"--scenario {name}" for name in options.scenario or ())
            again = again or f"--faults {len(names)}"
            console.print(
                f"what it wrote is in {os.path.relpath(state)}; again: python -m bench.soak --seed {seed} {again}"
            )
        else:
            shutil.rmtree(state)
        if time.monotonic() >= end:
            break
        seed += 1
    return finish(evidence(soaked, wrong), options.evidence, console)


if __name__ == "__main__":
    sys.exit(main())
