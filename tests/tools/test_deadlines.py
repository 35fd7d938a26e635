"""Planted hangs: each is named within its deadline, with stacks and processes, and nothing that it started is left."""

import os
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import pytest

from local import processes
from tools import ci
from tools.deadlines import LATE, RECORDS, LimitedCommand, read_command
from tools.time_limits import VARIABLE

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
# The child is in a session of its own, where a signal for the parent's group does not reach it.
STUBBORN = """
    import signal, subprocess, sys
    IGNORE = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    def start():
        child = subprocess.Popen([sys.executable, "-c", IGNORE], stdout=subprocess.PIPE, start_new_session=True)
        child.stdout.readline()
        return child
"""
HANGS = f"""
    import pytest, queue, socket, threading, time, urllib.request
{STUBBORN}
    def sleep_long():
        time.sleep(600)
    def test_thread():
        thread = threading.Thread(target=sleep_long, daemon=True)
        thread.start()
        thread.join()
    def test_child():
        child = start()
        child.terminate()
        child.wait()
    def test_server():
        with socket.create_server(("127.0.0.1", 0)) as server:
            urllib.request.urlopen(f"http://127.0.0.1:{{server.getsockname()[1]}}/")
    @pytest.fixture
    def stuck():
        return queue.Queue().get()
    def test_fixture(stuck):
        pass
"""
EVIDENCE = ("in sleep_long", "child.wait()", "signal.SIG_IGN); print", "urlopen(", "queue.Queue().get()")


def run_planted(folder: Path, text: str, *, test_s: float, suite_s: float) -> tuple[int, str]:
    """Run pytest on a file with this text; return its status and what it and the runner printed."""
    (folder / "test_file.py").write_text(textwrap.dedent(text))
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p tools.time_limits\n")
    records = folder / "records"
    records.mkdir()
    printed: list[str] = []
    with closing(
        LimitedCommand(
            "planted",
            [sys.executable, "-m", "pytest", str(folder / "test_file.py"), "--rootdir", str(folder)],
            limit_s=suite_s,
            records=records,
            environment={**os.environ, VARIABLE: str(test_s), "PYTHONPATH": str(ROOT)},
            on_line=printed.append,
        )
    ) as command:
        status = command.wait(printed.append)
        left = command.find_family()
    assert not left
    return status, "\n".join(printed)


def test_each_test_that_hangs_is_named_at_its_limit(tmp_path):
    """A thread, a child that ignores SIGTERM, a server that never answers, a fixture: the report says what it was."""
    status, printed = run_planted(tmp_path, HANGS, test_s=2, suite_s=60)
    assert status == 1, printed
    assert printed.count("Timeout (>2.0s)") >= 4
    failed = [line for line in printed.splitlines() if line.startswith(("FAILED", "ERROR"))]
    assert [line.partition("::")[2].split()[0] for line in failed] == [
        *("test_thread", "test_child", "test_server", "test_fixture")
    ]
    assert not [text for text in EVIDENCE if text not in printed]


def test_a_suite_that_no_test_limit_can_end_is_explained_at_its_deadline(tmp_path):
    """The test blocks the timer's signal. Its name, stack, and stubborn child are printed, and the child is ended."""
    block = "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})"
    failing = "    def test_fails():\n        assert False\n"
    text = f"{STUBBORN}\n{failing}    def test_planted():\n        {block}\n        start().wait()\n"
    status, printed = run_planted(tmp_path, text, test_s=2, suite_s=8)
    assert status == LATE
    assert "DEADLINE: planted is not done after 8 s" in printed
    assert "test_file.py::test_planted, for " in printed
    assert "test_file.py::test_fails (call)" in printed, "what had failed until then"
    assert "in test_planted" in printed, "the stack"
    child = next(line for line in printed.splitlines() if "signal.SIG_IGN" in line)
    assert int(child.split()[0]) not in processes.table()


def test_what_a_command_leaves_behind_is_ended(tmp_path):
    """A child in the background holds the output open; the command's own status counts."""
    printed: list[str] = []
    with closing(
        LimitedCommand(
            "shell", ["sh", "-c", "sleep 600 & echo $!; exit 3"], limit_s=60, records=tmp_path, on_line=printed.append
        )
    ) as command:
        assert command.wait(printed.append) == 3
    assert int(printed[0]) not in processes.table()
    assert command.seconds < 30


def test_the_test_that_runs_is_recorded(request):
    """Only where the runner asks for it; this very suite is run so."""
    if folder := os.environ.get(RECORDS):
        assert (Path(folder) / f"{os.getpid()}.test").read_text() == request.node.nodeid


def test_a_limit_of_its_own_needs_a_reason(tmp_path):
    """It is scaled by the pace like the others."""
    text = "import pytest\n@pytest.mark.time_limit(300)\ndef test_planted():\n    pass\n"
    status, printed = run_planted(tmp_path, text, test_s=2, suite_s=60)
    assert (status, "the mark time_limit needs a reason" in printed) == (4, True), printed


def test_a_step_that_hangs_ends_the_run_of_all_steps(tmp_path, capfd, monkeypatch):
    """The whole has a deadline too; the steps after it are not run, and what it started is ended."""
    monkeypatch.setenv(RECORDS, str(tmp_path))
    monkeypatch.setattr(ci.signal, "signal", lambda *_: None)
    steps = (ci.CiStep("first", 1, "true"), ci.CiStep("stuck", 1, "sleep 601; true"), ci.CiStep("last", 1, "true"))
    assert ci.main(steps, whole_s=6) == LATE
    printed = capfd.readouterr().out
    assert "step first: passed after " in printed
    assert "DEADLINE: step stuck is not done after" in printed
    assert "sleep 601" in printed.partition("DEADLINE")[2]
    assert "step last" not in printed
    assert not [pid for pid in processes.table() if read_command(pid) == "sleep 601"]
