"""How likely is it that a loss which went wrong mends no more, by how long it has lasted? From the labelled logs.

    python -m bench.mending        prints the table that stands in lambdas/rerail/decisions/cost_benefit.py

Of what was labelled a spike or a divergence (`count` and `optional`), those that lasted longer than so many rows are at
risk; those that never mended, or ran into the end of their log, are counted against them, with half a one of each kind
added (Jeffreys' prior), since four or five cases prove little."""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

LABELS = Path(__file__).parent / "corpus" / "labels.csv"
KINDS, SCORES = ("loss_spike", "divergence"), ("count", "optional")
ROWS = (0, 4, 8, 16, 32, 64, 128)


def table(labels: Iterable[Mapping[str, str]]) -> tuple[tuple[int, float], ...]:
    """Rows that it has lasted, and the chance that it never mends, rounded to two places."""
    wrong = [label for label in labels if label["kind"] in KINDS and label["score"] in SCORES]
    mended = [int(each["end_row"]) - int(each["onset_row"]) + 1 for each in wrong if each["recovered"] == "yes"]
    never = len(wrong) - len(mended)
    return tuple((rows, round((never + 0.5) / (never + sum(w > rows for w in mended) + 1), 2)) for rows in ROWS)


def read() -> list[dict[str, str]]:
    """Every label of the corpus."""
    with LABELS.open(newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    for rows, chance in table(read()):
        print(f"lasted {rows:4} rows: never mends with chance {chance:.2f}")
