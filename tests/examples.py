"""The number of examples that Hypothesis draws: a third in `make test`, all in `make proof`."""

import os

FULL_RUN = os.environ.get("RERAIL_INPUTS") == "all"


def count_examples(full: int) -> int:
    """Return the number of examples for this run of the suite."""
    return full if FULL_RUN else max(10, full // 3)
