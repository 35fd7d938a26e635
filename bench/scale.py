"""How many runs does one deployment carry? Sweeps over 10 to 10,000 open runs, a thousand deaths, one very long life.

    python -m bench.scale [--runs 10,100,1000,10000] [--jobs 1000] [--only sweeps|deaths|life]

Sweeps: the function `sweep` itself, each environment in a process of its own, over HTTP to a made-up AWS that answers
as late as named in `made_aws` and throttles as named there. Deaths: see `deaths`. Life: see `long_life`."""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import log
from multiprocessing import get_context
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryFile
from time import monotonic, sleep
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import deaths, long_life
from bench.cost import MEMORY_GB, MINUTES, PRICES
from bench.deaths import Night
from bench.evidence import ROOT, Evidence, Failure, Goal, Sheet, finish
from bench.made_aws import LATENCY_S, PER_SECOND
from bench.virtual_lambda import CORES

WAYS = {"metrics": 0.0, "heartbeats": 1.0, "half of each": 0.5}
MINUTE_S, EXPONENT, OVER_BOUND = 60.0, 1.05, 1.1
BRAKED_MINUTES = 5
Tick = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Share:
    """One invocation of a round: `wall_s` as measured, `cpu_s` of one core, `lambda_s` what both make at most on the
    third of a core that half a gigabyte buys, `begins_s` when it was invoked."""

    runs: int
    wall_s: float
    cpu_s: float
    begins_s: float
    peak_bytes: int
    calls: Counter[str]
    units: Counter[str]
    refused: Counter[str]
    error: str

    @property
    def lambda_s(self) -> float:
        """As if nothing were computed while anything is waited for."""
        return self.wall_s + self.cpu_s * (1 / CORES - 1)


@dataclass(frozen=True, slots=True)
class Round:
    """One round over a fleet, in all its shares."""

    way: str
    fleet: int
    shares: tuple[Share, ...]
    told: int

    @property
    def lambda_s(self) -> float:
        """Until the last share is done."""
        return max(each.begins_s + each.lambda_s for each in self.shares)

    @property
    def cpu_s(self) -> float:
        return sum(each.cpu_s for each in self.shares)

    @property
    def peak_bytes(self) -> int:
        return max(each.peak_bytes for each in self.shares)

    @property
    def calls(self) -> Counter[str]:
        return sum((each.calls for each in self.shares), Counter())

    @property
    def refused(self) -> Counter[str]:
        return sum((each.refused for each in self.shares), Counter())

    @property
    def dollars(self) -> float:
        """What the round costs by list prices."""
        calls = self.calls
        units = sum((each.units for each in self.shares), Counter())
        counts = {
            "invocation": len(self.shares),
            "gb_second": sum(each.lambda_s for each in self.shares) * MEMORY_GB,
            "read": units["read"],
            "write": units["write"],
            "metric_read": units["metric_read"],
            "get": calls["GetObject"],
            "put": calls["ListObjectsV2"],
            "message": calls["SendMessageBatch"],
        }
        return float(sum(count * PRICES[name].each for name, count in counts.items()))


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of the values over the sizes, both as logarithms, by least squares: 1 is linear."""
    points = [(log(size), log(max(value, 1e-9))) for size, value in zip(sizes, values, strict=True)]
    mean_x, mean_y = (sum(each) / len(points) for each in zip(*points, strict=True))
    rises = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return float(rises / sum((x - mean_x) ** 2 for x, _ in points))


@contextmanager
def fleet(runs: int, share: float) -> Iterator[str]:
    """The made-up AWS with a fleet in it, in a process of its own; its address."""
    command = [sys.executable, "-m", "bench.made_fleet", "--runs", str(runs), "--share", str(share)]
    with Popen(command, cwd=ROOT, env=_paths(), stdout=PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.terminate()


class Environment:
    """One environment of the function, in a process that lives until the end of the block."""

    def __init__(self, address: str) -> None:
        told = {**_paths(), **deaths.environment(), "AWS_ENDPOINT_URL": address, "AWS_EC2_METADATA_DISABLED": "true"}
        told["RERAIL_QUEUE_URL"] = f"{address}/signals"
        command = [sys.executable, "-m", "bench.sweep_worker"]
        self._logged = TemporaryFile("w+")  # noqa: SIM115 - closed with the block
        self._process = Popen(command, cwd=ROOT, env=told, stdin=PIPE, stdout=PIPE, stderr=self._logged, text=True)

    def __enter__(self) -> "Environment":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self._logged.close()

    def invoke(self, event: dict[str, Any]) -> dict[str, Any]:
        """One sweep: what it counted, and what it took."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(event) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._logged.seek(0)
            raise RuntimeError(f"a sweep ended with {self._process.wait()}: {self._logged.read()[-2000:]}")
        told: dict[str, Any] = json.loads(line)
        return told


def _paths() -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return {**kept, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "lambdas")))}


@dataclass(frozen=True, slots=True)
class Warm:
    """A fleet, and the environments that swept it last at `at`, by `time.monotonic`: the scheduled one first."""

    way: str
    fleet: int
    environments: tuple[Environment, ...]
    events: tuple[dict[str, Any], ...]
    at: float


def rounds(way: str, sizes: Sequence[int], *, rest_s: float, tick: Tick) -> list[Round]:
    """A round over each of the fleets, in environments that have swept it before."""
    with ExitStack() as stack:
        warm = [warmed(stack, way, size, tick) for size in sizes]
        return [swept(each, rest_s, tick) for each in warm]


def warmed(stack: ExitStack, way: str, runs: int, tick: Tick) -> Warm:
    """The first round: the scheduled invocation, and each that it asks for a share."""
    address = stack.enter_context(fleet(runs, WAYS[way]))
    environments = [stack.enter_context(Environment(address))]
    events: list[dict[str, Any]] = [{}]
    at = monotonic()
    events += environments[0].invoke(events[0])["invoked"]
    tick(f"{way}, {runs:,} runs: first")
    for event in events[1:]:
        environments.append(stack.enter_context(Environment(address)))
        environments[-1].invoke(event)
        tick(f"{way}, {runs:,} runs: first")
    return Warm(way, runs, tuple(environments), tuple(events), at)


def swept(warm: Warm, rest_s: float, tick: Tick) -> Round:
    """The round that counts, once the minute after the first one has come: all shares at once, for what throttles one
    throttles all."""
    sleep(max(0.0, warm.at + rest_s - monotonic()))

    def invoked(environment: Environment, event: dict[str, Any]) -> dict[str, Any]:
        told = environment.invoke(event)
        tick(f"{warm.way}, {warm.fleet:,} runs")
        return told

    with ThreadPoolExecutor(len(warm.environments)) as pool:
        took = list(pool.map(invoked, warm.environments, warm.events))
    # Once more, now that the others have left word of theirs.
    counts = invoked(warm.environments[0], {})["counts"]
    # Each of the others begins once the index has been read so far as to know how many there are.
    known_s = LATENCY_S["ListTrainingJobs"] + 4 * LATENCY_S["Query"]
    begins_s = [0.0, *(known_s + number * LATENCY_S["Invoke"] for number in range(1, len(took)))]
    return Round(warm.way, warm.fleet, tuple(map(_share, took, begins_s)), counts.get("OpenRuns", 0))


def _share(told: dict[str, Any], begins_s: float) -> Share:
    return Share(
        runs=told["counts"].get("OpenRuns", 0),
        wall_s=told["wall_s"],
        cpu_s=told["cpu_s"],
        begins_s=begins_s,
        peak_bytes=told["peak_bytes"],
        calls=Counter(told["calls"]),
        units=Counter(told["units"]),
        refused=Counter(told["refused"]),
        error=told["error"],
    )


def of_sweeps(rounds: Sequence[Round]) -> Evidence:
    """Tables and goals of the sweeps."""
    rows = tuple(
        (
            each.way,
            each.fleet,
            len(each.shares),
            f"{max(share.wall_s for share in each.shares):.1f}",
            f"{each.cpu_s:.1f}",
            f"{each.lambda_s:.1f}",
            sum(each.calls.values()),
            each.calls["DescribeTrainingJob"],
            f"{each.peak_bytes / 1e6:.0f}",
            f"{each.dollars:.6f}",
            f"{each.dollars * MINUTES / each.fleet:.2f}",
        )
        for each in rounds
    )
    columns = ("judged by", "open runs", "invocations", "wall s", "CPU s", "Lambda s", "calls", "describes")
    sheet = Sheet("One round", (*columns, "peak MB", "dollars", "dollars a run-month"), rows)
    names = sorted(set().union(*(each.calls for each in rounds)))
    last = [each for each in rounds if each.fleet == max(each.fleet for each in rounds)]
    calls = Sheet(
        f"Calls of one round over {last[0].fleet:,} runs",
        ("operation", *(each.way for each in last), "throttled"),
        tuple((n, *(each.calls[n] for each in last), sum(each.refused[n] for each in last)) for n in names),
    )
    slopes, goals = [], []
    for way in dict.fromkeys(each.way for each in rounds):
        of = [each for each in rounds if each.way == way]
        sizes = [each.fleet for each in of]
        if len(of) > 1:
            kinds = {
                "Lambda s": exponent(sizes, [each.lambda_s for each in of]),
                "CPU s": exponent(sizes, [each.cpu_s for each in of]),
                "calls": exponent(sizes, [sum(each.calls.values()) for each in of]),
                "peak MB": exponent(sizes, [each.peak_bytes for each in of]),
                "dollars": exponent(sizes, [each.dollars for each in of]),
            }
            slopes.append((way, *(f"{value:.2f}" for value in kinds.values())))
            worst = max(kinds, key=lambda kind: kinds[kind])
            goals.append(
                Goal(
                    f"growth with the runs, judged by {way}",
                    f"at most n^{EXPONENT}",
                    f"n^{kinds[worst]:.2f} ({worst})",
                    kinds[worst] <= EXPONENT,
                )
            )
        slowest = max(of[-1].shares, key=lambda share: share.begins_s + share.lambda_s)
        goals.append(
            Goal(
                f"a round over {of[-1].fleet:,} runs, judged by {way}, on a third of a core",
                f"at most {MINUTE_S:.0f} s",
                f"{of[-1].lambda_s:.1f} s, of that {slowest.wall_s:.1f} s as measured",
                of[-1].lambda_s <= MINUTE_S,
            )
        )
    growth = ("judged by", "Lambda s", "CPU s", "calls", "peak MB", "dollars")
    failures = [
        Failure(f"a share of the round over {each.fleet:,} runs ({each.way}) failed", share.error)
        for each in rounds
        for share in each.shares
        if share.error
    ]
    failures += [
        Failure(f"the round over {each.fleet:,} runs ({each.way}) told of {each.told:,}")
        for each in rounds
        if each.told != each.fleet
    ]
    sheets = (sheet, *((Sheet("Exponent of the growth", growth, tuple(slopes)),) if slopes else ()), calls)
    return Evidence("", sheets, tuple(goals), _notes(), tuple(failures))


def _notes() -> tuple[str, ...]:
    late = ", ".join(f"{name} {seconds * 1000:.0f}" for name, seconds in LATENCY_S.items())
    rates = ", ".join(f"{name} {rate:g}" for name, rate in PER_SECOND.items())
    return (
        f"Assumed: medians of the answers' times in ms, log-normal with a sigma of 0.35 ({late}); calls a second before"
        f" AWS throttles ({rates}). Only that of ListTrainingJobs is known from public reports; the others are not"
        " published.",
        f"`Lambda s` is the wall time and, on top of it, the CPU time that {CORES:.2f} of a core takes longer, as if"
        " nothing were computed while anything is waited for: an upper bound. A core of this machine is taken for one"
        " of Lambda's; TLS is not counted. The shares of a round are measured at the same time, on two cores: they"
        " throttle each other, and wait for a core where each would have its own.",
        "The second sweep of each environment is shown: the first also makes clients and reads three hours back.",
    )


def of_deaths(free: Night, braked: Night, jobs: int) -> Evidence:
    """Tables and goals of the deaths."""
    bound = jobs / PER_SECOND["CreateTrainingJob"]
    rows = []
    for name, (share, number) in deaths.PRIORITIES.items():
        times = sorted(at - deaths.BEGINS for run, at in free.relaunched.items() if deaths.priority_of(run) == name)
        if times:
            median, last = times[len(times) // 2], times[-1]
            rows.append((name, number, f"{share} %", len(times), f"{median:.0f}", f"{last:.0f}"))
    order = Sheet(
        f"{jobs:,} deaths in one minute: relaunched, seconds after the first death",
        ("policy", "priority", "of the runs", "relaunched", "median", "last"),
        tuple(rows),
    )
    twice = sum(count > 1 for count in free.accepted.values())
    figures = Sheet(
        "What it took",
        ("figure", "brake off", "default policy, first minutes"),
        (
            ("relaunched", len(free.relaunched), len(braked.relaunched)),
            ("the same run launched twice", twice, sum(count > 1 for count in braked.accepted.values())),
            ("messages handled", free.messages, braked.messages),
            ("invocations of supervise", free.invocations, braked.invocations),
            ("CreateTrainingJob calls throttled", free.refused["CreateTrainingJob"], 0),
            ("invocations that ran out of time", free.timeouts, braked.timeouts),
            ("messages in the dead-letter queue", free.dead_letters, braked.dead_letters),
            ("oldest message, s", round(free.oldest_s), round(braked.oldest_s)),
            ("sweeps that failed", len(free.failed_sweeps), len(braked.failed_sweeps)),
            ("longest sweep, s", round(max(free.sweeps)), round(max(braked.sweeps))),
            ("pages", free.notices["page"], braked.notices["page"]),
            ("notices to inform", free.notices["inform"], braked.notices["inform"]),
        ),
    )
    lost = jobs - len(free.relaunched)
    limit, reached = PER_SECOND["CreateTrainingJob"], pace(list(free.relaunched.values()))
    goals = (
        Goal(
            f"all of {jobs:,} relaunched at {limit:g} CreateTrainingJob calls a second, with the minute in which all"
            " die and that of the sweep that finds them",
            f"at most {OVER_BOUND:g} x the bound of {bound:.0f} s and those two minutes",
            f"{free.took_s:.0f} s" if not lost else f"{lost} not relaunched",
            not lost and free.took_s <= OVER_BOUND * bound + 2 * MINUTE_S,
        ),
        Goal(
            "relaunches a second, without the first and the last tenth of them",
            f"at least {limit / OVER_BOUND:.2f}",
            f"{reached:.2f}",
            reached >= limit / OVER_BOUND,
        ),
        Goal("launched twice", "none", str(twice), not twice),
        Goal("dead letters", "none", str(free.dead_letters), not free.dead_letters),
        Goal(
            "pages to on-call, with the default brake on relaunches",
            "1",
            str(braked.notices["page"]),
            braked.notices["page"] == 1,
        ),
        Goal(
            "relaunches that the default brake lets go ahead in the first hour",
            "at most 100",
            str(len(braked.relaunched)),
            len(braked.relaunched) <= 100,
        ),
    )
    failures = []
    if lost:
        failures.append(Failure(f"{lost} of {jobs} runs were not relaunched"))
    if twice:
        failures.append(Failure(f"{twice} runs were launched twice"))
    failures += [Failure("a sweep failed", why) for why in (*free.failed_sweeps, *braked.failed_sweeps)]
    if free.dead_letters or braked.dead_letters:
        failures.append(Failure("messages went to the dead-letter queue"))
    notes = (
        f"The template's concurrency of {deaths.CONCURRENCY}, batches of {deaths.BATCH}, time-out and visibility. Of"
        f" the jobs' events {deaths.LOST:.0%} are lost, {deaths.REPEATED:.0%} come twice, each"
        f" {deaths.EVENT_LATE_S[0]:g} to {deaths.EVENT_LATE_S[1]:g} s late. The time holds the policy's backoff, drawn"
        " between 0 and 30 s, and the minute of the sweep that finds it over.",
    )
    return Evidence("", (order, figures), goals, notes, tuple(failures))


def pace(times: Sequence[float]) -> float:
    """How many a second, without the first and the last tenth of them."""
    inner = sorted(times)[len(times) // 10 : len(times) - len(times) // 10]
    return (len(inner) - 1) / (inner[-1] - inner[0]) if len(inner) > 1 else 0.0


def measured(options: argparse.Namespace, console: Console) -> Evidence:
    """All that was asked for."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    parts: list[Evidence] = []
    with Progress(*columns, console=console) as progress:
        if options.only in ("", "sweeps"):
            sizes = [int(each) for each in options.runs.split(",")]
            task = progress.add_task("sweeping", total=None)

            def tick(what: str) -> None:
                progress.update(task, advance=1, description=what)

            ways = [rounds(way, sizes, rest_s=options.rest, tick=tick) for way in options.ways.split(",")]
            parts.append(of_sweeps([each for way in ways for each in way]))
            progress.update(task, total=progress.tasks[task].completed, description="swept")
        if options.only in ("", "deaths"):
            task = progress.add_task("relaunching", total=options.jobs)

            def seen(night: Night) -> None:
                progress.update(task, completed=len(night.relaunched))

            with ProcessPoolExecutor(1, get_context("spawn")) as beside:
                told = beside.submit(deaths.played, options.jobs, brake=True, minutes=BRAKED_MINUTES, seed=options.seed)
                free = deaths.played(options.jobs, brake=False, minutes=options.minutes, seed=options.seed, seen=seen)
                parts.append(of_deaths(free, told.result(), options.jobs))
        if options.only in ("", "life"):
            task = progress.add_task("living long", total=1)
            parts.append(long_life.evidence())
            progress.update(task, advance=1)
    return Evidence(
        "One deployment sweeps 10,000 open runs within the minute, relaunches a thousand jobs as fast as SageMaker"
        " takes them, the more urgent ones first, and looks after a run with 500 attempts as after a fresh one.",
        tuple(sheet for part in parts for sheet in part.sheets),
        tuple(goal for part in parts for goal in part.goals),
        tuple(note for part in parts for note in part.notes),
        tuple(failure for part in parts for failure in part.failures),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scale")
    parser.add_argument("--runs", default="10,100,1000,10000", help="sizes of the fleet")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"of {', '.join(WAYS)}")
    parser.add_argument("--rest", type=float, default=MINUTE_S, help="seconds from a fleet's first round to its next")
    parser.add_argument("--jobs", type=int, default=1000, help="that die within one minute")
    parser.add_argument("--minutes", type=int, default=40, help="that their relaunches may take at most")
    parser.add_argument("--only", choices=("", "sweeps", "deaths", "life"), default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--evidence", type=Path, help="write what was found to this file")
    options = parser.parse_args(arguments)
    console = Console()
    return finish(measured(options, console), options.evidence, console)


if __name__ == "__main__":
    sys.exit(main())
