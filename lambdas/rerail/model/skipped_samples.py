"""The samples that a run passes over: ranges of absolute ids, written `first-last,first-last` as its script reads them.

A set of them only ever grows: what one launch skips every later one skips too."""

import re

Ranges = tuple[tuple[int, int], ...]  # first and last id of each, in ascending order, with a gap between any two
PART = re.compile(r"([0-9]{1,15})-([0-9]{1,15})")
# SageMaker takes 512 characters as the value of an environment variable.
LIMIT = 512


def parse_ranges(text: str) -> Ranges:
    """The ranges in a text; raises ValueError."""
    ranges = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = PART.fullmatch(part)
        if not match or int(match[1]) > int(match[2]):
            raise ValueError(f"{part!r:.100} is no range of sample ids; write first-last, such as 10240-10495")
        ranges.append((int(match[1]), int(match[2])))
    return merge_ranges(ranges)


def format_ranges(ranges: Ranges) -> str:
    """The ranges as text of at most LIMIT characters: where it would be longer, the smallest gaps are skipped too."""
    ranges = merge_ranges(ranges)
    while len(text := ",".join(f"{first}-{last}" for first, last in ranges)) > LIMIT:
        at = min(range(len(ranges) - 1), key=lambda i: ranges[i + 1][0] - ranges[i][1])
        ranges = (*ranges[:at], (ranges[at][0], ranges[at + 1][1]), *ranges[at + 2 :])
    return text


def merge_ranges(ranges: list[tuple[int, int]] | Ranges) -> Ranges:
    """The same ids in as few ranges as there can be."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def advance(position: int, samples: int, ranges: Ranges) -> int:
    """The id of the next sample after so many were trained on from `position` on, with these passed over."""
    for first, last in ranges:
        if last < position:
            continue
        if samples < first - position or (samples == 0 and first > position):
            break
        samples -= max(0, first - position)
        position = last + 1
    return position + samples
