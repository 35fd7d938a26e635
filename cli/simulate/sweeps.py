"""One setting at a time, the rest as it is: what detection, saves, warm pools and restarts in place are worth."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cli.simulate.assumptions import Assumptions
from cli.simulate.ways import RELAUNCHED, SNAPSHOTS, SPARES, WARM, SaveMode, Way

Variant = tuple[str, Way, Assumptions]
INTERVALS_S = (30.0, 60.0, 300.0, 900.0, 1800.0, 3600.0)


@dataclass(frozen=True, slots=True)
class ParameterSweep:
    """A question, and its answers to be tried: each a name, a way and assumptions."""

    key: str
    title: str
    variants: Callable[[Assumptions], Sequence[Variant]]


def _later(assumed: Assumptions) -> Sequence[Variant]:
    delays = (0.0, 60.0, 180.0, 300.0, 600.0, 1800.0, 3600.0)
    return [(f"{delay:g} s later", replace(WARM, later_s=delay), assumed) for delay in delays]


def _intervals(assumed: Assumptions) -> Sequence[Variant]:
    stalls = {
        SaveMode.ARENA: assumed.arena_stall_s,
        SaveMode.ASYNC: assumed.async_stall_s,
        SaveMode.SYNC: assumed.sync_stall_s,
    }
    return [
        (f"{'advised' if every is None else f'{every:g} s'}, stall {stall:g} s", _saving(save, every), assumed)
        for save, stall in stalls.items()
        for every in (None, *INTERVALS_S)
        if every is None or every > stall
    ]


def _saving(save: SaveMode, every: float | None) -> Way:
    return replace(WARM, save=save, interval_s=every)


def _pools(assumed: Assumptions) -> Sequence[Variant]:
    cold = [(f"cold start {s:g} s", RELAUNCHED, replace(assumed, cold_s=s, repair_s=s)) for s in (180.0, 480.0, 900.0)]
    warm = [(f"warm pool {s:g} s", WARM, replace(assumed, warm_s=s)) for s in (20.0, 90.0, 180.0)]
    return [*cold, *warm]


def _restarts(assumed: Assumptions) -> Sequence[Variant]:
    seconds = (10.0, 30.0, 60.0, 120.0)
    swaps = [(f"{10 + s:g} s in place", SNAPSHOTS, replace(assumed, init_s=s)) for s in seconds]
    shares = (0.0, 0.001, 0.003, 0.01, 0.03)
    spares = [(f"{100 * n:g} % spare machines", replace(SPARES, spares=n, snapshots=True), assumed) for n in shares]
    return [*swaps, *spares]


SWEEPS: Mapping[str, ParameterSweep] = {
    sweep.key: sweep
    for sweep in (
        ParameterSweep("latency", "Everything that Rerail hears comes later", _later),
        ParameterSweep("interval", "Time between checkpoints, by how long training stands still for one", _intervals),
        ParameterSweep("pool", "How long machines take to start", _pools),
        ParameterSweep("restart", "Restarts in the job, with snapshots in peers' memory", _restarts),
    )
}
