"""A plugin of pytest: each test has a time limit on this machine's pace, and a test that exceeds it is explained.

pytest-timeout ends the test and dumps the stacks of all threads. This adds the processes that the test started, and
records which test each process of pytest is in, for `tools.deadlines`. A failed test is named at once, since a suite
that is ended prints no summary.
"""

import faulthandler
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

from local import processes
from local.pace import measure_pace
from tools.deadlines import RECORDS, format_tree, read_logs

# The limit of a test at reference speed, with its fixtures. The mark `time_limit(seconds, reason=...)` sets another.
TEST_S = 120.0
# Read by pytest-timeout; workers inherit it.
VARIABLE = "PYTEST_TIMEOUT"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Set the limit once, before any worker starts; register the stack dump that `tools.deadlines` asks for."""
    config.addinivalue_line("markers", "time_limit(seconds, reason): the test's limit at reference speed, and why")
    if VARIABLE not in os.environ and not config.option.collectonly:
        os.environ[VARIABLE] = str(TEST_S * measure_pace().slowdown)
    if folder := os.environ.get(RECORDS):
        stacks = (Path(folder) / f"{os.getpid()}.stacks").open("w")
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
        config.add_cleanup(stacks.close)
        config.add_cleanup(lambda: faulthandler.unregister(signal.SIGUSR1))


class FailureNames:
    """Print the name of each failed test when it fails."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self.terminal = terminal

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print the name on a line of its own, after the letter of the test."""
        if report.failed:
            self.terminal.write(f"\nfailed: {report.nodeid} ({report.when})\n")


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Name failed tests at once in the process that prints: a worker sends its reports there."""
    plugins = session.config.pluginmanager
    if not hasattr(session.config, "workerinput") and (terminal := plugins.get_plugin("terminalreporter")):
        plugins.register(FailureNames(terminal))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Scale the limits of the tests with the mark `time_limit`."""
    pace = float(os.environ.get(VARIABLE, TEST_S)) / TEST_S
    for item in items:
        if mark := item.get_closest_marker("time_limit"):
            if not mark.kwargs.get("reason"):
                raise pytest.UsageError(f"{item.nodeid}: the mark time_limit needs a reason")
            item.add_marker(pytest.mark.timeout(mark.args[0] * pace))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Record the test while it runs."""
    folder = os.environ.get(RECORDS)
    if not folder:
        return (yield)
    file = Path(folder) / f"{os.getpid()}.test"
    file.write_text(item.nodeid)
    try:
        return (yield)
    finally:
        file.unlink(missing_ok=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the processes below this one, and the logs of local AWSs, to the report of a test that exceeded its limit."""
    report = yield
    if call.excinfo and call.excinfo.typename == "Failed" and "Timeout" in str(call.excinfo.value):
        family = processes.descendants(os.getpid())
        report.sections.append(("processes at the time limit", "\n".join(format_tree(family)) or "none"))
        report.sections += [(f"the end of {log}", "\n".join(lines)) for log, lines in read_logs(family)]
    return report
