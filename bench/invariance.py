"""Measure whether findings depend on how a log was printed: `python -m bench.invariance`.

Faults of known size are injected into healthy real logs, and each log is rewritten as many loggers would print it. The
same fault must be found and acted on whatever the logger, and no healthy run may be stopped.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median

from rich.console import Console
from rich.table import Table

from bench.floor import BadFloor, read_floors, shortfalls
from bench.injected import FAULTS, FROZEN, HEALTHY, Fault, inject
from bench.loggers import LOGGERS, MINUTES, Logger, PrintedRow
from cli.backtest.corpus import BadCorpus, LogCorpus, read_corpus, read_log
from cli.backtest.scoring import INTERVENE, Call, Label, as_calls, merged
from cli.parallel import spread
from rerail.detection.detectors import evaluate_series
from rerail.model.sample import Sample
from rerail.model.thresholds import Thresholds

HERE = Path(__file__).resolve().parent
ALL_LOGGERS = "all loggers"
SEED = 20
LEAST_ROWS, MOST_ROWS = 800, 2400
# These loggers print fewer rows than the log has, so that they need longer ones.
THINNED = {MINUTES, "every 10th", "means of 10"}
MOST_THINNED_ROWS = 20000
# A log with fewer printed rows is too short to judge: the patience for a divergence alone is 80.
LEAST_PRINTED_ROWS = 200
RUNS_PER_GROUP = 2
# A log without step times gets times that vary by this much.
STEP_S, STEP_NOISE = 0.5, 0.04
# These loggers hide that a loss is frozen: means go on changing, and each rank prints a loss of its own.
HIDE_FREEZING = {"epoch means", "smoothed", "two ranks"}
# These logs print running means themselves: no fault of a plain value would look like that in them.
RUNNING_MEANS = {"1490780232-001", "gluon-015", "gluon-023", "gluon-024", "gluon-026", "gluon-028", "reddyn12-003"}
ONE_DECIMAL, ONE_DECIMAL_NEEDS = "1 decimal", 1.0


@dataclass(frozen=True, slots=True)
class Trial:
    """One log, printed by one logger; each fault is injected in turn."""

    file: Path
    run: str
    logger: int


@dataclass(slots=True)
class Outcomes:
    """The results for the logs of one logger, by fault."""

    logs: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    acted: Counter[str] = field(default_factory=Counter)
    # Logs with an intervention outside lasting faults.
    stopped: Counter[str] = field(default_factory=Counter)
    delays: dict[str, list[int]] = field(default_factory=dict)
    false_alarms: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    cpu_s: float = 0.0
    # Where and what the false alarms and wrong interventions were, for diagnosis.
    details: list[str] = field(default_factory=list)

    def add(self, other: "Outcomes") -> None:
        """Add another log's outcomes."""
        for kind in ("logs", "found", "acted", "stopped", "false_alarms"):
            getattr(self, kind).update(getattr(other, kind))
        for fault, delays in other.delays.items():
            self.delays.setdefault(fault, []).extend(delays)
        self.rows += other.rows
        self.cpu_s += other.cpu_s
        self.details += other.details

    def share(self, counts: Counter[str], faults: Sequence[str]) -> float | None:
        """Return the share of the faults' logs that are counted; None if there is no such log."""
        logs = sum(self.logs[fault] for fault in faults)
        return sum(counts[fault] for fault in faults) / logs if logs else None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return the exit status."""
    options = _options(argv)
    console = Console() if sys.stdout.isatty() else Console(width=190)
    began = time.perf_counter()
    try:
        floors = read_floors(options.floor, contenders=(ALL_LOGGERS,)) if options.floor else {}
        trials = choose_trials(read_corpus(options.corpus), most=options.logs, loggers=options.logger)
    except (BadCorpus, BadFloor) as error:
        print(f"bench.invariance: {error}", file=sys.stderr)
        return 2
    outcomes = {logger.name: Outcomes() for logger in LOGGERS}
    for logger, outcome in spread(run_trial, trials):
        outcomes[logger].add(outcome)
    console.print(_table(outcomes, logs=len({trial.run for trial in trials})))
    if options.details:
        for logger, outcome in outcomes.items():
            for line in outcome.details:
                print(logger, line, sep="\t")
    if options.json:
        options.json.write_text(json.dumps({name: as_json(o) for name, o in outcomes.items()}, indent=1) + "\n")
    worse = shortfalls({ALL_LOGGERS: measure(outcomes)}, floors)
    for line in worse:
        console.print(f"worse than {options.floor.name}: {line}", style="red", highlight=False)
    rows, cpu_s = sum(o.rows for o in outcomes.values()), sum(o.cpu_s for o in outcomes.values())
    print(f"{rows:,} rows, {rows / cpu_s:,.0f} rows a second per core, {time.perf_counter() - began:.1f} s in all")
    return 1 if worse else 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    options = argparse.ArgumentParser(prog="python -m bench.invariance", description=(__doc__ or "").splitlines()[0])
    options.add_argument("--corpus", type=Path, default=HERE / "corpus", help="a folder with index.csv and runs/")
    options.add_argument("--logs", type=int, default=100, help="at most this many healthy logs")
    options.add_argument("--logger", action="append", help="only this logger; may be repeated")
    options.add_argument("--json", type=Path, help="write every number to this file")
    options.add_argument("--floor", type=Path, help="exit with status 1 if a measure is worse than this file says")
    options.add_argument("--details", action="store_true", help="print each false alarm and wrong intervention")
    return options.parse_args(argv)


def choose_trials(corpus: LogCorpus, *, most: int, loggers: Sequence[str] | None = None) -> list[Trial]:
    """Return trials on logs without any label, at most two of a group, in a seeded order."""
    per_group: Counter[str] = Counter()
    chosen = []
    plain = (run for run in corpus.runs if not run.labels and run.id not in RUNNING_MEANS)
    healthy = sorted((run for run in plain if run.rows >= LEAST_ROWS), key=lambda run: run.id)
    random.Random(SEED).shuffle(healthy)
    for run in healthy:
        source = run.group.split("/")[0]
        if per_group[source] < RUNS_PER_GROUP:
            per_group[source] += 1
            chosen.append(run)
    if not chosen:
        raise BadCorpus(
            f"no log has {LEAST_ROWS} rows and no label", "the bench injects faults into healthy logs: add one"
        )
    return [
        Trial(corpus.file(run), run.id, logger)
        for run in chosen[:most]
        for logger in range(len(LOGGERS))
        if not loggers or LOGGERS[logger].name in loggers
    ]


def run_trial(trial: Trial) -> tuple[str, Outcomes]:
    """Return the logger's name and the outcomes of one log."""
    logger = LOGGERS[trial.logger]
    outcomes = Outcomes()
    samples = prepare(read_log(trial.file), trial.run, most=MOST_THINNED_ROWS if logger.name in THINNED else MOST_ROWS)
    if len(samples) < LEAST_ROWS or not _is_shown(logger, samples):
        return logger.name, outcomes
    for fault in FAULTS:
        if fault.name == FROZEN and logger.name in HIDE_FREEZING or fault.needs_rows > 0.4 * len(samples):
            continue
        seed = f"{SEED} {trial.run} {fault.name}"
        injected = inject(fault, samples, random.Random(seed))
        printed = tuple(logger.rewrite(injected.samples, random.Random(seed + logger.name)))
        if len(printed) < LEAST_PRINTED_ROWS:
            continue
        labels = [_move(replace(label, end=label.end + logger.memory_rows), printed) for label in injected.labels]
        _evaluate(outcomes, fault, printed, labels, trial.run)
    return logger.name, outcomes


def prepare(samples: Sequence[Sample], run: str, *, most: int) -> list[Sample]:
    """Return the first rows that have a positive loss, with step times: the log's own, or seeded ones."""
    rng = random.Random(f"{SEED} {run}")
    kept = [sample for sample in samples if sample.loss is not None and sample.loss > 0][:most]
    timed = sum(bool(sample.step_time_s) for sample in kept) > 0.9 * len(kept)
    return [
        Sample(
            step=sample.step if sample.step is not None else row,
            loss=sample.loss,
            step_time_s=sample.step_time_s if timed else STEP_S * rng.lognormvariate(0, STEP_NOISE),
        )
        for row, sample in enumerate(kept)
    ]


def _is_shown(logger: Logger, samples: Sequence[Sample]) -> bool:
    return logger.name != ONE_DECIMAL or median(sample.loss or 0.0 for sample in samples) >= ONE_DECIMAL_NEEDS


def _evaluate(
    outcomes: Outcomes, fault: Fault, printed: Sequence[PrintedRow], labels: Sequence[Label], run: str
) -> None:
    began = time.process_time()
    findings = list(evaluate_series((row.sample for row in printed), Thresholds()))
    outcomes.cpu_s += time.process_time() - began
    calls = as_calls(findings, unscored=Counter())
    outcomes.rows += len(printed)
    outcomes.logs[fault.name] += 1
    counted, lasting = [label for label in labels if label.counts], [label for label in labels if label.lasts]
    if hits := [call.row for call in calls for label in counted if label.found_by(call)]:
        outcomes.found[fault.name] += 1
        outcomes.delays.setdefault(fault.name, []).append(max(0, min(hits) - counted[0].onset))
    stops = [call for call in calls if call.level == INTERVENE]
    has_acted = len(_list_far(stops, set(counted) & set(lasting))) < len(stops)
    outcomes.acted[fault.name] += has_acted
    wrong, false = _list_far(stops, lasting), _list_far(calls, labels)
    outcomes.stopped[fault.name] += bool(wrong)
    outcomes.false_alarms[fault.name] += merged(call.row for call in false)
    details = [("stopped", call.row, str(call.kind)) for call in wrong]
    details += [("false", call.row, str(call.kind)) for call in false]
    details += [("missed", counted[0].onset, str(len(printed)))] if counted and not hits else []
    details += [("not acted", counted[0].onset, str(len(printed)))] if fault.must_stop and not has_acted else []
    outcomes.details += [f"{run}\t{fault.name}\t{what}\t{row}\t{more}" for what, row, more in details]


def _list_far(calls: Sequence[Call], labels: Collection[Label]) -> list[Call]:
    """Return the calls that are near none of the labels."""
    return [call for call in calls if not any(label.near(call.row) for label in labels)]


def _move(label: Label, printed: Sequence[PrintedRow]) -> Label:
    """Return the label with the printed rows of its onset and end."""
    onset = next((place for place, row in enumerate(printed) if row.row >= label.onset), len(printed) - 1)
    end = next((place for place, row in enumerate(printed) if row.row >= label.end), len(printed) - 1)
    return Label(label.kind, onset, end, label.score, label.recovered)


COLUMNS = (
    ("found\nx1.3", "found", ("lasting x1.3",)),
    ("found\nx2 x5 x10", "found", ("lasting x2", "lasting x5", "lasting x10")),
    ("found\nrecovers x1.3", "found", ("recovers x1.3",)),
    ("found\nrecovers x2 x5", "found", ("recovers x2", "recovers x5")),
    ("found\nslower", "found", ("slower x1.3", "slower x2", "creeping x1.5")),
    ("acted\nx1.3", "acted", ("lasting x1.3",)),
    ("acted\nx2", "acted", ("lasting x2",)),
    ("acted\nx5 x10", "acted", ("lasting x5", "lasting x10")),
    ("acted\nramp", "acted", ("ramp to x3",)),
    ("acted\nNaN", "acted", ("NaN",)),
    ("acted\nfrozen", "acted", ("frozen",)),
    ("acted\nslower", "acted", ("slower x1.3", "slower x2")),
    ("acted\ncreeping", "acted", ("creeping x1.5",)),
)
RECOVERING = tuple(fault.name for fault in FAULTS if fault.rows is not None)


def _table(outcomes: dict[str, Outcomes], *, logs: int) -> Table:
    table = Table("logger", title=f"{logs} healthy logs, {len(FAULTS) - 1} faults", title_justify="left")
    for heading, _, _ in COLUMNS:
        table.add_column(heading, justify="right")
    for heading in ("healthy\nstopped", "recovering\nstopped", "false alarms\nper 100k", "loss delay\nmedian"):
        table.add_column(heading, justify="right")
    for name, outcome in outcomes.items():
        cells = [outcome.share(getattr(outcome, counts), faults) for _, counts, faults in COLUMNS]
        delays = [delay for fault in ("lasting x2", "lasting x5") for delay in outcome.delays.get(fault, ())]
        others = sum(outcome.stopped[f.name] for f in FAULTS if f.name not in RECOVERING and f is not HEALTHY)
        table.add_row(
            name,
            *("-" if cell is None else f"{cell:.2f}".removeprefix("0") for cell in cells),
            f"{outcome.stopped[HEALTHY.name]}+{others}",
            str(sum(outcome.stopped[fault] for fault in RECOVERING)),
            f"{_false_per_100k(outcome):.1f}",
            f"{median(delays):.0f}" if delays else "-",
        )
    return table


def measure(outcomes: dict[str, Outcomes]) -> dict[str, float]:
    """Return what is claimed, over all loggers together."""
    per_step = [outcome for name, outcome in outcomes.items() if name not in THINNED]
    lasting = [fault.name for fault in FAULTS if fault.must_stop and fault.kind == "divergence"]
    slower = [fault.name for fault in FAULTS if fault.must_stop and fault.kind == "throughput_drop"]
    rows = sum(outcome.rows for outcome in outcomes.values())
    return {
        "lasting rises acted on": _mean_share(per_step, lasting),
        "slowdowns acted on": _mean_share(per_step, slower),
        "NaN acted on": _mean_share(per_step, ["NaN"]),
        "healthy runs stopped": sum(sum(outcome.stopped.values()) for outcome in outcomes.values()),
        "false alarms per 100k rows": 1e5 * sum(sum(o.false_alarms.values()) for o in outcomes.values()) / (rows or 1),
    }


def _mean_share(outcomes: Sequence[Outcomes], faults: Sequence[str]) -> float:
    shares = [share for outcome in outcomes if (share := outcome.share(outcome.acted, faults)) is not None]
    return fmean(shares) if shares else 0.0


def _false_per_100k(outcome: Outcomes) -> float:
    return 1e5 * sum(outcome.false_alarms.values()) / outcome.rows if outcome.rows else 0.0


def as_json(outcome: Outcomes) -> dict[str, object]:
    """Return the outcomes as plain data."""
    return {
        "false_alarms_per_100k_rows": round(_false_per_100k(outcome), 3),
        "healthy_stopped": outcome.stopped[HEALTHY.name],
        "faults": {
            fault.name: {
                "logs": outcome.logs[fault.name],
                "found": outcome.found[fault.name],
                "acted": outcome.acted[fault.name],
                "wrongly_stopped": outcome.stopped[fault.name],
                "delay_rows": fmean(outcome.delays[fault.name]) if outcome.delays.get(fault.name) else None,
            }
            for fault in FAULTS
        },
    }


if __name__ == "__main__":
    sys.exit(main())
