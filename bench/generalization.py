"""Estimate detection quality on unseen sources: `python -m bench.generalization`.

The thresholds were chosen with the logs of the corpus in view, so its figures are optimistic. Here the thresholds are
chosen again for each source, from variations of the defaults, by all other sources, and its logs are scored with those
(leave one source out). The difference from the best choice with all sources in view is what the tuning gains
in-sample. It does not include the choice of the rules themselves.
"""

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cli.backtest.corpus import BadCorpus, LogCorpus, read_corpus, read_log
from cli.backtest.scoring import Call, Labelled, Score, as_calls, measures, score
from cli.parallel import spread
from rerail.detection.detectors import evaluate_series
from rerail.model.thresholds import Thresholds

HERE = Path(__file__).resolve().parent
SEED = 11
# A smaller and a larger value of each threshold that was tuned.
VARIED: Mapping[str, tuple[float, float]] = {
    "spike_noise": (0.8, 1.25),
    "spike_sure": (0.7, 1.4),
    "history_up_factor": (0.8, 1.25),
    "rise_noise": (0.8, 1.25),
    "rise_tolerated": (0.75, 1.4),
    "run_share": (0.8, 1.25),
    "throughput_drop": (0.7, 1.4),
}
# Of all thresholds at once, beside one at a time.
MIXTURES = 12
# What a false alarm and a wrong intervention per 100,000 rows cost, in recall of loss events.
FALSE_ALARM_COST, WRONG_COST = 0.02, 0.5


@dataclass(frozen=True, slots=True)
class CandidateTask:
    """One log to be judged with each candidate."""

    file: Path
    run: Labelled
    candidates: tuple[Thresholds, ...]


@dataclass(frozen=True, slots=True)
class Calls:
    """The findings on one log, by candidate."""

    run: Labelled
    by_candidate: tuple[tuple[Call, ...], ...]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the quality with the defaults, with the best candidate, and with the source left out."""
    parser = argparse.ArgumentParser(prog="python -m bench.generalization", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--corpus", type=Path, default=HERE / "corpus", help="a folder with index.csv and runs/")
    parser.add_argument("--json", type=Path, help="write every number to this file")
    options = parser.parse_args(argv)
    try:
        corpus = read_corpus(options.corpus)
        judged = list(judge_all(corpus, make_candidates()))
    except BadCorpus as error:
        print(f"bench.generalization: {error}", file=sys.stderr)
        return 2
    if len({calls.run.group for calls in judged}) < 2:
        print(f"bench.generalization: {options.corpus}: needs logs of two sources, one to leave out", file=sys.stderr)
        return 2
    scores = compare(judged)
    console = Console()
    console.print(make_table(scores))
    if options.json:
        options.json.write_text(
            json.dumps({name: measures(result) for name, result in scores.items()}, indent=1) + "\n"
        )
    return 0


def make_candidates() -> tuple[Thresholds, ...]:
    """Return the defaults, then each tuned threshold smaller and larger, then mixtures of all."""
    base, draw = Thresholds(), random.Random(SEED)
    one_at_a_time = [(name, factor) for name, factors in VARIED.items() for factor in factors]
    mixtures = [{name: draw.choice((*factors, 1.0)) for name, factors in VARIED.items()} for _ in range(MIXTURES)]
    changes = [{}, *({name: factor} for name, factor in one_at_a_time), *mixtures]
    return tuple(
        replace(base, **{name: getattr(base, name) * factor for name, factor in change.items()}) for change in changes
    )


def judge_all(corpus: LogCorpus, candidates: tuple[Thresholds, ...]) -> Iterator[Calls]:
    """Yield the findings on each log, the longest logs first."""
    longest_first = sorted(corpus.runs, key=lambda run: -run.rows)
    return spread(judge, [CandidateTask(corpus.file(run), run, candidates) for run in longest_first])


def judge(task: CandidateTask) -> Calls:
    """Return the findings on one log by each candidate."""
    samples = read_log(task.file)
    return Calls(
        task.run,
        tuple(
            tuple(as_calls(evaluate_series(samples, thresholds), unscored=Counter())) for thresholds in task.candidates
        ),
    )


def compare(judged: Sequence[Calls]) -> dict[str, Score]:
    """Return the scores with the defaults, with the best candidate of all sources, and with each source left out."""
    groups = sorted({calls.run.group for calls in judged})
    chosen = {group: choose([calls for calls in judged if calls.run.group != group]) for group in groups}
    best = choose(judged)
    return {
        "defaults": _score(judged, lambda _: 0),
        "best candidate, all sources in view": _score(judged, lambda _: best),
        "chosen without the source": _score(judged, chosen.__getitem__),
    }


def choose(judged: Sequence[Calls]) -> int:
    """Return the index of the candidate with the best quality on these logs."""
    return max(
        range(len(judged[0].by_candidate)),
        key=lambda index: quality(_score(judged, lambda _: index)),
    )


def quality(result: Score) -> float:
    """Return the recall of loss and throughput events, less the cost of false alarms and wrong interventions."""
    recall = sum(result.families[family].macro for family in ("loss", "throughput") if family in result.families)
    wrong = WRONG_COST * result.per_100k(result.wrong)
    return recall - FALSE_ALARM_COST * result.per_100k(result.false_alarms) - wrong


def _score(judged: Sequence[Calls], candidate_of: Callable[[str], int]) -> Score:
    """Return the score of the logs; `candidate_of` is the candidate by which a source is judged."""
    calls = {found.run.id: found.by_candidate[candidate_of(found.run.group)] for found in judged}
    return score([found.run for found in judged], calls)


def make_table(scores: Mapping[str, Score]) -> Table:
    """Return a table with a row for each way to choose the thresholds."""
    table = Table("thresholds", title="Recall is macro; alarms and wrong interventions per 100k rows")
    for heading in ("loss", "throughput", "false alarms", "wrong interventions"):
        table.add_column(heading, justify="right")
    for name, result in scores.items():
        recalls = [
            f"{result.families[family].macro:.2f}" if family in result.families else "-"
            for family in ("loss", "throughput")
        ]
        rates = [f"{result.per_100k(count):.1f}" for count in (result.false_alarms, result.wrong)]
        table.add_row(name, *recalls, *rates)
    return table


if __name__ == "__main__":
    sys.exit(main())
