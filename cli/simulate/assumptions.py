"""Every number that the simulation takes for granted, each with its source."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from rerail.accounting import on_call_times
from rerail.accounting.on_call_times import Delay

LLAMA = "The Llama 3 Herd of Models"
OURS = "assumed, no figure is published"


class Assumed(NamedTuple):
    """One assumption as people read it."""

    name: str
    value: Any
    unit: str
    source: str


def _assumed(value: Any, unit: str, source: str) -> Any:
    return field(default=value, metadata={"unit": unit, "source": source})


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Durations in seconds where the unit says nothing else. What fails how often is in `faults`."""

    step_s: float = _assumed(6.0, "s", f"{LLAMA}: 16 M tokens a step, 405 B parameters, 400 TFLOP/s a GPU, 16,384 GPUs")
    batch: int = _assumed(2048, "samples a step", f"{LLAMA}: 16 M tokens in sequences of 8,192")
    price: float = _assumed(4.916, "$ per GPU-hour", "AWS, EC2 Capacity Blocks: p5.48xlarge $39.33 an hour, 8 H100")
    gpus_a_machine: int = _assumed(8, "GPUs", "AWS, p5.48xlarge")

    cold_s: float = _assumed(480.0, "s", "from CreateTrainingJob to the container on new machines: " + OURS)
    warm_s: float = _assumed(90.0, "s", "the same on a warm pool; AWS names a need for 'under 20 seconds': " + OURS)
    repair_s: float = _assumed(
        480.0, "s", "SageMaker reboots or replaces one machine, not billed: as a cold start, " + OURS
    )
    repairs: int = _assumed(10, "a job", "AWS, Cluster repairs for GPU errors")
    internal_retries: int = _assumed(30, "a job", "AWS, RetryStrategy: InternalServerError alone, at most 30")
    stop_s: float = _assumed(60.0, "s", "from StopTrainingJob to Stopped; AWS allows the container 120: " + OURS)
    settles_s: tuple[float, float] = _assumed(
        (3.0, 60.0), "s, uniform", "from a crash to the job's end as events: " + OURS
    )
    event_s: float = _assumed(2.0, "s", "a change or a report reaches Rerail by EventBridge and SQS: " + OURS)
    event_lost: float = _assumed(0.01, "share", "AWS calls these events best effort, without a figure: " + OURS)
    poll_s: float = _assumed(5.0, "s", "the agent looks for commands: RERAIL_POLL_SECONDS")

    init_s: float = _assumed(
        60.0, "s", "processes, NCCL, first step; MegaScale: NCCL below 30 s on 10,000 GPUs; " + OURS
    )
    load_s: float = _assumed(120.0, "s", "reading a checkpoint from S3 on all machines: " + OURS)
    peer_load_s: float = _assumed(2.0, "s", "reading a peer's memory, 2 GB a GPU: " + OURS)
    restart_s: float = _assumed(
        10.0,
        "s",
        "ending all ranks in place; with init 70 s in all. DeadPool: below 40 s; HyperPod checkpointless: below 120 s",
    )
    order_wait_s: float = _assumed(30.0, "s", "a crashed job's init waits so long for an order: RERAIL_HOLD_SECONDS")
    start_fails: float = _assumed(0.05, "share", "a start that ends before its first step: " + OURS)
    no_room: float = _assumed(0.01, "share", "of launches on new machines that find no capacity: " + OURS)
    room_s: float = _assumed(1200.0, "s, mean", "until there is capacity again, exponential: " + OURS)
    durable_s: float = _assumed(30.0, "s", "from a save's end to its manifest in S3; 2.8 GB a machine: " + OURS)
    sync_stall_s: float = _assumed(60.0, "s", "a save that training waits for; BLOOM: 40 s for 2.3 TB")
    async_stall_s: float = _assumed(5.0, "s", "an asynchronous save whose copy is not prepared, at scale: " + OURS)
    arena_stall_s: float = _assumed(
        0.5, "s", "a copy into prepared memory; docs/training.md measures 0.03 s for 0.4 GB"
    )
    snapshot_every_s: float = _assumed(60.0, "s", "a copy in a peer's memory: " + OURS)
    snapshot_stall_s: float = _assumed(0.1, "s", "as the copy into prepared memory, 2 GB a GPU: " + OURS)

    human_crash: Delay = _assumed(
        on_call_times.CRASH,
        "minutes, median / p90",
        "until a dead run is running again; BLOOM: 7.3 h for the first one: " + OURS,
    )
    human_diverged: Delay = _assumed(
        on_call_times.DIVERGED, "minutes, median / p90", "until a loss is seen and rolled back: " + OURS
    )
    human_slow: Delay = _assumed(
        on_call_times.SLOW, "minutes, median / p90", "until a slow machine is found; BLOOM: by elimination: " + OURS
    )
    watchdog_s: float = _assumed(
        on_call_times.WATCHDOG_S, "s", "a hang ends the job: NCCL's watchdog in many issues; BLOOM: not after 3 h"
    )
    hang_found_s: float = _assumed(310.0, "s", "the agent finds a hang: RERAIL_HANG_SECONDS and a look at the stacks")
    hang_found_blind_s: float = _assumed(
        800.0, "s", "the sweep finds a hang in CloudWatch: twice the floor, and what that publishes late"
    )

    diverged_rows: int = _assumed(80, "rows", "policy: detection.patience_rows")
    spike_rows: int = _assumed(8, "rows", "until a spike has recovered: half of those in bench/corpus last no longer")
    slow_rows: int = _assumed(200, "rows", "policy: detection.throughput_patience_rows")
    publish_s: float = _assumed(200.0, "s", "what CloudWatch adds where there is no agent")
    slow_share: float = _assumed(
        on_call_times.SLOW_SHARE, "of the speed", "what a slow machine costs all; BLOOM: 0.05: " + OURS
    )
    bug_stays: float = _assumed(
        3 / 56, "share", f"{LLAMA}: 3 interruptions needed significant manual work, of 56 by software"
    )
    diverges_again: float = _assumed(0.5, "share", "the same data from the same state diverge again: " + OURS)
    spike_acted_on: float = _assumed(1 / 718, "share", "a simulation of spikes that recover: 1 of 718 acted on")


def list_assumptions(assumptions: Assumptions, sources: Mapping[str, str] | None = None) -> Iterator[Assumed]:
    """Yield each assumption with its value, in the order of the fields; `sources` has other sources of some."""
    for assumption in fields(assumptions):
        facts, value = assumption.metadata, getattr(assumptions, assumption.name)
        source = (sources or {}).get(assumption.name, facts["source"])
        yield Assumed(assumption.name, value, facts["unit"], source)
