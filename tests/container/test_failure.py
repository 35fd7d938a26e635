"""The failure file: always valid, always short, and the first one wins."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import failure
from failure import Cause


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
        (MemoryError(), Cause.OOM),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), Cause.OOM),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
            "oom",
        ),
        (failure.DataError("channel 'train': cannot read"), Cause.DATA),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), Cause.DATA),
        (DistNetworkError("The client socket has failed to connect"), Cause.INFRASTRUCTURE),
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:9"), "infrastructure"),
        (RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:84] Timed out waiting 1000ms for recv"), Cause.HANG),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), Cause.HARDWARE),
        (ValueError("matmul: Input operand 1 has a mismatch"), Cause.USER_CODE),
        (TimeoutError("the user's own timed out"), Cause.USER_CODE),
        (RuntimeError("the connection to my database timed out"), Cause.USER_CODE),
        (FileNotFoundError(2, "No such file or directory"), Cause.USER_CODE),
    ],
)
def test_causes(error: Exception, cause: Cause) -> None:
    """An exception speaks for one cause; a mistake in the script is what is left."""
    assert failure.cause_of(error) == cause


def test_an_error_raised_from_another_has_its_cause() -> None:
    """Wrapping an exhausted memory in an error of one's own does not hide it."""
    try:
        raise ValueError("my step failed") from MemoryError()
    except ValueError as error:
        assert failure.cause_of(error) == Cause.OOM


def test_the_first_writer_wins(tmp_path: Path) -> None:
    """The rank that fails first tells most: its peers' errors are consequences."""
    path = tmp_path / "output" / "failure"
    for rank, error in ((3, ValueError("first")), (0, RuntimeError("second"))):
        with pytest.raises(type(error)), failure.recorded(path, rank=rank) as position:
            position.step = 60
            raise error
    report = json.loads(path.read_text())
    assert (report["rank"], report["step"], report["error"]) == (3, 60, "ValueError: first")
    assert report["last_lines"][-1] == "ValueError: first"


def test_an_exit_on_purpose_says_nothing(tmp_path: Path) -> None:
    """A script that exits has its exit code to speak for it."""
    with pytest.raises(SystemExit), failure.recorded(tmp_path / "failure", rank=0):
        raise SystemExit(7)
    assert not (tmp_path / "failure").exists()
