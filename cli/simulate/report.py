"""What came of the simulated months, for people and for programs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, pstdev
from typing import Any

from rich.console import Console
from rich.table import Table

from cli.simulate.accounts import Spent, compute_shares
from cli.simulate.assumptions import Assumptions, list_assumptions
from cli.simulate.faults import ROWS_LOGGED, SOURCES, WRONG_AT_MOST, compute_daily_rates, compute_mtbf
from cli.simulate.months import SimulationResult

PARTS = (
    (Spent.LOST, "lost"),
    (Spent.SAVES, "saves"),
    (Spent.SLOW, "slow"),
    (Spent.UNNOTICED, "noticed"),
    (Spent.HUMAN, "people"),
    (Spent.MACHINES, "machines"),
    (Spent.REPAIR, "repair"),
    (Spent.INIT, "init"),
    (Spent.RESTART, "in place"),
)
FEWEST_GPUS, GOAL_DEFAULT, GOAL, GOAL_IN_PLACE = 16_384, 0.90, 0.95, 0.98


@dataclass(frozen=True, slots=True)
class ReportRow:
    """The results of all seeds of one way on one number of GPUs."""

    name: str
    outcomes: Sequence[SimulationResult]

    @property
    def ettr(self) -> float:
        return mean(outcome.ettr for outcome in self.outcomes)

    @property
    def spread(self) -> float:
        """The standard deviation over the seeds."""
        return pstdev(outcome.ettr for outcome in self.outcomes)

    def compute_share(self, what: Spent) -> float:
        return mean(compute_shares(outcome.spent)[what] for outcome in self.outcomes)

    def compute_monthly(self, what: str) -> float:
        """Return the mean count in 30 days."""
        return mean(outcome.counts[what] / outcome.task.days * 30 for outcome in self.outcomes)

    @property
    def wasted(self) -> float:
        """Dollars in 30 days that paid for no step which counts."""
        return mean(outcome.wasted / outcome.task.days * 30 for outcome in self.outcomes)

    @property
    def cost(self) -> float:
        return mean(outcome.cost / outcome.task.days * 30 for outcome in self.outcomes)

    @property
    def signals(self) -> int:
        return sum(outcome.signals for outcome in self.outcomes)


def make_ways_table(rows: Sequence[ReportRow], *, gpus: int, days: float, seeds: int) -> Table:
    """Return a line for each way: the share of time that trained, and the shares of the rest."""
    found = _table(_title(gpus, days, seeds), "looked after by", ("ETTR", "+-", *(name for _, name in PARTS)))
    for row in rows:
        parts = (f"{100 * row.compute_share(what):.2f}" for what, _ in PARTS)
        found.add_row(row.name, f"{100 * row.ettr:.2f}", f"{100 * row.spread:.2f}", *parts)
    return found


def make_costs_table(rows: Sequence[ReportRow], *, gpus: int) -> Table:
    """Return a line for each way: what it cost in 30 days."""
    columns = ("lost steps", "starts", "restarts in place", "wrong interventions", "pages", "cost $", "wasted $")
    found = _table(f"{gpus:,} GPUs: in 30 days", "looked after by", columns)
    # One rate everywhere: the pages give what was measured, and this the most that it can be.
    found.caption = (
        f"wrong interventions: measured are 0 in {ROWS_LOGGED:,} rows; assumed is the upper bound of that, "
        f"{WRONG_AT_MOST} in as many (95 %)"
    )
    found.caption_justify = "left"
    for row in rows:
        starts = row.compute_monthly("launches") + row.compute_monthly("repairs")
        counts = (row.compute_monthly("lost_steps"), starts, row.compute_monthly("in_place"))
        found.add_row(
            *(row.name, *(f"{count:,.0f}" for count in counts), f"{row.compute_monthly('wrong_interventions'):.1f}"),
            *(f"{row.compute_monthly('pages'):,.0f}", _money(row.cost), _money(row.wasted)),
        )
    return found


def _table(title: str, first: str, columns: Sequence[str]) -> Table:
    found = Table(title=title, title_justify="left", header_style="bold")
    found.add_column(first, no_wrap=True)
    for name in columns:
        found.add_column(name, justify="right")
    return found


def _title(gpus: int, days: float, seeds: int) -> str:
    hours = compute_mtbf(gpus) / 3600
    return (
        f"{gpus:,} GPUs, a deadly failure every {hours:.1f} h; {days:g} days, {seeds} seed(s): % of the wall-clock time"
    )


def _money(dollars: float) -> str:
    return f"{dollars / 1e6:.2f} M" if dollars >= 1e5 else f"{dollars:,.0f}"


def make_sweep_table(title: str, rows: Sequence[ReportRow]) -> Table:
    """Return a line for each variant."""
    found = _table(title, "variant", ("ETTR %", "+-", "wasted $ in 30 days"))
    for row in rows:
        found.add_row(row.name, f"{100 * row.ettr:.2f}", f"{100 * row.spread:.2f}", _money(row.wasted))
    return found


def make_assumptions_table(assumed: Assumptions, sources: Mapping[str, str] | None = None) -> Table:
    found = Table(title="Taken for granted", title_justify="left", header_style="bold")
    for name in ("", "value", "unit", "source"):
        found.add_column(name, overflow="fold")
    for assumption in list_assumptions(assumed, sources):
        found.add_row(assumption.name, _spoken(assumption.value), assumption.unit, assumption.source)
    return found


def _spoken(value: Any) -> str:
    if isinstance(value, tuple):
        return " - ".join(map(_spoken, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def make_rates_table(assumed: Assumptions) -> Table:
    """Return how often each fault happens."""
    found = Table(title="Faults, in 1,000 GPU-days or in 30 days of a run", title_justify="left", header_style="bold")
    for name in ("fault", "1,000 GPU-days", "30 days", "source"):
        found.add_column(name, justify="left" if name in ("fault", "source") else "right")
    few, many = compute_daily_rates(1000, step_s=assumed.step_s), compute_daily_rates(2000, step_s=assumed.step_s)
    for fault, rate in few.items():
        grows = many[fault] > rate
        found.add_row(fault, f"{rate:.3f}" if grows else "", "" if grows else f"{30 * rate:.1f}", SOURCES[fault])
    return found


def show(console: Console, tables: Sequence[Table]) -> None:
    for table in tables:
        console.print(table)
        console.print()


def make_json(rows: Sequence[ReportRow]) -> list[dict[str, Any]]:
    """Return all figures as JSON types."""
    return [
        {
            "name": row.name.strip(),
            "way": row.outcomes[0].task.way.key,
            "gpus": row.outcomes[0].task.gpus,
            "days": row.outcomes[0].task.days,
            "seeds": len(row.outcomes),
            "ettr": row.ettr,
            "ettr_spread": row.spread,
            "ettr_by_seed": [outcome.ettr for outcome in row.outcomes],
            "interval_s": row.outcomes[0].interval_s,
            "shares": {what.value: row.compute_share(what) for what in Spent},
            "in_30_days": {
                what: row.compute_monthly(what)
                for what in sorted({str(name) for outcome in row.outcomes for name in outcome.counts})
            },
            "dollars_in_30_days": row.cost,
            "wasted_dollars_in_30_days": row.wasted,
            "signals": row.signals,
        }
        for row in rows
    ]
