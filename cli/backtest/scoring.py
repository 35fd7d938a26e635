"""Score findings on labelled logs: recall, delay, false alarms and wrong interventions.

A finding is made at a row, from that row and earlier ones; a label spans the rows of one event.

recall          of the labels that count, by family: a finding of the family from 2 rows before the onset to 10 rows
                after the end finds the event. Macro is the mean over groups of the mean over runs, because a few runs
                have most spikes.
delay           from the onset to the first finding that finds it, in rows, never below 0; of found events only.
false alarms    findings of any family and level that lie more than 10 rows from every label, whatever its score; those
                within 50 rows of the last one are one alarm.
interventions   right within 10 rows of an event that counts and never recovered by itself; otherwise wrong beside one
                that recovered by itself, or beside none; otherwise neutral. Merged like false alarms, each verdict for
                itself.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from rerail.model.finding import Finding

FAMILIES = {
    "loss_spike": "loss",
    "divergence": "loss",
    "nan": "non_finite",
    "non_finite": "non_finite",
    "plateau": "plateau",
    "frozen_loss": "plateau",
    "throughput_drop": "throughput",
    "stall": "throughput",
}
# A gradient that is NaN under a loss of exactly 0.0 may be found by what each of these says.
FINDS = {
    "loss": {"loss"},
    "non_finite": {"non_finite", "loss", "plateau"},
    "plateau": {"plateau", "non_finite"},
    "throughput": {"throughput"},
}
# How a finding of ours is called in these terms, where it is called differently. Kinds in neither table (a precursor in
# the gradient, absent metrics, a wait for machines) say nothing that a label could confirm or deny: they do not count.
SCORED_AS = {"startup_stall": "stall", "checkpoint_stall": "stall"}
WARN, INTERVENE = "warn", "intervene"
ROWS_BEFORE, ROWS_AFTER, ROWS_MERGED = 2, 10, 50


@dataclass(frozen=True, slots=True)
class Call:
    """A finding as it is scored: the row at which it was spoken, what it claims, and how far it goes."""

    row: int
    kind: str
    level: str = WARN

    @property
    def family(self) -> str:
        return FAMILIES[self.kind]


@dataclass(frozen=True, slots=True)
class Label:
    """One event that a person found in a log: its rows, both included, and whether it must be found."""

    kind: str
    onset: int
    end: int
    score: str = "count"
    recovered: str = "yes"

    @property
    def counts(self) -> bool:
        return self.score == "count"

    @property
    def lasts(self) -> bool:
        """It counts, and nothing but an intervention ends it."""
        return self.counts and (self.kind in ("divergence", "nan") or self.recovered == "no")

    def near(self, row: int) -> bool:
        return self.onset - ROWS_AFTER <= row <= self.end + ROWS_AFTER

    def found_by(self, call: Call) -> bool:
        in_time = self.onset - ROWS_BEFORE <= call.row <= self.end + ROWS_AFTER
        return in_time and FAMILIES[self.kind] in FINDS[call.family]


@dataclass(frozen=True, slots=True)
class Labelled:
    """One log with its labels."""

    id: str
    # The logs of one group are not independent.
    group: str
    rows: int
    labels: tuple[Label, ...] = ()
    # Whether the log was used for tuning, as the corpus names it; empty: it does not say.
    split: str = ""


@dataclass(frozen=True, slots=True)
class Hit:
    """An event that was found, and where."""

    run: str
    label: Label
    row: int

    @property
    def delay(self) -> int:
        return max(0, self.row - self.label.onset)


@dataclass(frozen=True, slots=True)
class Recall:
    """How much of one family was found, and how late."""

    labels: int
    micro: float
    macro: float
    delay_median: float | None
    delay_p90: int | None


@dataclass(frozen=True, slots=True)
class Score:
    """The quality of all findings on all logs; `lasting` says of each family how many of the events that nothing else
    ends were acted on, and how many there are."""

    runs: int
    rows: int
    families: Mapping[str, Recall]
    false_alarms: int
    runs_with_false_alarms: int
    right: int
    wrong: int
    neutral: int
    hits: tuple[Hit, ...]
    missed: tuple[tuple[str, Label], ...]
    noisy: Mapping[str, int]
    lasting: Mapping[str, tuple[int, int]]

    def per_100k(self, count: int) -> float:
        return 1e5 * count / self.rows if self.rows else 0.0

    def as_json(self, *, worst: int = 10) -> dict[str, Any]:
        """Plain data, with the `worst` missed events and noisiest logs."""
        return {
            "runs": self.runs,
            "rows": self.rows,
            "families": {family: _recall_json(recall) for family, recall in self.families.items()},
            "false_alarms": {
                "count": self.false_alarms,
                "per_100k_rows": round(self.per_100k(self.false_alarms), 3),
                "runs_with_any": self.runs_with_false_alarms,
            },
            "interventions": {
                "right": self.right,
                "wrong": self.wrong,
                "neutral": self.neutral,
                "wrong_per_100k_rows": round(self.per_100k(self.wrong), 3),
                "lasting_acted_on": {family: list(counts) for family, counts in self.lasting.items()},
            },
            "missed": [[run, label.kind, label.onset, label.end] for run, label in self.missed[:worst]],
            "noisiest": [[run, -less] for less, run in sorted((-n, run) for run, n in self.noisy.items())[:worst]],
        }


def score(runs: Iterable[Labelled], calls: Mapping[str, Sequence[Call]]) -> Score:
    """Judge the calls by run id; a run without any is one on which nothing was said."""
    runs = tuple(runs)
    said = {run.id: sorted(calls.get(run.id, ()), key=lambda call: call.row) for run in runs}
    hits, missed = [], []
    for run in runs:
        for label in (label for label in run.labels if label.counts):
            first = next((call.row for call in said[run.id] if label.found_by(call)), None)
            missed.append((run.id, label)) if first is None else hits.append(Hit(run.id, label, first))
    alarms = {run.id: merged(c.row for c in said[run.id] if not _near(run, c)) for run in runs}
    noisy = {run: count for run, count in alarms.items() if count}
    verdicts = [_verdicts(run, said[run.id]) for run in runs]
    return Score(
        runs=len(runs),
        rows=sum(run.rows for run in runs),
        families=_recalls(runs, hits),
        false_alarms=sum(alarms.values()),
        runs_with_false_alarms=len(noisy),
        right=sum(merged(verdict["right"]) for verdict in verdicts),
        wrong=sum(merged(verdict["wrong"]) for verdict in verdicts),
        neutral=sum(merged(verdict["neutral"]) for verdict in verdicts),
        hits=tuple(hits),
        missed=tuple(missed),
        noisy=noisy,
        lasting=_lasting(runs, said),
    )


def merged(rows: Iterable[int]) -> int:
    """How many alarms these rows are when one that follows the last closely is the same alarm."""
    alarms, last = 0, None
    for row in sorted(rows):
        alarms += last is None or row - last > ROWS_MERGED
        last = row
    return alarms


def _near(run: Labelled, call: Call) -> list[Label]:
    return [label for label in run.labels if label.near(call.row)]


def _verdicts(run: Labelled, said: Sequence[Call]) -> dict[str, list[int]]:
    verdicts: dict[str, list[int]] = defaultdict(list)
    for call in said:
        if call.level == INTERVENE:
            verdicts[_verdict(_near(run, call))].append(call.row)
    return verdicts


def _verdict(near: Sequence[Label]) -> str:
    if any(label.lasts for label in near):
        return "right"
    if not near or any(label.recovered == "yes" for label in near):
        return "wrong"
    return "neutral"


def _lasting(runs: Sequence[Labelled], said: Mapping[str, Sequence[Call]]) -> dict[str, tuple[int, int]]:
    counts: dict[str, tuple[int, int]] = {}
    for run in runs:
        for label in (label for label in run.labels if label.lasts):
            acted_on = any(call.level == INTERVENE and label.near(call.row) for call in said[run.id])
            acted, of = counts.get(FAMILIES[label.kind], (0, 0))
            counts[FAMILIES[label.kind]] = (acted + acted_on, of + 1)
    return counts


def _recalls(runs: Sequence[Labelled], hits: Sequence[Hit]) -> dict[str, Recall]:
    found = {(hit.run, id(hit.label)): hit for hit in hits}
    groups: dict[str, dict[str, dict[str, list[Hit | None]]]] = defaultdict(lambda: defaultdict(dict))
    for run in runs:
        for label in (label for label in run.labels if label.counts):
            answers = groups[FAMILIES[label.kind]][run.group].setdefault(run.id, [])
            answers.append(found.get((run.id, id(label))))
    return {family: _recall(list(of_group.values())) for family, of_group in sorted(groups.items())}


def _recall(groups: Sequence[Mapping[str, Sequence[Hit | None]]]) -> Recall:
    every = [hit for group in groups for run in group.values() for hit in run]
    delays = sorted(hit.delay for hit in every if hit)
    return Recall(
        labels=len(every),
        micro=_share(every),
        macro=mean(mean(_share(run) for run in group.values()) for group in groups),
        delay_median=median(delays) if delays else None,
        delay_p90=delays[int(0.9 * (len(delays) - 1))] if delays else None,
    )


def _share(answers: Sequence[Hit | None]) -> float:
    return sum(hit is not None for hit in answers) / len(answers)


def _recall_json(recall: Recall) -> dict[str, Any]:
    return {
        "labels": recall.labels,
        "recall_micro": round(recall.micro, 4),
        "recall_macro": round(recall.macro, 4),
        "delay_rows_median": recall.delay_median,
        "delay_rows_p90": recall.delay_p90,
    }


def measures(score: Score) -> dict[str, float]:
    """Return the measures of a score by name; the benchmark sets floors on them."""
    macro = {family: recall.macro for family, recall in score.families.items()}
    micro = {family: recall.micro for family, recall in score.families.items()}
    return {
        "loss recall, macro": macro.get("loss", 0.0),
        "loss recall, micro": micro.get("loss", 0.0),
        "non_finite recall": macro.get("non_finite", 0.0),
        "plateau recall": macro.get("plateau", 0.0),
        "throughput recall, macro": macro.get("throughput", 0.0),
        "lasting loss events acted on": float(score.lasting.get("loss", (0, 0))[0]),
        "false alarms per 100k rows": score.per_100k(score.false_alarms),
        "wrong interventions per 100k rows": score.per_100k(score.wrong),
    }


def as_calls(findings: Iterable[tuple[int, Finding]], *, unscored: Counter[str]) -> list[Call]:
    """Return findings as scorable calls; count those that no label could confirm or deny in `unscored`."""
    calls = []
    for row, finding in findings:
        kind = SCORED_AS.get(finding.kind, str(finding.kind))
        if kind in FAMILIES:
            calls.append(Call(row, kind, str(finding.level)))
        else:
            unscored[kind] += 1
    return calls
