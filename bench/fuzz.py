"""A million bad inputs: does every parser that meets the outside answer with one clear error, and nothing else?

    python -m bench.fuzz [--runs N] [--target NAME] [--keep FOLDER]

Each target is a parser with real samples of what it reads. Atheris, a fuzzer that is guided by the lines of code that
an input reaches, changes the samples so many times; half of the changes keep JSON well formed, so that the checks
behind the syntax are reached too. A parser may answer, or raise one of our own errors whose message is one short line;
anything else is a defect: the input that did it is kept."""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

if "--inside" in sys.argv:  # the parsers are watched from their import on
    import atheris

    with atheris.instrument_imports(include=["rerail"]):
        import rerail.diagnosis
        import rerail.mailbox
        import rerail.policy
        import rerail.wakeups  # noqa: F401

from rerail.checkpoints import read_manifest
from rerail.codec import loads
from rerail.diagnosis import diagnose
from rerail.errors import RerailError
from rerail.machines import read_fallback
from rerail.mailbox import read_command, read_heartbeat, read_report
from rerail.model import Run
from rerail.policy import parse_policy
from rerail.skips import read as read_skips
from rerail.wakeups import read as read_wakeup

ROOT = Path(__file__).resolve().parent.parent
EVENTS = ROOT / "tests" / "events"
RECORDS = ROOT / "tests" / "core" / "data"
LONGEST_MESSAGE = 2000
INTERESTING: tuple[Any, ...] = (
    *(None, True, -1, 0, 1e308, 2**63, "", "x" * 70_000, "\ud800", "\0", [], {}, [[]], {"": {}}, "NaN", "1e999"),
    *("../../etc", "a" * 64, "2026-13-45T99:99:99Z", "rerail", "<script>", "'; --", "-", "0", "é", "\u202e"),
)

MAIL = {"schema": 1, "run": "gpt", "attempt": 1, "job": "gpt", "at": "2026-01-01T00:00:00+00:00"}
REPORT = {**MAIL, "type": "Report", "id": "r1", "told": "hello", "step": 3, "command": "", "abilities": ["skip"]}
HEARTBEAT = {**MAIL, "type": "Heartbeat", "phase": "step", "step": 3, "loss": 0.5}
COMMAND = {**MAIL, "type": "Command", "id": "c1", "wish": "checkpoint", "asked_at": MAIL["at"], "deadline": MAIL["at"]}
MANIFEST = {
    "schema": 1,
    "attempt": 1,
    "step": 10,
    "saved_at": "2026-01-01T00:00:00Z",
    "reason": "periodic",
    "loss": 1.5,
    "files": [{"name": "model.pt", "bytes": 100, "xxh3": "0" * 16}],
}


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


TARGETS: dict[str, Callable[[bytes], object]] = {
    "message of the queue": lambda data: read_wakeup(_text(data)),
    "report": lambda data: read_report(data, run="gpt", id="r1"),
    "heartbeat": lambda data: read_heartbeat(data, run="gpt"),
    "command": lambda data: read_command(data, run="gpt"),
    "manifest": lambda data: read_manifest(data, uri="s3://b/p/", sizes={"model.pt": 100}),
    "policy": lambda data: parse_policy(_text(data), name="fuzzed"),
    "stored record": lambda data: loads(Run, _text(data)),
    "failure reason": lambda data: diagnose(_text(data)),
}
# These say what is wrong with a ValueError, which their one caller turns into an error of ours.
VALUES: dict[str, Callable[[str], object]] = {"fall-back": read_fallback, "ranges of samples": read_skips}


def samples(target: str) -> Iterator[bytes]:
    """Real inputs of a target."""
    match target:
        case "message of the queue":
            yield from (path.read_bytes() for path in sorted(EVENTS.glob("*.json")))
        case "report":
            yield json.dumps(REPORT).encode()
        case "heartbeat":
            yield json.dumps(HEARTBEAT).encode()
        case "command":
            yield json.dumps(COMMAND).encode()
        case "manifest":
            yield json.dumps(MANIFEST).encode()
        case "policy":
            yield from (path.read_bytes() for path in sorted((ROOT / "policies").glob("*.toml")))
        case "stored record":
            yield from (path.read_bytes() for path in sorted(RECORDS.glob("run-schema-*.json")))
        case "failure reason":
            lines = (RECORDS / "failures_written.jsonl").read_text().splitlines()
            yield from (json.dumps(json.loads(line)).encode() for line in lines)
        case "fall-back":
            yield b"ml.p4d.24xlarge, ml.p5.48xlarge @ subnet-1"
        case "ranges of samples":
            yield b"0-99,200-300"


def answers(target: str, data: bytes) -> None:
    """Have the target read it; raises where the answer is neither a value nor one of our errors."""
    try:
        if target in VALUES:
            try:
                VALUES[target](_text(data))
            except ValueError as error:
                _is_clear(error)
        else:
            TARGETS[target](data)
    except RerailError as error:
        _is_clear(error)


def _is_clear(error: Exception) -> None:
    message = str(error)
    assert message and len(message) <= LONGEST_MESSAGE, f"a message of {len(message)} characters: {message[:200]}"


def changed(data: bytes, random: Random) -> bytes:
    """The sample with one value of it replaced, doubled or taken away, still well formed where it was JSON."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return data
    spots = list(_spots(tree))
    if not spots:
        return json.dumps(random.choice(INTERESTING)).encode(errors="replace")
    holder, key = random.choice(spots)
    if random.random() < 0.15:
        del holder[key]
    elif random.random() < 0.15 and isinstance(holder, dict):
        holder[str(random.choice(INTERESTING))[:100]] = holder[key]
    else:
        holder[key] = random.choice(INTERESTING)
    return json.dumps(tree).encode(errors="replace")


def _spots(tree: Any) -> Iterator[tuple[Any, Any]]:
    keys = tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in keys:
        yield tree, key
        yield from _spots(tree[key])


def fuzz(target: str, runs: int, folder: Path) -> None:
    """Does not return: atheris ends the process, with a status that is not 0 where it has found a defect."""
    corpus = folder / "corpus"
    corpus.mkdir(parents=True)
    for number, sample in enumerate(samples(target)):
        (corpus / f"{number}").write_bytes(sample)

    def change(data: bytes, size: int, seed: int) -> bytes:
        random = Random(seed)
        made = changed(data, random) if random.random() < 0.5 else atheris.Mutate(data, max(1, size))
        return bytes(made)[:size]

    settings = [
        f"-runs={runs}",
        "-max_len=100000",
        "-timeout=20",
        f"-artifact_prefix={folder}/",
        "-seed=1",
        str(corpus),
    ]
    atheris.Setup([sys.argv[0], *settings], lambda data: answers(target, data), custom_mutator=change)
    atheris.Fuzz()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fuzz")
    parser.add_argument("--runs", type=int, default=100_000, help="inputs of each target")
    parser.add_argument("--target", choices=[*TARGETS, *VALUES], help="only this one")
    parser.add_argument("--keep", type=Path, help="put inputs that found a defect here")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.inside:
        fuzz(options.target, options.runs, options.inside)
    console, failed = Console(), 0
    table = Table("parser", "inputs", "defects")
    names = [options.target] if options.target else [*TARGETS, *VALUES]
    for name in track(names, "fuzzing", console=console):
        with tempfile.TemporaryDirectory() as folder:
            where = options.keep / name.replace(" ", "-") if options.keep else Path(folder) / "fuzz"
            command = [sys.executable, "-m", "bench.fuzz", "--inside", str(where), "--target", name]
            done = subprocess.run([*command, "--runs", str(options.runs)], capture_output=True, text=True)
        failed += done.returncode != 0
        table.add_row(name, f"{options.runs:,}", "0" if done.returncode == 0 else _last_words(done.stderr))
    console.print(table)
    return 1 if failed else 0


def _last_words(log: str) -> str:
    lines = log.splitlines()
    told = next((n for n, line in enumerate(lines) if "Uncaught Python exception" in line), None)
    said = lines if told is None else lines[told + 1 :]
    return (said or ["it ended without a word"])[0][:300]


if __name__ == "__main__":
    sys.exit(main())
