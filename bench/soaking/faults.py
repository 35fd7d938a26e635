"""Every fault that a soak causes: how it is made, in which kind of run, and as what it must be diagnosed."""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Protocol

from cli.demo.scenarios import NEXT_BEST_TYPE, OWN_TYPE
from cli.demo.scripts import HUGGING_FACE, OURS, Script
from cli.demo.stage import FALLBACK_AFTER
from rerail.model.policy import Mode, Policy

# Steps from a fault to the next one: until a newer checkpoint has proven that the run is on its way again.
ROOM, LONG_ROOM = 90, 320
UNTIL_CURED = 99
RELAUNCHED = re.compile(r"-a\d+$")
MACHINE = "ml.m5.4xlarge"
STORM_WINDOW, STORM_RELAUNCHES = timedelta(minutes=20), 2


class SoakEnvironment(Protocol):
    """The means of a fault from outside."""

    @property
    def others(self) -> list[str]:
        """Return the jobs of the runs that are to be hit at the same time."""

    def inject(self, fault: str, **fields: Any) -> object:
        """Cause a fault of the platform."""

    def stop(self, job: str) -> object:
        """Call StopTrainingJob, as anybody may."""

    def damage_newest_save(self, run: str) -> object:
        """Flip bits in the newest checkpoint that lies in S3."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A kind of run in which some faults can be caused."""

    name: str
    # The steps that are trained before the first fault.
    first: int = 60
    # Makes its policy from the default policy and the scale of the clock.
    policy: Callable[[Policy, float], Policy] = lambda policy, scale: policy
    spot: bool = False
    keep_alive: int = 0
    agent: bool = True
    hosts: int = 1
    # So many of these runs train at the same time, and are hit together.
    at_once: int = 1
    # The number of faults in one run; a further run is started for more.
    most: int = 12
    machine: str = MACHINE
    script: Script = OURS

    @property
    def script_name(self) -> str:
        """Return the script's name in the name of the reference run."""
        return "gpt" if self.script is OURS else "hf"


@dataclass(frozen=True, slots=True)
class SoakFault:
    """A fault of the soak, and what it must lead to."""

    description: str
    # The kind of runs that it is injected in.
    setup: Setup
    # What container/faults.py injects.
    drill: str = ""
    # What bench/soak_worker/rank.py injects.
    own: str = ""
    # Called once the training is past the fault's step.
    injection: Callable[[SoakEnvironment, str], None] | None = None
    # Called when the run has recovered.
    after: Callable[[SoakEnvironment, str], None] | None = None
    # The expected causes of the attempts that it ended; `or_causes` if two processes race to report.
    causes: tuple[str, ...] = ()
    or_causes: tuple[str, ...] = ()
    # The expected findings of the detectors, and rungs of the ladder.
    findings: tuple[str, ...] = ()
    rungs: tuple[str, ...] = ()
    # The number of attempts in which `drill` or `own` is injected.
    repeats: int = 1
    # The run is held, and an operator releases it.
    held: bool = False
    # The attempt ends.
    ends: bool = True
    # How often SageMaker itself restarts the job.
    self_repairs: int = 0
    # The job's own init restarts its processes.
    in_place: bool = False
    # The run ends there.
    last: bool = False
    # The batches are bad and no remedy replaces them, so the reference run has them too.
    stays: bool = False
    # The steps until the next fault.
    room: int = ROOM

    @property
    def is_within(self) -> bool:
        """Return whether the training process itself breaks, at exactly that step."""
        return bool(self.drill or self.own)


def asks_first(policy: Policy, scale: float) -> Policy:
    """Return the policy with an approval before each stop and launch."""
    return replace(policy, mode=Mode.APPROVE)


def restarts_in_place(policy: Policy, scale: float) -> Policy:
    """Return the policy with restarts in place."""
    return replace(policy, restart=replace(policy.restart, in_place=True))


def falls_back(policy: Policy, scale: float) -> Policy:
    """Return the policy with a fall-back to other machines after a while."""
    capacity = replace(policy.capacity, fallbacks=(NEXT_BEST_TYPE,), fallback_after=FALLBACK_AFTER / scale)
    return replace(policy, capacity=capacity)


def with_low_rate_limit(policy: Policy, scale: float) -> Policy:
    """Return a policy that allows so few relaunches that a storm must wait."""
    limits = replace(policy.limits, account_relaunches=STORM_RELAUNCHES, account_window=STORM_WINDOW / scale)
    return replace(policy, limits=limits)


STEADY = Setup("steady")
# The detectors learn a run's noise from its first rows, one a second on the fast clock.
WATCHED = Setup("watched", first=640, most=4)
RATE = Setup("rate", first=400, most=1)
HOLDS = Setup("holds")
POOL = Setup("pool", keep_alive=3600)
SPOT = Setup("spot", spot=True)
IN_PLACE = Setup("inplace", first=640, policy=restarts_in_place)
APPROVED = Setup("approved", policy=asks_first)
ELSEWHERE = Setup("elsewhere", policy=falls_back, most=1, machine=OWN_TYPE)
ENDED = Setup("ended", most=1)
MUTE = Setup("mute", first=640, agent=False)
PAIR = Setup("pair", hosts=2)
STORM = Setup("storm", policy=with_low_rate_limit, at_once=3, most=1)
FOREIGN = Setup("foreign", first=137, agent=False, script=HUGGING_FACE, most=1)
SETUPS = (
    *(WATCHED, STEADY, MUTE, IN_PLACE, RATE, HOLDS, PAIR, POOL, SPOT, APPROVED, ELSEWHERE, FOREIGN, ENDED),
    STORM,  # the last: it needs the whole account
)


def kill(world: SoakEnvironment, job: str) -> None:
    """SIGKILL to every process of the job."""
    world.inject("kill", TrainingJobName=job)


def lose_the_node(world: SoakEnvironment, job: str) -> None:
    """Cause an InternalServerError of SageMaker."""
    world.inject("internal_error", TrainingJobName=job)


def lose_the_node_and_all_like_it(world: SoakEnvironment, job: str) -> None:
    """Have the next job accepted, and wait two hours for machines that do not come."""
    world.inject("machines", InstanceType=OWN_TYPE, Count=0, WaitSeconds=7200)
    lose_the_node(world, job)


def reclaim(world: SoakEnvironment, job: str) -> None:
    """Take a spot instance, and give another one a quarter of an hour later.

    That is longer than any step may take before it counts as a hang.
    """
    world.inject("interrupt", TrainingJobName=job, WaitSeconds=900)


def stop(world: SoakEnvironment, job: str) -> None:
    """Stop the job as a person would."""
    world.stop(job)


def kill_the_second(world: SoakEnvironment, job: str) -> None:
    """SIGKILL to every process of one of two hosts."""
    world.inject("kill", TrainingJobName=job, Host="algo-2")


def lose_the_node_and_have_no_other(world: SoakEnvironment, job: str) -> None:
    """Refuse the next launch of this run, and give the one after it no machines."""
    run = job.rpartition("-a")[0] if RELAUNCHED.search(job) else job
    world.inject("resource_limit", Count=1, TrainingJobName=f"{run}-a")
    world.inject("capacity", Count=1, TrainingJobName=f"{run}-a")
    world.inject("internal_error", TrainingJobName=job)


def lose_the_node_under_throttling(world: SoakEnvironment, job: str) -> None:
    """Throttle the next launches, and refuse to describe the job for a while."""
    world.inject("throttle", Operation="CreateTrainingJob", Count=2)
    world.inject("describe_error", Count=2)
    world.inject("internal_error", TrainingJobName=job)


def lose_the_node_and_its_newest_save(world: SoakEnvironment, job: str) -> None:
    """Damage the checkpoint that the next attempt would resume from, so that it differs from its manifest."""
    world.inject("internal_error", TrainingJobName=job)
    world.damage_newest_save(job)


def kill_without_events(world: SoakEnvironment, job: str) -> None:
    """Kill the job while no event of any job arrives: only the sweep can notice that it has ended."""
    world.inject("events", Loss=1)
    world.inject("kill", TrainingJobName=job)


def kill_with_late_events(world: SoakEnvironment, job: str) -> None:
    """Deliver every event twice, and every other one minutes late: after those that came later."""
    world.inject("events", Repeat=1, Delay=300, DelayEvery=2)
    world.inject("kill", TrainingJobName=job)


def restore_events(world: SoakEnvironment, job: str) -> None:
    """Deliver events again, once and in time."""
    world.inject("events", Loss=0, Repeat=0, Delay=0, DelayEvery=1)


def find_machines_again(world: SoakEnvironment, job: str) -> None:
    """There are machines of every type."""
    world.inject("machines", InstanceType=OWN_TYPE)


def kill_without_agent(world: SoakEnvironment, job: str) -> None:
    """Kill the job a moment after its agent has ended."""
    time.sleep(1.0)
    world.inject("kill", TrainingJobName=job)


def lose_every_node(world: SoakEnvironment, job: str) -> None:
    """End all of the storm's jobs at the same moment."""
    for name in world.others:
        world.inject("internal_error", TrainingJobName=name)


FAULTS: Mapping[str, SoakFault] = {
    # The platform and its API.
    "crash": SoakFault("every process of the job is killed", STEADY, injection=kill, causes=("unknown",)),
    "infra": SoakFault("SageMaker loses the node", STEADY, injection=lose_the_node, causes=("infrastructure",)),
    "capacity": SoakFault(
        "the node is lost; a launch is refused, the next finds no machine",
        STEADY,
        injection=lose_the_node_and_have_no_other,
        causes=("infrastructure", "capacity"),
    ),
    "throttled": SoakFault(
        "the node is lost; the API throttles and does not describe",
        STEADY,
        injection=lose_the_node_under_throttling,
        causes=("infrastructure",),
    ),
    "lost-events": SoakFault(
        "killed, and no event arrives", STEADY, injection=kill_without_events, after=restore_events, causes=("unknown",)
    ),
    "late-events": SoakFault(
        "killed; events come twice, late and out of order",
        STEADY,
        injection=kill_with_late_events,
        after=restore_events,
        causes=("unknown",),
    ),
    "damaged-save": SoakFault(
        "the node is lost, and the newest checkpoint has other bits",
        STEADY,
        injection=lose_the_node_and_its_newest_save,
        causes=("infrastructure",),
    ),
    # The machine and the process.
    "rank-killed": SoakFault("the rank is killed at a step", STEADY, drill="kill:step={step}", causes=("unknown",)),
    "in-save": SoakFault("killed in the middle of a save", STEADY, own="in-save:{step}", causes=("unknown",)),
    "ecc": SoakFault("CUDA: an uncorrectable ECC error", STEADY, own="ecc:{step}", causes=("hardware",)),
    "writer-killed": SoakFault(
        "the process that writes checkpoints is killed", STEADY, own="writer:{step}", ends=False
    ),
    "agent-killed": SoakFault(
        "the agent's thread ends, a moment later the job is killed",
        STEADY,
        own="deaf:{step}",
        injection=kill_without_agent,
        causes=("unknown",),
    ),
    # The host that is left may be the first to say so: its peer has closed the connection.
    "peer-killed": SoakFault(
        "one of two hosts is killed",
        PAIR,
        injection=kill_the_second,
        causes=("unknown",),
        or_causes=("infrastructure",),
    ),
    "peer-hang": SoakFault("one of two ranks stays away", PAIR, drill="hang:step={step}", causes=("hang",)),
    "suspect": SoakFault(
        "the machine computes wrong results, its warm pool is given back",
        POOL,
        drill="exit:step={step}:code=16",
        causes=("hardware",),
    ),
    "warm": SoakFault("killed, with a warm pool", POOL, injection=kill, causes=("unknown",)),
    "spot": SoakFault("the spot market takes the machine back", SPOT, injection=reclaim, ends=False, self_repairs=1),
    "fallback": SoakFault(
        "the node is lost, and none of its type is left",
        ELSEWHERE,
        injection=lose_the_node_and_all_like_it,
        after=find_machines_again,
        causes=("infrastructure", "capacity"),
    ),
    "storm": SoakFault(
        "all jobs die at once, the brake holds", STORM, injection=lose_every_node, causes=("infrastructure",)
    ),
    # The script and its data: held by design, and released.
    "bug": SoakFault(
        "a bug at one step, fixed after the hold",
        HOLDS,
        drill="bug:step={step}",
        causes=("user_code", "user_code"),
        repeats=2,
        held=True,
    ),
    "oom": SoakFault("out of memory, fixed after the hold", HOLDS, drill="oom:step={step}", causes=("oom",), held=True),
    "data": SoakFault(
        "a shard that ends too soon, fixed after the hold",
        HOLDS,
        own="data:{step}",
        causes=("data", "data"),
        repeats=2,
        held=True,
    ),
    # What only the metrics show.
    "spike": SoakFault(
        "the loss jumps and does not recover",
        WATCHED,
        drill="spike:step={step}",
        causes=("diverged",),
        findings=("loss_spike", "divergence"),
        rungs=("replay",),
        room=LONG_ROOM,
    ),
    "nan": SoakFault(
        "the loss is not a number any more",
        WATCHED,
        drill="nan:step={step}",
        causes=("diverged",),
        findings=("non_finite",),
        rungs=("replay",),
        room=LONG_ROOM,
    ),
    "ladder": SoakFault(
        "samples that break the model",
        WATCHED,
        drill="toxic:sample={sample}",
        causes=("diverged", "diverged"),
        findings=("loss_spike",),
        rungs=("replay", "skip"),
        repeats=UNTIL_CURED,
        room=LONG_ROOM,
    ),
    "ladder-rate": SoakFault(
        "a step that breaks the model at its learning rate",
        RATE,
        drill="unstable:step={step}",
        causes=("diverged",) * 4,
        findings=("loss_spike",),
        rungs=("replay", "skip", "far_skip", "lower_rate"),
        repeats=UNTIL_CURED,
        room=LONG_ROOM,
    ),
    "heal": SoakFault(
        "the loss jumps and recovers by itself",
        WATCHED,
        drill="heal:step={step}:for=40",
        findings=("loss_spike",),
        ends=False,
        stays=True,
        room=LONG_ROOM,
    ),
    "slow": SoakFault(
        "each step takes four times as long",
        WATCHED,
        drill="slow:step={step}:factor=4",
        causes=("hardware",),
        findings=("throughput_drop",),
        room=LONG_ROOM,
    ),
    "stall": SoakFault(
        "no step completes any more",
        WATCHED,
        drill="stall:step={step}",
        causes=("hang",),
        findings=("stall",),
        room=LONG_ROOM,
    ),
    "hang": SoakFault("the rank hangs, and ignores SIGTERM", STEADY, drill="hang:step={step}", causes=("hang",)),
    "blind": SoakFault(
        "a script without an agent prints nothing any more",
        MUTE,
        drill="blind:step={step}",
        findings=("blind",),
        ends=False,
        room=LONG_ROOM,
    ),
    "mute-crash": SoakFault("a script without an agent is killed", MUTE, injection=kill, causes=("unknown",)),
    "hf": SoakFault(
        "a Hugging Face script: a weight turns into a NaN",
        FOREIGN,
        drill="BREAK_AT={step}",
        causes=("diverged",),
        findings=("non_finite",),
        room=LONG_ROOM,
    ),
    # Other modes.
    "inplace": SoakFault(
        "the loss is NaN: restarted within the job",
        IN_PLACE,
        drill="nan:step={step}",
        findings=("non_finite",),
        ends=False,
        in_place=True,
        room=LONG_ROOM,
    ),
    "inplace-bug": SoakFault(
        "a bug that occurs once: restarted within the job",
        IN_PLACE,
        drill="bug:step={step}",
        ends=False,
        in_place=True,
        room=LONG_ROOM,
    ),
    "approve": SoakFault(
        "the node is lost, and an operator approves", APPROVED, injection=lose_the_node, causes=("infrastructure",)
    ),
    "sigterm": SoakFault("a person stops the job", ENDED, injection=stop, last=True, ends=False),
}
