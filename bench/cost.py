"""Print what Rerail costs a month, or write it into a page: `python -m bench.cost [--page docs/cost.md]`.

The number of calls is measured: tests/functions/test_cost.py runs the functions against moto and counts. The price of a
call is AWS's list price. Everything else is an assumption, with a name in this module.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cli.backtest.series import BadInput
from cli.simulate import pages
from rerail.messages.service_metrics import ALL

MINUTES, HOURS = 43_200, 720  # in a month of 30 days
SIZES = (1, 10, 100, 1000)
GPUS = 8  # of a run, where a figure is given for each GPU-hour
# Dollars: items of one run below this share a row.
SMALL = 0.005
AS_OF = "November 2026"


@dataclass(frozen=True, slots=True)
class Price:
    """A list price of us-east-1."""

    what: str
    # The price of `per` units of `what`.
    dollars: float
    per: int
    source: str

    @property
    def each(self) -> float:
        return self.dollars / self.per

    @property
    def text(self) -> str:
        """Return the price as people read it: "$0.3", "$5 / 1,000,000"."""
        return f"${self.dollars:g}" if self.per == 1 else f"${self.dollars:g} / {self.per:,}"


LAMBDA = "https://aws.amazon.com/lambda/pricing/"
CLOUDWATCH = "https://aws.amazon.com/cloudwatch/pricing/"
DYNAMODB = "https://aws.amazon.com/dynamodb/pricing/on-demand/"
S3 = "https://aws.amazon.com/s3/pricing/"
EVENTBRIDGE = "https://aws.amazon.com/eventbridge/pricing/"
PRICES = {
    "invocation": Price("Lambda invocations", 0.20, 1_000_000, LAMBDA),
    "gb_second": Price("GB-seconds of Lambda on arm64", 13.3334, 1_000_000, LAMBDA),
    "write": Price("write request units of DynamoDB, 1 KB each", 0.625, 1_000_000, DYNAMODB),
    "read": Price("read request units of DynamoDB, 4 KB each", 0.125, 1_000_000, DYNAMODB),
    "get": Price("GET requests to S3", 0.40, 1_000_000, S3),
    "put": Price("PUT and LIST requests to S3", 5.00, 1_000_000, S3),
    "metric_read": Price("metrics read by GetMetricData", 10.00, 1_000_000, CLOUDWATCH),
    "metric": Price("custom metrics, a month", 0.30, 1, CLOUDWATCH),
    "alarm": Price("alarms, a month", 0.10, 1, CLOUDWATCH),
    "composite": Price("composite alarms, a month", 0.50, 1, CLOUDWATCH),
    "dashboard": Price("dashboards, a month", 3.00, 1, CLOUDWATCH),
    "log_gb": Price("GB of logs taken in", 0.50, 1, CLOUDWATCH),
    "message": Price("requests to SQS", 0.40, 1_000_000, "https://aws.amazon.com/sqs/pricing/"),
    "schedule": Price("invocations by EventBridge Scheduler", 1.00, 1_000_000, EVENTBRIDGE),
    "event": Price("events put on a bus", 1.00, 1_000_000, EVENTBRIDGE),
    "key": Price("keys of KMS, a month", 1.00, 1, "https://aws.amazon.com/kms/pricing/"),
    "key_use": Price("requests to KMS", 3.00, 1_000_000, "https://aws.amazon.com/kms/pricing/"),
    "trace": Price("traces recorded by X-Ray", 5.00, 1_000_000, "https://aws.amazon.com/xray/pricing/"),
    "mail": Price("e-mails sent by SNS", 20.00, 1_000_000, "https://aws.amazon.com/sns/pricing/"),
}

# Measured: the calls of one sweep, and those for each run that trains.
QUERIES_A_SWEEP = 9
LISTS_A_RUN = 0.1  # checkpoints are listed in one minute of ten
METRICS_A_RUN = 5  # without the agent; GetMetricData is billed by the metric
HEARTBEATS_A_RUN = 1  # with it: one GET by the sweep, and one PUT by the agent
# The compressed detector state of a run, read and written each minute: with an agent, which keeps its own, and without.
MEMORY_BYTES, FULL_MEMORY_BYTES = 3_000, 10_500
RUN_BYTES = 1_500  # a run's record, as the index of open runs gives it
MAILBOX_POLL_S = 5.0
# Resources of the template; tests/stacks/test_fixed_cost.py counts them.
ALARMS, COMPOSITES, DASHBOARDS, KEYS, MEMORY_GB = 43, 1, 1, 1, 0.5

# Assumed.
SWEEP_S, SWEEP_S_A_RUN = 0.5, 0.012  # of Lambda: eight runs are asked about at a time, each answer takes 0.1 s
WAKEUPS_A_RUN_DAY = 20  # events of a job, reports of its agent, one relaunch
SUPERVISE_S = 1.0  # for each of them
NOTICES_A_RUN_DAY = 2
STATE_CHANGES_A_RUN_DAY = 6  # one relaunch, with its stop, wait and start
CURVES_A_PAGE = 20  # of the page of all runs, at most; it is drawn at once and later
LOG_BYTES_A_CALL = 2_000  # a function's lines for one invocation, with its metrics
EMPTY_RECEIVES_A_MINUTE = 15  # Lambda's five pollers of a queue, each waiting up to 20 s
QUEUES_POLLED = 5


@dataclass(frozen=True, slots=True)
class PriceLine:
    """One line of the bill: the name of its price, and the number of units in a month."""

    what: str
    price: str
    count: float

    @property
    def dollars(self) -> float:
        return self.count * PRICES[self.price].each


def fixed() -> Iterator[PriceLine]:
    """Yield the lines that are paid when no run trains."""
    yield PriceLine("the key", "key", KEYS)
    yield PriceLine("alarms on single metrics", "alarm", ALARMS)
    yield PriceLine("the composite alarm", "composite", COMPOSITES)
    yield PriceLine("the dashboard", "dashboard", DASHBOARDS)
    yield PriceLine("custom metrics, one for each dimension value", "metric", published())
    yield PriceLine("the schedule", "schedule", MINUTES)
    yield PriceLine("sweeps", "invocation", MINUTES)
    yield PriceLine("sweeps, half a second each", "gb_second", MINUTES * SWEEP_S * MEMORY_GB)
    yield PriceLine("traces of sweeps", "trace", MINUTES)
    yield PriceLine("logs of sweeps", "log_gb", MINUTES * LOG_BYTES_A_CALL / 1e9)
    yield PriceLine("queries of the index of open runs", "read", MINUTES * QUERIES_A_SWEEP * 0.5)
    yield PriceLine("polls of empty queues", "message", MINUTES * EMPTY_RECEIVES_A_MINUTE * QUEUES_POLLED)
    yield PriceLine(
        "uses of the key by queues", "key_use", MINUTES * QUEUES_POLLED / 5
    )  # SQS keeps a data key for 5 minutes


def per_run(*, agent: bool) -> Iterator[PriceLine]:
    """Yield the lines that one run adds when it trains all month."""
    wakeups, notices, changes = WAKEUPS_A_RUN_DAY * 30, NOTICES_A_RUN_DAY * 30, STATE_CHANGES_A_RUN_DAY * 30
    if agent:
        yield PriceLine("heartbeats, written by the agent", "put", MINUTES * HEARTBEATS_A_RUN)
        yield PriceLine("polls of the mailbox by the agent", "get", MINUTES * 60 / MAILBOX_POLL_S)
        yield PriceLine("heartbeats, read by the sweep", "get", MINUTES * HEARTBEATS_A_RUN)
    else:
        yield PriceLine("metrics, read by the sweep", "metric_read", MINUTES * METRICS_A_RUN)
    yield PriceLine("sweep time for this run", "gb_second", MINUTES * SWEEP_S_A_RUN * MEMORY_GB)
    size, state = (MEMORY_BYTES, "detector state") if agent else (FULL_MEMORY_BYTES, "state with its history")
    yield PriceLine(f"{state}, read", "read", MINUTES * ceil(size / 4096) * 0.5)
    yield PriceLine(f"{state}, written", "write", MINUTES * ceil(size / 1024))
    yield PriceLine("record of the run, read", "read", MINUTES * RUN_BYTES / 4096 * 0.5)
    yield PriceLine("listings of its checkpoints", "put", MINUTES * LISTS_A_RUN)
    yield PriceLine("messages", "message", wakeups * 3)
    yield PriceLine("decisions", "invocation", wakeups)
    yield PriceLine("decisions, a second each", "gb_second", wakeups * SUPERVISE_S * MEMORY_GB)
    yield PriceLine(
        "decisions, recorded", "write", wakeups * 8
    )  # run, job and timeline in one transaction, which counts twice
    yield PriceLine("logs of decisions", "log_gb", wakeups * LOG_BYTES_A_CALL / 1e9)
    yield PriceLine("notices on the bus", "event", notices)
    yield PriceLine("state changes on the bus", "event", changes)
    yield PriceLine("notices and reports", "invocation", notices * 2 + changes * 2)
    yield PriceLine("curves of the page of all runs", "metric_read", changes * 2 * CURVES_A_PAGE)
    yield PriceLine("notices by e-mail", "mail", notices)


def published() -> int:
    """Return the number of custom metrics: one for each dimension value of each measure."""
    return sum(len(measure) for measures in ALL.values() for measure in measures)


def month(runs: int, *, agent: bool) -> float:
    """Return the dollars a month for this number of runs that train all the time."""
    return sum(line.dollars for line in fixed()) + runs * sum(line.dollars for line in per_run(agent=agent))


def totals() -> Table:
    """Return a row for each fleet: with and without the agent, and for each hour of a GPU."""
    table = Table(title="a month, in dollars")
    for name in (
        "runs",
        "with the agent",
        "without",
        "for a GPU-hour, with",
        "without",
        "without, metrics every 5 min",
    ):
        table.add_column(name, justify="right")
    for runs in SIZES:
        gpu_hours = runs * GPUS * HOURS
        with_agent, without = month(runs, agent=True), month(runs, agent=False)
        rarely = without - runs * 0.8 * MINUTES * METRICS_A_RUN * PRICES["metric_read"].each
        table.add_row(
            f"{runs:,}",
            f"{with_agent:,.2f}",
            f"{without:,.2f}",
            f"{with_agent / gpu_hours:.5f}",
            f"{without / gpu_hours:.5f}",
            f"{rarely:,.2f}",
        )
    return table


def bill(lines: Sequence[PriceLine]) -> Table:
    """Return the table of these lines, with the sum in its last row."""
    table = Table("what", "of", title="a month")
    for name in ("a month", "list price", "dollars"):
        table.add_column(name, justify="right")
    for line in lines:
        price = PRICES[line.price]
        table.add_row(line.what, price.what, f"{line.count:,.10g}", price.text, f"{line.dollars:.3f}")
    table.add_row("**sum**", "", "", "", f"**{sum(line.dollars for line in lines):.2f}**")
    return table


def run_bill() -> Table:
    """Return the lines of one run, with the dollars with the agent and without it; small ones are one row."""
    table = Table("what", "of", title="one run, a month")
    for name in ("a month", "list price", "with the agent", "without"):
        table.add_column(name, justify="right")
    bills = [{line.what: line for line in per_run(agent=agent)} for agent in (True, False)]
    names = dict.fromkeys(what for lines in bills for what in lines)
    small = [what for what in names if all(lines[what].dollars < SMALL for lines in bills if what in lines)]
    for what in (what for what in names if what not in small):
        line = next(lines[what] for lines in bills if what in lines)
        dollars = (f"{lines[what].dollars:.3f}" if what in lines else "" for lines in bills)
        table.add_row(what, PRICES[line.price].what, f"{line.count:,.10g}", PRICES[line.price].text, *dollars)
    rest = (f"{sum(lines[what].dollars for what in small if what in lines):.3f}" for lines in bills)
    table.add_row(f"{len(small)} others, each below ${SMALL}", "", "", "", *rest)
    sums = (f"**{sum(line.dollars for line in lines.values()):.2f}**" for lines in bills)
    table.add_row("**sum**", "", "", "", *sums)
    return table


def tables() -> dict[str, Table]:
    """Return the tables by the name of their marks in docs/cost.md."""
    return {"totals": totals(), "fixed": bill(list(fixed())), "run": run_bill()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, or write them into a page."""
    parser = argparse.ArgumentParser(prog="python -m bench.cost", description=__doc__)
    parser.add_argument("--page", type=Path, help="a page of Markdown with marks for the tables, such as docs/cost.md")
    options = parser.parse_args(arguments)
    page = options.page
    if not page:
        for table in tables().values():
            Console(width=140).print(table)
        return 0
    try:
        pages.write(page, tables())
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
