"""Check on a machine with GPUs what a CPU cannot show: `python -m rerail_agent.acceptance [--gib 2] [--json FILE]`.

Each check has a process of its own, so that one that hangs or breaks its CUDA context affects no other. A speed counts
as a ratio of two measurements that take turns in one process. The exit status is 1 if a check failed.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional

from rerail_agent.agreement import SIGTERM, Agreement
from rerail_agent.checkpoints import Manifest, Saver, Snapshots, open_store
from rerail_agent.checkpoints.staging_memory import Arena
from rerail_agent.guard import Guard
from rerail_agent.machine_probes import (
    ProbeResult,
    ProbeStatus,
    measure_all_reduce,
    probe_compute,
    probe_gpus,
    read_kernel_log,
    run_tool,
    synchronize,
)
from rerail_agent.random_state import get_random_state, set_random_state
from rerail_agent.snapshot_launch import STEPS, SnapshotProcessHandle

GIB = 1 << 30
TENSOR_BYTES = 64 << 20
SAVE_PATIENCE_S = 300.0
# How much longer a save or snapshot may stop the training than a plain copy of the same bytes into pinned memory.
LONGEST_STALL = 1.25
# How much longer a step may take while a checkpoint is written.
LONGEST_STEP = 1.05
# A guarded step beside one that only reads its loss.
LONGEST_GUARDED_STEP = 1.02
# Our pinned memory beside PyTorch's own.
LONGEST_PINNED_COPY = 1.15
# Clock cycles for which a kernel occupies a stream: some 0.1 s on any GPU.
BUSY_CYCLES = 200_000_000
EXACT_STEPS, EXACT_SAVE = 12, 6
AGREED_STEPS, FLAGGED_STEP = 8, 3


class GpuCheckStatus(StrEnum):
    """The result of a check."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_TRIED = "not tried"


@dataclass(frozen=True)
class GpuCheck:
    """A finding of a check: whether a result is right, or how one speed compares."""

    name: str
    status: GpuCheckStatus
    detail: str
    # Ratios, and seconds or bytes that they are made of.
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class GpuCheckOptions:
    """The options of all checks."""

    device: str
    # Of the state that is saved.
    state_bytes: int
    rounds: int
    # For files; the checkpoints in it are deleted.
    folder: str


Check = Callable[[GpuCheckOptions], list[GpuCheck]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks, print a line for each finding; return the exit status."""
    options = _parse_arguments(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print(f"PyTorch {torch.__version__} finds no GPU here. Run this on a machine with one, or with --device cpu.")
        return 2
    names = options.only or list(CHECKS)
    machine = describe_machine(options.device)
    print(", ".join(f"{name} {value}" for name, value in machine.items()), flush=True)
    with tempfile.TemporaryDirectory(prefix="rerail-acceptance-", dir=options.folder) as folder:
        chosen = GpuCheckOptions(options.device, int(options.gib * GIB), options.rounds, folder)
        found = []
        for name in names:
            for finding in run_apart(name, chosen, limit_s=options.limit):
                print(f"{finding.status:<9}  {finding.name}: {finding.detail}", flush=True)
                found.append(finding)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "checks": [asdict(one) for one in found]}, indent=1))
    failed = sum(finding.status is GpuCheckStatus.FAILED for finding in found)
    print(f"{failed} of {len(found)} failed" if failed else f"none of {len(found)} failed")
    return 1 if failed else 0


def _parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m rerail_agent.acceptance", description=(__doc__ or "")[:-1])
    parser.add_argument("--gib", type=_positive, default=2.0, help="state that is saved, in GiB (default 2)")
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each speed (default 7)")
    parser.add_argument("--only", nargs="+", choices=list(CHECKS), metavar="CHECK", help=", ".join(CHECKS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu tries the checks themselves")
    parser.add_argument("--limit", type=_positive, default=300.0, help="seconds for each check (default 300)")
    parser.add_argument("--folder", type=Path, help="where checkpoints are written (default: the temporary folder)")
    parser.add_argument("--json", type=Path, help="write the findings to this file")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return value


def describe_machine(device: str) -> dict[str, str]:
    """Return the names and versions on which the figures depend."""
    described = {"PyTorch": torch.__version__, "cores": str(os.cpu_count())}
    if device == "cuda":
        capability = torch.cuda.get_device_capability(0)
        described |= {
            "GPU": torch.cuda.get_device_name(0),
            "GPUs": str(torch.cuda.device_count()),
            "capability": ".".join(map(str, capability)),
            "CUDA": str(torch.version.cuda),
            "NCCL": ".".join(map(str, torch.cuda.nccl.version())) if dist.is_nccl_available() else "none",
            "driver": _read_driver_version(),
        }
    return described


def _read_driver_version() -> str:
    result = run_tool("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return result.detail.splitlines()[0] if result.status is ProbeStatus.PASSED else f"unknown ({result.detail})"


def run_apart(name: str, options: GpuCheckOptions, *, limit_s: float) -> list[GpuCheck]:
    """Return the findings of a check that runs in another process, which is killed when its time is over."""
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_run_check, args=(name, options, sending), name=f"acceptance {name}")
    process.start()
    sending.close()
    try:
        if not receiving.poll(limit_s):
            return [GpuCheck(name, GpuCheckStatus.FAILED, f"no result within {limit_s:g} s")]
        found: list[GpuCheck] = receiving.recv()
        return found
    except EOFError:
        process.join(10)
        return [GpuCheck(name, GpuCheckStatus.FAILED, f"its process ended with exit code {process.exitcode}")]
    finally:
        process.kill()
        process.join()


def _run_check(name: str, options: GpuCheckOptions, sending: Any) -> None:
    # cuBLAS needs it for the same bits in each run; read when the first handle is made.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    sending.send(run_check(name, options))


def run_check(name: str, options: GpuCheckOptions) -> list[GpuCheck]:
    """Return the findings of a check; an error in it is a finding too."""
    try:
        return CHECKS[name](options)
    except Exception as error:  # of any kind: the other checks are to run
        return [GpuCheck(name, GpuCheckStatus.FAILED, f"{type(error).__name__}: {error}")]


# ---------------------------------------------------------------------------------------------------- the machine


def check_machine(options: GpuCheckOptions) -> list[GpuCheck]:
    """Run the agent's probes: products that must be exact, memory errors, and the driver's Xid messages."""
    results = [probe_compute(torch.device(options.device))]
    if options.device == "cuda":
        results += [probe_gpus(torch.cuda.device_count()), read_kernel_log()]
    return [_make_finding(result) for result in results]


def _make_finding(result: ProbeResult) -> GpuCheck:
    statuses = {ProbeStatus.PASSED: GpuCheckStatus.PASSED, ProbeStatus.SKIPPED: GpuCheckStatus.NOT_TRIED}
    return GpuCheck(result.probe, statuses.get(result.status, GpuCheckStatus.FAILED), result.detail.strip())


# ---------------------------------------------------------------------------------------------------- copies


def check_pinned_memory(options: GpuCheckOptions) -> list[GpuCheck]:
    """Compare copies from the GPU into staging memory with copies into PyTorch's pinned and pageable memory."""
    if options.device != "cuda":
        return [GpuCheck("pinned memory", GpuCheckStatus.NOT_TRIED, "memory is pinned for GPUs only")]
    device = torch.device("cuda", 0)
    source = torch.randint(0, 256, (options.state_bytes,), dtype=torch.uint8, device=device)
    with Arena(source.nbytes, pinned=True) as arena:
        if not arena.is_pinned:
            return [GpuCheck("pinned memory", GpuCheckStatus.FAILED, "CUDA does not register the staging memory")]
        staged = arena.tensor(offset=0, sizes=tuple(source.shape), dtype=source.dtype)
        pinned = torch.empty_like(source, device="cpu", pin_memory=True)
        pageable = torch.zeros(source.shape, dtype=source.dtype)
        copies = {"ours": staged, "pinned": pinned, "pageable": pageable}
        seconds = _take_turns({name: _copier(target, source) for name, target in copies.items()}, options, device)
        is_equal = torch.equal(staged, source.cpu())
    ratio, size = seconds["ours"] / seconds["pinned"], f"{options.state_bytes / GIB:g} GiB"
    figures = {
        "ours / PyTorch's pinned memory": ratio,
        "pageable / ours": seconds["pageable"] / seconds["ours"],
        "ours, GB/s": source.nbytes / seconds["ours"] / 1e9,
    }
    return [
        _evaluate("pinned memory", is_equal, f"{size} arrived bit for bit", f"{size} arrived with other bits"),
        _evaluate_speed("pinned memory, speed", ratio, LONGEST_PINNED_COPY, figures),
    ]


def _copier(target: torch.Tensor, source: torch.Tensor) -> Callable[[], Any]:
    return lambda: target.copy_(source, non_blocking=True)


def make_plain_copy(state: Mapping[str, Any], device: torch.device) -> Callable[[], None]:
    """Return a function that copies the state's tensors into pinned memory, to compare a stall with."""
    tensors = list(state["model"].values())
    targets = [torch.empty_like(tensor, device="cpu", pin_memory=device.type == "cuda") for tensor in tensors]

    def copy() -> None:
        for target, tensor in zip(targets, tensors, strict=True):
            target.copy_(tensor, non_blocking=True)

    return copy


def check_save(options: GpuCheckOptions) -> list[GpuCheck]:
    """Compare the stall of a save with a plain copy, restore it, and measure steps while it is written."""
    device = torch.device(options.device)
    state = make_state(options.state_bytes, device)
    saver = make_saver(options, "save", device)
    saver.prune(keep=1)
    saver.prepare(state)
    step = 0

    def save() -> None:
        nonlocal step
        step += 1
        saver.save(state, _make_manifest(step))

    contenders = {"save": save, "copy": make_plain_copy(state, device)}
    seconds = _take_turns(contenders, options, device, after=lambda: _wait(saver))
    saver.save(state, _make_manifest(step + 1))
    writing = _measure_steps(device, until=lambda: bool(saver.finished()))
    alone = _measure_steps(device)
    saver.wait(SAVE_PATIENCE_S)
    fresh = make_state(options.state_bytes, device, seed=2)
    restored = saver.restore(fresh)
    is_equal = restored is not None and restored.step == step + 1 and have_equal_tensors(fresh, state)
    saver.close()
    stall, drag = seconds["save"] / seconds["copy"], statistics.median(writing) / statistics.median(alone)
    stalls = {"stall / plain copy": stall, "stall, s": seconds["save"]}
    steps = {"step while writing / alone": drag, "steps": float(len(writing))}
    size = f"{options.state_bytes / GIB:g} GiB"
    return [
        _evaluate("save", is_equal, f"{size} restored bit for bit", f"{size} were restored with other bits"),
        _evaluate_speed("save, stall", stall, LONGEST_STALL, stalls),
        _evaluate_speed("save, steps", drag, LONGEST_STEP, steps),
    ]


def check_snapshots(options: GpuCheckOptions) -> list[GpuCheck]:
    """Compare the stall of a snapshot in memory with a plain copy, and restore one after the process started again."""
    device = torch.device(options.device)
    state = make_state(options.state_bytes, device)
    lines: list[str] = []
    holder = SnapshotProcessHandle.start({"SAGEMAKER_BASE_DIR": options.folder, STEPS: "1"}, lines.append)
    if holder is None:
        return [GpuCheck("snapshots", GpuCheckStatus.FAILED, "; ".join(lines))]
    try:
        saver = make_saver(options, "snapshots", device, log=lines.append)
        snapshots = Snapshots(saver, every=1, folder=holder.folder, log=lines.append)
        saver.prepare(state)
        snapshots.prepare(state)
        step = 0

        def take() -> None:
            nonlocal step
            step += 1
            snapshots.take(state, _make_manifest(step))

        contenders = {"take": take, "copy": make_plain_copy(state, device)}
        seconds = _take_turns(contenders, options, device, after=lambda: _wait_for(snapshots, lines))
        snapshots.close()
        saver.close()
        again = make_saver(options, "snapshots", device, log=lines.append)
        resumed = Snapshots(again, every=1, folder=holder.folder, log=lines.append)
        fresh = make_state(options.state_bytes, device, seed=2)
        restored = resumed.restore(fresh)
        is_equal = restored is not None and restored.step == step and have_equal_tensors(fresh, state)
        resumed.close()
        again.close()
    finally:
        holder.stop()
    stall = seconds["take"] / seconds["copy"]
    return [
        _evaluate("snapshots", is_equal, "restored bit for bit from memory", f"not restored: {'; '.join(lines[-3:])}"),
        _evaluate_speed("snapshots, stall", stall, LONGEST_STALL, {"stall / plain copy": stall}),
    ]


def check_streams(options: GpuCheckOptions) -> list[GpuCheck]:
    """Save while another stream still computes the state, and overwrite the state as soon as the save returns."""
    if options.device != "cuda":
        return [GpuCheck("streams", GpuCheckStatus.NOT_TRIED, "a CPU has no streams")]
    device = torch.device("cuda", 0)
    saver = make_saver(options, "streams", device)
    state = make_state(min(options.state_bytes, GIB // 2), device)
    tensors = list(state["model"].values())
    saver.prepare(state)
    side = torch.cuda.Stream(device)
    wrong: list[str] = []
    for step in range(1, 2 * options.rounds + 1):
        is_on_side = step % 2 == 0
        with torch.cuda.stream(side):
            torch.cuda._sleep(BUSY_CYCLES)
            for tensor in tensors:
                tensor.fill_(step)
            if is_on_side:
                saver.save(state, _make_manifest(step))
        if not is_on_side:
            saver.save(state, _make_manifest(step))
        with torch.cuda.stream(side):
            for tensor in tensors:
                tensor.fill_(-1)
        _wait(saver)
        fresh = make_state(min(options.state_bytes, GIB // 2), device, seed=2)
        saver.load(fresh, step)
        if not all(bool((tensor == step).all()) for tensor in fresh["model"].values()):
            wrong.append(f"step {step}, saved on {'that' if is_on_side else 'another'} stream")
        torch.cuda.synchronize(device)
    saver.close()
    passed = f"{2 * options.rounds} saves hold what the pending kernels computed"
    return [_evaluate("streams", not wrong, passed, f"these saves do not: {'; '.join(wrong)}")]


# ---------------------------------------------------------------------------------------------------- training


class SmallTransformer(nn.Module):  # type: ignore[misc, unused-ignore]
    """Two layers with dropout: matrix products, attention and random numbers of the device."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(512, 256)
        layers = (nn.TransformerEncoderLayer(256, 4, 512, dropout=0.1, batch_first=True) for _ in range(2))
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(256, 512)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        predicted: torch.Tensor = self.head(self.layers(self.table(tokens)))
        return predicted


def check_exactness(options: GpuCheckOptions) -> list[GpuCheck]:
    """Train in bfloat16, resume from the middle with other weights, and compare every later loss bit for bit."""
    device = torch.device(options.device)
    torch.use_deterministic_algorithms(True)
    saver = make_saver(options, "exactness", device)
    reference = []
    for step, loss, state in train(device, seed=1, steps=range(1, EXACT_STEPS + 1)):
        reference.append(loss)
        if step == EXACT_SAVE:
            saver.save(state(), _make_manifest(step))  # and train on while it is written
    _wait(saver)
    restored: list[float] = []
    for _, loss, _ in train(device, seed=2, steps=range(EXACT_SAVE + 1, EXACT_STEPS + 1), restore=saver):
        restored.append(loss)
    saver.close()
    expected = reference[EXACT_SAVE:]
    differing = sum(one != other for one, other in zip(expected, restored, strict=True))
    passed = f"{len(expected)} losses after a resume are those of the run without one, bit for bit"
    problem = f"{differing} of {len(expected)} losses differ after a resume: {restored} instead of {expected}"
    if reference[0] <= reference[-1]:
        problem = f"the loss did not fall: {reference}"
    return [_evaluate("exactness in bfloat16", not differing and reference[0] > reference[-1], passed, problem)]


def train(
    device: torch.device, *, seed: int, steps: range, restore: Saver | None = None
) -> Iterator[tuple[int, float, Callable[[], dict[str, Any]]]]:
    """Yield each step's number, its loss, and a function that returns the state after it."""
    torch.manual_seed(seed)
    model = SmallTransformer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.arange(4 * 65, device=device).reshape(4, 65) * 7 % 512

    def make_training_state() -> dict[str, Any]:
        parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        return parts | {"random": {"0": get_random_state()}}

    def do_step() -> float:
        with torch.autocast(device.type, torch.bfloat16):
            predicted = model(tokens[:, :-1])
            loss = functional.cross_entropy(predicted.flatten(0, 1).float(), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    if restore is not None:
        do_step()  # makes the optimizer's state, which is then overwritten
        state = make_training_state()
        manifest = restore.restore(state)
        assert manifest is not None and manifest.step == steps.start - 1, manifest
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        set_random_state(state["random"]["0"])
    for step in steps:
        yield step, do_step(), make_training_state


def check_guard(options: GpuCheckOptions) -> list[GpuCheck]:
    """Compare steps with the guard and steps that only read their loss, in turns."""
    device = torch.device(options.device)
    length = 4096 if device.type == "cuda" else 512
    left = torch.randn(length, length, device=device)
    guard = Guard(environment={}, log_every=10)
    times: dict[str, list[float]] = {"guarded": [], "plain": []}
    with open(os.devnull, "w") as nowhere:
        output, sys.stdout = sys.stdout, nowhere
        try:
            for step in range(1, 60 * options.rounds + 1):
                name = "guarded" if step % 2 else "plain"
                started = time.perf_counter()
                for _ in range(3):
                    product = left @ left
                loss = product.square().mean() * (1 + 0.1 / step)  # a loss that never changes is a warning
                if step % 2:
                    guard.step(step=step, loss=guard.reduce(loss), tokens=4096)
                else:
                    float(loss)
                times[name].append(time.perf_counter() - started)
        finally:
            sys.stdout = output
    guard.close()
    guarded, plain = (statistics.median(times[name][10:]) for name in ("guarded", "plain"))
    figures = {"guarded step / plain step": guarded / plain, "added, us": (guarded - plain) * 1e6}
    return [_evaluate_speed("guard, steps", guarded / plain, LONGEST_GUARDED_STEP, figures)]


# ---------------------------------------------------------------------------------------------------- ranks


def check_ranks(options: GpuCheckOptions) -> list[GpuCheck]:
    """Connect one rank for each GPU by NCCL: sums that are known beforehand, and flags that take effect everywhere."""
    ranks = torch.cuda.device_count() if options.device == "cuda" else 2
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = [
        context.Process(target=_run_rank, args=(rank, ranks, store.port, options.device, answers))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if failed := [f"rank {rank}" for rank, process in enumerate(processes) if process.exitcode]:
        return [GpuCheck("ranks", GpuCheckStatus.FAILED, f"{', '.join(failed)} ended with an error, see above")]
    found = [answers.get() for _ in range(ranks)]
    backend = found[0]["backend"]
    wrong = sum(answer["wrong"] for answer in found)
    passed = f"{ranks} over {backend}, all sums are right"
    sums = _evaluate("ranks", not wrong, passed, f"{ranks} over {backend}, {wrong} sums are wrong")
    if ranks == 1:
        return [
            sums,
            GpuCheck("agreement", GpuCheckStatus.NOT_TRIED, "there is one GPU, and NCCL takes one rank for each"),
        ]
    agreed = {tuple(answer["agreed"]) for answer in found}
    same = f"a flag of rank 1 took effect at the same step on {ranks} ranks"
    is_same = len(agreed) == 1 and all(len(steps) == 1 for steps in next(iter(agreed)))
    speed = {"all-reduce, GB/s": min(answer["speed"] for answer in found)}
    return [
        GpuCheck(sums.name, sums.status, sums.detail, speed),
        _evaluate("agreement", is_same, same, f"the ranks agreed at the steps {sorted(agreed)}"),
    ]


def _run_rank(rank: int, ranks: int, port: int, device_type: str, answers: Any) -> None:
    device = torch.device(device_type, rank) if device_type == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", store=store, rank=rank, world_size=ranks)
    wrong, speed = measure_all_reduce(device, rank=rank, size=ranks)
    answers.put(
        {
            "backend": dist.get_backend(),
            "wrong": wrong,
            "speed": speed,
            "agreed": [_find_agreed_steps(device, rank, reduces=reduces) for reduces in (True, False)],
        }
    )
    dist.destroy_process_group()


def _find_agreed_steps(device: torch.device, rank: int, *, reduces: bool) -> tuple[int, ...]:
    """Return the steps after which this rank saw the flag that rank 1 raises, with or without a loss to reduce."""
    agreement = Agreement(every=2, log=print)
    seen = []
    for step in range(1, AGREED_STEPS + 1):
        if step == FLAGGED_STEP and rank == 1:
            agreement.raise_flag(SIGTERM)
        if reduces:
            agreement.reduce(torch.ones((), device=device))
        if agreement.agree(0.01)[SIGTERM]:
            seen.append(step)
    return tuple(seen)


# ---------------------------------------------------------------------------------------------------- common parts


def make_state(size: int, device: torch.device, *, seed: int = 1) -> dict[str, Any]:
    """Return a state of about `size` bytes: tensors of 64 MiB, or less, with random content."""
    generator = torch.Generator(device).manual_seed(seed)
    each = min(TENSOR_BYTES, size)
    tensors = {
        f"weight{number}": torch.rand(each // 4, generator=generator, device=device) for number in range(size // each)
    }
    return {"model": tensors}


def have_equal_tensors(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two states of make_state() have the same bits."""
    return all(torch.equal(one["model"][name], tensor) for name, tensor in other["model"].items())


def make_saver(
    options: GpuCheckOptions, name: str, device: torch.device, *, log: Callable[[str], None] = print
) -> Saver:
    return Saver(open_store(Path(options.folder) / name), device=device, log=log)


def _make_manifest(step: int) -> Manifest:
    return Manifest("acceptance", 1, step, step, 1, 1.0, "periodic")


def _wait(saver: Saver) -> None:
    for result in saver.wait(SAVE_PATIENCE_S):
        if result.error is not None:
            raise RuntimeError(f"the save of step {result.manifest.step} failed: {result.error}")


def _wait_for(snapshots: Snapshots, lines: list[str]) -> None:
    if not snapshots.wait(SAVE_PATIENCE_S):
        raise RuntimeError("; ".join(lines[-3:]) or f"a snapshot took longer than {SAVE_PATIENCE_S:g} s")


def _take_turns(
    contenders: Mapping[str, Callable[[], Any]],
    options: GpuCheckOptions,
    device: torch.device,
    after: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Return each contender's median time in seconds, the first round apart; all take turns in each round."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(options.rounds + 1):
        for name, contender in contenders.items():
            synchronize(device)
            started = time.perf_counter()
            contender()
            synchronize(device)
            seconds[name].append(time.perf_counter() - started)
            after()
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}


def _measure_steps(device: torch.device, until: Callable[[], bool] = lambda: False) -> list[float]:
    """Return the seconds of training steps: many small operations, as a host launches them, and a large product.

    Stops when `until` says so, or after 200 steps.
    """
    length = 4096 if device.type == "cuda" else 256
    left = torch.randn(length, length, device=device)
    small = torch.randn(1024, device=device)
    seconds: list[float] = []
    while len(seconds) < 200 and not (seconds and until()):
        started = time.perf_counter()
        for _ in range(100):
            small = small * 1.0
        product = left @ left
        float(product[0, 0])
        seconds.append(time.perf_counter() - started)
    return seconds


def _evaluate(name: str, is_right: bool, passed: str, problem: str) -> GpuCheck:
    if is_right:
        return GpuCheck(name, GpuCheckStatus.PASSED, passed)
    return GpuCheck(name, GpuCheckStatus.FAILED, problem)


def _evaluate_speed(name: str, ratio: float, limit: float, figures: dict[str, float]) -> GpuCheck:
    text = ", ".join(f"{label} {value:.4g}" for label, value in figures.items())
    status = GpuCheckStatus.PASSED if ratio <= limit else GpuCheckStatus.FAILED
    return GpuCheck(name, status, f"{text} (at most {limit:g} is accepted)", figures)


CHECKS: dict[str, Check] = {
    "machine": check_machine,
    "pinned-memory": check_pinned_memory,
    "save": check_save,
    "streams": check_streams,
    "snapshots": check_snapshots,
    "exactness": check_exactness,
    "guard": check_guard,
    "ranks": check_ranks,
}

if __name__ == "__main__":
    sys.exit(main())
