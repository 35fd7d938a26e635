"""How fast the functions are beside what they cannot do without: `python -m bench.speed [--evidence FILE]`.

Cold starts and warm events beside boto3 alone; the way from a job's death to its successor, and from a finding to a
stop, in the deployed stack; and the detectors beside the published rules in numpy. What the agent adds to a training
step is measured by `bench.agent`.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench import cold, rates, reaction, tapes
from bench.cold import SHIPPED, Figures
from bench.evidence import Cell, Evidence, Goal, Sheet, finish
from bench.logs import BadCorpus, read_corpus
from bench.rates import Rate
from bench.reaction import Handshake, Relaunch

CORPUS = Path(__file__).parent / "corpus"
PARTS = ("cold", "reaction", "rates")
CLAIM = (
    "What Rerail's functions add to the AWS calls that they make is small, cold and warm, and a run's new minute is "
    "judged in less than a tenth of a millisecond."
)
IMPORT_GOAL, ZIP_GOAL, FULL_GOAL, FLEET_GOAL_MS, STOP_GOAL_S = 1.1, 1_048_576, 1 / 30, 10.0, 5.0
LEAST_ROWS, MOST_ROWS, LOGS = 600, 3_000, 12
TIMES = ("until_taken", "of_it_start", "reads", "own", "writes", "creates", "total")  # of a relaunch, as they are shown
Ticks = Callable[[], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """The benchmark; returns the exit status."""
    options = _options(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=160)
    sheets: list[Sheet] = []
    goals: list[Goal] = []
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress, tempfile.TemporaryDirectory() as folder:
        for part in options.part or PARTS:
            task = progress.add_task(SAYS[part], total=None)

            def tick(task: object = task) -> None:
                progress.advance(task)  # type: ignore[arg-type]

            try:
                found = MEASURES[part](options, Path(folder) / part, tick)
            except BadCorpus as error:
                console.print(f"error: {error}", markup=False)
                return 2
            sheets += found[0]
            goals += found[1]
    return finish(Evidence(CLAIM, tuple(sheets), tuple(goals), NOTES), options.evidence, console)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.speed", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--evidence", type=Path, help="what it shows, as a file for docs/proof.md")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; may be given again")
    parser.add_argument("--starts", type=int, default=9, help="fresh interpreters of each kind")
    parser.add_argument(
        "--deaths", type=int, default=8, help="jobs that die in the deployed stack, every other one cold"
    )
    parser.add_argument("--handshakes", type=int, default=3, help="jobs that save before they are stopped")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in which the detectors take turns")
    parser.add_argument("--logs", type=int, default=LOGS, help="training logs of the corpus that are judged")
    options = parser.parse_args(arguments)
    for name in ("starts", "deaths", "handshakes", "rounds", "logs"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: must be at least 1")
    return options


Found = tuple[list[Sheet], list[Goal]]


def of_starts(options: argparse.Namespace, folder: Path, tick: Ticks) -> Found:
    """Fresh interpreters, each kind in turn."""
    folder.mkdir()
    figures = cold.measured(folder, tapes.record(), starts=options.starts, tick=tick)
    return shown_starts(figures, dict(cold.shipped_bytes(folder)))


def shown_starts(figures: Sequence[Figures], sizes: dict[str, int]) -> Found:
    """Tables and goals of cold starts and warm events."""
    plain = [each for each in figures if each.name == each.function]
    imports = Sheet(
        "Import of a function, CPU milliseconds from the interpreter's start",
        ("function", "floor: boto3 and a client of", "floor", "with bytecode", "x floor", "sources alone", "x floor"),
        tuple(
            (e.name, e.service, e.client, e.imported, e.imported / e.client, e.sources, e.sources / e.client)
            for e in plain
        ),
        words=2,
    )
    first = Sheet(
        "From nothing to the first event handled, CPU milliseconds; the floor makes the same calls by boto3 alone",
        ("event", "calls", "ready", "floor", "x floor", "handled", "floor", "x floor"),
        tuple(
            (f"{e.function}: {tapes.EVENTS[e.name][1]}", e.calls, e.ready, e.bare_ready, e.ready / e.bare_ready)
            + (e.first, e.bare_first, e.first / e.bare_first)
            for e in figures
        ),
    )
    warm = Sheet(
        "An event handled by a warm function, milliseconds (medians); the floor makes the same calls by boto3 alone",
        ("event", "CPU", "floor", "x floor", "time", "floor", "x floor"),
        tuple(
            (f"{e.function}: {tapes.EVENTS[e.name][1]}", e.warm, e.bare, e.warm / e.bare)
            + (e.wall, e.bare_wall, e.wall / e.bare_wall)
            for e in figures
        ),
    )
    worst = max(plain, key=lambda each: each.imported / each.client)
    times = worst.imported / worst.client
    goals = [
        Goal(
            "a function's import beside boto3 and one client",
            f"at most {IMPORT_GOAL:g} x",
            f"{times:.2f} x ({worst.name})",
            times <= IMPORT_GOAL,
        ),
        Goal(
            "the zip of the functions' code, with its bytecode",
            f"at most {ZIP_GOAL / 2**20:g} MiB",
            f"{sizes[SHIPPED] / 2**20:.2f} MiB",
            sizes[SHIPPED] <= ZIP_GOAL,
        ),
    ]
    return [imports, first, warm], goals


def of_reactions(options: argparse.Namespace, folder: Path, tick: Ticks) -> Found:
    """Deaths and handshakes in the deployed stack."""
    folder.mkdir()
    with reaction.stand(folder) as stand:
        relaunches, handshakes = [], []
        for number in range(options.deaths):
            relaunches.append(stand.die(f"death-{number}", cold=number % 2 == 0))
            tick()
        for number in range(options.handshakes):
            handshakes.append(stand.shake_hands(f"handshake-{number}"))
            tick()
    return shown_reactions(relaunches, handshakes)


def shown_reactions(relaunches: Sequence[Relaunch], handshakes: Sequence[Handshake]) -> Found:
    """Where the time goes; medians, in milliseconds."""
    kinds = {True: "a fresh worker", False: "a warm worker"}
    rows: list[tuple[Cell, ...]] = []
    for is_cold, name in kinds.items():
        if chosen := [each for each in relaunches if each.cold is is_cold]:

            def usual(field: str, of: Sequence[Relaunch] = chosen) -> float:
                return 1000 * float(median(getattr(each, field) for each in of))

            rows.append((name, len(chosen), *map(usual, TIMES)))
    death = Sheet(
        "From a job's end to its successor in the local stack, milliseconds (medians)",
        ("taken up by", "deaths", "event and queue", "of it the worker's start", "reads", "own code", "writes")
        + ("CreateTrainingJob", "in all"),
        tuple(rows),
    )
    steps = {
        "asked": "the command is in the mailbox",
        "durable": "the checkpoint is safe",
        "stopped": "StopTrainingJob",
    }
    times = {name: [1000 * getattr(each, name) for each in handshakes] for name in steps}
    shake = Sheet(
        f"From an agent's finding to the stop, milliseconds ({len(handshakes)} handshakes)",
        ("until", "median", "at most"),
        tuple((said, median(times[name]), max(times[name])) for name, said in steps.items()),
    )
    late = max(each.stopped - each.durable for each in handshakes)
    goal = Goal(
        "from the checkpoint's safety to the stop",
        f"at most {STOP_GOAL_S:g} s",
        f"{late:.2f} s at most",
        late <= STOP_GOAL_S,
    )
    return [death, shake], [goal]


def of_detectors(options: argparse.Namespace, folder: Path, tick: Ticks) -> Found:
    """The corpus's longest logs, and a fleet of them."""
    logs = rates.losses_of(read_corpus(CORPUS), least=LEAST_ROWS, most=MOST_ROWS)
    logs = sorted(logs, key=len, reverse=True)[: options.logs]
    return shown_rates(
        rates.of_histories(logs, options.rounds, tick), rates.of_a_fleet(logs, options.rounds, tick=tick)
    )


def shown_rates(histories: dict[str, Rate], fleet: dict[str, Rate]) -> Found:
    """Points a second, and what a minute of a thousand runs takes."""
    ours = histories[rates.OURS].per_second
    whole = Sheet(
        "Whole histories of the corpus: points a second on one core",
        ("rule", "points/s", "x ours"),
        tuple((each.name, round(each.per_second), _short(each.per_second / ours)) for each in histories.values()),
    )
    new = fleet[rates.OURS]
    minute = Sheet(
        f"One new minute of {new.points:,} runs: CPU",
        ("what", "us a run", "x ours"),
        tuple((each.name, _short(each.us), _short(each.us / new.us)) for each in fleet.values()),
    )
    share = new.us / fleet[rates.WHOLE].us
    goals = [
        Goal("a new minute beside all three hours anew", "at most 1/30", f"1/{1 / share:.0f}", share <= FULL_GOAL),
        Goal(
            f"a new minute of {new.points:,} runs, all eight detectors",
            f"at most {FLEET_GOAL_MS:g} ms",
            f"{1000 * new.seconds:.0f} ms",
            1000 * new.seconds <= FLEET_GOAL_MS,
        ),
    ]
    return [whole, minute], goals


def _short(number: float) -> float:
    """Three digits of it: what is left out is noise."""
    return float(f"{number:.3g}")


MEASURES: dict[str, Callable[[argparse.Namespace, Path, Ticks], Found]] = {
    "cold": of_starts,
    "reaction": of_reactions,
    "rates": of_detectors,
}
SAYS = {
    "cold": "fresh interpreters",
    "reaction": "deaths and handshakes in the local stack",
    "rates": "detectors beside published rules",
}
NOTES = (
    "All figures of a table are measured in one run, the kinds in turns; CPU is that of the quickest of many "
    "starts. Ratios carry over to other machines, milliseconds do not: Lambda has another processor.",
    "Cold starts and warm events have their answers from a tape that was recorded in a pretend account, so that "
    "nothing but the function's own work is in them: no network and no TLS. What a call costs on the way is the "
    "same for the floor. boto3 and Powertools have their bytecode, as the runtime's and a layer's may; the code "
    "of the functions is measured with and without its own.",
    "What an import takes beyond boto3 is mostly Python making the hundred dataclasses that the core is written in, "
    "and reading bytecode; Powertools is a few milliseconds of it.",
    "`ready` is a function as Lambda leaves it before its first event: imported, with the clients that it is "
    "going to need. Lambda gives that phase more CPU than 512 MB of memory buy afterwards.",
    "In the local stack a call takes a few milliseconds, and the queue is polled by the emulator; in AWS a call "
    "takes some tens, and a queue's pollers wait for messages. The worker's start includes unpacking its code, "
    "which the emulator compiles anew each time.",
    "The numpy rules are the same rules, and a test holds them to the same calls; they have one question each "
    "where ours are eight. numpy would add a quarter of a second and 15 MB to a cold start.",
    "What the agent adds to a training step is measured by `python -m bench.agent`; see [training](training.md).",
)


if __name__ == "__main__":
    sys.exit(main())
