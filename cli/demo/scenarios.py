"""The faults that the demo can cause, and how each run must end."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cli.demo.scripts import HUGGING_FACE, OURS, Script
from rerail.model.run import RunState

BATCH_SIZE = 16  # the training script's default, in samples a step


# Every process of the first attempt is killed as the step begins.
KILL = "kill:step={step}:attempt=1"
# The first attempt does not begin the step before SageMaker's fault has come.
WAIT = "wait:step={step}:attempt=1"
# A process whose model is broken does not end before it is stopped, however busy the machine is.
LAST_WAIT = ";wait:step={last}:damaged=1"


class Name(StrEnum):
    """The scenarios by name."""

    CRASH = "crash"
    INFRA = "infra"
    BUG = "bug"
    CAPACITY = "capacity"
    OOM = "oom"
    OOM_HEAL = "oom-heal"
    SPIKE = "spike"
    HEAL = "heal"
    NAN = "nan"
    SLOW = "slow"
    STALL = "stall"
    BLIND = "blind"
    IDLE = "idle"
    SIGTERM = "sigterm"
    SPOT = "spot"
    WARM = "warm"
    SUSPECT = "suspect"
    FALLBACK = "fallback"
    HF = "hf"
    LADDER = "ladder"
    LADDER_RATE = "ladder-rate"
    INPLACE = "inplace"
    APPROVE = "approve"
    STORM = "storm"
    BUDGET = "budget"
    PARALLEL = "parallel"


# What the demo's jobs ask for; processes of this machine, whatever the type.
OWN_TYPE, NEXT_BEST_TYPE = "ml.m5.large", "ml.m5.xlarge"


# A fault as the SageMaker fake is asked for it: its name and its fields (local/README.md lists them).
FaultRequest = Mapping[str, Any]
# Makes the faults of a scenario for the demo's job and those of the other runs of the account.
MakeFaults = Callable[[str, Sequence[str]], Sequence[FaultRequest]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One fault, and how the run must end."""

    # One line for the reader.
    summary: str
    # The state in which the run must end.
    ends: RunState = RunState.COMPLETED
    # The causes of the failed attempts, in order.
    causes: tuple[str, ...] = ()
    # The fault that the training process itself makes, at the fault's step.
    drill: str = ""
    # The faults that SageMaker makes once every job has come to that step, at which it waits for them.
    faults: MakeFaults | None = None
    # The kinds of findings that the detectors must report.
    findings: tuple[str, ...] = ()
    # Whether the losses of the recovered run must equal those of the undisturbed one.
    exact: bool = True
    # Whether an agent runs in the job.
    agent: bool = True
    # Whether the job defines metrics.
    metrics: bool = True
    # Whether the supervisor must ask the agent for a checkpoint, and stop the job only when that is there.
    asks: bool = False
    # Whether it must resume from a clean checkpoint older than the onset, with the later ones in quarantine.
    rolls_back: bool = False
    # Whether no step may be trained twice.
    lossless: bool = False
    # Whether the job runs on spot instances.
    spot: bool = False
    # The reason that the last step's checkpoint must give.
    saves: str = ""
    # How often SageMaker itself restarts the job.
    self_repairs: int = 0
    # The training script.
    script: Script = OURS
    # Whether checkpoints after the onset must be moved to quarantine before a script without an agent resumes.
    quarantines: bool = False
    # The environment variable that names the step at which the script breaks.
    breaks: str = ""
    # Seconds for which the machines are kept warm after the job.
    keep_alive: int = 0
    # The status that the warm pool of the first job must end with.
    pool: str = ""
    # The policy's fallback instance types; the last attempt must run on the first of them.
    fallbacks: tuple[str, ...] = ()
    # The rung of the rollback ladder that each attempt must be on; the first attempt has none.
    rungs: tuple[str, ...] = ()
    # Whether the policy allows a restart of the training processes in place, and one must happen.
    in_place: bool = False
    # Whether the policy asks for an approval, which the demo gives.
    approves: bool = False
    # Into how many microbatches the last attempt must split its batch.
    microbatches: int = 1
    # The policy's cap on the cost of the run, in dollars; 0 is none.
    stop_dollars: float = 0.0
    # How many other runs train beside it, for which the account's limit on relaunches must hold.
    other_runs: int = 0
    # Hyperparameters of the job that its reference run, which is one process, does not have.
    layout: Mapping[str, str] = field(default_factory=dict)
    # Hyperparameters of both.
    options: Mapping[str, str] = field(default_factory=dict)
    # The largest difference from the reference run's losses, if they need not be equal to the last bit.
    tolerance: float = 0.0
    # The last step, the step of the fault, and the seconds that a step takes.
    steps: int = 160
    fault_step: int = 85
    step_seconds: float = 0.12

    @property
    def environment(self) -> Mapping[str, str]:
        """What the job's request carries to have the fault."""
        sample = BATCH_SIZE * self.fault_step - 1
        named = self.drill or (WAIT if self.faults else "")
        drill = {"RERAIL_DRILL": named.format(step=self.fault_step, sample=sample, last=self.steps)} if named else {}
        return drill | ({self.breaks: str(self.fault_step)} if self.breaks else {})

    @property
    def knows_rerail(self) -> bool:
        """The script writes manifests, and has an agent where one is wanted."""
        return self.script is OURS


# The detectors learn a run's noise from its first rows, one a second on the demo's clock: these runs take longer.
def make_metric_fault(
    summary: str, drill: str, *findings: str, causes: tuple[str, ...] = (), **demands: Any
) -> Scenario:
    """Return a scenario whose fault only the metrics show."""
    return Scenario(
        summary,
        causes=causes,
        drill=drill,
        findings=findings,
        steps=880,
        fault_step=640,
        step_seconds=0.08,
        **demands,
    )


def make_ladder_fault(summary: str, drill: str, *rungs: str) -> Scenario:
    """Return a scenario whose loss diverges again until the last of these rungs."""
    return Scenario(
        summary,
        causes=("diverged",) * len(rungs),
        drill=drill + LAST_WAIT,
        findings=("divergence", "loss_spike"),
        exact=False,
        rungs=("", *rungs),
        steps=560,
        fault_step=400,
        step_seconds=0.08,
    )


def lose_the_node(job: str, others: Sequence[str]) -> Sequence[FaultRequest]:
    """Fail the job with InternalServerError."""
    return ({"Fault": "internal_error", "TrainingJobName": job},)


def lose_the_node_and_have_no_other(job: str, others: Sequence[str]) -> Sequence[FaultRequest]:
    """Fail the job, refuse the next launch, and give the one after it no machines."""
    refused = ({"Fault": "resource_limit", "Count": 1}, {"Fault": "capacity", "Count": 1})
    return (*refused, *lose_the_node(job, others))


def lose_the_node_and_all_like_it(job: str, others: Sequence[str]) -> Sequence[FaultRequest]:
    """Fail the job; the next one is accepted, and waits two hours for machines."""
    none_left = {"Fault": "machines", "InstanceType": OWN_TYPE, "Count": 0, "WaitSeconds": 7200}
    return (none_left, *lose_the_node(job, others))


def lose_every_node(job: str, others: Sequence[str]) -> Sequence[FaultRequest]:
    """Fail all jobs of the account at the same moment."""
    return [fault for name in (job, *others) for fault in lose_the_node(name, ())]


def reclaim(job: str, others: Sequence[str]) -> Sequence[FaultRequest]:
    """Interrupt the spot instance, and return one after 15 minutes: longer than a step may take before it is a hang."""
    return ({"Fault": "interrupt", "TrainingJobName": job, "WaitSeconds": 900},)


def stop(job: str, others: Sequence[str]) -> Sequence[FaultRequest]:
    """Stop the job from outside Rerail."""
    return ({"Fault": "stop", "TrainingJobName": job},)


SCENARIOS: Mapping[Name, Scenario] = {
    Name.CRASH: Scenario(
        "every process of the job is killed in the middle of a step",
        causes=("unknown",),
        drill=KILL,
    ),
    Name.INFRA: Scenario(
        "SageMaker loses the node under the job",
        causes=("infrastructure",),
        faults=lose_the_node,
    ),
    Name.CAPACITY: Scenario(
        "the node is lost, and for a while there are no others to be had",
        causes=("infrastructure", "capacity"),
        faults=lose_the_node_and_have_no_other,
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
    Name.OOM_HEAL: Scenario(
        "the GPU has too little memory for a whole batch: the same batch goes on in two microbatches",
        causes=("oom",),
        drill="oom:step={step}:over=" + str(BATCH_SIZE // 2),
        options={"dropout": "0"},
        tolerance=1e-3,
        microbatches=2,
    ),
    Name.SPIKE: make_metric_fault(
        "the loss jumps and does not recover: rolled back to before it",
        "spike:step={step}:attempt=1" + LAST_WAIT,
        "loss_spike",
        "divergence",
        causes=("diverged",),
        asks=True,
        rolls_back=True,
        rungs=("", "replay"),
    ),
    Name.LADDER: make_ladder_fault(
        "samples that break the model whenever it trains on them: a replay does not help, to skip them does",
        "toxic:sample={sample}",
        "replay",
        "skip",
    ),
    Name.LADDER_RATE: make_ladder_fault(
        "a step that breaks the model at its learning rate, whatever the data: only a lower one helps",
        "unstable:step={step}",
        "replay",
        "skip",
        "far_skip",
        "lower_rate",
    ),
    Name.HEAL: make_metric_fault(
        "the loss jumps and recovers by itself: no intervention", "heal:step={step}:for=40", "loss_spike", exact=False
    ),
    Name.NAN: make_metric_fault(
        "the loss becomes NaN, and the script trains on",
        "nan:step={step}:attempt=1" + LAST_WAIT,
        "non_finite",
        causes=("diverged",),
        asks=True,
        rolls_back=True,
    ),
    Name.INPLACE: make_metric_fault(
        "the loss becomes NaN: rolled back by the job's own init, without a new job",
        "nan:step={step}:attempt=1:restart=0" + LAST_WAIT,
        "non_finite",
        causes=("diverged",),
        rolls_back=True,
        in_place=True,
    ),
    Name.SLOW: make_metric_fault(
        "each step takes four times as long: moved to fresh machines without losing a step",
        "slow:step={step}:factor=4:attempt=1",
        "throughput_drop",
        causes=("hardware",),
        asks=True,
        lossless=True,
    ),
    Name.STALL: make_metric_fault(
        "no step completes any more, and the process lives", "stall:step={step}:attempt=1", "stall", causes=("hang",)
    ),
    Name.BLIND: make_metric_fault(
        "a script without an agent trains on and prints nothing: people are told, the job is left alone",
        "blind:step={step}",
        "blind",
        agent=False,
    ),
    Name.IDLE: make_metric_fault(
        "a job that has the tag alone stands still: seen by the load of its machine",
        "stall:step={step}:attempt=1",
        "stall",
        causes=("hang",),
        agent=False,
        metrics=False,
    ),
    Name.SIGTERM: Scenario(
        "a person stops the job from outside: it saves within its grace, and is not relaunched",
        ends=RunState.STOPPED,
        faults=stop,
        saves="sigterm",
    ),
    Name.SPOT: Scenario(
        "the spot market takes the machine back: SageMaker itself restarts the job, and Rerail keeps still",
        faults=reclaim,
        spot=True,
        self_repairs=1,
    ),
    Name.WARM: Scenario(
        "the script is killed, and its machines are kept warm: the next attempt takes them over and starts sooner",
        causes=("unknown",),
        drill=KILL,
        keep_alive=3600,
        pool="Reused",
    ),
    Name.SUSPECT: Scenario(
        "a machine computes wrong results, and is kept warm: given back before the next attempt could land on it",
        causes=("hardware",),
        drill="exit:step={step}:code=16:attempt=1",
        keep_alive=3600,
        pool="Terminated",
    ),
    Name.FALLBACK: Scenario(
        "the node is lost, and there are no others of its type: after the wait the policy's next best type is used",
        causes=("infrastructure", "capacity"),
        faults=lose_the_node_and_all_like_it,
        fallbacks=(NEXT_BEST_TYPE,),
    ),
    Name.PARALLEL: Scenario(
        "a model spread 2 x 2 x 2 over 8 processes loses its node: resumed as 2 x 1 x 2 on a machine for 4",
        causes=("infrastructure", "capacity"),
        faults=lose_the_node_and_all_like_it,
        fallbacks=(NEXT_BEST_TYPE,),
        layout={
            "pipeline-parallel": "2",
            "tensor-parallel": "2",
            "microbatches": "2",
            "parallel": "fsdp",
            "RERAIL_PROCESSES_PER_NODE": f"8,{NEXT_BEST_TYPE}=4",
        },
        # Without dropout the losses do not depend on the layout, but for the order of sums.
        options={"model-size": "demo", "dropout": "0"},
        tolerance=1e-3,
        steps=90,
        fault_step=60,
    ),
    Name.APPROVE: Scenario(
        "the node is lost, and the policy asks first: a human reads the page, says yes, and the run goes on",
        causes=("infrastructure",),
        faults=lose_the_node,
        approves=True,
    ),
    Name.STORM: Scenario(
        "every job of the account dies at once: two relaunches an hour go ahead, the others wait, and on-call is paged",
        causes=("infrastructure",),
        faults=lose_every_node,
        other_runs=3,
        exact=False,
    ),
    Name.BUDGET: Scenario(
        "the run costs as much as its policy allows: saved, stopped and held, at most one save deadline above the cap",
        ends=RunState.HELD,
        asks=True,
        stop_dollars=0.02,
        steps=320,
    ),
    Name.HF: Scenario(
        "a Hugging Face script that knows nothing of Rerail: a weight turns into a NaN, and it trains on",
        causes=("diverged",),
        findings=("non_finite",),
        script=HUGGING_FACE,
        breaks="BREAK_AT",
        agent=False,
        quarantines=True,
        steps=260,
        fault_step=137,
    ),
}
