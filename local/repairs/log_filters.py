"""Search log lines by terms as CloudWatch Logs does.

MiniStack finds a term without quotation marks inside of longer words, and knows no regular expression between percent
signs. On AWS such a term is a whole word, in its case ("Filter pattern syntax" in the guide of CloudWatch Logs).
"""

import re
from collections.abc import Callable

from ministack.services import cloudwatch_logs


def apply() -> None:
    cloudwatch_logs._compile_filter_pattern = compile_pattern


def compile_pattern(
    pattern: str, other: Callable[[str], Callable[[str], bool]] = cloudwatch_logs._compile_filter_pattern
) -> Callable[[str], bool]:
    """Return what says whether a line has the pattern; `other` does it for all but one word or expression."""
    if expression := re.fullmatch(r"%(.+)%", pattern):
        return lambda line: re.search(expression[1], line) is not None
    if re.fullmatch(r"\w+", pattern):
        return lambda line: pattern in re.findall(r"\w+", line)
    return other(pattern)
