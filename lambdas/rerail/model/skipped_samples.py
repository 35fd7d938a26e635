"""The samples that a run skips: ranges of absolute ids, in the form `first-last,first-last` that the script reads.

The set only grows: samples skipped by one launch are skipped by all later ones.
"""

import re

Ranges = tuple[tuple[int, int], ...]  # the first and last id of each range, ascending, with gaps in between
PART = re.compile(r"([0-9]{1,15})-([0-9]{1,15})")
# SageMaker allows 512 characters in the value of an environment variable.
LIMIT = 512


def parse_ranges(text: str) -> Ranges:
    """Return the ranges in a text; raise ValueError if it is malformed."""
    ranges = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = PART.fullmatch(part)
        if not match or int(match[1]) > int(match[2]):
            raise ValueError(f"{part!r:.100} is not a valid range of sample ids; write first-last, such as 10240-10495")
        ranges.append((int(match[1]), int(match[2])))
    return merge_ranges(ranges)


def format_ranges(ranges: Ranges) -> str:
    """Return the ranges as text of at most LIMIT characters, closing the smallest gaps if it would be longer."""
    ranges = merge_ranges(ranges)
    while len(text := ",".join(f"{first}-{last}" for first, last in ranges)) > LIMIT:
        at = min(range(len(ranges) - 1), key=lambda i: ranges[i + 1][0] - ranges[i][1])
        ranges = (*ranges[:at], (ranges[at][0], ranges[at + 1][1]), *ranges[at + 2 :])
    return text


def merge_ranges(ranges: list[tuple[int, int]] | Ranges) -> Ranges:
    """Return the same ids in as few ranges as possible."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def advance(position: int, samples: int, ranges: Ranges) -> int:
    """Return the id of the next sample after training on `samples` samples from `position`, skipping the ranges."""
    for first, last in ranges:
        if last < position:
            continue
        if samples < first - position or (samples == 0 and first > position):
            break
        samples -= max(0, first - position)
        position = last + 1
    return position + samples
