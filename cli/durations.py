"""Lengths of time as people write them on the command line, in the units of policies."""

from cli import place
from rerail.model.policy import DURATION, UNIT_SECONDS

LONGEST_S = 3650 * UNIT_SECONDS["d"]


def parse_seconds(text: str, option: str) -> float:
    """`90s`, `30m`, `2h` or `1d` in seconds, ten years at most; ends with one clear error that names the option."""
    match = DURATION.fullmatch(text.strip())
    if not match:
        place.fail(f"{option} {text!r:.100} is not a duration", "write it as 90s, 30m, 2h or 1d")
    return min(float(match[1]) * UNIT_SECONDS[match[2]], LONGEST_S)
