"""Detect ranks that are slower than their peers, from each rank's median times of a round of steps.

A rank waits for the slowest one in every collective, so only the time until it arrives there is its own. That time is
compared with the median of all ranks and, once there are earlier rounds, with the rank's own past: ranks of different
pipeline stages differ legitimately. A rank must be slow in several rounds in a row. Everything here is pure.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median

# The least ratio to the peers that counts, and the number of standard deviations above the peers' own spread.
LEAST_RATIO = 1.08
SIGMAS = 4.0
# The least standard deviation that is assumed, of the logarithm: medians of some dozen steps.
LEAST_SIGMA = 0.01
MAD_SIGMA = 1.4826
MEAN_SIGMA = 1.2533
# The spread of a few ranks is known badly, so a rank that is 15 % slower needs fewer standard deviations.
SURE_LOG, SURE_SIGMAS = math.log(1.15), 3.0
# The share of the newest round in the mean distance of a rank from its past.
SMOOTHING = 0.1
# A result needs as many slow rounds in a row, and ends after as many that are not.
ROUNDS_SLOW, ROUNDS_OVER = 2, 3
# A rank has a past after the first number of rounds; of its past the last are used.
PAST_LEAST, PAST_ROUNDS = 5, 30
# Without a past, several slow ranks are the structure of the job and not stragglers: at most one of this many.
RANKS_A_STRAGGLER = 8


@dataclass(frozen=True, slots=True)
class RankScore:
    """One rank in one round: its time to arrive at the collective, relative to the peers."""

    rank: int
    # The time until it arrives, divided by the median of all ranks.
    ratio: float
    # The time that it waits for data, beyond the peers' median, as a share of its whole excess.
    data_share: float
    is_slow: bool


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that has been slow for several rounds."""

    rank: int
    # The rounds that it has been slow for, and its median ratio in them.
    rounds: int
    ratio: float
    # Whether most of its excess is waiting for data.
    waits_for_data: bool


@dataclass(frozen=True, slots=True)
class RankHistory:
    """The record of one rank: logarithms of its ratios in normal rounds, and its slow rounds at present."""

    past: tuple[float, ...] = ()
    # The median of the past, and the smoothed distance of its rounds from it.
    usual: float = 0.0
    deviation: float = 0.0
    slow: tuple[RankScore, ...] = ()
    # The rounds since it was slow last, while a result is open.
    over: int = 0
    is_reported: bool = False


@dataclass(frozen=True, slots=True)
class StragglerState:
    """The histories of all ranks, empty before the first round."""

    ranks: tuple[RankHistory, ...] = field(default=())


def score_ranks(compute_s: Sequence[float], data_s: Sequence[float], state: StragglerState) -> tuple[RankScore, ...]:
    """Return the score of each rank of one round.

    `compute_s` and `data_s` are each rank's median seconds of a step before the collective: computing, and waiting for
    data. Returns nothing for a round in which a time is missing, not finite or not positive.
    """
    totals = [compute + data for compute, data in zip(compute_s, data_s, strict=True)]
    if len(totals) < 2 or not all(math.isfinite(total) and total > 0 for total in totals):
        return ()
    usual, usual_data = median(totals), median(data_s)
    logs = [math.log(total / usual) for total in totals]
    spread = _spread(logs)
    limit = max(math.log(LEAST_RATIO), min(SIGMAS * spread, max(SURE_LOG, SURE_SIGMAS * spread)))
    histories = state.ranks if len(state.ranks) == len(totals) else (RankHistory(),) * len(totals)
    known = [history for history in histories if len(history.past) >= PAST_LEAST]
    changes = [
        log - history.usual if len(history.past) >= PAST_LEAST else None
        for log, history in zip(logs, histories, strict=True)
    ]
    noise = MEAN_SIGMA * median([history.deviation for history in known] or [0.0])
    change_limit = max(math.log(LEAST_RATIO), SIGMAS * noise)
    slow = [
        change > change_limit and log > math.log(LEAST_RATIO) if change is not None else log > limit
        for log, change in zip(logs, changes, strict=True)
    ]
    without_past = sum(is_slow for is_slow, change in zip(slow, changes, strict=True) if change is None)
    if without_past > max(1, len(totals) // RANKS_A_STRAGGLER):
        slow = [is_slow and change is not None for is_slow, change in zip(slow, changes, strict=True)]
    return tuple(
        RankScore(rank, math.exp(log), _share(data_s[rank] - usual_data, totals[rank] - usual), slow[rank])
        for rank, log in enumerate(logs)
    )


def follow_scores(
    state: StragglerState, scores: Sequence[RankScore]
) -> tuple[StragglerState, tuple[Straggler, ...], tuple[int, ...]]:
    """Return the state after a round, the stragglers that are new in it, and the ranks that have recovered."""
    if not scores:
        return state, (), ()
    histories = state.ranks if len(state.ranks) == len(scores) else (RankHistory(),) * len(scores)
    followed = [_follow(history, score) for history, score in zip(histories, scores, strict=True)]
    new = tuple(
        describe_straggler(score.rank, history)
        for history, before, score in zip(followed, histories, scores, strict=True)
        if history.is_reported and not before.is_reported
    )
    recovered = tuple(
        score.rank
        for history, before, score in zip(followed, histories, scores, strict=True)
        if before.is_reported and not history.is_reported
    )
    return StragglerState(tuple(followed)), new, recovered


def describe_straggler(rank: int, history: RankHistory) -> Straggler:
    """Return the result for a rank with slow rounds."""
    ratio = median(score.ratio for score in history.slow)
    waits = median(score.data_share for score in history.slow) > 0.5
    return Straggler(rank, len(history.slow), ratio, waits)


def list_stragglers(state: StragglerState) -> tuple[Straggler, ...]:
    """Return the ranks whose result is open, the slowest first."""
    found = [describe_straggler(rank, history) for rank, history in enumerate(state.ranks) if history.is_reported]
    return tuple(sorted(found, key=lambda straggler: -straggler.ratio))


def _follow(history: RankHistory, score: RankScore) -> RankHistory:
    if score.is_slow:
        slow = (*history.slow, score)
        return replace(history, slow=slow, over=0, is_reported=history.is_reported or len(slow) >= ROUNDS_SLOW)
    if history.is_reported and history.over + 1 < ROUNDS_OVER:
        return replace(history, over=history.over + 1)
    log = math.log(score.ratio)
    past = (*history.past, log)[-PAST_ROUNDS:]
    distance = abs(log - history.usual) if history.past else 0.0
    smoothing = max(SMOOTHING, 1 / len(past))
    return RankHistory(past, median(past), history.deviation + smoothing * (distance - history.deviation))


def _spread(logs: Sequence[float]) -> float:
    """Return the standard deviation of all but the slowest rank; with few ranks that one alone would widen it."""
    others = sorted(logs)[:-1]
    middle = median(others)
    return max(LEAST_SIGMA, MAD_SIGMA * median(abs(log - middle) for log in others))


def _share(part: float, whole: float) -> float:
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0
