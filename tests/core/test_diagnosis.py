"""The classifier of failures: accuracy on real and on written texts, traps, fingerprints, and that it never raises."""

import gzip
import itertools
import json
import re
from functools import cache, partial
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rerail.diagnosis.classify import EVIDENCE, diagnose, needs_log
from rerail.diagnosis.failure_lines import find_failure_lines
from rerail.diagnosis.symptoms import RULES
from rerail.model.causes import RETRY, Cause
from rerail.model.codec import dumps, loads
from rerail.model.diagnosis import Diagnosis
from tests.examples import count_examples
from tests.timing import cpu_seconds

ROOT = Path(__file__).parents[2]
RECENT = (" again", " later", " since", " latest", " machines")
CLASSES = {"infra_retryable": "infrastructure", "hang_timeout": "hang"}


STALL = (
    "[1,0]<stderr>:W: submitted by subset of ranks and are waiting for remainder of ranks\n[1,0]<stderr>:Stalled ops:w"
)
SOURCES = {"[rank3]": 3, "[default1]:[rank5]": 5, "[1,7]<stderr>": 7, "[12]": 12, "4": 4, "node-1": None}
SOURCES |= {"[local_rank 0]": None}
STALE = "OSError: [Errno 116] Stale file handle"
OOM = "torch.OutOfMemoryError: CUDA out of memory"
LAUNCH = "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default"
BAR = "9it [00:35,  7.00s/it]"
SHM = "RuntimeError: unable to allocate shared memory(shm) for file\n  </torch_1_2_0>: No space left on device (28)"
PARSED = "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
PARSING = f'Traceback (most recent call last):\n  File "a.py", line 7, in main\n    {{}}\n{PARSED}'
HUB = "HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out. (read timeout=10)"
LOST = "watchdog thread terminated with exception: NCCL error: remote process exited\nncclRemoteError: A call failed"
HINT = "This is most likely caused by incorrect usages of collectives, or other reasons such as network errors, etc."
NCCL = "[rank1]: torch.distributed.DistBackendError: unhandled cuda error\n[rank1]: ncclUnhandledCudaError: Call failed"
FRAMES = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "a.py", line 2, in x'
GLOO = "[rank4]: RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 1800000ms for"
NEURON = "F debug_macros.h:20] Non-OK-status: INTERNAL: RunNeuronCCImpl: error condition error != 0"
PADDLE = "FatalError: A serious error ({}) is detected by the operating system. (at init.cc:303)\n  [SignalInfo:"
PAIR = "[pair.cc:547] Connection closed by peer [127.0.0.1]:33433"
TABLE = (
    "Root Cause (first observed failure):\n[0]:\n  time      : 2026-01-01_10:00:{}\n  rank      : {}\n  exitcode : -9\n"
)


# Several tests read and diagnose the same texts.
diagnose_once = cache(diagnose)


@cache
def _rows(path: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (ROOT / path).read_text().splitlines()]


def _mistakes(rows: list[dict[str, str]]) -> list[str]:
    answers = [(row["id"], CLASSES.get(row["class"], row["class"]), diagnose_once(row["text"])) for row in rows]
    return [
        f"{id} is {label}, not {diagnosis.cause} by {diagnosis.rule}"
        for id, label, diagnosis in answers
        if diagnosis.cause != label
    ]


@cache
def _compressed_rows(name: str) -> list[dict[str, Any]]:
    text = gzip.decompress((ROOT / f"tests/core/data/failures_{name}.jsonl.gz").read_bytes()).decode()
    return [json.loads(line) for line in text.splitlines()]


def reason(error: str, *, cause: str = "unknown", step: int = 60, **more: object) -> str:
    report = {"rerail": 1, "cause": cause, "error": error, "step": step, "rank": 0, "exit_code": 1} | more
    return f"AlgorithmError: {json.dumps(report)}, exit code: 1"


@pytest.mark.parametrize(("corpus", "floor"), [("failures", 0.97), ("failures_collected", 0.97)])
def test_real_failures_with_a_clear_label_are_understood(corpus: str, floor: float) -> None:
    """55 of 55 and 336 of 340 when the floors were set; the rules were widened with these texts in sight."""
    rows = [row for row in _rows(f"bench/corpus/{corpus}.jsonl") if row["confidence"] == "clear"]
    mistakes = _mistakes(rows)
    assert len(mistakes) <= (1 - floor) * len(rows), mistakes


def test_every_collected_failure_has_its_source() -> None:
    """Each row names its thread, class and how sure the label is; ids are in order and no text is a whole log."""
    rows = _rows("bench/corpus/failures_collected.jsonl")
    assert [row["id"] for row in rows] == [f"c{number:03d}" for number in range(1, len(rows) + 1)]
    classes = {"hardware", "infra_retryable", "capacity", "oom", "user_code", "data", "hang_timeout"}
    assert {row["class"] for row in rows} == classes
    assert {row["confidence"] for row in rows} == {"clear", "ambiguous"}
    assert all(row["source"].startswith("https://") and len(row["text"]) < 1_000 for row in rows)


def test_the_output_of_failing_ranks_is_understood() -> None:
    """The rows are the output of torchrun and two ranks when one failed in a known way, and ends of public logs.

    At the first look 25 of 28 and 11 of the 13 public ones were right; the rules were then widened with them in sight.
    """
    rows = _compressed_rows("ranks")
    assert len(rows) == 41 and _mistakes(rows) == []
    assert [row for row in rows if "rank" in row and diagnose_once(row["text"]).rank != row["rank"]] == []


def test_every_reported_failure_has_its_source() -> None:
    """Each row names its issue; a part of the repositories is set aside, and no text is in another collection."""
    rows = _compressed_rows("reported")
    assert len({row["id"] for row in rows}) == len({row["text"] for row in rows}) == len(rows) == 1461
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", row["source"]) and len(row["text"]) <= 3_000 for row in rows)
    assert {row["cause"] for row in rows} == set(Cause)
    parts = {row["set"] for row in rows}
    places = {part: {row["source"].split("#")[0] for row in rows if row["set"] == part} for part in parts}
    assert all(places[f"tune{when}"].isdisjoint(places[f"apart{when}"]) for when in ("", *RECENT))
    others = [*_rows("bench/corpus/failures.jsonl"), *_rows("bench/corpus/failures_collected.jsonl")]
    others += [*_rows("tests/core/data/failures_written.jsonl"), *_compressed_rows("ranks"), *_compressed_rows("gpu")]
    assert {row["text"] for row in rows}.isdisjoint(row["text"] for row in others)


@pytest.mark.parametrize(
    ("part", "floor", "moves", "ranks"),
    [
        ("tune", 0.98, 0, 25), ("apart", 0.97, 1, 22), ("tune again", 0.95, 0, 9), ("apart again", 0.91, 2, 6),
        ("tune later", 0.97, 0, 7), ("apart later", 0.91, 0, 3), ("tune since", 1, 0, 0), ("apart since", 0.96, 0, 1),
        ("tune latest", 1, 0, 0), ("apart latest", 0.98, 0, 1), ("tune machines", 1, 0, 2),
        ("apart machines", 0.98, 0, 0), ("tune fresh", 1, 0, 12), ("tune blind", 1, 0, 10),
        ("tune blind again", 0.97, 0, 14), ("tune blind later", 1, 0, 5),
        ("tune blind since", 0.96, 0, 2), ("tune blind latest", 0.98, 0, 5), ("tune blind newest", 1, 0, 8),
        ("tune blind last", 1, 0, 8),
    ],
)  # fmt: skip
def test_reported_failures_are_understood(part: str, floor: float, moves: int, ranks: int) -> None:
    """Over the texts whose cause is clear, where unknown counts half; the rules were written with `tune` in sight.

    At most `moves` may be wrong in a way that changes machines, or that relaunches what fails again. When `apart` was
    first scored, 61 of 64 were right, then 24 of the 29 of `apart again`, 29 of the 36 of `apart later`, 39 of the 46
    of `apart since`, 29 of the 32 of `apart latest`, 68 of the 74 of `apart machines`, 62 of the 69 of `tune fresh`,
    74 of the 84 of `tune blind`, 65 of the 74 of `tune blind again`, 69 of the 76 of `tune blind later`, 27 of the 32
    of `tune blind since`, 47 of the 58 of `tune blind latest`, 74 of the 78 of `tune blind newest` and all 60 of
    `tune blind last`. Three labelled ranks are not named: another rank's traceback is cut off before its exception.
    """
    rows = [(row, diagnose_once(row["text"])) for row in _compressed_rows("reported") if row["set"] == part]
    clear = [(row["cause"], found.cause) for row, found in rows if row["clear"]]
    points = [1.0 if cause == found else 0.5 * (found is Cause.UNKNOWN) for cause, found in clear]
    assert sum(points) >= floor * len(clear)
    moved = [
        (cause, found)
        for cause, found in clear
        if found not in (cause, Cause.UNKNOWN) and (found is Cause.HARDWARE or RETRY[found] and not RETRY[Cause(cause)])
    ]
    assert len(moved) <= moves, moved
    named = [found.rank == row["rank"] for row, found in rows if row.get("rank") is not None and found.rank is not None]
    assert named.count(True) >= ranks
    assert named.count(False) <= 1


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        *((f"{source}: KeyError: 'labels'", rank) for source, rank in SOURCES.items()),
        *((f"[rank3]: {STALE}\n[rank5]: {STALE}\n{end}", rank) for end, rank in (("", None), (TABLE.format(1, 5), 5))),
        ("0: step 7\n2: Traceback (most recent call last):\n2:   File \"a.py\", line 1\n2: KeyError: 'labels'", 2),
        ("-- Process 1 terminated with the following error:\nTraceback (most recent call last):\nKeyError: 1", 1),
        ("[rank1]: RuntimeError: Connection closed by peer\n[rank6]: torch.OutOfMemoryError: CUDA out of memory", 6),
        ("srun: error: node01: task 3: Segmentation fault (core dumped)", 3),
        ("mpirun noticed that process rank 9 with PID 0 on node a exited on signal 11 (Segmentation fault).", 9),
        ("Root Cause (first observed failure):\n[0]:\n  rank      : 5 (local_rank: 5)\n  exitcode  : -11", 5),
        *((f"[Rank {rank}] Watchdog caught collective operation timeout", rank) for rank in (0, 4)),
        ("[Rank 0] Watchdog caught collective operation timeout\n[Rank 1] Watchdog caught collective", None),
        ("Tokenizing: 9%|#  | 28/296\n[Rank 2] Watchdog caught collective operation timeout", None),
        ('KeyError when resuming\n[rank4]: Traceback\n[rank4]:   File "a.py", line 7, in fit', 4),
        ("RuntimeError: Rank 2, node a, device 2: found NaN in local grad norm", 2),
        ("AlgorithmError: KeyError: 'labels'", None),
        *(
            (f"Rank{ranks} failed to pass monitoredBarrier in 9 ms", rank)
            for ranks, rank in ((" 2", 2), ("s 2, 3", None))
        ),
        *((f"{STALL} [missing ranks: {ranks}]", rank) for ranks, rank in (("3", 3), ("0, 3", None))),
        ("[rank2]: DistBackendError: [2] is setting up NCCL communicator and retrieving ncclUniqueId from [0]", None),
        ("MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD\nwith errorcode 1.", 2),
        *((f"{TABLE.format(59, 0)}{TABLE.format(second, 4)}", rank) for second, rank in ((58, 4), (59, None), (60, 0))),
        (f"[rank7]: KeyError: 'labels'\n{TABLE.format(59, 0)}{TABLE.format(58, 4)}", 4),
        # They only lost another rank, or wait for one.
        ("[rank5]: DistBackendError: remote process exited\nncclRemoteError: A call failed\n[Rank 5] WorkNCCL(", None),
        ("[rank1]: ncclRemoteError: remote process exited\nsrun: error: g15: task 1: Exited with exit code 1", None),
        (f"{GLOO} send operation to complete\n{GLOO.replace('4', '3')} recv operation to complete", None),
        ("errno: 98\nsrun: error: a: task 3: Exited with exit code 1\nsrun: error: b: task 0: Exited with", None),
        ("srun: error: a: task 3: Segmentation fault\nsrun: error: b: task 0: Exited with exit code 1", 3),
        ("srun: error: a: tasks 2-7: Exited with exit code 1\nsrun: error: b: task 14: Exited with exit code 1", None),
        ("srun: error: a: task 3: Killed\nsrun: error: b: task 7: Killed", None),
        ("Container rank 0 status failed cmd ['a'] code 1\nContainer rank 1 status failed cmd ['a'] code 1", None),
        # Several fail on their own, or one only tells of another.
        ("[rank1]: RuntimeError: odd\n[rank3]: RuntimeError: even", None),
        (f"[rank0]: {OOM}\n{FRAMES}", None),
        ("[rank3]:[E] [Rank 5] Watchdog caught collective operation timeout", None),
        # The launcher's first rank printed nothing, or a line that is not the named error.
        (f"[rank3]: KeyError: 'labels'\n{TABLE.format(1, 1)}", None),
        (f"[Rank 3] Watchdog caught collective operation timeout\n{TABLE.format(1, 1)}", None),
        (f"[default0]: KeyError: 'labels'\n[default1]: RuntimeError: {PAIR}\n{TABLE.format(1, 1)}", None),
        (f"[default1]: KeyError: 'labels'\n[default0]: RuntimeError: {PAIR}\n{TABLE.format(1, 1)}", 1),
        ("[rank6]:[E] [Rank 6] Received a dump signal due to a collective timeout from  rank 7 and we", None),
        ("0: UNAVAILABLE: The following tasks are unhealthy\n0: /job:w/replica:0/task:8\n0: /job:w/task:9", None),
    ],
)
def test_the_first_rank_that_failed_is_named(text: str, rank: int | None) -> None:
    """Ranks that wait, or that fail alike, are not named; nor are numbers within one machine."""
    assert diagnose(text).rank == rank


@pytest.mark.parametrize(("hosts", "rank"), [(1, 3), (2, None), (0, None)])
def test_the_number_on_a_host_is_the_rank_where_there_is_one(hosts: int, rank: int | None) -> None:
    assert diagnose("api:failed (exitcode: -9) local_rank: 3 (pid: 12) of binary: python", hosts=hosts).rank == rank


@pytest.mark.parametrize(
    ("text", "step"),
    [
        (" iteration   670314/ 1000000 | lm loss: 2.0\nKeyError: 'labels'", 670314),
        ("KeyError: 'x' at iteration 12\n iteration 20/ 100 |", 12),
        ("FloatingPointError: loss is nan at step=166!", 166),
        ("first step of 3: KeyError: 'labels'", None),
    ],
)
def test_the_step_is_read_from_the_error_or_from_the_last_line_of_progress(text: str, step: int | None) -> None:
    assert diagnose(text).step == step


LEAKED = "/opt/tracker.py:254: UserWarning: resource_tracker: There appear to be 1 leaked semaphore objects"
PEER = (
    "[rank3]:[E ProcessGroupNCCL.cpp:552] [Rank 3] Collective WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000)"
    " raised the following async exception: NCCL error: remote process exited or there was a network error\n"
    "[rank3]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
    "[rank3]: Last error:\n[rank3]: socketProgress: Connection closed by remote peer algo-1<41234>"
)

TIMEOUT = "[rank1]:[E] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)"
KILLED = (
    "---------------------\nPrimary job  terminated normally, but 1 process returned\na non-zero exit code. Per user-"
    "direction, the job has been aborted.\nslurmstepd: error: *** STEP 7.0 ON a-1 CANCELLED AT 2026-01-31T02:04:51 ***"
)
FRAMED = 'Traceback (most recent call last):\n  File "a.py", line 2, in x\n    y()\nRuntimeError: the step has failed'
TRACE = FRAMED.rpartition("\n")[0]

# What loggers and launchers put before each line.
PREFIXES = ("2026-01-31 02:04:51,549 - train.main - ERROR - ", "[2026-01-31 02:04:51][ERROR] ", "(worker_7) : ")


def as_objects(text: str, **more: str) -> str:
    return "\n".join(json.dumps({"level": "ERROR", "message": line} | more) for line in text.splitlines())


@pytest.mark.parametrize(
    "write",
    [
        *(partial(indent, prefix=f"{esc}[36m(WorkerDict pid=87687){esc}[0m ") for esc in ("\x1b", "")),
        lambda text: "\n".join(f"\x1b[1;31m{line}\x1b[0m\x1b[K" for line in text.splitlines()),
        *(lambda text, prefix=prefix: text if "INFO:" in text else indent(text, prefix, bool) for prefix in PREFIXES),
        as_objects,
        lambda text: indent(as_objects(text, log="x", stream="stderr"), "2026-01-31T02:04:51.549Z "),
        lambda text: json.dumps({"levelname": "ERROR", "message": "Training failed", "exc_info": text}),
        lambda text: f"{text}\n{LEAKED}\nsagemaker-training-toolkit ERROR Reporting training FAILURE",
        lambda text: f"{text}\n----\nFailures:\n  <NO_OTHER_FAILURES>\n{TABLE.format(1, 0)}".replace("-9", "1"),
    ],
)
def test_the_cause_is_the_same_in_color_as_objects_and_with_what_follows_a_failure(write) -> None:
    """Every fifth of the stored logs is tried, if it is long enough, not cut off and understood."""
    logs = [row["text"] for row in _compressed_rows("reported")[::5]]
    logs = [log for log in logs if log.count("\n") > 5 and not find_failure_lines(log).is_cut]
    logs = [log for log in logs if diagnose_once(log).cause is not Cause.UNKNOWN]
    assert len(logs) > 20 and [log for log in logs if diagnose(write(log)).cause != diagnose_once(log).cause] == []


RANK_LINE = re.compile(r"^\[rank(\d+)\]: ?", re.MULTILINE)


def interleave(text: str) -> str:
    """Return the text with the lines of its ranks, which came as blocks, one after the other."""
    of_rank: dict[str, list[str]] = {}
    for line in text.splitlines():
        of_rank.setdefault(match[1] if (match := RANK_LINE.match(line)) else "", []).append(line)
    rest = of_rank.pop("", [])
    return "\n".join([line for turn in itertools.zip_longest(*of_rank.values(), fillvalue="") for line in turn] + rest)


@pytest.mark.parametrize(
    "write",
    [
        interleave,
        *(partial(RANK_LINE.sub, to) for to in (r"\1: ", r"[1,\1]<stderr>:", r"[\1]<stderr>:", r"(W pid=\1, ip=a) ")),
        *(partial(RANK_LINE.sub, to + r"\g<0>") for to in (r"worker-\1: ", "20%|#  | 2/9 [00:10<01:20,  1.10it/s]")),
        *(partial(indent, prefix=stamp) for stamp in ("Jan  2 03:04:05 ", "Fri Sep 25 16:52:36 2020", "01:02:03.4 ")),
        partial(RANK_LINE.sub, r"gpu0\1: "),
    ],
)
def test_ranks_are_distinguished_in_any_order_and_behind_any_prefix(write) -> None:
    """Another prefix may hide the number of a rank, but names no other one."""
    logs = [row["text"] for row in _compressed_rows("reported")]
    logs = [log for log in logs if len(set(RANK_LINE.findall(log))) > 1 and not log.startswith(" ")]
    pairs = [(diagnose_once(log), diagnose(write(log))) for log in logs]
    assert len(pairs) > 10 and [pair for pair in pairs if pair[0].cause != pair[1].cause] == []
    assert [pair for pair in pairs if pair[1].rank not in (None, pair[0].rank)] == []


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("RuntimeError: mat2 must be col_major, got stride (4096, 1)", Cause.USER_CODE),
        ("RuntimeError: CUDA error: device-side assert triggered", Cause.USER_CODE),
        (OOM, Cause.OOM),
        (f"{OOM}\n\nThe above exception was the direct cause of the following exception:\n\n{FRAMED}", Cause.OOM),
        ("RuntimeError: NCCL error: unhandled system error", Cause.INFRASTRUCTURE),
        (f"RuntimeError: {PAIR}", Cause.INFRASTRUCTURE),
    ],
)
@pytest.mark.parametrize("others", [PEER, GLOO, STALL, TIMEOUT, KILLED, f"{FRAMES}\n[rank1]: RuntimeError: {PAIR}"])
def test_the_error_of_a_rank_counts_before_what_the_others_print(error: str, cause: Cause, others: str) -> None:
    frames = FRAMED.rpartition("\n")[0]
    found = diagnose("AlgorithmError: , exit code: 1", logs=[f"step 7\n{frames}\n{error}\n{others}"])
    assert found.cause is cause or cause is Cause.INFRASTRUCTURE and found.cause is Cause.HANG


def test_the_evidence_is_what_a_worker_raised_first() -> None:
    raised = FRAMED.rpartition("\n")[0]
    caught = (
        f"{raised}\nKeyError: Caught KeyError in DataLoader worker process 0.\nOriginal {raised}\nKeyError: 'labels'"
    )
    assert diagnose(caught).evidence == "KeyError: 'labels'"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            f"{FRAMES}\n[rank1]: torch.distributed.DistBackendError: NCCL error in: /opt/pytorch/pytorch/torch/csrc/"
            "distributed/c10d/ProcessGroupNCCL.cpp:17, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL"
            "\n[rank1]: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n[rank1]: Last error:\n"
            "[rank1]: Duplicate GPU detected : rank 7 and rank 0 both on CUDA device f000",
            "Duplicate GPU detected",
        ),
        (
            f"{FRAMES}\n[rank1]: RuntimeError: Failed to import transformers.models.siglip.modeling_siglip because of "
            "the following error (look up to see its traceback):\n[rank1]: /lib/x86_64-linux-gnu/libc.so.6: version "
            "`GLIBC_2.32' not found (required by /opt/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so)",
            "`GLIBC_2.32' not found",
        ),
        ("step 7\nW1229 api.py:723] Received 1 death signal, shutting down workers", "Received 1 death signal"),
        (f"ERROR [launch.py:325] [{'--a b, ' * 60}] exits with return code = -9", "exits with return code = -9"),
        (
            f"{TRACE}\n    raise CalledProcessError(retcode, cmd)\nsubprocess.CalledProcessError: Command 'ssh -o "
            "PasswordAuthentication=no 10.0.0.9 hostname' returned non-zero exit status 255.",
            "10.0.0.9 hostname' returned non-zero exit status 255.",
        ),
        (
            f"{TRACE}\nray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tpid: 3"
            "\nThe actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR",
            "ray.exceptions.ActorDiedError: The actor died unexpectedly",
        ),
        (
            "utils.ZeRORuntimeException: The checkpoint being loaded used a DP world size of 4 but the current world "
            f"size is 6. {'Automatic adjustment of the partitioning ' * 4}is not currently supported.",
            "used a DP world size of 4 but the current world size is 6",
        ),
    ],
)
def test_the_evidence_names_the_reason_and_not_the_words_before_it(text: str, reason: str) -> None:
    assert reason in diagnose(text).evidence


def test_the_evidence_is_what_a_message_announces_after_an_empty_line() -> None:
    """TensorFlow begins the message of each exception of a graph with the same words."""
    found = diagnose(f"{TRACE}\nInvalidArgumentError: Graph execution error:\n\nExpected size[1] in [0, 9]")
    assert "Expected size[1]" in found.evidence


def test_the_evidence_of_a_device_side_assert_is_what_the_kernel_asserted() -> None:
    block = "../aten/src/ATen/native/cuda/Loss.cu:240: nll_loss_forward: block: [0,0,0], thread: [5,0,0] "
    raised = "RuntimeError: CUDA error: device-side assert triggered"
    log = f"{block}Assertion `t >= 0 && t < n_classes` failed.\nTraceback (most recent call last):\n{raised}"
    found = diagnose(raised, logs=(log,))
    assert found.cause is Cause.USER_CODE
    assert found.evidence.startswith("Assertion `t >= 0 && t < n_classes` failed on the device: ")


def test_an_exception_at_the_end_of_a_process_does_not_replace_the_root() -> None:
    handled = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
    text = f"{TRACE}\nOSError: Too many open files{handled}{TRACE.replace('in x', 'in _run_finalizers')}\nOSError: x"
    assert "Too many open files" in diagnose(text).evidence


def test_a_healthy_counter_or_a_logger_is_no_reason_to_leave_the_log_unread() -> None:
    rows = [row for row in _rows("tests/core/data/failures_written.jsonl") if "needs_log" in row]
    assert len(rows) >= 12
    assert [row["id"] for row in rows if not needs_log(row["text"])] == []


def test_the_lines_of_one_timeout_have_one_fingerprint_in_any_order() -> None:
    """Also beside another rank's line that names no operation."""
    lines = [
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE)",
        "[rank4]: Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, x.",
        "[PG 0 Rank 2] Timeout at NCCL work: 1474236, last enqueued NCCL work: 1474236",
    ]
    assert len({diagnose("\n".join(order)).fingerprint for order in itertools.permutations(lines)}) == 1


@pytest.mark.parametrize(
    ("line", "exit_code"),
    [
        ("[ERROR] [launch.py:321:sigkill_handler] ['python', 'train.py'] exits with return code = -11", -11),
        ("mpirun noticed that process rank 3 with PID 0 on node algo-1 exited on signal 11 (Segmentation fault).", -11),
        ("The first process to do so was:\n\n  Process name: [[5555,1],3]\n  Exit code:    139", 139),
        ("api.py:863] failed (exitcode: -11) local_rank: 1 (pid: 12) of binary: /opt/conda/bin/python", -11),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGSEGV", -11),
        ("srun: error: node01: task 3: Segmentation fault (core dumped)", -11),
        ("/opt/ml/code/train.sh: line 12:   345 Segmentation fault      (core dumped) python train.py", -11),
        ("composer.cli.launcher: ERROR - Global rank 3 (PID 123) exited with code -11", -11),
        ("horovodrun: Process 3 exit with status code 139.", 139),
        ("Container rank 3 status failed cmd ['/bin/python', 'train.py'] code -11 log log/workerlog.3", -11),
    ],
)
def test_launchers_report_the_signal_that_ended_a_process(line: str, exit_code: int) -> None:
    """Also in the log of a job whose reason has only the launcher's own exit code, and beside what its peers lost."""
    peer = "RuntimeError: [pair.cc:547] Connection closed by peer [127.0.0.1]:33433"
    for found in (diagnose(line), diagnose("AlgorithmError: , exit code: 1", logs=[f"step 7\n{peer}\n{line}"])):
        assert (found.cause, found.rule, found.exit_code) == (Cause.USER_CODE, "sigsegv", exit_code)
        assert found.evidence in " ".join(line.split())


@pytest.mark.parametrize(
    "text",
    [
        "huggingface/tokenizers: The current process just got forked, after parallelism has already been used. "
        "Disabling parallelism to avoid deadlocks...",
        "Setting expandable segments to avoid out of memory errors",
        "using gloo to prevent NCCL timeouts",
    ],
)
def test_what_a_library_announces_to_avoid_has_not_happened(text: str) -> None:
    assert diagnose(text).cause is Cause.UNKNOWN
    assert diagnose(f"{text}\nKeyError: 'labels'").cause is Cause.USER_CODE


def test_an_exit_code_of_one_is_the_scripts_failure_whatever_the_name_of_its_host() -> None:
    assert diagnose("srun: error: node01: task 3: Exited with exit code 1").cause is Cause.USER_CODE


def test_failures_on_a_gpu_are_understood() -> None:
    """Made on one H100 with PyTorch 2.11; at the first look all were right but the rank that SIGKILL ended."""
    rows = _compressed_rows("gpu")
    assert len(rows) == 15
    assert _mistakes(rows) == []


def test_texts_of_all_kinds_are_understood() -> None:
    """Texts written from knowledge of the frameworks, not from the corpus; each is a decided case."""
    rows = _rows("tests/core/data/failures_written.jsonl")
    assert len(rows) >= 120
    assert {row["class"] for row in rows} == set(Cause)
    assert _mistakes(rows) == []


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("NCCL watchdog thread terminated with exception: CUDA error: uncorrectable ECC error", "hardware"),
        ("NCCL watchdog thread terminated with exception: CUDA error: device-side assert triggered", "user_code"),
        ("ncclSystemError: System call failed. (NCCL_GRAPH_FILE set by environment to /opt/graph.xml)", "user_code"),
        ("NaN loss at step 22900, too much noise: bad data in the new shards", "data"),
        ("changing the saving interval and the change of the schedule", "unknown"),
        ("CUDA out of memory. GPU 0 has a total capacity of 6.00 GiB of which 0 bytes is free", "oom"),
        ("ClientError: Data download failed:Insufficient disk space", "user_code"),
        ("NVRM: Xid (PCI:0000:dc:00): 45, pid=18, Ch 00000001 caused by previous Xid 149", "hardware"),
        ("NVRM: Xid (0000:01:00): 31, Ch 0000000b, engmask 00000120, intr 10000000", "user_code"),
        ("KeyError: 'x'\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.", "user_code"),
        ('AlgorithmError: ExecuteUserScriptError: ExitCode 1 Command "python train.py --on-oom=hang"', "user_code"),
        ("RuntimeError: worker 3 failed: KeyError: 'labels'", "user_code"),
        ("KeyErrorKeyError: : 'ECC error''ECC error'", "user_code"),
        ('Train failed:\n  File "a.py", line 7, in main\n    raise TypeError(f"no {name}")\nno GPU error', "user_code"),
        ("UCX  ERROR Failed to unpack\nsrun: error: cgpu12: task 0: Segmentation fault", "user_code"),
        ("UCX  ERROR Failed to unpack\nsrun: error: cgpu12: task 0: Killed", "infrastructure"),
        ("srun: error: a: task 0: Segmentation fault\nsrun: error: b: task 1: Terminated", "user_code"),
        (f"{FRAMES}\n{NCCL}\n[rank1]: Last error:\n[rank1]: Cuda failure 2 'out of memory'", "oom"),
        (indent(f"{FRAMES}\n[rank1]: KeyError: 'ECC error'", "    "), "user_code"),
        ("DistBackendError: NCCL error\nnvmlDeviceGetHandleByIndex(0) failed: Unknown Error", "hardware"),
        (f"Received a dump signal due to a collective timeout from  rank 7. {HINT}", "hang"),
        ("GPU 0 had ECC errors, rank 0 timeout", "hardware"),
        ("training - ERROR - GPU memory is not enough", "oom"),
        ("docker: Unable to find image 'train:latest' locally; train: command not found", "user_code"),
        (f"{OOM}\n{LAUNCH}\nKeyError: 'labels'", "user_code"),
        (f"KeyError: 'labels'\n{LAUNCH}\n{OOM}", "oom"),
        (f"{OOM}\n{LAUNCH}\nncclRemoteError: remote process exited", "oom"),
        (f"RuntimeError: CUDA error: uncorrectable ECC error\n{LAUNCH}\n{OOM}", "hardware"),
        (PARSING.format("config = json.load(f)"), "user_code"),
        (PARSING.format("row = json.loads(line)"), "data"),
        ("MyError: requests to https://a.b/c gave up after 3 tries", "infrastructure"),
        ("MyError: requests to https://a.b/c gave up after 3 tries: 403", "user_code"),
        ("CannotPullContainerError: pull access denied for train", "user_code"),
        ("CannotPullContainerError: i/o", "infrastructure"),
        ("dcgm diag: GPU memory test FAILED", "hardware"),
        ("".join(f"nvme{disk}n1: I/O error, sector {disk}\n" for disk in range(3)), "hardware"),
        ("host: ip-10-0-0-1 GPU 3 has fallen off the bus", "hardware"),
        (indent(SHM, "2026-01-02T03:04:05.123Z algo-1 "), "oom"),
        ("gpu01: [rank1]: RuntimeError: synchronize failed", "user_code"),
        ("gpu01: LAUNCH ERROR Container failed\ngpu01: \ngpu02: exit code 1", "user_code"),
        (f"{BAR}\n" * 9 + f"{BAR}slurmstepd: error: *** JOB 7 ON gr015 CANCELLED AT 04:10 ***", "infrastructure"),
        ("wandb: wandb version 0.13.2 is available! To upgrade, please run:\nstep 7\nKilled", "unknown"),
        ("6% 6/100 [00:00<00:07, 13.24it/s]NaN or Inf found in input tensor.", "diverged"),
        ("on-device check-failure. Node 0 has stopped", "unknown"),
        ("RuntimeError: Error loading audio file: failed to open file /opt/ml/input/data/train/a.wav", "data"),
        (PARSED, "unknown"),
        (PARSING.format("reply = requests.get(url).json()"), "unknown"),
        ("amdgpu 0000:c1:00.0: [drm:amdgpu_ib_ring_tests] *ERROR* IB test failed on gfx (-110)", "hardware"),
        ("RuntimeError: IB test failed on node 7", "infrastructure"),
        (f"{HUB}\n{FRAMED}", "user_code"),
        (f"{HUB}\n{FRAMED.replace('the step has failed', 'cannot load the model')}", "infrastructure"),
        (f"srun: error: a: task 3: Exited with exit code 1\n{KILLED.splitlines()[-1]}", "user_code"),
        (KILLED.splitlines()[-1], "infrastructure"),
        ("  exitcode  : 1 (pid: 4)\n  exitcode  : -15 (pid: 5)\n  traceback : Signal 15 (SIGTERM)", "user_code"),
        (f'{{"name": "torchelastic.worker.status.FAILED", "raw_error": "<NONE>"}}\n{PARSED}', "unknown"),
        (
            "XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out\nRPC: /tensorflow.CoordinationService/Barrier "
            "[type.googleapis.com/tensorflow.CoordinationServiceError='']",
            "hang",
        ),
        (f"Some NCCL operations have failed or timed out.\n{LOST}", "infrastructure"),
        (f"{LOST}\nterminate called ... Error\nn-0: Caught signal 11 (Segmentation fault)", "infrastructure"),
        (f"{LOST}\nn-0: Caught signal 11 (Segmentation fault)", "user_code"),
        ("bash: line 0: cd: /data/asc23/src: No such file or directory", "user_code"),
        ("client.APIError: The request exceeded the maximum allowed time, please try again.", "infrastructure"),
        ("client.APIError: bad field, try again with a number", "user_code"),
        (f"Reading config file\n{TRACE}\n{OOM}\nReading config file\nKeyError: 'labels'", "user_code"),
        ('ValueError: NOT_FOUND: Error opening "zarr" driver: Metadata at "/ck/7/w/.zarray"', "damaged_checkpoint"),
        # Paddle's handler of signals.
        (f"{PADDLE.format('Termination signal')} *** SIGTERM (@0x919b) received by PID 37288 ***]", "infrastructure"),
        (f"{PADDLE.format('Segmentation fault')} *** SIGSEGV (@0x0) received by PID 37288 ***]", "user_code"),
        # XLA's handler of signals, and the code with which its multiprocessing ends a worker that raised an exception.
        ("*** SIGTERM received by PID 5535 (TID 5535) on cpu 69 from PID 3828; stack trace: ***", "infrastructure"),
        ("*** SIGSEGV (@(nil)), see gl__________25#s15 received by PID 39 (TID 39) on cpu 3; ***", "user_code"),
        ("    (error_index, exitcode)\nException: process 1 terminated with exit code 17", "user_code"),
        ("spawn.ProcessExitedException: process 2 terminated with exit code 17", "user_code"),
        ("spawn.ProcessExitedException: process 2 terminated with exit code 16", "user_code"),
        ("AssertionError: expected 'Internal Server Error' label", "user_code"),
        ("ERROR unknown key maintenance_interval in config", "unknown"),
        ("[rank: 1] Child process with PID 26 terminated with code 1. Forcefully terminating all others", "user_code"),
        ("HfHubHTTPError: Internal Server Error - We're working hard to fix that", "infrastructure"),
        ("RuntimeError: synStatus=8 [Device not found] Device acquire failed.", "unknown"),
        # Neuron's compiler has failed, in this attempt or an earlier one; no terminal is gone.
        (f"{NEURON}: <class 'subprocess.CalledProcessError'>: Command '' died with <Signals.SIGHUP: 1>.", "user_code"),
        ("ERROR ||NEURON_CC_WRAPPER||: Got a cached failed neff at /a.neff. Will skip compilation", "user_code"),
        (f"Failed compilation with ['neuronx-cc']: [F137] neuronx-cc was killed: insufficient memory\n{NEURON}", "oom"),
        ("OSError: Expected to be able to read 1013159856 bytes for message body, got 513144496", "data"),
    ],
)
def test_traps(text: str, cause: str) -> None:
    """A misleading word in the text does not decide."""
    assert diagnose(text).cause == cause, diagnose(text)


@pytest.mark.parametrize(
    "denial",
    [
        "it is not because it is out of memory", "there is no NCCL error", "without any CUDA error",
        "the GPU memory is enough", "this is not a hardware problem", "it has nothing to do with the dataset",
    ],
)  # fmt: skip
def test_what_is_denied_does_not_decide(denial: str) -> None:
    """People list what they have ruled out; that is no evidence for it."""
    assert diagnose(f"Training is stuck at step 500, {denial}").cause == Cause.HANG
    assert diagnose(denial).cause == Cause.UNKNOWN


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("something is wrong with one of the graphics cards", "hardware"),
        ("trouble with the proxy again", "infrastructure"),
        ("the labels of the second half are wrong", "data"),
        ("unsupported combination of flags", "user_code"),
    ],
)
def test_a_thing_named_near_a_word_of_trouble_is_the_last_resort(text: str, cause: str) -> None:
    """It fills silence, and a report of the training program is never changed by it."""
    assert diagnose(text).cause == cause
    assert diagnose(reason(text, cause="unknown")).cause in (Cause.UNKNOWN, cause)
    assert diagnose(f"{text}\nKeyError: 'x'").cause in (Cause.USER_CODE, cause)
    assert diagnose(reason("went away", cause="hang", last_lines=[text])).cause == Cause.HANG


@pytest.mark.parametrize(
    ("root", "cascade"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB", "Watchdog caught collective timeout: WorkNCCL(SeqNum=1)"),
        ("CUDA error: uncorrectable ECC error encountered", "CUDA out of memory. Tried to allocate 2.00 GiB"),
        ("KeyError: 'text'", "Watchdog caught collective operation timeout"),
        ("Watchdog caught collective operation timeout", "ncclRemoteError: remote process exited"),
        ("slurmstepd: *** STEP CANCELLED DUE TO NODE FAILURE", "Timed out waiting 1800000ms for recv operation"),
        ("ValueError: Loss is nan, stopping training", "Connection reset by peer"),
    ],
)
def test_a_root_beats_its_cascade_in_any_order(root: str, cascade: str) -> None:
    """The order in which ranks print does not matter: the more telling line decides."""
    alone = diagnose(root)
    for text in (f"{root}\n{cascade}", f"{cascade}\n{root}"):
        assert diagnose(text).cause == alone.cause
        assert diagnose(text).fingerprint == alone.fingerprint


def test_firm_rules_stand_before_vague_ones() -> None:
    """Order is policy: hardware first, operators' vague words after everything that a program prints."""
    firm = [rule.firm for rule in RULES]
    assert firm == sorted(firm, reverse=True)
    first = {cause: next(i for i, rule in enumerate(RULES) if rule.cause == cause) for cause in Cause}
    assert first[Cause.HARDWARE] < first[Cause.CAPACITY] < first[Cause.OOM] < first[Cause.DATA] < first[Cause.HANG]
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize(
    ("exit_code", "cause"),
    [
        (1, "user_code"), (2, "user_code"), (137, "unknown"), (-9, "unknown"), (139, "user_code"), (-11, "user_code"),
        (134, "unknown"), (-6, "unknown"), (135, "oom"), (143, "infrastructure"), (16, "hardware"), (17, "diverged"),
        (77, "unknown"), (0, "unknown"), (-99_999, "unknown"),
    ],
)  # fmt: skip
def test_an_exit_code_decides_where_words_are_missing(exit_code: int, cause: str) -> None:
    """The code speaks only when the text does not, and a bare SIGKILL proves nothing."""
    assert diagnose("", exit_code=exit_code).cause == cause
    assert diagnose("CUDA out of memory", exit_code=exit_code).cause == Cause.OOM


def test_exit_codes_are_read_from_the_text() -> None:
    """SageMaker's and torchrun's spellings; a rank's own signal says more than the launcher's 1."""
    assert diagnose("AlgorithmError: , exit code: 137").exit_code == 137
    assert diagnose("AlgorithmError: Exit Code: 139").exit_code == 139
    assert diagnose("exitcode : -15 (pid: 1) exitcode : -6 (pid: 2), exit code: 1").exit_code == -6
    assert diagnose("AlgorithmError: , exit code: 1", exit_code=3).exit_code == 3


@pytest.mark.parametrize(("percent", "cause"), [(40, "oom"), (100, "unknown")])
def test_a_process_killed_before_its_weights_are_loaded_lacked_memory(percent: int, cause: str) -> None:
    assert diagnose(f"Loading checkpoint shards: {percent}%| 4/10 [00:10<00:20]", exit_code=-9).cause == cause


@pytest.mark.parametrize("status", ["MaxRuntimeExceeded", "MaxWaitTimeExceeded"])
def test_a_limit_reached_is_not_a_failure(status: str) -> None:
    """The secondary status outranks whatever the log says, and the rule's name tells why."""
    found = diagnose("CUDA out of memory", secondary_status=status)
    assert (found.cause, found.rule.startswith("max-")) == (Cause.UNKNOWN, True)


def test_an_empty_text_is_unknown() -> None:
    """Nothing said, nothing claimed."""
    assert (diagnose("").cause, diagnose(" \n\t ").rule) == (Cause.UNKNOWN, "empty")


def test_the_reported_cause_is_believed() -> None:
    """A specific report of the training program wins over the reading of its words."""
    found = diagnose(reason("something took too long in rank 3", cause="hang", exit_code=7))
    assert (found.cause, found.rule, found.step, found.exit_code) == (Cause.HANG, "reported", 60, 7)


@pytest.mark.parametrize(
    ("reported", "error", "cause"),
    [
        ("user_code", "RuntimeError: CUDA error: uncorrectable ECC error encountered", "hardware"),
        ("user_code", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB", "oom"),
        ("unknown", "ConnectionResetError: [Errno 104] Connection reset by peer", "infrastructure"),
        ("unknown", "RuntimeError: the frobnicator refused", "user_code"),
        ("unknown", "went away", "unknown"),
        ("user_code", "RuntimeError: my own model is stuck in a bad place", "user_code"),
        ("nonsense", "went away", "unknown"),
    ],
)
def test_a_vague_report_is_overruled_only_by_clear_words(reported: str, error: str, cause: str) -> None:
    """`unknown` and `user_code` are what a program says that does not know better."""
    assert diagnose(reason(error, cause=reported)).cause == cause


def test_the_last_lines_help_when_the_error_does_not() -> None:
    """The root is often a few lines above the exception."""
    text = reason("SystemExit: 1", cause="unknown", last_lines=["step 59", "CUDA out of memory. Tried to allocate"])
    assert diagnose(text).cause == Cause.OOM
    lines = PARSING.format("config = json.load(f)").splitlines()
    assert diagnose(reason(PARSED, last_lines=lines)).rule == "unreadable-settings"
    assert diagnose(reason("SystemExit: 1", last_lines=lines)).rule == "unreadable-settings"
    lines = PARSING.format("row = json.loads(line)").splitlines()
    assert diagnose(reason("SystemExit: 1", last_lines=lines)).rule == "unreadable-input"


def test_a_report_cut_at_1024_characters_still_speaks() -> None:
    """SageMaker cuts FailureReason anywhere; cause, step and error are recovered from what is left."""
    whole = reason('ValueError: bad "quoted" \\ value', cause="data", step=1234, last_lines=["x" * 80] * 30)
    for length in (120, 200, 500, 1024):
        found = diagnose(whole[:length])
        assert (found.cause, found.step) == (Cause.DATA, 1234)
        assert found.fingerprint == diagnose(whole).fingerprint
        assert found.evidence == 'ValueError: bad "quoted" \\ value'


@pytest.mark.parametrize("error", ["argument --lr: invalid float value: 'x'", "unrecognized arguments: --lrr 1"])
def test_the_error_of_argparse_is_quoted_and_not_the_usage(error: str) -> None:
    text = f"usage: fit.py [-h]\n              [--lr LR]\nfit.py: error: {error}"
    assert diagnose(text).evidence == f"fit.py: error: {error}"
    assert diagnose("usage: fit.py [-h] [--lr LR]").evidence == "usage: fit.py [-h] [--lr LR]"


@given(cut=st.integers(0, 400))
def test_a_report_cut_anywhere_never_raises(cut: int) -> None:
    """However little is left, the answer is the reported cause or none."""
    text = reason('ValueError: "x" \\ \u2028', cause="hang", last_lines=["a", "b"])[:cut]
    assert diagnose(text).cause in (Cause.HANG, Cause.UNKNOWN, Cause.USER_CODE)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "[E ProcessGroupNCCL.cpp:737] [Rank 1] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=46, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1802212 milliseconds",
            "2026-01-02T03:04:05 [rank17]:[E ProcessGroupNCCL.cpp:616] [Rank 17] Watchdog caught collective operation "
            "timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800003 milliseconds",
        ),
        (
            "RuntimeError: [1] gloo/transport/tcp/pair.cc:589] Read error [10.2.3.4]:54321: Connection reset by peer",
            "RuntimeError: [7] gloo/transport/tcp/pair.cc:534] Read error [10.9.13.41]:32109: Connection reset by peer",
        ),
        tuple(f"cannot identify image file <_io.BytesIO object at 0x{at}>" for at in ("63a807fb0", "7f01deadbeef")),
        (
            "CUDA out of memory. Tried to allocate 1.70 GiB. GPU 0 has a total capacity of 79 GiB of which 5 MiB",
            "CUDA out of memory. Tried to allocate 64.00 MiB. GPU 3 has a total capacity of 79 GiB of which 0 bytes",
        ),
        tuple(f"FileNotFoundError: [Errno 2] No such file or directory: '/opt/ml/{at}.csv'" for at in ("a", "b-7/b")),
        tuple(reason(f"ValueError: loss at step {step} is wrong", step=step) for step in (60, 75)),
        ("AlgorithmError: , exit code: 137", "AlgorithmError: ,  exit code: 137"),
        (
            "Traceback (most recent call last):\n  File 'a.py'\nOverflowError: math range error",
            "Traceback (most recent call last):\n  File 'a.py'\nOverflowError: math range error\n"
            "rerail init: the command failed (unknown): waiting 30 s for a command to restart it",
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB. If reserved memory is >> allocated",
        ),
    ],
)
def test_one_error_has_one_fingerprint(one: str, other: str) -> None:
    """Ranks, addresses, sizes, paths, times and steps do not make another error of it."""
    assert diagnose(one).fingerprint == diagnose(other).fingerprint


def test_different_errors_have_different_fingerprints() -> None:
    """Also under one rule: what is missing, or what is wrong, belongs to the error."""
    texts = [
        "KeyError: 'input_ids'", "KeyError: 'labels'", "ValueError: not enough values to unpack", "",
        "TypeError: f() got an unexpected keyword argument 'a'", "CUDA out of memory", "MemoryError",
        "OpType=ALLREDUCE Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE)",
        "Watchdog caught collective operation timeout: WorkNCCL(OpType=BROADCAST)",
        "AlgorithmError: , exit code: 137", "AlgorithmError: , exit code: 1",
    ]  # fmt: skip
    assert len({diagnose(text).fingerprint for text in texts}) == len(texts)


@given(st.text() | st.text(alphabet='{}"\\:rerailxid 0/[](),\n', max_size=300), st.none() | st.integers())
def test_no_text_makes_it_raise(text: str, exit_code: int | None) -> None:
    """Whatever the text, there is an answer with short evidence and the same fingerprint each time."""
    found = diagnose(text, exit_code=exit_code)
    assert len(found.evidence) <= EVIDENCE
    assert found == diagnose(text, exit_code=exit_code)


@given(
    st.text(max_size=20),
    st.dictionaries(
        st.sampled_from(["cause", "error", "step", "exit_code", "last_lines"]),
        st.none() | st.text() | st.integers() | st.lists(st.text()) | st.booleans(),
    ),
)
@example("", {"cause": "data", "error": "an emoji that was cut \ud83d", "step": 10**20, "exit_code": -(10**20)})
@settings(max_examples=count_examples(50))
def test_no_report_makes_it_raise(prefix: str, report: dict[str, object]) -> None:
    """The failure file is the user's to write: its fields may hold anything, and a record has numbers of 64 bits."""
    found = diagnose(prefix + json.dumps({"rerail": 1} | report))
    assert found.cause in Cause and found.evidence.encode()
    assert loads(Diagnosis, dumps(found)) == found


@pytest.mark.parametrize(
    "unit",
    [
        "a", "x ", "GPU ", "0x", "/a", '{"rerail":1,', "node 12 ", "bad a b c ", "n12, ", "a-1-", "no x ",
        "memory is ", "NVRM: ", 'Command "', "[[", "\\n", "\ud800", "a=b ", "Config", "((", 'File "a", line 1 ',
        '  File "a", line 1\n', "[rank1]: ", "1.1.", "a.b.Error", "ErrorError", "https:/", "config = load", "ab_dict",
        "gpu-01, ", "aaaa-000 ", "rowremap", "nrt_aalloc__", "ncclSocket0", "initializ00", "/efs", "unpack_", "mpirun",
        " nans",
    ],
)  # fmt: skip
def test_a_huge_text_is_read_at_both_ends_in_little_time(unit: str) -> None:
    """Work is bounded by the first 4,000 and the last 12,000 characters, and grows with them as their number does.

    A pattern that backtracks would cost 100 times as much for ten times the text, or far more.
    """

    causes: list[Cause] = []

    def text(length: int) -> str:
        return unit * (length // len(unit)) + "\nCUDA out of memory. Tried to allocate 2 GiB"

    short, whole, huge = text(1_600), text(16_000), text(2_000_000)
    cost = cpu_seconds(lambda: diagnose(whole), repeats=2)
    assert cost < 40 * cpu_seconds(lambda: diagnose(short))
    assert cpu_seconds(lambda: causes.append(diagnose(huge).cause), repeats=1) < 15 * cost
    assert causes[0] in (Cause.OOM, Cause.UNKNOWN)
