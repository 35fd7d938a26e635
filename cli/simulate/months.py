"""One simulated run, or many: what came of it."""

from collections import Counter
from dataclasses import dataclass, replace

from cli.project import find_policy_file, read_toml_file
from cli.simulate.accounts import Spent
from cli.simulate.assumptions import Assumptions
from cli.simulate.people import OnCall
from cli.simulate.supervised import Supervised
from cli.simulate.ways import Way
from cli.simulate.world import RunObserver, SimulatedRun
from rerail.model.policy import Policy, parse_policy


@dataclass(frozen=True, slots=True)
class SimulationTask:
    """A simulation: one run of `gpus` over `days`, supervised in one way, with one seed."""

    way: Way
    gpus: int
    days: float
    seed: int
    assumed: Assumptions
    policy: Policy
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The result of one simulation: shares of wall-clock time, counts, money."""

    task: SimulationTask
    ettr: float
    spent: dict[Spent, int]
    counts: Counter[str]
    signals: int
    cost: float
    wasted: float
    interval_s: float


def read_policy(name: str = "default") -> Policy:
    return parse_policy(read_toml_file(find_policy_file(name)), name=name)


def simulate(task: SimulationTask) -> SimulationResult:
    """Simulate the run from its first launch to its last day."""
    world = SimulatedRun(task.way, task.gpus, task.days, task.seed, task.assumed, task.factor, task.policy.interval)
    supervised = Supervised(world, task.policy) if task.way.rerail else None
    watch: RunObserver = supervised or OnCall(world)
    world.watch = watch
    world.run()
    hours = world.accounts.billed_ms / 3_600_000
    gpus = task.gpus + world.most_spares * task.assumed.gpus_a_machine
    cost = hours * gpus * task.assumed.price
    useful = world.accounts.spent[Spent.TRAINED] / 3_600_000 * task.gpus * task.assumed.price
    return SimulationResult(
        task=replace(task),
        ettr=world.accounts.ettr,
        spent=dict(world.accounts.spent),
        counts=world.counts,
        signals=supervised.signals if supervised else 0,
        cost=cost,
        wasted=cost - useful,
        interval_s=world.interval / 1000,
    )
