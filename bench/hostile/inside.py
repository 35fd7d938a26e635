"""One parser and so many changed inputs, in a process of its own: what `python -m bench.fuzz` starts for each.

Its standard output is for the program that has started it: JSON lines of how far it is, and of each defect."""

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, TextIO

from bench.hostile.targets import ROOT, TARGETS, Target

CHANGED = 0.7  # of the inputs; the others are atheris's own
FRESH = 0.25  # of these: of a sample as it is, where what was reached says too little of what is worth keeping
SAY_EVERY_S = 0.5
# Seconds of the processor for one input: what takes longer is a defect, and much longer ends the fuzzer.
SLOW_S, STUCK_S = 2.0, 60
MOST_DEFECTS = 20


class Session:
    """Reads each input, and tells of what goes wrong once for each place where it does."""

    def __init__(self, target: Target, read: Callable[[bytes], None], out: TextIO, keep: Path) -> None:
        self._target, self._read, self._out, self._keep = target, read, out, keep
        self._inputs, self._slowest, self._told = 0, 0.0, set[str]()
        self._say_at = time.monotonic() + SAY_EVERY_S

    def one(self, data: bytes) -> None:
        """What atheris calls."""
        began = time.thread_time()
        try:
            self._read(data)
        except Exception as error:
            self._defect(data, error)
        took = time.thread_time() - began
        if took > SLOW_S:
            self._tell(f"slow {took:.0f}", f"it takes {took:.1f} s of the processor", data)
        self._slowest = max(self._slowest, took)
        self._inputs += 1
        if time.monotonic() >= self._say_at:
            self.say()

    def say(self) -> None:
        """How far it is."""
        self._say_at = time.monotonic() + SAY_EVERY_S
        self._write({"inputs": self._inputs, "slowest_ms": self._slowest * 1000, "at": time.monotonic()})

    def _defect(self, data: bytes, error: Exception) -> None:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if str(ROOT) in frame.filename]
        ours = [frame for frame in frames if "/bench/" not in frame.filename] or frames
        where = f"{Path(ours[-1].filename).relative_to(ROOT)}:{ours[-1].name}" if ours else "nowhere of ours"
        words = " ".join(str(error).split())[:200].encode(errors="backslashreplace").decode()
        self._tell(f"{type(error).__name__} {where}", f"{type(error).__name__} in {where}: {words}", data)

    def _tell(self, kind: str, what: str, data: bytes) -> None:
        if kind in self._told or len(self._told) >= MOST_DEFECTS:
            return
        self._told.add(kind)
        (self._keep / f"defect-{len(self._told)}").write_bytes(data)
        self._write({"defect": what})

    def _write(self, line: dict[str, Any]) -> None:
        self._out.write(json.dumps(line) + "\n")
        self._out.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    """Does not return: atheris ends the process."""
    import atheris

    parser = argparse.ArgumentParser(prog="python -m bench.hostile.inside")
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--inputs", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args(arguments)
    target = TARGETS[options.target]
    sys.path[:0] = [str(ROOT / folder) for folder in ("lambdas", "agent", "container")]
    with atheris.instrument_imports(include=list(target.watched), enable_loader_override=False):
        read = target.load()
    corpus = options.folder / "corpus"
    corpus.mkdir(parents=True)
    samples = list(target.samples())
    for number, sample in enumerate(samples):
        (corpus / f"{number}").write_bytes(sample)
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (what the parsers print is nobody's)
    os.dup2(sys.stdout.fileno(), 1)  # nor is what the fuzzer's own C code prints
    with suppress(Exception):  # what is made once is made before the clock runs; it is read again, and then judged
        read(samples[0])
    session = Session(target, read, out, options.folder)
    session.say()

    def change(data: bytes, size: int, seed: int) -> bytes:
        random = Random(seed)
        if random.random() < CHANGED:
            begin = random.choice(samples) if random.random() < FRESH else bytes(data)
            return target.change(begin, random)[:size]
        return bytes(atheris.Mutate(data, max(1, size)))[:size]

    settings = [
        *(f"-runs={options.inputs}", f"-max_len={target.longest}", f"-timeout={STUCK_S}", f"-seed={options.seed}"),
        *("-len_control=0", "-print_final_stats=1", f"-artifact_prefix={options.folder}/", str(corpus)),
    ]
    atheris.Setup([sys.argv[0], *settings], session.one, custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
