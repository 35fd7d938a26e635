"""The culprit of a hang, by the dumps of torch's flight recorder."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.model.flight_recorder import describe_unfinished, find_culprits, read_dump
from tests.container.hosts import IMPORT_PATH

GROUPS = {"0": (0, 1, 2, 3), "1": (0, 1), "2": (2, 3)}
ALL_REDUCE, GATHER = "nccl:all_reduce", "nccl:_all_gather_base"


def dump(*entries: tuple[str, int, str], done: dict[str, int] | None = None, state: str = "scheduled") -> bytes:
    """Return a rank's dump, as torch 2.9 writes it: group, number and name of each operation, oldest first."""
    names = sorted(GROUPS)
    rows = [
        {
            "record_id": place,
            "pg_id": names.index(group),
            "process_group": (group, f"G{group}"),
            "collective_seq_id": 0 if "->" in name or "<-" in name else number,
            "p2p_seq_id": number,
            "op_id": number,
            "profiling_name": name,
            "state": "completed" if number <= (done or {}).get(group, 0) else state,
        }
        for place, (group, number, name) in enumerate(entries)
    ]
    status = {str(i): {"last_completed_collective": (done or {}).get(name, 0)} for i, name in enumerate(names)}
    config = {name: {"name": name, "ranks": str(list(ranks))} for name, ranks in GROUPS.items()}
    return pickle.dumps({"version": "2.9", "pg_config": config, "pg_status": status, "entries": rows}, protocol=2)


def evaluate(*dumps: bytes | None) -> dict[int, str]:
    return find_culprits({rank: read_dump(content) for rank, content in enumerate(dumps) if content})


WAITING = dump(("0", 7, ALL_REDUCE))
RUNNING = dump(("0", 7, ALL_REDUCE), state="started")
BEFORE = dump(("0", 6, ALL_REDUCE), done={"0": 6})


@pytest.mark.parametrize(
    ("dumps", "culprits"),
    [
        ((WAITING, WAITING, BEFORE, WAITING), [2]),
        ((WAITING, WAITING, None, WAITING), [2]),
        ((WAITING, WAITING, dump(), WAITING), [2]),
        # Rank 1 waits for rank 0 in their own group, the others for both.
        ((BEFORE, dump(("1", 3, GATHER), ("0", 7, ALL_REDUCE)), WAITING, WAITING), [0]),
        # Rank 1 has completed what rank 0 has not, and waits for it in the next operation.
        ((dump(("1", 3, GATHER)), dump(("1", 3, GATHER), ("0", 7, ALL_REDUCE), done={"1": 3}), WAITING, WAITING), [0]),
        ((dump(("0", 7, "nccl:send 0->2")), dump(), dump(), dump()), [2]),
        ((WAITING, WAITING, dump(("0", 7, GATHER)), WAITING), [2]),
        ((WAITING, WAITING, WAITING, WAITING), []),
        ((WAITING, WAITING, dump(("0", 7, GATHER)), dump(("0", 7, GATHER))), []),
        ((BEFORE, BEFORE, BEFORE, BEFORE), []),
        ((RUNNING, RUNNING, WAITING, RUNNING), [2]),
        # One rank's record against those of all others.
        ((WAITING, RUNNING, WAITING, WAITING), []),
        ((WAITING, dump(done={"0": 9}), WAITING, WAITING), []),
        ((dump(done={"0": 9}), dump(done={"0": 9}), WAITING, WAITING), [2, 3]),
    ],
    ids=[
        "absent",
        "no dump",
        "empty",
        "chain",
        "gpu",
        "transfer",
        "other name",
        "all there",
        "a draw",
        "idle",
        "not started",
        "one started",
        "one completed",
        "half completed",
    ],
)
def test_who_is_waited_for_and_waits_for_nobody_is_the_culprit(dumps, culprits):
    """Where nobody stands out, nobody is named."""
    assert list(evaluate(*dumps)) == culprits


def test_the_reason_names_the_operation_and_who_waits():
    found = evaluate(WAITING, WAITING, BEFORE, WAITING)[2]
    assert found == (
        "it has not entered nccl:all_reduce 7 of group 0 (G0), where ranks 0, 1, 3 wait for it; "
        "its last was nccl:all_reduce 6 of group 0 (G0)"
    )
    stuck = evaluate(dump(("1", 3, GATHER)), dump(("1", 3, GATHER), done={"1": 3}))
    assert stuck == {0: "its GPU has not finished nccl:_all_gather_base 3 of group 1 (G1), which rank 1 completed"}


def test_ranks_that_are_all_there_are_described_without_a_name():
    """The others wait for them."""
    pair = dump(("1", 3, GATHER), ("0", 7, ALL_REDUCE))
    dumps = {rank: read_dump(content) for rank, content in enumerate((pair, pair, WAITING, WAITING))}
    assert find_culprits(dumps) == {}
    assert (
        describe_unfinished(dumps)
        == "ranks 0, 1 entered nccl:_all_gather_base 3 of group 1 (G1), and none has finished it"
    )


class Command:
    """What a dump must not be able to do."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("/nonexistent/rerail",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickle.dumps({"entries": [Command()]}, protocol=2), "its pickle has GLOBAL"),
        (pickle.dumps({"entries": [Command()]}), "its pickle has STACK_GLOBAL"),
        (pickle.dumps(bytearray(9), protocol=5), "its pickle has BYTEARRAY8"),
        (b"\x80\x02]r\xff\xff\xff\x7f.", "TypeError"),
        (WAITING[:-40], "no dump of torch's flight recorder"),
        (b"\x80\x02].", "TypeError"),
        (b'{"pg_config": {}, "entries": [{"record_id": 1}]}', "KeyError: 'pg_id'"),
        (b"{" * 100_000, "no dump of torch's flight recorder"),
        (b'{"pg_config": {"0": {"ranks": [1e999]}}, "entries": []}', "OverflowError"),
        (b"", "no dump of torch's flight recorder"),
        (b"x" * (33 << 20), "bytes, at most"),
    ],
)
def test_what_is_no_plain_dump_is_refused_with_the_reason(content, words):
    """A dump comes from a bucket that others may write to."""
    with pytest.raises(ValueError, match=words):
        read_dump(content)


def test_a_late_state_of_gloo_is_not_reported_as_an_unfinished_kernel():
    """Rank 1 has left the sixth operation, which its record does not show yet."""
    waiting, left = (dump(("0", 6, "gloo:all_reduce"), *more) for more in ([("0", 7, "gloo:all_reduce")], []))
    why = evaluate(waiting, left, waiting, waiting)
    assert list(why) == [1] and why[1].startswith("it has not entered gloo:all_reduce 7 of group 0")


PAIRS = b"K\x01\x85q\x00" + b"h\x00h\x00\x86q\x00" * 64  # each tuple has the one before it twice
NESTED = reduce(lambda value, _: [value, value], range(64), 1)
SHARED = {"record_id": 1, "ranks": "[0]" * 9}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x80\x04" + PAIRS + b"}h\x00K\x01s.", "list is not a name"),
        (pickle.dumps({"pg_config": {}, "entries": [{"record_id": 1, "pg_id": NESTED}]}), "list is not a name"),
        (pickle.dumps({"pg_config": {}, "entries": [SHARED] * 100}), "too many operations"),
        (pickle.dumps({"pg_config": dict.fromkeys(map(str, range(99)), SHARED), "entries": []}), "ranks"),
        (b"\x80\x04](" + b"N" * 1_000 + b"e.", "too many opcodes"),
    ],
)
def test_values_that_a_dump_shares_are_read_in_bounded_time(content, words, monkeypatch):
    monkeypatch.setattr("rerail.model.flight_recorder.MOST", 1_000)
    with pytest.raises(ValueError, match=words):
        read_dump(content)


@given(st.binary(max_size=200) | st.integers(0, len(WAITING)).map(lambda end: WAITING[:end] + b"." + WAITING[end:]))
def test_no_bytes_raise_anything_else(content):
    with contextlib.suppress(ValueError):
        read_dump(content)


HANG = """
import os, sys, threading, time, torch
from pathlib import Path
from rerail_agent import stack_dump
from torch import distributed as dist
from torch._C import _distributed_c10d
folder, ranks = Path(sys.argv[1]), []
for rank in range(3):
    ranks.append(os.fork())
    if not ranks[-1]: break
else:
    sys.exit(any([os.waitpid(pid, 0)[1] for pid in ranks]))
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=3)
for _ in range(3): dist.all_reduce(torch.ones(4))
def meet(name):
    (folder / f"{name}-{rank}").touch()
    while len(list(folder.glob(f"{name}-*"))) < 3: time.sleep(0.05)
def write():
    meet("ready")
    time.sleep(3)
    (folder / f"dump_{rank}").write_bytes(_distributed_c10d._dump_fr_trace())
    stack_dump.dump_stacks(folder / f"rerail-stacks-rank{rank}.txt", "no step")
    meet("written")
    os._exit(0)
threading.Thread(target=write).start()
if rank != 1: dist.all_reduce(torch.ones(4))
time.sleep(60)
"""


@pytest.mark.slow
def test_torchs_own_dumps_of_a_hang_are_read(tmp_path: Path):
    """Three ranks of gloo, of which rank 1 does not enter the fourth all-reduce; the agent writes beside its stacks."""
    environment = {**os.environ, "PYTHONPATH": IMPORT_PATH, "TORCH_FR_BUFFER_SIZE": "100", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", HANG, str(tmp_path)]
    with subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, start_new_session=True) as forker:
        try:
            assert forker.wait(timeout=90) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(forker.pid, signal.SIGKILL)
    for name in ("dump_{}", "rerail-flight-recorder-rank{}.json"):
        dumps = {rank: read_dump((tmp_path / name.format(rank)).read_bytes()) for rank in range(3)}
        assert find_culprits(dumps) == {
            1: "it has not entered gloo:all_reduce 4 of group 0 (default_pg), where ranks 0, 2 wait for it; "
            "its last was gloo:all_reduce 3 of group 0 (default_pg)"
        }
