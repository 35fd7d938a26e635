"""The faults that the demo can cause, and how each run must end."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rerail.model import RunState

Inject = Callable[..., object]


class Name(StrEnum):
    """The scenarios by name."""

    CRASH = "crash"
    INFRA = "infra"
    BUG = "bug"
    CAPACITY = "capacity"
    OOM = "oom"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One fault. `environment` goes into the job's request and makes the fault in the training process itself;
    `strike` is called with the injection function once the training is past the step of the fault."""

    story: str
    ends: RunState
    causes: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    strike: Callable[[Inject, str], None] | None = None


def kill(inject: Inject, job: str) -> None:
    """SIGKILL to every process of the job."""
    inject("kill", TrainingJobName=job)


def lose_the_node(inject: Inject, job: str) -> None:
    """SageMaker says InternalServerError."""
    inject("internal_error", TrainingJobName=job)


def lose_the_node_and_have_no_other(inject: Inject, job: str) -> None:
    """The next launch is refused, and the one after gets no machines."""
    inject("resource_limit", Count=1)
    inject("capacity", Count=1)
    inject("internal_error", TrainingJobName=job)


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
        environment={"RERAIL_DRILL": "bug:step={fault_step}"},
    ),
    Name.OOM: Scenario(
        "the training script asks for more memory than there is",
        ends=RunState.HELD,
        causes=("oom",),
        environment={"RERAIL_DRILL": "oom:step={fault_step}"},
    ),
}
