"""Decide which checkpoints of a run may be deleted."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class KeptCheckpoint:
    """The properties of a checkpoint that decide whether it is kept."""

    step: int
    is_clean: bool = True


def choose_deletable(
    saved: Sequence[KeptCheckpoint], *, newest: int, keep: int, doublings: int, spared: Iterable[int] = ()
) -> set[int]:
    """Return the steps that may be deleted after `newest` was saved.

    The last `keep` stay, and the newest clean one. Those of `spared` stay, and every one after `newest`, which is of
    another attempt.

    Of the older clean ones a ladder stays, with gaps in proportion to age. Take a rollback to before step s, whose age
    is a = newest - s. It finds a clean checkpoint that costs at most another a steps, or the interval at which was
    saved there. A step that was deletable once is never needed later, because ages only grow.

    The ladder ends after `doublings` doublings of the age of the last `keep`. One rung beyond that stays too, because a
    rollback to there has to start somewhere. That makes about two checkpoints for each doubling.
    """
    if keep < 1:
        raise ValueError(f"keep={keep}: must be at least 1, or the newest checkpoint would be deleted")
    upto = sorted((entry for entry in saved if entry.step <= newest), key=lambda entry: -entry.step)
    clean = [entry.step for entry in upto if entry.is_clean]
    last = [entry.step for entry in upto[:keep]]
    stay = {*last, *clean[:1], *spared}
    if doublings > 0 and last:
        span = max(1, newest - min(last))
        stay |= _ladder(clean, newest=newest, floor=min(last), reach=span * 2**doublings)
    return {entry.step for entry in upto} - stay


def _ladder(clean: Sequence[int], *, newest: int, floor: int, reach: int) -> set[int]:
    """Return the clean steps to keep below the last few, newest first: always the farthest that the gap allows."""
    rungs: set[int] = set()
    below = [step for step in clean if step < floor]
    at = min((step for step in clean if step >= floor), default=floor)
    while below and newest - at <= reach:
        within = [step for step in below if at - step <= newest - at]
        at = within[-1] if within else below[0]
        rungs.add(at)
        below = [step for step in below if step < at]
    return rungs
