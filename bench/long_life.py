"""A run with 500 attempts, and a million points of its loss: is it looked after as fast as a fresh one?

    python -m bench.long_life [--attempts 500] [--points 1000000]

The run is played through the core, on the fakes that the tests use: each attempt saves, fails and is relaunched."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import log1p

from rich.console import Console

from bench.evidence import Evidence, Failure, Goal, Sheet, finish
from bench.made_aws import ITEM_BYTES
from bench.made_fleet import noise
from report_page.page import drawn_page
from rerail.accounting.goodput import make_account
from rerail.aws.dynamodb import run_doc
from rerail.aws.records import pack
from rerail.decisions.decide import decide
from rerail.detection.detectors import DetectorState, evaluate_sample
from rerail.detection.evaluate import RunDetection
from rerail.incident_report.facts import Facts
from rerail.incident_report.report import make_report
from rerail.messages.messages import JobStateChanged, RunDue
from rerail.model.codec import dumps, loads
from rerail.model.metrics import Cursor
from rerail.model.policy import Limits, Policy, Retries
from rerail.model.run import Run, RunState, TimelineEntry
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds
from rerail.supervisor.observe import observe
from tests.fakes import World

ENDLESS = Policy(
    limits=Limits(attempts=10**6, attempts_without_progress=10**6, starts=10**6, account_relaunches=0),
    retries=Retries(infrastructure=10**6),
)
FAILURES = (
    "InternalServerError: We encountered an internal error. Please try again.",
    'AlgorithmError: , exit code: 1\nErrorMessage "torch.distributed.DistBackendError: NCCL error in: '
    'ProcessGroupNCCL.cpp:2251, remote process exited or there was a network error, on host {host}"',
)
ROWS = 2000
HALF_THE_ITEM = ITEM_BYTES // 2


@dataclass(frozen=True, slots=True)
class Life:
    """A run with its world, and the entries of its timeline."""

    world: World
    run: Run
    entries: tuple[TimelineEntry, ...]


def lived(attempts: int) -> Life:
    """A run that is in its so-and-so-manieth attempt, and trains."""
    world = World()
    world.policies.by_name["default"] = ENDLESS
    world.sagemaker.submit("gpt")
    world.supervisor().handle(JobStateChanged("gpt"))
    for number in range(1, attempts):
        world.clock.pass_by(timedelta(minutes=30))
        world.checkpoints.saved = {}  # only the newest tells anything
        world.checkpoints.save(step=100 * number, attempt=number)
        world.supervisor().handle(RunDue("gpt"))
        reason = FAILURES[number % len(FAILURES)].format(host=f"ip-10-0-{int(255 * noise(str(number)))}-{number % 256}")
        world.sagemaker.fail(world.run().current.job_name, reason)
        world.supervisor().handle(JobStateChanged(world.run().current.job_name))
        while world.run().state is RunState.WAITING:
            world.clock.pass_by(timedelta(minutes=1))
            world.supervisor().handle(RunDue("gpt"))
        world.supervisor().handle(RunDue("gpt"))
    return Life(world, world.run(), tuple(world.runs.timeline))


def milliseconds(work: Callable[[], object], *, times: int = 5) -> float:
    """The least CPU time of so many tries."""
    least = float("inf")
    for _ in range(times):
        began = time.process_time()
        work()
        least = min(least, time.process_time() - began)
    return least * 1000


def looked_at(life: Life) -> None:
    """What a sweep does for it: read, look, decide, account."""
    run = loads(Run, dumps(life.run))
    at = life.world.clock()
    for signal in observe(run, life.world.sagemaker, life.world.checkpoints, at=at):
        decide(run, signal, ENDLESS)
    make_account(run, at, ENDLESS)


def of_a_life(life: Life) -> dict[str, float]:
    """What each thing takes, in ms of CPU or bytes."""
    known = Facts(life.run, life.world.clock(), ENDLESS, life.entries)
    story = make_report(known)
    ((_, stored),) = run_doc(life.run).items()
    look = milliseconds(lambda: looked_at(life)) - milliseconds(lambda: dumps(life.run))
    return {
        "its record, bytes of JSON": len(dumps(life.run)),
        "its record as it is stored, bytes": len(stored),
        "its record written, ms": milliseconds(lambda: run_doc(life.run)),
        "a sweep's look at it, ms": look,
        "its goodput reckoned, ms": milliseconds(lambda: make_account(life.run, life.world.clock(), ENDLESS)),
        "its timeline, entries": len(life.entries),
        "its timeline read, ms": milliseconds(lambda: [loads(TimelineEntry, text) for text in _texts(life)], times=2),
        "its story told, ms": milliseconds(lambda: make_report(known), times=2),
        "its report drawn, ms": milliseconds(lambda: drawn_page(story), times=2),
        "its report, bytes": len(drawn_page(story)),
    }


def _texts(life: Life) -> list[str]:
    return [dumps(entry) for entry in life.entries]


def loss_row(step: int) -> Sample:
    """A loss that falls as losses do, with some noise."""
    return Sample(step=step, loss=8.0 / log1p(3 + step) + 0.02 * noise(str(step)), step_time_s=1.0)


def of_points(points: int) -> tuple[dict[str, float], dict[str, float]]:
    """The detectors' first rows and their last: ms for a row, and what is remembered."""
    detection, watch = Thresholds(), DetectorState()
    fresh: dict[str, float] = {}
    step = 0
    while step < points:
        rows = [loss_row(number) for number in range(step, step + ROWS)]
        began = time.process_time()
        for row in rows:
            watch, _ = evaluate_sample(watch, row, detection)
        took = (time.process_time() - began) * 1000 / ROWS
        step += ROWS
        memory = RunDetection("gpt", Cursor("gpt"), watch, rows=step, step=step)
        told = {
            "a row judged, ms": took,
            "what is remembered, bytes": float(len(pack(dumps(memory))["B"])) if step in (ROWS, points) else 0.0,
        }
        fresh = fresh or told
    memory = RunDetection("gpt", Cursor("gpt"), watch, rows=step, step=step)
    told["what is remembered, bytes"] = float(len(pack(dumps(memory))["B"]))
    return fresh, told


def evidence(*, attempts: int = 500, points: int = 1_000_000) -> Evidence:
    """Both lives side by side."""
    fresh, old = of_a_life(lived(2)), of_a_life(lived(attempts))
    first, last = of_points(points)
    both = [(what, fresh[what], old[what]) for what in old] + [(what, first[what], last[what]) for what in last]
    rows = [(what, _figure(what, short), _figure(what, long), _ratio(long, short)) for what, short, long in both]
    sheet = Sheet(
        f"A run with {attempts} attempts, and after {points:,} points",
        ("what", "fresh: 2 attempts, 2,000 points", "long", "times"),
        tuple(rows),
    )
    stored, look = old["its record as it is stored, bytes"], old["a sweep's look at it, ms"]
    slower = last["a row judged, ms"] / first["a row judged, ms"]
    goals = (
        Goal(
            f"the record of a run with {attempts} attempts, in an item of at most {ITEM_BYTES:,} bytes",
            f"at most {HALF_THE_ITEM:,} bytes",
            f"{stored:,.0f} bytes",
            stored <= HALF_THE_ITEM,
        ),
        Goal("a sweep's look at it, of a whole core", "at most 200 ms", f"{look:.0f} ms", look <= 200),
        Goal(f"a row judged after {points:,} points", "at most 1.2 x a fresh run's", f"{slower:.2f} x", slower <= 1.2),
        Goal(
            "its report drawn",
            "at most 10 s of a core",
            f"{old['its report drawn, ms'] / 1000:.1f} s",
            old["its report drawn, ms"] <= 10_000,
        ),
    )
    failures = [] if stored <= ITEM_BYTES else [Failure("the record does not fit into an item of DynamoDB")]
    notes = (
        "The attempts fail in turns of an internal error and of NCCL, each after half an hour and a new checkpoint. The"
        " least CPU time of several tries is shown; the ratio is of one run of the bench. Unless somebody raises it,"
        " the policy's `limits.attempts` is 50.",
    )
    claim = "A run with a very long life is looked after as a fresh one is."
    return Evidence(claim, (sheet,), goals, notes, tuple(failures))


def _figure(what: str, value: float) -> str:
    return f"{value:,.3f}" if what.endswith("ms") else f"{value:,.0f}"


def _ratio(old: float, fresh: float) -> str:
    return f"{old / fresh:,.1f}" if fresh else ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.long_life")
    parser.add_argument("--attempts", type=int, default=500)
    parser.add_argument("--points", type=int, default=1_000_000)
    options = parser.parse_args(arguments)
    return finish(evidence(attempts=options.attempts, points=options.points), None, Console())


if __name__ == "__main__":
    sys.exit(main())
