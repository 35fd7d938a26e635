"""The failure file: always valid, always short, and the first one wins; what others write is read for its cause."""

import json
import signal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preflight import HardwareError
from rerail.diagnosis.classify import diagnose
from rerail.model.causes import Cause
from rerail_agent import failure
from rerail_agent.exit_report import ProcessExit, make_report
from rerail_agent.failure import FailureCause
from rerail_agent.stderr_relay import StderrLine


class DistNetworkError(RuntimeError):
    """Named as torch names its own."""


class OutOfMemoryError(RuntimeError):
    """Named as torch names its own."""


@settings(deadline=None)
@given(st.text(st.characters(), max_size=3000), st.integers(0, 10**9), st.integers(0, 5000))
def test_any_error_fits_and_is_json(message: str, step: int, rank: int) -> None:
    """Whatever an error says, lone surrogates and quotes included: at most 1024 characters of valid JSON."""
    try:
        raise RuntimeError(message)
    except RuntimeError as error:
        text = failure.describe(error, failure.Position(rank=rank, step=step))
    assert len(text) <= 1024
    assert len(text.encode()) == len(text)
    report = json.loads(text)
    assert list(report) == ["rerail", "cause", "error", "step", "rank", "exit_code", "last_lines"]
    assert (report["rerail"], report["step"], report["rank"], report["exit_code"]) == (1, step, rank, 1)
    assert report["error"].startswith("RuntimeError")


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (HardwareError("algo-2: GPU 3 gives wrong results"), FailureCause.HARDWARE),
        (MemoryError(), FailureCause.OOM),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), FailureCause.OOM),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
            "oom",
        ),
        (failure.DataError("channel 'train': cannot read"), FailureCause.DATA),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), FailureCause.DATA),
        (DistNetworkError("The client socket has failed to connect"), FailureCause.INFRASTRUCTURE),
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:9"), "infrastructure"),
        (
            RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:84] Timed out waiting 1000ms for recv"),
            FailureCause.HANG,
        ),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), FailureCause.HARDWARE),
        (RuntimeError("NCCL error in: NCCLUtils.hpp:219, unhandled system error"), FailureCause.UNKNOWN),
        (ValueError("matmul: Input operand 1 has a mismatch"), FailureCause.USER_CODE),
        (TimeoutError("the user's own timed out"), FailureCause.USER_CODE),
        (RuntimeError("the connection to my database timed out"), FailureCause.USER_CODE),
        (FileNotFoundError(2, "No such file or directory"), FailureCause.USER_CODE),
    ],
)
def test_causes(error: Exception, cause: FailureCause) -> None:
    """An exception speaks for one cause; a mistake in the script is what is left."""
    assert failure.find_cause(error) == cause


@pytest.mark.parametrize(("step", "cause"), [(0, Cause.UNKNOWN), (60, Cause.INFRASTRUCTURE)])
def test_a_system_error_of_nccl_is_the_networks_after_the_first_step(step: int, cause: Cause) -> None:
    """Before it, wrong settings are as likely; the report leaves the cause open, and its step decides."""
    error = RuntimeError("NCCL error in: NCCLUtils.hpp:219, unhandled system error, NCCL version 2.21.5")
    assert diagnose(failure.describe(error, failure.Position(rank=1, step=step))).cause == cause


def test_an_error_raised_from_another_has_its_cause() -> None:
    """Wrapping an exhausted memory in an error of one's own does not hide it."""
    try:
        raise ValueError("my step failed") from MemoryError()
    except ValueError as error:
        assert failure.find_cause(error) == FailureCause.OOM


def test_the_first_writer_wins(tmp_path: Path) -> None:
    """The rank that fails first tells most: its peers' errors are consequences."""
    path = tmp_path / "output" / "failure"
    for rank, error in ((3, ValueError("first")), (0, RuntimeError("second"))):
        with pytest.raises(type(error)), failure.record_failure(path, rank=rank) as position:
            position.step = 60
            raise error
    report = json.loads(path.read_text())
    assert (report["rank"], report["step"], report["error"]) == (3, 60, "ValueError: first")
    assert report["last_lines"][-1] == "ValueError: first"


def test_a_deliberate_exit_writes_no_failure_file(tmp_path: Path) -> None:
    with pytest.raises(SystemExit), failure.record_failure(tmp_path / "failure", rank=0):
        raise SystemExit(7)
    assert not (tmp_path / "failure").exists()


KEY_ERROR = """Traceback (most recent call last):
  File "/opt/ml/code/train.py", line 3, in <module>
    row["label"]
    ~~~^^^^^^^^^
KeyError: 'label'"""
LOST_PEER = """[rank0]: Traceback (most recent call last):
[rank0]:   File "/opt/ml/code/train.py", line 9, in <module>
[rank0]:     dist.all_reduce(loss)
[rank0]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"""
TORCHRUN = """E1121 05:20:42.123000 44 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 1)
Traceback (most recent call last):
  File "/opt/conda/lib/python3.11/runpy.py", line 198, in _run_module_as_main
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_05:20:42
  host      : algo-1
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 45)
  error_file: <N/A>
============================================================"""
WATCHDOG = """[rank3]:[E1121 05:20:42.1 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation \
timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE) ran for 600031 milliseconds before timing out.
[rank3]:[E1121 05:20:42.1 ProcessGroupNCCL.cpp:684] To avoid data inconsistency, we are taking the process down.
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception"""


def lines(text: str, at: float = 100.0) -> list[StderrLine]:
    return [StderrLine(at, line) for line in text.splitlines()]


def test_the_first_rank_to_die_is_the_cause() -> None:
    """Its traceback, not the torn connections that it left behind, nor what torchrun has to say."""
    ranks = [ProcessExit(1, 1, 100.1), ProcessExit(0, 1, 101.0), ProcessExit(2, -signal.SIGTERM, 101.5)]
    said = [*lines(KEY_ERROR), *lines(LOST_PEER, 100.9), *lines(TORCHRUN, 102.0)]
    found = make_report(ProcessExit(None, 1, 102.5), ranks, said, oom_killed=False)
    assert (found.cause, found.rank, found.exit_code, found.error) == (
        FailureCause.USER_CODE,
        1,
        1,
        "KeyError: 'label'",
    )
    assert found.last_lines[-1] == "KeyError: 'label'"


def test_a_label_names_the_rank_of_a_traceback() -> None:
    """torch puts the rank in front of each line; the other rank's error came later and is out of the question."""
    said = [
        *lines(LOST_PEER, 99.0),
        *lines(KEY_ERROR.replace("\n", "\n[rank1]: ").replace("Trace", "[rank1]: Trace", 1)),
    ]
    found = make_report(
        ProcessExit(None, 1, 101.0), [ProcessExit(0, 1, 100.1), ProcessExit(1, 1, 100.1)], said, oom_killed=False
    )
    assert (found.rank, found.cause) == (0, FailureCause.INFRASTRUCTURE)
    assert found.error.startswith("torch.distributed.DistBackendError: NCCL error")


def test_an_error_that_was_caught_and_logged_is_not_the_last() -> None:
    """Long before the death, or before another one."""
    old = lines(KEY_ERROR, 30.0)
    found = make_report(ProcessExit(None, 7, 100.0), [], old, oom_killed=False)
    assert (found.error, found.cause) == ("the command ended with exit code 7", FailureCause.UNKNOWN)
    found = make_report(
        ProcessExit(None, 1, 100.0), [], [*old, *lines(KEY_ERROR.replace("KeyError", "ValueError"))], oom_killed=False
    )
    assert found.error == "ValueError: 'label'"


def test_a_chain_of_exceptions_has_its_causes() -> None:
    """As with exceptions that a rank sees itself."""
    because = "The above exception was the direct cause of the following exception:"
    chain = f"Traceback (most recent call last):\nMemoryError\n\n{because}\n\n{KEY_ERROR}"
    found = make_report(ProcessExit(None, 1, 100.0), [], lines(chain), oom_killed=False)
    assert (found.cause, found.error) == (FailureCause.OOM, "KeyError: 'label'")


def test_the_watchdog_of_nccl_is_a_hang() -> None:
    """It ends the rank with SIGABRT; its own words say why."""
    found = make_report(
        ProcessExit(None, 1, 101.0), [ProcessExit(3, -signal.SIGABRT, 100.1)], lines(WATCHDOG), oom_killed=False
    )
    assert (found.cause, found.rank, found.exit_code) == (FailureCause.HANG, 3, 134)
    assert "killed by SIGABRT" in found.error
    assert "Watchdog caught collective operation timeout" in found.error
    assert diagnose(f"AlgorithmError: {found.text()}, exit code: 1").cause == "hang"


@pytest.mark.parametrize(
    ("status", "oom_killed", "cause"),
    [
        (-signal.SIGKILL, True, "oom"),
        (-signal.SIGKILL, False, "unknown"),
        (-signal.SIGSEGV, True, "user_code"),
        (-signal.SIGBUS, False, "oom"),
        (-signal.SIGABRT, False, "unknown"),
        (-64, False, "unknown"),
        (2, False, "user_code"),
        (7, False, "unknown"),
    ],
)
def test_a_silent_exit_is_classified_by_its_signal(status: int, oom_killed: bool, cause: str) -> None:
    """The signal says something, the kernel's count of kills for memory more; the supervisor sees it alike."""
    found = make_report(
        ProcessExit(None, 1, 101.0), [ProcessExit(2, status, 100.0)], lines("loading data"), oom_killed=oom_killed
    )
    assert (found.cause.value, found.rank, found.last_lines) == (cause, 2, ["loading data"])
    assert diagnose(f"AlgorithmError: {found.text()}, exit code: 1").cause == cause


def test_a_data_loader_killed_for_its_memory_is_no_bug() -> None:
    """The rank itself sees a RuntimeError."""
    said = "Traceback (most recent call last):\nRuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. "
    ranks = [ProcessExit(0, 1, 100.0)]
    assert make_report(ProcessExit(None, 1, 100.0), ranks, lines(said), oom_killed=True).cause is FailureCause.OOM
    assert (
        make_report(ProcessExit(None, 1, 100.0), ranks, lines(said), oom_killed=False).cause is FailureCause.USER_CODE
    )


def test_the_error_file_of_torch_comes_first() -> None:
    """The oldest one names the rank, whatever order the deaths had."""

    def error_file(second: int, error: str) -> str:
        extra = {"py_callstack": f"Traceback\n{error}", "timestamp": str(second)}
        return json.dumps({"message": {"message": error, "extraInfo": extra}})

    late, early = error_file(1795239706, "RuntimeError: x"), error_file(1795239700, "torch.OutOfMemoryError: CUDA")
    ranks = [ProcessExit(0, 1, 100.0, late), ProcessExit(5, 1, 101.0, early), ProcessExit(6, 1, 99.0, "")]
    found = make_report(ProcessExit(None, 1, 102.0), ranks, lines(KEY_ERROR), oom_killed=False)
    assert (found.rank, found.error, found.cause) == (5, "torch.OutOfMemoryError: CUDA", FailureCause.OOM)


@pytest.mark.parametrize(
    ("said", "rank", "exit_code"),
    [
        (
            "mpirun noticed that process rank 9 with PID 0 on node algo-2 exited on signal 11 (Segmentation fault).",
            9,
            139,
        ),
        ("The first process to do so was:\n\n  Process name: [[4242,1],12]\n  Exit code:    3", 12, 3),
        (TORCHRUN, 1, 1),
    ],
)
def test_a_launchers_output_names_the_failed_rank(said: str, rank: int, exit_code: int) -> None:
    """mpirun is quicker than init to ask how its ranks ended, and those of other hosts only it knows."""
    found = make_report(ProcessExit(None, 1, 101.0), [ProcessExit(0, None, 100.0)], lines(said), oom_killed=False)
    assert (found.rank, found.exit_code) == (rank, exit_code)


@settings(deadline=None)
@given(st.lists(st.text(max_size=200), max_size=30), st.integers(-70, 255), st.booleans())
def test_whatever_is_printed_there_is_a_report(said: list[str], status: int, oom_killed: bool) -> None:
    """Never an exception, always short enough."""
    printed = [StderrLine(100.0, line) for line in said]
    text = make_report(
        ProcessExit(None, status, 100.0), [ProcessExit(0, status, 100.0)], printed, oom_killed=oom_killed
    ).text()
    assert len(text) <= 1024
    assert json.loads(text)["rerail"] == 1


def test_the_supervisor_knows_every_cause_that_a_container_reports() -> None:
    assert {cause.value for cause in FailureCause} <= set(Cause)
