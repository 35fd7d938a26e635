"""The faults that the demo can cause, and how each run must end."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from rerail.model import RunState


class Name(StrEnum):
    """The scenarios by name."""

    CRASH = "crash"
    INFRA = "infra"
    BUG = "bug"
    CAPACITY = "capacity"
    OOM = "oom"
    SPIKE = "spike"
    HEAL = "heal"
    NAN = "nan"
    SLOW = "slow"
    STALL = "stall"
    BLIND = "blind"
    SIGTERM = "sigterm"
    SPOT = "spot"


class World(Protocol):
    """What a fault from outside can be made with."""

    def inject(self, fault: str, **fields: Any) -> object:
        """Cause a fault of the platform."""

    def stop(self, job: str) -> object:
        """Call StopTrainingJob, as anybody may."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One fault. `drill` makes it in the training process itself, at the fault's step; `strike` is called once the
    training is past it. `findings` are what the detectors must have said, `exact` that the mended run's losses must be
    those of the undisturbed one.

    `agent`: one works in the job. `asks`: the supervisor must have asked it for a checkpoint, and called for the stop
    only when that was there. `rolls_back`: it must resume from a clean checkpoint older than the onset, the tainted
    ones put aside. `lossless`: no step is trained twice. `spot`: the job runs on spot instances. `saves`: the reason
    that the last step's checkpoint must give. `self_repairs`: how often SageMaker itself restarts the job.
    """

    story: str
    ends: RunState
    causes: tuple[str, ...]
    drill: str = ""
    strike: Callable[[World, str], None] | None = None
    findings: tuple[str, ...] = ()
    exact: bool = True
    agent: bool = True
    asks: bool = False
    rolls_back: bool = False
    lossless: bool = False
    spot: bool = False
    saves: str = ""
    self_repairs: int = 0
    steps: int = 160
    fault_step: int = 85
    step_seconds: float = 0.12

    @property
    def environment(self) -> Mapping[str, str]:
        """What the job's request carries to have the fault."""
        return {"RERAIL_DRILL": self.drill.format(step=self.fault_step)} if self.drill else {}


# The detectors learn a run's noise from its first rows, one a second on the demo's clock: these runs take longer.
def watched(story: str, drill: str, *findings: str, causes: tuple[str, ...] = (), **demands: bool) -> Scenario:
    """A fault that only the metrics show, and that a relaunch mends or people are told of."""
    return Scenario(
        story,
        ends=RunState.COMPLETED,
        causes=causes,
        drill=drill,
        findings=findings,
        steps=880,
        fault_step=640,
        step_seconds=0.08,
        **demands,  # type: ignore[arg-type]
    )


def kill(world: World, job: str) -> None:
    """SIGKILL to every process of the job."""
    world.inject("kill", TrainingJobName=job)


def lose_the_node(world: World, job: str) -> None:
    """SageMaker says InternalServerError."""
    world.inject("internal_error", TrainingJobName=job)


def lose_the_node_and_have_no_other(world: World, job: str) -> None:
    """The next launch is refused, and the one after gets no machines."""
    world.inject("resource_limit", Count=1)
    world.inject("capacity", Count=1)
    world.inject("internal_error", TrainingJobName=job)


def reclaim(world: World, job: str) -> None:
    """The spot market wants the instance back, and gives another one a quarter of an hour later: longer than any step
    may take before it counts as a hang."""
    world.inject("interrupt", TrainingJobName=job, WaitSeconds=900)


def stop(world: World, job: str) -> None:
    """Somebody who is not Rerail stops the job."""
    world.stop(job)


SCENARIOS: Mapping[Name, Scenario] = {
    Name.CRASH: Scenario(
        "every process of the job is killed in the middle of a step",
        ends=RunState.COMPLETED,
        causes=("unknown",),
        strike=kill,
    ),
    Name.INFRA: Scenario(
        "SageMaker loses the node under the job",
        ends=RunState.COMPLETED,
        causes=("infrastructure",),
        strike=lose_the_node,
    ),
    Name.CAPACITY: Scenario(
        "the node is lost, and for a while there are no others to be had",
        ends=RunState.COMPLETED,
        causes=("infrastructure", "capacity"),
        strike=lose_the_node_and_have_no_other,
    ),
    Name.BUG: Scenario(
        "the training script has a bug that strikes at the same step each time",
        ends=RunState.HELD,
        causes=("user_code", "user_code"),
        drill="bug:step={step}",
    ),
    Name.OOM: Scenario(
        "the training script asks for more memory than there is",
        ends=RunState.HELD,
        causes=("oom",),
        drill="oom:step={step}",
    ),
    Name.SPIKE: watched(
        "the loss jumps and does not mend: rolled back to before it",
        "spike:step={step}:attempt=1",
        "loss_spike",
        "divergence",
        causes=("diverged",),
        asks=True,
        rolls_back=True,
    ),
    Name.HEAL: watched(
        "the loss jumps and mends itself: hands off", "heal:step={step}:for=40", "loss_spike", exact=False
    ),
    Name.NAN: watched(
        "the loss is no number any more, and the script trains on",
        "nan:step={step}:attempt=1",
        "non_finite",
        causes=("diverged",),
        asks=True,
        rolls_back=True,
    ),
    Name.SLOW: watched(
        "each step takes four times as long: moved to fresh machines without losing a step",
        "slow:step={step}:factor=4:attempt=1",
        "throughput_drop",
        causes=("hardware",),
        asks=True,
        lossless=True,
    ),
    Name.STALL: watched(
        "no step completes any more, and the process lives", "stall:step={step}:attempt=1", "stall", causes=("hang",)
    ),
    Name.BLIND: watched(
        "a script without an agent trains on and prints nothing: people are told, the job is left alone",
        "blind:step={step}",
        "blind",
        agent=False,
    ),
    Name.SIGTERM: Scenario(
        "somebody stops the job from outside: it saves within its grace, and is not relaunched against them",
        ends=RunState.STOPPED,
        causes=(),
        strike=stop,
        saves="sigterm",
    ),
    Name.SPOT: Scenario(
        "the spot market takes the machine back: SageMaker itself restarts the job, and Rerail keeps still",
        ends=RunState.COMPLETED,
        causes=(),
        strike=reclaim,
        spot=True,
        self_repairs=1,
    ),
}
