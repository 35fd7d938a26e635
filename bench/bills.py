"""What a month of Rerail costs by calls that were counted in the local AWS, beside other designs at the same prices.

The deployed functions are watched call by call while nothing trains, while runs train with and without an agent, and
while one run is mended; a month is so many of these minutes, and as many incidents as are assumed."""

import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import Any

from rich.progress import Progress

from bench.cost import (
    ALARMS,
    COMPOSITES,
    DASHBOARDS,
    EMPTY_RECEIVES_A_MINUTE,
    HOURS,
    KEYS,
    LOG_BYTES_A_CALL,
    MAILBOX_POLL_S,
    MEMORY_BYTES,
    MEMORY_GB,
    MINUTES,
    PRICES,
    QUEUES_POLLED,
    RUN_BYTES,
    SUPERVISE_S,
    SWEEP_S,
    SWEEP_S_A_RUN,
    published,
)
from bench.evidence import Cell, Evidence, Goal, Sheet
from bench.needs import Call
from bench.noted import instrument, read_calls
from cli import place
from local.stack import LocalAws
from rerail.model.liveness import Phase
from rerail.model.mailbox import Heartbeat, Report, ReportKind, heartbeat_key, report_key, write
from tests.deployed.jobs import Account

SCALE = 60  # a minute of the month is a second here
RUNS = 5
MINUTES_WATCHED = 20
SIZES = (1, 10, 100, 1000)
GPUS = (8, 64, 512)
# Assumed.
INCIDENTS_A_RUN_MONTH = 30
LEAST_SECONDS, LEAST_GB = 0.05, 0.125  # of a small Lambda function that takes one row
FLUSH_S, WINDOW_S = 5, 30
SHARD_HOUR, KINESIS_PUT = 0.015, 0.014 / 1_000_000
BAND_METRICS = 3  # an alarm on an anomaly band is billed as three metrics
GOAL = 0.05
FREE = ("sagemaker", "ssm", "logs", "sts", "secretsmanager")


@dataclass(frozen=True)
class Counted:
    """Calls by function, service and operation, each with the units that it is billed by, and over how many minutes."""

    calls: Counter[tuple[str, str, str]]
    units: Mapping[str, float]
    minutes: int

    def a_minute(self, less: "Counted | None" = None, runs: int = 1) -> dict[str, float]:
        """Billed units for each minute and run, without what is there anyway."""
        base = less.a_minute() if less else {}
        each = {price: count / self.minutes - base.get(price, 0.0) for price, count in self.units.items()}
        return {price: max(0.0, count) / runs for price, count in each.items()}


@dataclass(frozen=True)
class Measured:
    """What was counted in each part."""

    idle: Counted
    plain: Counted
    agent: Counted
    recovery: Counted


def billed(service: str, operation: str, asked: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The units that one call is billed by: the key of a price, and how many."""
    match service, operation:
        case "cloudwatch", "GetMetricData":
            yield "metric_read", len(asked["MetricDataQueries"])
        case "s3", "GetObject" | "HeadObject":
            yield "get", 1
        case "s3", _:
            yield "put", 1
        case "sqs", _:
            yield "message", 1
        case "events", "PutEvents":
            yield "event", len(asked["Entries"])
        case "sns", "Publish":
            yield "mail", 1
        case "dynamodb", "Query":
            yield "read", 0.5
        case "dynamodb", "GetItem":
            yield "read", 1
        case "dynamodb", "BatchGetItem":
            for table in asked["RequestItems"].values():
                yield "read", len(table["Keys"]) * ceil(MEMORY_BYTES / 4096) * 0.5
        case "dynamodb", "BatchWriteItem":
            yield "write", sum(map(len, asked["RequestItems"].values())) * ceil(MEMORY_BYTES / 1024)
        case "dynamodb", "TransactWriteItems":
            yield "write", len(asked["TransactItems"]) * 2 * ceil(RUN_BYTES / 1024)
        case "dynamodb", _:
            yield "write", ceil(RUN_BYTES / 1024)
        case _ if service in FREE:
            return
        case _:
            raise ValueError(f"{service} {operation} has no price here")


def counted(lines: Sequence[Call], minutes: int) -> Counted:
    """The calls of a while."""
    calls, units = Counter[tuple[str, str, str]](), defaultdict[str, float](float)
    for call in lines:
        calls[call.function, call.service, call.operation] += 1
        for price, count in billed(call.service, call.operation, call.asked):
            units[price] += count
    return Counted(calls, units, max(1, minutes))


class Meter:
    """The deployed functions of one local AWS, and what they have called."""

    def __init__(self, aws: LocalAws, folder: Path) -> None:
        self.account, self.file = Account(aws), folder / "calls.jsonl"
        self.account.set_up()
        self.mailbox = aws.outputs["MailboxBucket"]
        instrument(aws, self.file)

    def while_(self, act: Callable[[], None], *, sweeps: bool = True) -> Counted:
        """What was called meanwhile, by all or by all but the sweep; the minutes are those of the sweep, which lists
        jobs once in each."""
        before = len(read_calls(self.file))
        act()
        lines = read_calls(self.file)[before:]
        minutes = sum(call.operation == "ListTrainingJobs" for call in lines)
        return counted([call for call in lines if sweeps or call.function != "sweep"], minutes)

    def sweeps(self, minutes: int, each: Callable[[], None] = lambda: None) -> Callable[[], None]:
        """Let so many minutes pass; `each` is done in every one."""

        def act() -> None:
            for _ in range(minutes):
                each()
                time.sleep(60 / SCALE)

        return act

    def beat(self, names: Sequence[str], number: int) -> None:
        """What an agent leaves each minute."""
        for name in names:
            beat = Heartbeat(name, 1, name, datetime.now(UTC), Phase.STEP, number)
            self._put(heartbeat_key(name), write(beat))

    def hello(self, names: Sequence[str]) -> None:
        for name in names:
            self._put(report_key(name, "r1"), write(Report("r1", name, 1, name, ReportKind.HELLO, datetime.now(UTC))))

    def _put(self, key: str, body: bytes) -> None:
        self.account.aws.client("s3").put_object(Bucket=self.mailbox, Key=key, Body=body)


def measured(progress: Progress) -> Measured:
    """Watch one local AWS through all parts; a few minutes."""
    bar = progress.add_task("deploying", total=5)
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalAws(Path(folder) / "aws", scale=SCALE, schedule_scale=SCALE, assemblies=place.SYNTHESES) as aws,
    ):
        meter = Meter(aws, Path(folder))
        account = meter.account
        time.sleep(5)  # the first sweeps of a process read policies, and remember them
        progress.update(bar, advance=1, description="nothing trains")
        idle = meter.while_(meter.sweeps(MINUTES_WATCHED))

        progress.update(bar, advance=1, description="runs without an agent")
        plain_names = [account.submit(f"plain-{number}", steps=10**6) for number in range(RUNS)]
        for name in plain_names:
            account.run_in(name, "watching")
            account.has_saved(name, steps=20)
        plain = meter.while_(meter.sweeps(MINUTES_WATCHED))

        progress.update(bar, advance=1, description="one is mended")
        recovery = meter.while_(lambda: _recovery(account, plain_names[0]), sweeps=False)
        for name in plain_names:
            account.sagemaker.stop_training_job(TrainingJobName=account.jobs(name)[-1])
            account.run_in(name, "stopped", "completed")

        progress.update(bar, advance=1, description="runs with an agent")
        names = [account.submit(f"agent-{number}", steps=10**6) for number in range(RUNS)]
        for name in names:
            account.run_in(name, "watching")
        meter.hello(names)
        number = iter(range(1, 10**6))
        meter.beat(names, next(number))
        for name in names:
            has_agent = lambda name=name: (run := account.runs.load(name)) and run.current.agent  # noqa: E731
            account.wait(f"the agent of {name}", has_agent)
        meter.sweeps(3, lambda: meter.beat(names, next(number)))()
        agent = meter.while_(meter.sweeps(MINUTES_WATCHED, lambda: meter.beat(names, next(number))))
        progress.update(bar, advance=1)
        return Measured(idle, plain, agent, recovery)


def _recovery(account: Account, name: str) -> None:
    """From a death to the first checkpoint after it, and a report of it."""
    account.inject("internal_error", TrainingJobName=name)
    account.wait("the successor", lambda: (run := account.runs.load(name)) and run.current.number == 2 or None)

    def mended() -> bool | None:
        run = account.runs.load(name)
        return any(incident.closed_at for incident in run.incidents) if run else None

    account.wait("the recovery", mended, within_s=60)
    time.sleep(5)


@dataclass(frozen=True)
class Bill:
    """A month by what was counted: what is paid anyway, and what a run adds."""

    fixed: float
    a_run: float
    of_the_agent: float = 0.0

    def month(self, runs: int) -> float:
        return self.fixed + runs * (self.a_run + self.of_the_agent)


def dollars(units: Mapping[str, float], times: float = 1.0) -> float:
    """What so many units cost."""
    return times * sum(count * PRICES[price].each for price, count in units.items())


def bills(seen: Measured) -> dict[str, Bill]:
    """With the agent and without, in a month of `MINUTES` and with the incidents assumed."""
    standing = {
        "key": KEYS,
        "alarm": ALARMS,
        "composite": COMPOSITES,
        "dashboard": DASHBOARDS,
        "metric": published(),
        "message": MINUTES * EMPTY_RECEIVES_A_MINUTE * QUEUES_POLLED,
        "key_use": MINUTES * QUEUES_POLLED / 5,
    }
    each_minute = {"schedule": 1, "invocation": 1, "gb_second": SWEEP_S * MEMORY_GB, "trace": 1}
    each_minute["log_gb"] = LOG_BYTES_A_CALL / 1e9
    fixed = dollars(standing) + dollars(each_minute, MINUTES) + dollars(seen.idle.a_minute(), MINUTES)
    turns = _turns(seen.recovery)
    incident = dollars(seen.recovery.units) + dollars(
        {"invocation": turns, "gb_second": turns * SUPERVISE_S * MEMORY_GB}
    )
    work = MINUTES * SWEEP_S_A_RUN * MEMORY_GB * PRICES["gb_second"].each + INCIDENTS_A_RUN_MONTH * incident
    read = MINUTES * RUN_BYTES / 4096 * 0.5 * PRICES["read"].each  # its part of the index of open runs
    own = dollars({"put": MINUTES, "get": MINUTES * 60 / MAILBOX_POLL_S})
    return {
        "with the agent": Bill(fixed, work + read + dollars(seen.agent.a_minute(seen.idle, RUNS), MINUTES), own),
        "without": Bill(fixed, work + read + dollars(seen.plain.a_minute(seen.idle, RUNS), MINUTES)),
    }


def _turns(recovery: Counted) -> int:
    """Looks of `supervise`: each asks SageMaker at least once about the job."""
    looks = ("supervise", "sagemaker", "DescribeTrainingJob")
    return recovery.calls[looks]


def designs() -> Mapping[str, tuple[str, Callable[[int], float]]]:
    """Other ways to watch, each with how soon it can know, and what it costs a month for so many runs."""

    def polled(every: int, state_writes: float) -> Callable[[int], float]:
        def cost(runs: int) -> float:
            rounds = MINUTES / every
            shared = {"schedule": 1, "invocation": 1, "gb_second": (SWEEP_S + runs * LEAST_SECONDS / 10) * LEAST_GB}
            own = {"metric_read": 2, "write": state_writes, "read": 0.5 * state_writes}
            return dollars(shared, rounds) + runs * dollars(own, rounds)

        return cost

    def flushed(runs: int) -> float:
        flushes = MINUTES * 60 / FLUSH_S
        return runs * dollars({**_small(), "write": 1, "read": 0.5}, flushes)

    def streamed(runs: int) -> float:
        windows = MINUTES * 60 / WINDOW_S
        puts = runs * MINUTES * 60 / FLUSH_S * KINESIS_PUT
        return SHARD_HOUR * HOURS + puts + dollars({**_small(), "write": ceil(runs / 100)}, windows)

    def pushed(runs: int) -> float:
        return runs * dollars({**_small(), "event": 1, "write": 1, "read": 0.5}, MINUTES)

    def bands(runs: int) -> float:
        return runs * 2 * BAND_METRICS * PRICES["alarm"].each

    return {
        "polling two metrics each minute": ("2 to 4 min", polled(1, 1)),
        "polling two metrics each 5 minutes, packed state": ("6 to 9 min", polled(5, 0.1)),
        "CloudWatch alarms on anomalies of two metrics": ("2 to 5 min, no persistence", bands),
        "log subscription, a function for each flush": ("5 to 20 s", flushed),
        "log subscription, Kinesis, windows of 30 s": ("30 to 60 s", streamed),
        "heartbeats pushed through PutEvents": ("1 to 3 s, silence 1 to 3 min", pushed),
    }


def _small() -> dict[str, float]:
    return {"invocation": 1, "gb_second": LEAST_SECONDS * LEAST_GB}


def evidence(seen: Measured) -> Evidence:
    """The tables, the goal beside the naive design, and what is assumed."""
    ours = bills(seen)
    naive = designs()["polling two metrics each minute"][1]
    goals = tuple(
        Goal(
            f"dollars a run-month with the agent, of naive polling each minute, at {runs:,} runs",
            f"at most {GOAL:g}",
            f"{ours['with the agent'].month(runs) / naive(runs):.2f}",
            ours["with the agent"].month(runs) <= GOAL * naive(runs),
        )
        for runs in (100, 1000)
    )
    return Evidence(
        claim="What Rerail calls was counted in the deployed functions, and priced as AWS's list says.",
        sheets=(_calls(seen), _recovered(seen), _beside(ours), _gpu_hours(ours), _parts(seen), _savings(ours)),
        goals=goals,
        notes=NOTES,
    )


def _calls(seen: Measured) -> Sheet:
    """Calls of one minute, by part."""
    parts = (seen.idle, seen.plain, seen.agent)
    keys = sorted({key for part in parts for key in part.calls if key[0] == "sweep"})
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (f"{s} {o}", *(round(part.calls[f, s, o] / part.minutes, 2) for part in parts)) for f, s, o in keys
    )
    columns = ("the sweep's calls a minute", "nothing trains", f"{RUNS} runs, no agent", f"{RUNS} runs, agent")
    return Sheet("Counted: quiet minutes", columns, rows)


def _recovered(seen: Measured) -> Sheet:
    rows = tuple((function, f"{s} {o}", n) for (function, s, o), n in sorted(seen.recovery.calls.items()))
    return Sheet(
        "Counted: one recovery, from a death to the report of it", ("function", "call", "times"), rows, words=2
    )


def _beside(ours: Mapping[str, Bill]) -> Sheet:
    """A row a design, dollars a month for each size."""
    rows: list[tuple[Cell, ...]] = [
        (f"Rerail {name}", SOON[name], *(round(bill.month(n), 2) for n in SIZES)) for name, bill in ours.items()
    ]
    rows += [(name, soon, *(round(cost(runs), 2) for runs in SIZES)) for name, (soon, cost) in designs().items()]
    columns = ("design", "knows within", *(f"{runs:,} runs" if runs > 1 else "1 run" for runs in SIZES))
    return Sheet("Dollars a month, beside other designs", columns, tuple(rows), words=2)


def _gpu_hours(ours: Mapping[str, Bill]) -> Sheet:
    """Microdollars for each hour of a GPU, with a hundred runs in the account."""
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (name, *(round(bill.month(100) / 100 / (gpus * HOURS) * 1e6, 2) for gpus in GPUS))
        for name, bill in ours.items()
    )
    columns = ("", *(f"runs of {gpus} GPUs" for gpus in GPUS))
    return Sheet("Millionths of a dollar for each supervised GPU-hour, with a hundred runs", columns, rows)


def _parts(seen: Measured) -> Sheet:
    """What a run-month with an agent is made of."""
    units = {price: MINUTES * count for price, count in seen.agent.a_minute(seen.idle, RUNS).items()}
    rows = [(PRICES[price].what, round(count), round(dollars({price: count}), 3)) for price, count in units.items()]
    rows.append(("heartbeats that the agent leaves", MINUTES, round(dollars({"put": MINUTES}), 3)))
    polls = MINUTES * 60 / MAILBOX_POLL_S
    rows.append(("looks of the agent into its mailbox", round(polls), round(dollars({"get": polls}), 3)))
    kept = tuple(sorted((row for row in rows if row[2]), key=lambda row: -row[2]))
    return Sheet("What dominates: a run-month with the agent", ("what", "units", "dollars"), kept)


def _savings(ours: Mapping[str, Bill]) -> Sheet:
    """What would make it cheaper, and what that would cost in time."""
    polls, beats = dollars({"get": MINUTES * 60 / MAILBOX_POLL_S}), dollars({"put": MINUTES})
    writes = dollars({"write": MINUTES * ceil(MEMORY_BYTES / 1024)})
    rows = (
        ("mailbox asked each 15 s (RERAIL_POLL_SECONDS)", "an ordered save begins 10 s later", round(polls * 2 / 3, 3)),
        ("heartbeats each 2 min", "a silent job is noticed 2.5 min later", round(beats / 2, 3)),
        (
            "what detectors remember, kept each 5 min",
            "after an outage of ours 5 min are judged twice",
            round(writes * 0.8, 3),
        ),
    )
    columns = ("saving", "its price", "dollars a run-month")
    return Sheet("What would make it cheaper", columns, rows, words=2)


SOON = {"with the agent": "one step, silence 2 to 3 min", "without": "2 to 4 min"}
NOTES = (
    f"Counted by a hook in the workers of the deployed functions in the local AWS, over {MINUTES_WATCHED} "
    f"simulated minutes each, with {RUNS} runs; a month is {MINUTES:,} of them. The agent's own requests are those "
    f"of its settings: a heartbeat a minute, and a look into the mailbox each {MAILBOX_POLL_S:g} s.",
    f"Assumed: {INCIDENTS_A_RUN_MONTH} incidents a run-month; a record of {RUN_BYTES:,} and a memory of "
    f"{MEMORY_BYTES:,} bytes (their largest, held by tests); a sweep of {SWEEP_S:g} s and {SWEEP_S_A_RUN * 1000:g} "
    f"ms a run; {SUPERVISE_S:g} s a decision; a function of {LEAST_SECONDS * 1000:g} ms and {LEAST_GB * 1024:.0f} "
    f"MB for each row of the other designs, one kilobyte of state a job, two metrics, flushes each {FLUSH_S} s, a "
    f"Kinesis shard at ${SHARD_HOUR}/h. The prices are those of docs/cost.md.",
    "The other designs only watch: no checkpoint is ordered, no job relaunched, nobody paged, nothing watched "
    "from outside. Rerail's fixed part (metrics and alarms of its own) is in its figures, and none is in theirs.",
    "Why the goal is missed: a training role needs S3 and nothing else, so a heartbeat is a PUT, which costs "
    "eight times what a row in DynamoDB would, and a save can be ordered within seconds, because the agent looks "
    "into its mailbox each few seconds. A design that only watches needs neither.",
)
