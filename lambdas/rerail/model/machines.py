"""Machines by instance type, which of them can replace each other in a run, and the cluster of a job.

The figures are those of AWS's pages on instance types (aws.amazon.com/ec2/instance-types); the generations of the
accelerators are NVIDIA's compute capabilities (developer.nvidia.com/cuda-gpus).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rerail.model.actions import Machines

SUBNET = re.compile(r"subnet-[0-9a-z]{1,40}")
MOST_PREFERENCES = 5  # the maximum length of InstancePreferences


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware of one machine."""

    # The number of accelerators, and their name.
    gpus: int
    gpu: str
    # The compute capability; programs built for one generation may not run on another.
    generation: str
    # Memory of each accelerator in GiB.
    gpu_gib: int
    cpus: int
    # Host memory in GiB.
    gib: int

    def __str__(self) -> str:
        return f"{self.gpus} x {self.gpu} of {self.gpu_gib} GiB" if self.gpus else f"{self.cpus} CPUs, {self.gib} GiB"


@dataclass(frozen=True, slots=True)
class WarmPool:
    """The machines kept after a job, as described by SageMaker."""

    status: str
    # Seconds billed for keeping them.
    billed_s: int = 0
    # The name of the job that reuses them.
    reused_by: str = ""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The machines that a job requests: all properties that a warm pool is matched by, and further constraints.

    Warm pools are matched by session tags too, but descriptions do not contain these.
    """

    role: str = ""
    instance_types: tuple[str, ...] = ()
    count: int = 0
    volume_gb: int = 0
    # The KMS key of the volume.
    volume_key: str = ""
    security_groups: tuple[str, ...] = ()
    subnets: tuple[str, ...] = ()
    # Traffic between the containers is encrypted.
    encrypted: bool = False
    # Network isolation is enabled.
    isolated: bool = False
    # Managed spot training.
    spot: bool = False
    # A heterogeneous cluster of instance groups.
    grouped: bool = False
    # The request names several instance types, of which SageMaker selects one.
    prefers: bool = False
    # The ARN of the training plan.
    plan: str = ""

    def on(self, machines: Machines | None) -> "Cluster":
        """Return the cluster with these machines instead; unchanged if None."""
        if machines is None:
            return self
        return replace(
            self,
            instance_types=machines.instance_types or self.instance_types,
            subnets=tuple(sorted(machines.subnets)) or self.subnets,
        )


def read_cluster(description: Mapping[str, Any]) -> Cluster:
    """Return the cluster in a request, or in a description, where SageMaker may have selected one of several types."""
    resources = description.get("ResourceConfig") or {}
    vpc = description.get("VpcConfig") or {}
    preferences = resources.get("InstancePreferences") or ()
    instance_type = resources.get("SelectedInstanceType") or resources.get("InstanceType", "")
    plans = [plan for preference in preferences for plan in preference.get("TrainingPlanArns", ())]
    return Cluster(
        role=description.get("RoleArn", ""),
        instance_types=(instance_type,) if instance_type else tuple(p["InstanceType"] for p in preferences),
        count=resources.get("SelectedInstanceCount") or resources.get("InstanceCount", 0),
        volume_gb=resources.get("VolumeSizeInGB", 0),
        volume_key=resources.get("VolumeKmsKeyId", ""),
        security_groups=tuple(sorted(vpc.get("SecurityGroupIds", ()))),
        subnets=tuple(sorted(vpc.get("Subnets", ()))),
        encrypted=bool(description.get("EnableInterContainerTrafficEncryption")),
        isolated=bool(description.get("EnableNetworkIsolation")),
        spot=bool(description.get("EnableManagedSpotTraining")),
        grouped=bool(resources.get("InstanceGroups")),
        prefers=bool(preferences),
        plan=resources.get("TrainingPlanArn", "") or next(iter(plans), ""),
    )


def read_warm_pool(description: Mapping[str, Any]) -> WarmPool | None:
    """Return the warm pool in a DescribeTrainingJob response, or None."""
    pool = description.get("WarmPoolStatus")
    if not pool or not pool.get("Status"):
        return None
    return WarmPool(
        pool["Status"], int(pool.get("ResourceRetainedBillableTimeInSeconds") or 0), pool.get("ReusedByJob") or ""
    )


def read_fallback(text: str) -> Machines:
    """Return a policy's fallback: instance types and subnets, separated by spaces.

    Raise ValueError with the problem if it is malformed.
    """
    types, subnets = [], []
    for word in text.split():
        if word in TYPES:
            types.append(word)
        elif SUBNET.fullmatch(word):
            subnets.append(word)
        elif word.startswith("ml."):
            raise ValueError(f"the hardware of {word:.100} is unknown, so Rerail cannot check whether a run fits it")
        else:
            raise ValueError(f"{word!r:.100} is neither an instance type such as ml.p4de.24xlarge nor a subnet")
    if not types and not subnets:
        raise ValueError("it names no instance type and no subnet")
    if len(types) > MOST_PREFERENCES:
        raise ValueError(f"it names {len(types)} instance types, at most {MOST_PREFERENCES} are allowed in one launch")
    return Machines(tuple(types), tuple(subnets))


def find_misfit(cluster: Cluster, machines: Machines) -> str:
    """Return why a job of this cluster must not be launched on these machines, or "" if it may.

    The world size and the GPU generation must stay the same, and no resource may become smaller.
    """
    if cluster.plan:
        return "the run's machines are reserved by a training plan"
    if machines.subnets and not cluster.subnets:
        return "the run has no VPC configuration"
    if not machines.instance_types:
        return ""
    if cluster.grouped or cluster.prefers:
        return "the run's own request lists its instance types"
    if cluster.spot and len(machines.instance_types) > 1:
        return "a spot job takes one instance type"
    if len(cluster.instance_types) != 1 or cluster.instance_types[0] not in TYPES:
        return f"the hardware of {', '.join(cluster.instance_types) or 'the run'} is unknown"
    before = TYPES[cluster.instance_types[0]]
    return next(filter(None, (_find_shortfall(before, name) for name in machines.instance_types)), "")


def has_more_memory(cluster: Cluster, machines: Machines, *, on_gpu: bool) -> bool:
    """Return whether each of these machines has more memory than the cluster's, on its GPUs or its host.

    False where the hardware is unknown. A machine without GPUs has the memory of its host only.
    """
    before, after = ([TYPES.get(name) for name in names] for names in (cluster.instance_types, machines.instance_types))
    if not before or not after or None in (*before, *after):
        return False
    had, has = (
        [machine.gpu_gib if on_gpu and machine.gpus else machine.gib for machine in found if machine]
        for found in (before, after)
    )
    return min(has) > max(had)


def format_instance_types(machines: Machines) -> str:
    """Return the machines as text for people."""
    parts = (" or ".join(machines.instance_types), " and ".join(machines.subnets))
    return " in ".join(part for part in parts if part)


def _find_shortfall(before: Machine, kind: str) -> str:
    """Return what this instance type lacks compared with the machine before, or ""."""
    after = TYPES[kind]
    if after.gpus != before.gpus:
        return f"{kind} has {after.gpus} GPUs, not {before.gpus}: the world size would change"
    if after.generation != before.generation:
        return f"{kind} has {after.gpu} GPUs, a different generation from {before.gpu}"
    if after.gpu_gib < before.gpu_gib:
        return f"{kind} has GPUs of {after.gpu_gib} GiB, not {before.gpu_gib}"
    if after.gib < before.gib:
        return f"{kind} has {after.gib} GiB of memory, not {before.gib}"
    if not after.gpus and after.cpus < before.cpus:
        return f"{kind} has {after.cpus} CPUs, not {before.cpus}"
    return ""


def _gpu_family(family: str, gpu: tuple[str, str, int], rows: Mapping[str, tuple[int, int, int]]) -> dict[str, Machine]:
    """Return the machines of a GPU family, from the GPUs, CPUs and memory of each size."""
    name, generation, gib = gpu
    return {f"ml.{family}.{size}": Machine(g, name, generation, gib, cpus, m) for size, (g, cpus, m) in rows.items()}


def _cpu_family(family: str, gib_per_cpu: int, sizes: str) -> dict[str, Machine]:
    """Return the machines of a family without GPUs: `large` has 2 CPUs, `xlarge` 4, and `Nxlarge` N times 4."""
    cpus = {size: 2 if size == "large" else 4 * int(size.removesuffix("xlarge") or 1) for size in sizes.split()}
    return {f"ml.{family}.{size}": Machine(0, "", "", 0, n, n * gib_per_cpu) for size, n in cpus.items()}


_V100, _T4 = ("V100", "7.0", 16), ("T4", "7.5", 16)
_A10G, _L4, _L40S = ("A10G", "8.6", 24), ("L4", "8.9", 24), ("L40S", "8.9", 48)
_SINGLE_GPU_SIZES = {
    "xlarge": (1, 4, 16),
    "2xlarge": (1, 8, 32),
    "4xlarge": (1, 16, 64),
    "8xlarge": (1, 32, 128),
    "16xlarge": (1, 64, 256),
    "12xlarge": (4, 48, 192),
}
_GPU_SIZES = {**_SINGLE_GPU_SIZES, "24xlarge": (4, 96, 384), "48xlarge": (8, 192, 768)}
_DOUBLE_MEMORY_SIZES = {size: (gpus, cpus, 2 * gib) for size, (gpus, cpus, gib) in _GPU_SIZES.items()}
_GENERATION_5_SIZES = "xlarge 2xlarge 4xlarge 12xlarge 24xlarge"
_GENERATION_6_SIZES = "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 32xlarge"
_GENERATION_7_SIZES = "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 48xlarge"

TYPES: Mapping[str, Machine] = {
    **_gpu_family("p3", _V100, {"2xlarge": (1, 8, 61), "8xlarge": (4, 32, 244), "16xlarge": (8, 64, 488)}),
    **_gpu_family("p3dn", ("V100", "7.0", 32), {"24xlarge": (8, 96, 768)}),
    **_gpu_family("g4dn", _T4, _SINGLE_GPU_SIZES),
    **_gpu_family("g5", _A10G, _GPU_SIZES),
    **_gpu_family("g6", _L4, _GPU_SIZES),
    **_gpu_family("g6e", _L40S, _DOUBLE_MEMORY_SIZES),
    **_gpu_family("p4d", ("A100", "8.0", 40), {"24xlarge": (8, 96, 1152)}),
    **_gpu_family("p4de", ("A100", "8.0", 80), {"24xlarge": (8, 96, 1152)}),
    **_gpu_family("p5", ("H100", "9.0", 80), {"4xlarge": (1, 16, 256), "48xlarge": (8, 192, 2048)}),
    **_gpu_family("p5e", ("H200", "9.0", 141), {"48xlarge": (8, 192, 2048)}),
    **_gpu_family("p5en", ("H200", "9.0", 141), {"48xlarge": (8, 192, 2048)}),
    **_gpu_family("p6-b200", ("B200", "10.0", 179), {"48xlarge": (8, 192, 2048)}),
    **_cpu_family("m5", 4, f"large {_GENERATION_5_SIZES}"),
    **_cpu_family("m6i", 4, _GENERATION_6_SIZES),
    **_cpu_family("m7i", 4, _GENERATION_7_SIZES),
    **_cpu_family("c5", 2, "xlarge 2xlarge 4xlarge 9xlarge 18xlarge"),
    **_cpu_family("c6i", 2, _GENERATION_6_SIZES.removeprefix("large ")),
    **_cpu_family("c7i", 2, _GENERATION_7_SIZES),
    **_cpu_family("r5", 8, f"large {_GENERATION_5_SIZES} 8xlarge 16xlarge"),
    **_cpu_family("r7i", 8, _GENERATION_7_SIZES),
}
