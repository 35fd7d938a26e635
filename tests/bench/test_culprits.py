"""The corpus of culprits, and how its figures are counted."""

import hashlib

import pytest

from bench.culprits import NONE, RIGHT, UNKNOWN, WRONG, count_verdicts, judge, read_cases


def test_every_culprit_has_its_source_and_its_reason() -> None:
    """A third of the repositories is set aside by a hash of the name; no text is a whole log."""
    cases = read_cases()
    assert [case["id"] for case in cases] == [f"r{number:03d}" for number in range(1, len(cases) + 1)]
    assert len({case["text"] for case in cases}) == len({case["source"] for case in cases}) == len(cases)
    for case in cases:
        repository = "/".join(case["source"].removeprefix("https://github.com/").split("/")[:2])
        is_apart = int(hashlib.sha256(repository.encode()).hexdigest(), 16) % 3 == 0
        assert case["split"] == ("apart" if is_apart else "tune"), repository
        assert len(case["text"].splitlines()) <= 15 and "/home/" not in case["text"] and case["note"]


@pytest.mark.parametrize(
    ("culprit", "named", "verdict"),
    [(0, 0, RIGHT), (0, 3, WRONG), (0, None, UNKNOWN), (None, None, NONE), (None, 0, WRONG)],
)
def test_judge(culprit: int | None, named: int | None, verdict: str) -> None:
    assert judge(culprit, named) == verdict


@pytest.mark.parametrize(("split", "right", "wrong"), [("tune", 21, 0), ("apart", 17, 0)])
def test_count_verdicts(split: str, right: int, wrong: int) -> None:
    """Before the rules were changed, 9 and 8 were named right, and 6 and 3 wrong."""
    counts = count_verdicts(read_cases(), split)
    assert counts[RIGHT] >= right and counts[WRONG] <= wrong
