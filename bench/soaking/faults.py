"""Every fault that a soak causes: how it is made, in which kind of run, and as what it must be diagnosed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from cli.demo.scenarios import NEXT_BEST_TYPE, OWN_TYPE, FaultRequest
from cli.demo.stage import FALLBACK_AFTER
from rerail.model.policy import Mode, Policy

# Steps from a fault to the next one: until a newer checkpoint has proven that the run is on its way again.
ROOM, LONG_ROOM = 90, 320
UNTIL_CURED = 99
MACHINE = "ml.m5.4xlarge"


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
    # The number of faults in one run; a further run is started for more.
    most: int = 12
    machine: str = MACHINE


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
    # What the fake of SageMaker is asked for once the training is past the fault's step.
    requests: tuple[FaultRequest, ...] = ()
    # The same when the run has recovered.
    after: tuple[FaultRequest, ...] = ()
    # The newest checkpoint in S3 gets other bits.
    damages_save: bool = False
    # Seconds from the process's own fault to the requests.
    wait_s: float = 0.0
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
SETUPS = (WATCHED, STEADY, MUTE, IN_PLACE, RATE, HOLDS, PAIR, POOL, SPOT, APPROVED, ELSEWHERE, ENDED)

KILL = {"Fault": "kill", "TrainingJobName": "{job}"}
LOSE_NODE = {"Fault": "internal_error", "TrainingJobName": "{job}"}
# Events are delivered again, once and in time.
RESTORE_EVENTS = {"Fault": "events", "Loss": 0, "Repeat": 0, "Delay": 0, "DelayEvery": 1}

FAULTS: Mapping[str, SoakFault] = {
    # The platform and its API.
    "crash": SoakFault("every process of the job is killed", STEADY, requests=(KILL,), causes=("unknown",)),
    "infra": SoakFault("SageMaker loses the node", STEADY, requests=(LOSE_NODE,), causes=("infrastructure",)),
    "capacity": SoakFault(
        "the node is lost; a launch is refused, the next finds no machine",
        STEADY,
        requests=(
            {"Fault": "resource_limit", "Count": 1, "TrainingJobName": "{run}-a"},
            {"Fault": "capacity", "Count": 1, "TrainingJobName": "{run}-a"},
            LOSE_NODE,
        ),
        causes=("infrastructure", "capacity"),
    ),
    "throttled": SoakFault(
        "the node is lost; the API throttles and does not describe",
        STEADY,
        requests=(
            {"Fault": "throttle", "Operation": "CreateTrainingJob", "Count": 2},
            {"Fault": "describe_error", "Count": 2},
            LOSE_NODE,
        ),
        causes=("infrastructure",),
    ),
    "lost-events": SoakFault(
        "killed, and no event arrives",
        STEADY,
        requests=({"Fault": "events", "Loss": 1}, KILL),
        after=(RESTORE_EVENTS,),
        causes=("unknown",),
    ),
    "late-events": SoakFault(
        "killed; events come twice, late and out of order",
        STEADY,
        requests=({"Fault": "events", "Repeat": 1, "Delay": 300, "DelayEvery": 2}, KILL),
        after=(RESTORE_EVENTS,),
        causes=("unknown",),
    ),
    "damaged-save": SoakFault(
        "the node is lost, and the newest checkpoint has other bits",
        STEADY,
        requests=(LOSE_NODE,),
        damages_save=True,
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
        requests=(KILL,),
        wait_s=1.0,
        causes=("unknown",),
    ),
    # The host that is left may be the first to say so: its peer has closed the connection.
    "peer-killed": SoakFault(
        "one of two hosts is killed",
        PAIR,
        requests=(KILL | {"Host": "algo-2"},),
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
    "warm": SoakFault("killed, with a warm pool", POOL, requests=(KILL,), causes=("unknown",)),
    "spot": SoakFault(
        "the spot market takes the machine back",
        SPOT,
        # The wait is longer than any step may take before it counts as a hang.
        requests=({"Fault": "interrupt", "TrainingJobName": "{job}", "WaitSeconds": 900},),
        ends=False,
        self_repairs=1,
    ),
    "fallback": SoakFault(
        "the node is lost, and none of its type is left",
        ELSEWHERE,
        # The next job is accepted, and waits two hours for machines that do not come.
        requests=({"Fault": "machines", "InstanceType": OWN_TYPE, "Count": 0, "WaitSeconds": 7200}, LOSE_NODE),
        after=({"Fault": "machines", "InstanceType": OWN_TYPE},),
        causes=("infrastructure", "capacity"),
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
    "mute-crash": SoakFault("a script without an agent is killed", MUTE, requests=(KILL,), causes=("unknown",)),
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
        "the node is lost, and an operator approves", APPROVED, requests=(LOSE_NODE,), causes=("infrastructure",)
    ),
    "sigterm": SoakFault(
        "a person stops the job",
        ENDED,
        requests=({"Fault": "stop", "TrainingJobName": "{job}"},),
        last=True,
        ends=False,
    ),
}
