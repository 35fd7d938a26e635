"""Where the time of a run goes; every millisecond is booked once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Spent(StrEnum):
    """What a millisecond was spent on; the first is goodput, the others are badput."""

    TRAINED = "trained"
    SAVES = "saves"
    SNAPSHOTS = "snapshots"
    LOST = "steps trained again"
    SLOW = "slow machines"
    UNNOTICED = "dead, not noticed"
    BACKOFF = "backoff"
    HUMAN = "waiting for people"
    STOPPING = "stopping"
    MACHINES = "machines"
    REPAIR = "repair"
    INIT = "init and load"
    RESTART = "restart in place"


@dataclass(slots=True)
class Accounts:
    """Milliseconds by what they were spent on, billed machine time, and what is counted beside."""

    spent: dict[Spent, int] = field(default_factory=lambda: dict.fromkeys(Spent, 0))
    billed_ms: int = 0

    def book(self, what: Spent, ms: int, *, billed: bool) -> None:
        self.spent[what] += ms
        self.billed_ms += ms if billed else 0

    def lose(self, ms: int) -> None:
        """Book trained time as lost, because its steps are trained again."""
        assert 0 <= ms <= self.spent[Spent.TRAINED]
        self.spent[Spent.TRAINED] -= ms
        self.spent[Spent.LOST] += ms

    @property
    def wall_ms(self) -> int:
        return sum(self.spent.values())

    @property
    def ettr(self) -> float:
        """Effective training time ratio: the share of wall-clock time whose steps count in the end, at full speed."""
        return self.spent[Spent.TRAINED] / self.wall_ms if self.wall_ms else 1.0


def compute_shares(spent: Mapping[Spent, int]) -> dict[Spent, float]:
    """Return each time as a share of their sum."""
    wall = sum(spent.values())
    return {what: ms / wall if wall else 0.0 for what, ms in spent.items()}
