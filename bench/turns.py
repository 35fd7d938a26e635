"""Take measurements in turns, and again while a limit is exceeded."""

import math
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

MOST_TIMES_ROUNDS = 5
Name = TypeVar("Name", bound=Hashable)


def measure_in_turns(
    measures: Mapping[Name, Callable[[], float]], is_within: Callable[[Mapping[Name, float]], bool], *, rounds: int = 3
) -> dict[Name, float]:
    """Return the least value of each measure. They are taken in turns, so that a load affects all of them.

    While the values are not within their limit, up to five times the rounds are taken: a load by other processes ends,
    code that is too slow stays so.
    """
    least = dict.fromkeys(measures, math.inf)
    for number in range(1, MOST_TIMES_ROUNDS * rounds + 1):
        least = {name: min(least[name], measure()) for name, measure in measures.items()}
        if number >= rounds and is_within(least):
            break
    return least
