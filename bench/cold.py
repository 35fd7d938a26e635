"""Cold starts and warm events of the four functions, each beside its floor: the same work by boto3 alone.

Every start is a fresh interpreter that has on its path what it has in Lambda: the code as it is shipped, and Powertools
and boto3 with their bytecode. It keeps no bytecode, as it could not in Lambda."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from sysconfig import get_path

from bench.tapes import Tape
from stacks.parts.code import fill

LONE = Path(__file__).parent / "lone.py"
REGION = "eu-west-1"
WARM_EVERY = 3  # each handles a hundred events
SHIPPED, SOURCES = "as shipped", "sources alone"


@dataclass(frozen=True, slots=True)
class Start:
    """What a fresh interpreter is to do: see `bench.lone`; `in_lambda` says that it believes to be there."""

    what: str
    name: str
    tape: str = "-"
    code: str = SHIPPED
    in_lambda: bool = False


@dataclass(frozen=True, slots=True)
class Figures:
    """Milliseconds of CPU (of the quickest of many starts), but `wall`, which is time: ours, and the floor's."""

    name: str
    function: str
    service: str
    imported: float
    sources: float
    client: float
    ready: float
    first: float
    bare_ready: float
    bare_first: float
    warm: float
    bare: float
    wall: float
    bare_wall: float
    calls: int


class Stage:
    """The folders that a start has on its path."""

    def __init__(self, folder: Path, tapes: Mapping[str, Tape]) -> None:
        self._folder, self._tapes = folder, tapes
        fill(folder / SHIPPED, sys.executable)
        fill(folder / SOURCES, None)
        for name, tape in tapes.items():
            tape.write(folder / f"{name}.tape")

    def start(self, start: Start) -> list[float]:
        """What one fresh interpreter measured, in seconds."""
        out = self._folder / "out"
        tape = self._folder / f"{start.tape}.tape"
        command = [sys.executable, "-S", "-P", str(LONE), start.what, start.name, str(tape), str(out)]
        done = subprocess.run(
            command, env=self._environment(start), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        if done.returncode:
            raise RuntimeError(f"{start}: {done.stderr[-2000:]}")
        return [float(number) for number in out.read_text().split()]

    def _environment(self, start: Start) -> dict[str, str]:
        of_the_function = self._tapes[start.tape].settings if start.tape in self._tapes else {}
        place = {"AWS_LAMBDA_FUNCTION_NAME": start.name} if start.in_lambda else {}
        return {
            **of_the_function,
            **place,
            "PATH": os.environ.get("PATH", os.defpath),
            "PYTHONPATH": os.pathsep.join([str(self._folder / start.code), get_path("purelib")]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "LAMBDA_TASK_ROOT": "/var/task",
            "POWERTOOLS_SERVICE_NAME": start.name,
            "POWERTOOLS_METRICS_NAMESPACE": "Rerail",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": "none",
            "AWS_SECRET_ACCESS_KEY": "none",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }


def measured(
    folder: Path, tapes: Mapping[str, Tape], *, starts: int, tick: Callable[[], None] = lambda: None
) -> list[Figures]:
    """The figures of every function; the kinds of start take turns, so that a busy minute strikes all of them."""
    stage = Stage(folder, tapes)
    plans = {name: _plan(tape) for name, tape in tapes.items()}
    seconds: dict[tuple[str, str], list[list[float]]] = {}
    for number in range(starts):
        for name, plan in plans.items():
            for kind, start in plan.items():
                if kind != "warm" or number % WARM_EVERY == 0:
                    seconds.setdefault((name, kind), []).append(stage.start(start))
            tick()
    return [_figures(name, tape, seconds) for name, tape in tapes.items()]


def _plan(tape: Tape) -> dict[str, Start]:
    name = tape.function
    return {
        "imported": Start("import", name),
        "sources": Start("import", name, code=SOURCES),
        "client": Start("client", tape.services[0]),
        "first": Start("first", name, tape=tape.name, in_lambda=True),
        "first bare": Start("first bare", name, tape=tape.name),
        "warm": Start("warm", name, tape=tape.name, in_lambda=True),
    }


def _figures(name: str, tape: Tape, seconds: Mapping[tuple[str, str], list[list[float]]]) -> Figures:
    def least(kind: str, part: int = 0) -> float:
        return 1000 * min(each[part] for each in seconds[name, kind])

    def usual(part: int) -> float:
        return 1000 * median(each[part] for each in seconds[name, "warm"])

    return Figures(
        name=name,
        function=tape.function,
        service=tape.services[0],
        imported=least("imported"),
        sources=least("sources"),
        client=least("client"),
        ready=least("first"),
        first=least("first", 1),
        bare_ready=least("first bare"),
        bare_first=least("first bare", 1),
        warm=usual(0),
        bare=usual(1),
        wall=usual(2),
        bare_wall=usual(3),
        calls=len(tape.calls),
    )


def shipped_bytes(folder: Path) -> Iterator[tuple[str, int]]:
    """How large the zip of the code is, by whether it carries bytecode."""
    from local.deploy import zipped

    for code in (SHIPPED, SOURCES):
        yield code, len(zipped(folder / code))
