"""Write the stacks of all threads of this process, for the person who investigates a hang."""

import faulthandler
import json
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from rerail_agent.processes import count_io_bytes, measure_child_cpu_s

# Often: an evaluation is in one instruction most of the time, such as the one that reads a loss from the GPU.
CHECKS, CHECK_EVERY_S = 10, 0.01
# A process that reads or writes more bytes than this in a second is loading or saving. Its children compute for it, as
# in tokenizing or compiling, if they use more than this share of a core.
QUIET_BYTES, IDLE_SHARE, CLOCK_TICK_S = 1 << 20, 0.2, 0.01
FRAMES = 60
RECORDERS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")  # of NCCL; of the other backends, in newer releases
DISTRIBUTED = ("torch/distributed/", "torch\\distributed\\")
OWN, STDLIB = str(Path(__file__).parent), sysconfig.get_paths()["stdlib"]

StackPosition = tuple[tuple[CodeType, int], ...]


def find_position() -> StackPosition:
    """Return the main thread's stack, to the instruction: two equal positions mean that it has not moved."""
    return tuple((frame.f_code, frame.f_lasti) for frame in _iterate_frames(_get_main_frame()))


def stands_still(seconds: float, wait: Callable[[float], object] = time.sleep) -> bool:
    """Return whether the main thread stays at one instruction for so long, and nothing else works for it meanwhile."""
    first, checks = find_position(), max(CHECKS, round(seconds / CHECK_EVERY_S))
    io_bytes, cpu_s = count_io_bytes(), measure_child_cpu_s()
    for _ in range(checks):
        wait(seconds / checks)
        if find_position() != first:
            return False
    is_quiet = count_io_bytes() - io_bytes <= QUIET_BYTES * max(1.0, seconds)
    return is_quiet and measure_child_cpu_s() - cpu_s <= IDLE_SHARE * seconds + CLOCK_TICK_S


def format_stacks() -> str:
    """Format the main thread, innermost frame first, then the collective it waits in, then the other threads."""
    parts = [f"main thread, innermost frame first:\n{_format_frames(_get_main_frame())}"]
    parts += [text for text in (find_collective(), read_flight_recorder()) if text]
    frames = sys._current_frames()
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and thread.ident != threading.get_ident():
            parts.append(f"thread {thread.name}:\n{_format_frames(frames.get(thread.ident or 0))}")
    return "\n\n".join(parts)


def find_collective() -> str:
    """Return the call of torch.distributed that the main thread is in, as far as its stack shows it."""
    _, script, collective = find_functions()
    return f"waiting in torch.distributed: {collective}, called from {script}" if collective else ""


def find_functions() -> tuple[str, str, str]:
    """Return what the main thread is in: the innermost function, the script's innermost one, the collective or "".

    All are empty if it has ended.
    """
    frames = list(_iterate_frames(_get_main_frame()))
    if not frames:
        return "", "", ""
    inside = [frame for frame in frames if any(part in frame.f_code.co_filename for part in DISTRIBUTED)]
    script = next((frame for frame in frames if not _is_library(frame.f_code.co_filename)), frames[-1])
    return _format_location(frames[0]), _format_location(script), inside[0].f_code.co_name if inside else ""


def _is_library(file: str) -> bool:
    """Return whether the file is one of Python's, torch's or this package's own."""
    if "site-packages" in file or "dist-packages" in file:
        return "/torch/" in file or file.startswith(OWN)
    return file.startswith(("<frozen", OWN, STDLIB))


def read_flight_recorder() -> str:
    """Return the last collectives of torch's flight recorder, newest first, if it is switched on."""
    entries = _read_entries(dump_flight_recorder())
    newest = "\n".join(map(_format_entry, entries[-5:][::-1]))
    return f"last collectives, by torch's flight recorder:\n{newest}" if newest else ""


def dump_flight_recorder() -> bytes:
    """Return what torch's flight recorder has, as JSON that `rerail diagnose` reads; empty if it is switched off."""
    torch = sys.modules.get("torch")
    inner = getattr(getattr(torch, "_C", None), "_distributed_c10d", None)
    for name in RECORDERS:
        try:
            dump: str | bytes = getattr(inner, name)()
        except (RuntimeError, AttributeError):
            continue
        if _read_entries(dump):
            return dump.encode() if isinstance(dump, str) else dump
    return b""


def _read_entries(dump: str | bytes) -> list[dict[str, Any]]:
    try:
        return list(json.loads(dump).get("entries") or ())
    except (ValueError, AttributeError):  # a private format of torch, which has changed before
        return []


def _format_entry(entry: dict[str, Any]) -> str:
    state = "over" if entry.get("retired") else entry.get("state")
    sizes = entry.get("input_sizes")
    return f"  {entry.get('profiling_name')} number {entry.get('collective_seq_id')}, {state}, sizes {sizes}"


def dump_stacks(path: Path | None, heading: str) -> None:
    """Write all threads to stderr, and to a file if a path is given; beside it what the flight recorder has."""
    _dump(sys.__stderr__, heading)
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            _dump(file, heading)
        if recorded := dump_flight_recorder():
            path.with_name(path.name.replace("stacks", "flight-recorder")).with_suffix(".json").write_bytes(recorded)
    except OSError as error:
        print(f"rerail: {path} cannot be written: {error}", file=sys.stderr, flush=True)


def _dump(file: object, heading: str) -> None:
    if file is None:
        return
    print(f"rerail: {heading}", file=file, flush=True)  # type: ignore[call-overload]
    faulthandler.dump_traceback(file=file, all_threads=True)  # type: ignore[arg-type]


def _get_main_frame() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)


def _iterate_frames(innermost: FrameType | None) -> Iterator[FrameType]:
    frame = innermost
    while frame is not None:
        yield frame
        frame = frame.f_back


def _format_frames(innermost: FrameType | None) -> str:
    if innermost is None:
        return "  (it has ended)"
    frames = traceback.StackSummary.extract(((f, f.f_lineno) for f in _iterate_frames(innermost)), limit=FRAMES)
    return "\n".join(
        f"  {frame.name} at {frame.filename}:{frame.lineno}" + (f"  {frame.line}" if frame.line else "")
        for frame in frames
    )


def _format_location(frame: FrameType) -> str:
    return f"{frame.f_code.co_name} at {frame.f_code.co_filename}:{frame.f_lineno}"
