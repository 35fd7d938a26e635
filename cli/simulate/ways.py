"""Ways of looking after a run: people alone, SageMaker's own means, and Rerail with ever more of what it can use."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

HOUR_S, HALF_HOUR_S = 3600.0, 1800.0
MANY = 100_000


class SaveMode(StrEnum):
    """How a checkpoint is saved, which says how long training stands still for it."""

    SYNC = "training waits"
    ASYNC = "asynchronous"
    ARENA = "prepared memory"


@dataclass(frozen=True, slots=True)
class Way:
    """Who acts, and with what. `interval_s` is None where it follows from failures and the save's cost.

    `retries`, `repairs`: SageMaker's RetryStrategy and cluster repair; `keep_alive_s`: a warm pool, in seconds;
    `in_place`: an init that restarts training processes; `spares`: the share of machines in the job beyond those that
    train, which its launcher swaps in for one with a broken GPU, and for a lost one where the job `outlives` that;
    `attempts`: the policy's limit, None for its own; `later_s`: seconds added to everything that Rerail hears;
    `standby`: new machines, and repaired ones, are there as fast as a warm pool's.
    """

    key: str
    title: str
    rerail: bool = True
    retries: bool = False
    repairs: bool = True
    agent: bool = True
    save: SaveMode = SaveMode.ARENA
    interval_s: float | None = None
    keep_alive_s: int = 0
    in_place: bool = False
    spares: float = 0.0
    outlives: bool = False
    snapshots: bool = False
    attempts: int | None = MANY
    later_s: float = 0.0
    standby: bool = False


HUMAN = Way("human", "people on call", rerail=False, repairs=False, agent=False, save=SaveMode.SYNC, interval_s=HOUR_S)
SAGEMAKER = replace(HUMAN, key="sagemaker", title="SageMaker's retries and repairs", retries=True, repairs=True)
SAGEMAKER_ASYNC = replace(
    SAGEMAKER, key="sagemaker-async", title="  and asynchronous saves", save=SaveMode.ASYNC, interval_s=HALF_HOUR_S
)
UNCHANGED = Way(
    *("unchanged", "Rerail, the script unchanged"),
    agent=False,
    save=SaveMode.ASYNC,
    interval_s=HALF_HOUR_S,
    attempts=None,
)
DEFAULT = Way("default", "Rerail, its default policy and the agent", in_place=True, attempts=None)
RELAUNCHED = replace(DEFAULT, key="relaunched", title="  without restarts in the job", in_place=False, attempts=MANY)
WARM = replace(DEFAULT, key="warm", title="  and a warm pool", keep_alive_s=1800, attempts=MANY)
SPARES = replace(WARM, key="spares", title="  and spare machines in the job", spares=0.01)
SNAPSHOTS = replace(SPARES, key="snapshots", title="  and snapshots in peers' memory", snapshots=True)
# Not available to SageMaker training jobs today: how much it would be worth.
STANDBY = replace(WARM, key="standby", title="relaunches only, if all machines stood by", standby=True, in_place=False)
OUTLIVES = replace(SNAPSHOTS, key="outlives", title="all of these, if a job outlived its hosts", outlives=True)
WAYS: Mapping[str, Way] = {
    way.key: way
    for way in (
        *(HUMAN, SAGEMAKER, SAGEMAKER_ASYNC, UNCHANGED, RELAUNCHED, DEFAULT),
        *(WARM, SPARES, SNAPSHOTS, STANDBY, OUTLIVES),
    )
}
