"""Every AWS call of a recovery, broken in every way: does the run end as it would have?

    python -m bench.crashes [--every N] [--start N] [--site TEXT] [--json FILE]

The template is deployed into the local AWS, and a run is played there from its first event to its end: its job is
killed once, it is relaunched, it completes. The calls that the functions make meanwhile are noted by a hook in their
workers (`crash_worker`), so that no call site is chosen by hand. Then the run is played again for each site, in each
part of its life, and each way to break the call: the function is killed before it or after it, it is not reached or its
answer is lost, it is throttled, or it fails with each error that the service's model declares.

A run survives if it completes with the same attempts, none of which was alive while another was, if every step was
trained, if people were told of its relaunch and of its end, and no message is left in a dead-letter queue."""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from cli import place
from local.stack import LocalAws
from rerail.model import Run, RunState
from tests.deployed.jobs import BUCKET, Account

WORKER = Path(__file__).parent / "crash_worker"
SCALE = 300.0
# As the policy's durations: faster than that a busy machine passes for a stall.
SWEEPS = 60.0
STEPS, SAVED_BEFORE_THE_KILL = 150, 20
PATIENCE_S = 60.0
# How each call is broken, besides the errors that its service declares.
WAYS = ("killed before", "killed after", "not reached", "answer lost", "ThrottlingException", "InternalServerError")
DENIED = "AccessDeniedException"
CREATE = "sagemaker:CreateTrainingJob"
TOLD = ("relaunching", "completed")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Point:
    """One call site, the part of the run's life in which its first call is broken, and the way in which it is."""

    phase: str
    site: str
    how: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a point: `reached` says that the call was broken, `held` that a human was asked and said go on;
    `wrong` is "" where the run survived."""

    point: Point
    reached: bool
    held: bool
    wrong: str
    seconds: float


class Stage:
    """A local AWS whose functions can be broken, and runs that are played in it."""

    def __init__(self, aws: LocalAws, folder: Path) -> None:
        self.aws, self.folder, self.fault = aws, folder, folder / "fault.json"
        self.played = 0
        self.said: Counter[tuple[str, str]] = Counter()
        folder.mkdir()
        self.account = Account(aws)
        self.account.set_up()
        self.runs, self.sagemaker = self.account.runs, self.account.sagemaker
        self.s3, self.sqs = aws.client("s3"), aws.client("sqs")
        self.instrument()
        self.voice = self.account.listen("people", "PageTopicArn", "InformTopicArn")

    def instrument(self) -> None:
        """Fresh workers, which have the hook, and remember nothing of what they have read before."""
        functions = self.aws.client("lambda")
        for function in functions.list_functions()["Functions"]:
            variables = function.get("Environment", {}).get("Variables", {})
            hook = {"PYTHONPATH": str(WORKER), "FAULT_FOLDER": str(self.folder), "FRESH": str(self.played)}
            functions.update_function_configuration(
                FunctionName=function["FunctionName"], Environment={"Variables": variables | hook}
            )

    def play(self, point: Point | None = None) -> Outcome:
        """One run from its first event to its end, with one call broken."""
        self.played += 1
        name, began, held = f"crash-{self.played}", time.monotonic(), False
        (self.folder / "fired").unlink(missing_ok=True)
        try:
            self._enter("adoption", point)
            self.account.submit(name, steps=STEPS)
            self._until(lambda: self._has_saved(name, SAVED_BEFORE_THE_KILL), "its checkpoint")
            self._enter("recovery", point)
            self.account.inject("kill", TrainingJobName=name)
            self._until(lambda: self._at_rest(name) or self._has_saved(name, STEPS - 10), "its successor")
            self._enter("completion", point)
            run = self._until(lambda: self._at_rest(name), "its end")
            if run.state is RunState.HELD and point and CREATE in point.site:
                held = True
                self._release(name)
                run = self._until(lambda: self._at_rest(name, but=RunState.HELD), "its end, once released")
            self._until(lambda: self._heard(name), "what people are told")
            wrong = "; ".join(self._shortcomings(name, run))
        except TimeoutError as error:
            wrong = f"{error}: {self._story(name)}"
        reached = point is None or (self.folder / "fired").exists()
        return Outcome(point or Point("", "", ""), reached, held, wrong, time.monotonic() - began)

    def _enter(self, phase: str, point: Point | None) -> None:
        """From now on calls are noted as this phase's, and one is broken if it is the point's: adoption is from the
        first event, recovery from the death of the job, completion from the time when its successor has saved."""
        self.fault.unlink(missing_ok=True)
        (self.folder / "phase").write_text(phase)
        if point and point.phase == phase:
            partial = self.folder / "fault.partial"
            partial.write_text(json.dumps({"site": point.site, "how": point.how}))
            partial.rename(self.fault)

    def calls(self) -> dict[tuple[str, str], list[str]]:
        """The call sites that were met so far, by phase, each with the errors that its service declares."""
        lines = (self.folder / "calls.jsonl").read_text().splitlines()
        return {(call["phase"], call["site"]): call["errors"] for call in map(json.loads, lines)}

    def _has_saved(self, name: str, step: int) -> bool:
        key = f"{name}/step-{step:09d}/manifest.json"
        return bool(self.s3.list_objects_v2(Bucket=BUCKET, Prefix=key).get("KeyCount"))

    def _at_rest(self, name: str, *, but: RunState | None = None) -> Run | None:
        run = self.runs.load(name)
        return run if run and run.state.is_end and run.state is not but and not run.pending else None

    def _release(self, name: str) -> None:
        detail = {"run": name, "verb": "release", "who": "bench", "why": "the refusal was made up"}
        entry = {"Source": "rerail.operator", "DetailType": "Rerail Command", "Detail": json.dumps(detail)}
        self.aws.client("events").put_events(Entries=[{**entry, "EventBusName": self.aws.outputs["BusName"]}])

    def _heard(self, name: str) -> bool:
        """All that people must be told of this run has arrived; what is said of it otherwise is passed over."""
        answer = self.sqs.receive_message(QueueUrl=self.voice, MaxNumberOfMessages=10)
        for message in answer.get("Messages", []):
            subject = json.loads(message["Body"]).get("Subject", "")
            self.said.update((subject.partition(":")[0], word) for word in TOLD if word in subject)
            self.sqs.delete_message(QueueUrl=self.voice, ReceiptHandle=message["ReceiptHandle"])
        return all(self.said[name, word] for word in TOLD)

    def _shortcomings(self, name: str, run: Run) -> Iterator[str]:
        if run.state is not RunState.COMPLETED:
            yield f"the run is {run.state}: {run.hold_reason}"
        jobs = [self.sagemaker.describe_training_job(TrainingJobName=each) for each in self._jobs(name)]
        names = [job["TrainingJobName"] for job in jobs]
        if names != [name, f"{name}-a002"]:
            yield f"its jobs are {', '.join(names)}"
        for before, after in zip(jobs, jobs[1:], strict=False):
            if after["CreationTime"] < before["TrainingEndTime"]:
                yield f"{after['TrainingJobName']} was created while {before['TrainingJobName']} lived"
        if not self._has_saved(name, STEPS):
            yield "its last step was never saved"
        if letters := self._dead_letters():
            yield f"dead letters in {', '.join(letters)}"

    def _jobs(self, name: str) -> list[str]:
        found = self.sagemaker.list_training_jobs(NameContains=name, SortBy="CreationTime", SortOrder="Ascending")
        names = [job["TrainingJobName"] for job in found["TrainingJobSummaries"]]
        return [each for each in names if each == name or each.startswith(f"{name}-")]

    def _dead_letters(self) -> list[str]:
        """The queues with letters that nobody could handle; emptied, so that the next play begins anew."""
        full = []
        for url in self.sqs.list_queues().get("QueueUrls", []):
            count = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
            if "DeadLetters" in url and count["Attributes"]["ApproximateNumberOfMessages"] != "0":
                full.append(url.rpartition("/")[2])
                self.sqs.purge_queue(QueueUrl=url)
        return full

    def _story(self, name: str) -> str:
        run = self.runs.load(name)
        if run is None:
            return "it was never adopted"
        return f"{run.state}, pending {len(run.pending)}; " + " / ".join(e.reason for e in self.runs.timeline(name))

    def _until(self, look: Callable[[], T | None], what: str) -> T:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            if found := look():
                return found
            time.sleep(0.05)
        raise TimeoutError(f"{what} did not come within {PATIENCE_S:g} s")


def points(calls: dict[tuple[str, str], list[str]]) -> Iterator[Point]:
    """Every site of every phase with every way to break it."""
    for (phase, site), errors in sorted(calls.items()):
        for how in dict.fromkeys([*WAYS, DENIED, *errors]):
            yield Point(phase, site, how)


def played(stage: Stage, chosen: Sequence[Point], console: Console) -> Iterator[Outcome]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("breaking", total=len(chosen))
        for point in chosen:
            outcome = stage.play(point)
            if not outcome.reached:  # what a function asks once, when it is new
                stage.instrument()
                outcome = stage.play(point)
            if outcome.wrong:
                progress.console.print(
                    f"{point.phase}: {point.site}, {point.how}: {outcome.wrong}", markup=False, highlight=False
                )
            progress.advance(task)
            yield outcome


def summary(outcomes: Iterable[Outcome]) -> Table:
    """A row a way: points tried, reached, survived."""
    table = Table("way", "tried", "reached", "survived", "asked a human first")
    rows: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        how = outcome.point.how if outcome.point.how in WAYS else "an error of the service's model"
        row = rows.setdefault(how, Counter())
        survived = outcome.reached and not outcome.wrong
        row.update(tried=1, reached=int(outcome.reached), survived=int(survived), held=int(outcome.held))
    for how, row in rows.items():
        table.add_row(how, *(str(row[name]) for name in ("tried", "reached", "survived", "held")))
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.crashes")
    parser.add_argument("--every", type=int, default=1, help="only each N-th point")
    parser.add_argument("--start", type=int, default=0, help="the first point")
    parser.add_argument("--site", default="", help="only points that contain this")
    parser.add_argument("--json", type=Path, help="write every outcome to this file")
    options = parser.parse_args(arguments)
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with LocalAws(home / "aws", scale=SCALE, schedule_scale=SWEEPS, assemblies=place.SYNTHESES) as aws:
            stage = Stage(aws, home / "faults")
            plain = stage.play()
            if not plain.wrong:  # once more with everything warm, for calls that the first play did not come to
                plain = stage.play()
            if plain.wrong:
                console.print(f"without any fault: {plain.wrong}", markup=False)
                return 1
            calls = stage.calls()
            chosen = [point for point in points(calls) if options.site in f"{point.phase}: {point.site}, {point.how}"][
                options.start :: options.every
            ]
            console.print(f"{len(calls)} call sites, {len(chosen)} points; undisturbed it takes {plain.seconds:.1f} s")
            outcomes = list(played(stage, chosen, console))
    console.print(summary(outcomes))
    if options.json:
        options.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    return 1 if any(outcome.wrong for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
