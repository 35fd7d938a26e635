"""`bench/goodput.py`: it counts real signals, says which goals are met, and writes its tables into a page."""

import pytest
from rich.table import Table

from bench.goodput import OF_WHAT_IS_LOST, bound, signals_a_minute, verdicts
from cli.backtest.series import BadInput
from cli.simulate import pages, report
from cli.simulate.assumptions import Assumptions, list_assumptions
from cli.simulate.months import SimulationTask, read_policy, simulate
from cli.simulate.report import FEWEST_GPUS, ReportRow
from cli.simulate.ways import DEFAULT, SAGEMAKER_ASYNC, SNAPSHOTS, WARM, WAYS
from tests.house.sources import ROOT


def rows(factor: float) -> dict[int, list[ReportRow]]:
    ways = (SAGEMAKER_ASYNC, DEFAULT, WARM, SNAPSHOTS)
    tasks = [SimulationTask(way, FEWEST_GPUS, 1.0, 0, Assumptions(), read_policy(), factor) for way in ways]
    return {FEWEST_GPUS: [ReportRow(task.way.title, [simulate(task)]) for task in tasks]}


def test_the_speed_is_that_of_signals_through_the_core():
    """Those of a short run, decided again one after the other."""
    assert signals_a_minute(days=0.1) > 10_000


def test_a_missed_goal_is_said():
    """With five times the faults nobody trains 98 % of the time, and no bound promises it."""
    found = rows(5.0)
    speed, default, relaunched, in_place, left = verdicts(found, speed=1.0)
    assert not speed.met and not default.met and not relaunched.met and not in_place.met
    assert in_place.measured < in_place.asked
    assert left.met == (left.measured <= OF_WHAT_IS_LOST)
    assert all(row.ettr <= bound(row) <= 1 for row in found[FEWEST_GPUS])


def test_a_goal_that_is_met_is_said():
    """Without faults, once it has started, almost all of the time trains."""
    speed, default, relaunched, _, _ = verdicts(rows(0.0), speed=2e6)
    assert speed.met and default.met and relaunched.met


def test_a_page_gets_its_tables(tmp_path):
    """Between the marks of their names, as often as they are written; a page without the marks is refused."""
    page, small = tmp_path / "page.md", Table("a", "b")
    small.add_row("one", "2 %")
    page.write_text("before\n<!-- small -->\nold\n<!-- /small -->\nafter\n")
    for _ in range(2):
        pages.write(page, {"small": small})
        assert page.read_text() == (
            "before\n<!-- small -->\n\n| a | b |\n| --- | --- |\n| one | 2 % |\n\n<!-- /small -->\nafter\n"
        )
    with pytest.raises(BadInput, match="no marks for the table 'large'"):
        pages.write(page, {"large": small})


def test_the_page_has_a_row_for_each_way():
    page = (ROOT / "docs" / "goodput.md").read_text()
    assert not [way.title for way in WAYS.values() if way.title.strip() not in page]


def test_the_command_prints_each_assumption_with_its_source():
    printed = report.make_assumptions_table(Assumptions())
    rows = list(zip(*(column.cells for column in printed.columns), strict=True))
    assert [row[0] for row in rows] == [each.name for each in list_assumptions(Assumptions())]
    assert all(row[-1] for row in rows)
