"""Measure the reading of checkpoint layouts: `python -m bench.layouts [--rounds 3] [--most 10000]`.

The CPU time must grow with the number of objects and not faster, for ordinary checkpoints and for names that are made
to take long. Each figure is the least of several rounds, beside `json.loads` of the same listing.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import track

from bench.evidence import BenchFailed, Cell, Evidence, GoalResult, Sheet, finish
from bench.turns import measure_in_turns
from rerail.model.checkpoint_layouts import StoredObject, find_checkpoints, find_copies, find_pointers, find_undated

START = datetime(2026, 1, 31, tzinfo=UTC)
# A checkpoint of the Hugging Face Trainer.
FILES = (
    *(f"model-{part:05d}-of-00004.safetensors" for part in range(1, 5)),
    *("model.safetensors.index.json", "config.json", "optimizer.pt", "scheduler.pt", "rng_state_0.pth"),
    *("trainer_state.json", "training_args.bin", "tokenizer.json"),
)
SIZES = (100, 1_000, 5_000, 10_000)
# A third of a core has two seconds for 5,000 checkpoints.
EXPONENT_GOAL, GOAL_SIZE, SECONDS_GOAL = 1.1, 5_000, 2 / 3
# Beyond this, in all rounds, the time grows faster than the listing: that fails the benchmark. A large listing leaves
# the processor's caches, which alone was measured as n^1.32 on a busy machine; what is quadratic comes near n^2.
EXPONENT_FLOOR, RATIO_FLOOR = 1.5, 40.0
ORDINARY = "12 files each"
# What `count` checkpoints, or files, are called.
SHAPES: Mapping[str, Callable[[int], list[str]]] = {
    ORDINARY: lambda count: [f"checkpoint-{100 * step}/{name}" for step in range(1, count + 1) for name in FILES],
    "one file each": lambda count: [f"checkpoint-{step}/a" for step in range(count)],
    "no file in common": lambda count: [f"checkpoint-{step}/{_letters(step)}.pt" for step in range(count)],
    "one of many parts": lambda count: [f"checkpoint-5/m-{part + 1:05d}-of-{count:05d}.bin" for part in range(count)],
    "many sets of parts": lambda count: [f"checkpoint-5/{_letters(n)}-00001-of-{count:05d}.bin" for n in range(count)],
    "deep folders": lambda count: ["a/" * 400 + str(number) for number in range(count)],
    "steps in a name": lambda count: ["-step=1" * 140 + f"{number}.ckpt" for number in range(count)],
    "pointers": lambda count: [name for n in range(count // 2) for name in (f"{n}/global_step5/a", f"{n}/latest")],
}


def _letters(number: int) -> str:
    return "".join(chr(ord("a") + number // 26**place % 26) for place in range(5))


def make_listing(names: Sequence[str]) -> list[StoredObject]:
    """Return a listing of objects with these names."""
    return [StoredObject(name, 1 << 20, START + timedelta(seconds=number), '"e"') for number, name in enumerate(names)]


def measure(work: Callable[[], object]) -> float:
    """Return the CPU seconds of one call."""
    began = time.process_time()
    work()
    return max(time.process_time() - began, 1e-6)


def read_all(listing: Sequence[StoredObject]) -> None:
    """Do all that a listing is read for."""
    find_checkpoints(listing)
    find_pointers(listing)
    find_copies(listing)
    find_undated(listing)


def measure_shape(shape: str, sizes: Sequence[int], rounds: int) -> tuple[list[float], float]:
    """Return the seconds at each size, and the largest beside `json.loads` of the same listing.

    Each is the least of the rounds, of which there are more while a figure is beyond its floor.
    """
    listings = [make_listing(SHAPES[shape](size)) for size in sizes]
    text = json.dumps([[item.key, item.bytes, item.at.isoformat(), item.etag] for item in listings[-1]])
    works = [*(partial(read_all, listing) for listing in listings), partial(json.loads, text)]

    def read(least: Mapping[int, float]) -> tuple[list[float], float]:
        *seconds, reference = least.values()
        return seconds, seconds[-1] / reference

    def is_within(least: Mapping[int, float]) -> bool:
        seconds, ratio = read(least)
        return not find_failures(shape, find_exponent(sizes, seconds), ratio)

    return read(measure_in_turns({n: partial(measure, work) for n, work in enumerate(works)}, is_within, rounds=rounds))


def find_failures(shape: str, exponent: float, ratio: float) -> list[BenchFailed]:
    """Return what is beyond its floor."""
    failures = []
    if exponent > EXPONENT_FLOOR:
        failures.append(BenchFailed(f"{shape}: the time grows as n^{exponent:.2f}"))
    if shape == ORDINARY and ratio > RATIO_FLOOR:
        failures.append(BenchFailed(f"{shape}: {ratio:.0f} times json.loads, of at most {RATIO_FLOOR:g}"))
    return failures


def find_exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the exponent of the growth from a tenth of the largest size to it: below, fixed costs count."""
    first = max((index for index, size in enumerate(sizes) if size <= sizes[-1] / 10), default=0)
    return math.log(seconds[-1] / seconds[first]) / math.log(sizes[-1] / sizes[first])


def collect(sizes: Sequence[int], rounds: int) -> Evidence:
    """Return the figures of all shapes; a growth or a ratio beyond its floor is a failure."""
    rows: list[tuple[Cell, ...]] = []
    failures: list[BenchFailed] = []
    exponents: dict[str, float] = {}
    ordinary = [0.0]
    for shape in track(SHAPES, "checkpoint layouts"):
        seconds, ratio = measure_shape(shape, sizes, rounds)
        exponents[shape] = find_exponent(sizes, seconds)
        ordinary = seconds if shape == ORDINARY else ordinary
        rows.append((shape, *(1000 * spent for spent in seconds), exponents[shape], ratio))
        failures += find_failures(shape, exponents[shape], ratio)
    worst = max(exponents, key=lambda shape: exponents[shape])
    slope = exponents[worst]
    goals = [GoalResult("growth", f"at most n^{EXPONENT_GOAL:g}", f"n^{slope:.2f} ({worst})", slope <= EXPONENT_GOAL)]
    if GOAL_SIZE in sizes:
        spent = ordinary[sizes.index(GOAL_SIZE)]
        what = f"{GOAL_SIZE:,} checkpoints of {len(FILES)} files, on one core"
        goals.append(GoalResult(what, f"at most {SECONDS_GOAL:.2f} s", f"{spent:.2f} s", spent <= SECONDS_GOAL))
    columns = ("names", *(f"{size:,}" for size in sizes), "exponent", "x json.loads")
    sheet = Sheet("Reading a listing by its layout, CPU milliseconds", columns, tuple(rows))
    claim = "Reading checkpoints takes time in proportion to their files."
    return Evidence(claim, sheets=(sheet,), goals=tuple(goals), failures=tuple(failures))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.layouts", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="rounds at the least, of which the fastest counts")
    parser.add_argument("--most", type=int, default=SIZES[-1], help="the largest number of checkpoints")
    parser.add_argument("--evidence", type=Path, help="write the figures to this file as JSON")
    options = parser.parse_args(arguments)
    for name, least in (("rounds", 1), ("most", SIZES[0] + 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name}: must be at least {least}")
    sizes = [size for size in SIZES if size < options.most] + [options.most]
    return finish(collect(sizes, options.rounds), options.evidence, Console())


if __name__ == "__main__":
    sys.exit(main())
