"""Machines by instance type: which may take another's place in a run, and what makes up the cluster of a job.

The figures are those of AWS's pages on instance types (aws.amazon.com/ec2/instance-types); the generations of the
accelerators are NVIDIA's compute capabilities (developer.nvidia.com/cuda-gpus).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rerail.model.actions import Machines

SUBNET = re.compile(r"subnet-[0-9a-z]{1,40}")
MOST_PREFERENCES = 5  # InstancePreferences holds no more


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine: its accelerators with their `generation` and memory in GiB each, its CPUs and its memory in GiB.

    Programs that were built for one generation need not run on another.
    """

    gpus: int
    gpu: str
    generation: str
    gpu_gib: int
    cpus: int
    gib: int

    def __str__(self) -> str:
        return f"{self.gpus} x {self.gpu} of {self.gpu_gib} GiB" if self.gpus else f"{self.cpus} CPUs, {self.gib} GiB"


@dataclass(frozen=True, slots=True)
class WarmPool:
    """What SageMaker tells of the machines kept after a job: their status, the seconds billed for keeping them, and the
    job that has taken them over."""

    status: str
    billed_s: int = 0
    reused_by: str = ""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The machines that a job asks for: all that a warm pool is matched by, and what ties the job to them.

    `prefers` says that the job itself names several instance types, of which SageMaker takes one; `plan` is its
    training plan, `grouped` a mixed cluster, `spot` managed spot training. Session tags match too, but no description
    tells them.
    """

    role: str = ""
    instance_types: tuple[str, ...] = ()
    count: int = 0
    volume_gb: int = 0
    volume_key: str = ""
    security_groups: tuple[str, ...] = ()
    subnets: tuple[str, ...] = ()
    encrypted: bool = False
    isolated: bool = False
    spot: bool = False
    grouped: bool = False
    prefers: bool = False
    plan: str = ""

    def on(self, machines: Machines | None) -> "Cluster":
        """The same cluster on other machines."""
        if machines is None:
            return self
        return replace(
            self,
            instance_types=machines.instance_types or self.instance_types,
            subnets=tuple(sorted(machines.subnets)) or self.subnets,
        )


def cluster_of(description: Mapping[str, Any]) -> Cluster:
    """The cluster in a request or in a description, where SageMaker may have chosen one of several types already."""
    resources = description.get("ResourceConfig") or {}
    vpc = description.get("VpcConfig") or {}
    preferences = resources.get("InstancePreferences") or ()
    kind = resources.get("SelectedInstanceType") or resources.get("InstanceType", "")
    plans = [plan for each in preferences for plan in each.get("TrainingPlanArns", ())]
    return Cluster(
        role=description.get("RoleArn", ""),
        instance_types=(kind,) if kind else tuple(each["InstanceType"] for each in preferences),
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


def pool_of(description: Mapping[str, Any]) -> WarmPool | None:
    """The warm pool in a DescribeTrainingJob answer."""
    told = description.get("WarmPoolStatus")
    if not told or not told.get("Status"):
        return None
    return WarmPool(
        told["Status"], int(told.get("ResourceRetainedBillableTimeInSeconds") or 0), told.get("ReusedByJob") or ""
    )


def read_fallback(text: str) -> Machines:
    """A policy's fall-back: instance types and subnets, apart by blanks; raises ValueError that says what is wrong."""
    types, subnets = [], []
    for word in text.split():
        if word in TYPES:
            types.append(word)
        elif SUBNET.fullmatch(word):
            subnets.append(word)
        elif word.startswith("ml."):
            what = f"the machines of {word:.100} are not known here"
            raise ValueError(f"{what}, so nobody can tell whether a run fits them")
        else:
            raise ValueError(f"{word!r:.100} is neither an instance type such as ml.p4de.24xlarge nor a subnet")
    if not types and not subnets:
        raise ValueError("it names no instance type and no subnet")
    if len(types) > MOST_PREFERENCES:
        raise ValueError(f"it names {len(types)} instance types, at most {MOST_PREFERENCES} are allowed in one launch")
    return Machines(tuple(types), tuple(subnets))


def find_misfit(cluster: Cluster, machines: Machines) -> str:
    """Why a job of this cluster must not be launched on those machines, or nothing: the world must stay as large, what
    was built for one generation must run, and nothing may become smaller."""
    if cluster.plan:
        return "the run's machines are reserved by a training plan"
    if machines.subnets and not cluster.subnets:
        return "the run has no network of its own"
    if not machines.instance_types:
        return ""
    if cluster.grouped or cluster.prefers:
        return "the run itself says which instance types it takes"
    if cluster.spot and len(machines.instance_types) > 1:
        return "a spot job takes one instance type"
    if len(cluster.instance_types) != 1 or cluster.instance_types[0] not in TYPES:
        return f"the machines of {', '.join(cluster.instance_types) or 'the run'} are not known here"
    before = TYPES[cluster.instance_types[0]]
    return next(filter(None, (_lesser(before, kind) for kind in machines.instance_types)), "")


def format_instance_types(machines: Machines) -> str:
    """Machines as people call them."""
    parts = (" or ".join(machines.instance_types), " and ".join(machines.subnets))
    return " in ".join(part for part in parts if part)


def _lesser(before: Machine, kind: str) -> str:
    """What is less about a machine of this kind than about the one before."""
    after = TYPES[kind]
    if after.gpus != before.gpus:
        return f"{kind} has {after.gpus} GPUs, not {before.gpus}: the world size would change"
    if after.generation != before.generation:
        return f"{kind} has {after.gpu} GPUs, another generation than {before.gpu}"
    if after.gpu_gib < before.gpu_gib:
        return f"{kind} has GPUs of {after.gpu_gib} GiB, not {before.gpu_gib}"
    if after.gib < before.gib:
        return f"{kind} has {after.gib} GiB of memory, not {before.gib}"
    if not after.gpus and after.cpus < before.cpus:
        return f"{kind} has {after.cpus} CPUs, not {before.cpus}"
    return ""


def _sizes(family: str, gpu: tuple[str, str, int], rows: Mapping[str, tuple[int, int, int]]) -> dict[str, Machine]:
    """A family's sizes: GPUs, CPUs and memory of each."""
    name, generation, gib = gpu
    return {f"ml.{family}.{size}": Machine(g, name, generation, gib, cpus, m) for size, (g, cpus, m) in rows.items()}


def _without_gpus(family: str, gib_per_cpu: int, sizes: str) -> dict[str, Machine]:
    """General machines grow evenly: `large` has two CPUs, `xlarge` four, and `Nxlarge` N times four."""
    cpus = {size: 2 if size == "large" else 4 * int(size.removesuffix("xlarge") or 1) for size in sizes.split()}
    return {f"ml.{family}.{size}": Machine(0, "", "", 0, n, n * gib_per_cpu) for size, n in cpus.items()}


_V100, _T4 = ("V100", "7.0", 16), ("T4", "7.5", 16)
_A10G, _L4, _L40S = ("A10G", "8.6", 24), ("L4", "8.9", 24), ("L40S", "8.9", 48)
_ONE_OF = {
    "xlarge": (1, 4, 16),
    "2xlarge": (1, 8, 32),
    "4xlarge": (1, 16, 64),
    "8xlarge": (1, 32, 128),
    "16xlarge": (1, 64, 256),
    "12xlarge": (4, 48, 192),
}
_UP_TO_EIGHT = {**_ONE_OF, "24xlarge": (4, 96, 384), "48xlarge": (8, 192, 768)}
_TWICE_THE_MEMORY = {size: (gpus, cpus, 2 * gib) for size, (gpus, cpus, gib) in _UP_TO_EIGHT.items()}
_SIZES_OF_5 = "xlarge 2xlarge 4xlarge 12xlarge 24xlarge"
_SIZES_OF_6 = "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 32xlarge"
_SIZES_OF_7 = "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 48xlarge"

TYPES: Mapping[str, Machine] = {
    **_sizes("p3", _V100, {"2xlarge": (1, 8, 61), "8xlarge": (4, 32, 244), "16xlarge": (8, 64, 488)}),
    **_sizes("p3dn", ("V100", "7.0", 32), {"24xlarge": (8, 96, 768)}),
    **_sizes("g4dn", _T4, _ONE_OF),
    **_sizes("g5", _A10G, _UP_TO_EIGHT),
    **_sizes("g6", _L4, _UP_TO_EIGHT),
    **_sizes("g6e", _L40S, _TWICE_THE_MEMORY),
    **_sizes("p4d", ("A100", "8.0", 40), {"24xlarge": (8, 96, 1152)}),
    **_sizes("p4de", ("A100", "8.0", 80), {"24xlarge": (8, 96, 1152)}),
    **_sizes("p5", ("H100", "9.0", 80), {"4xlarge": (1, 16, 256), "48xlarge": (8, 192, 2048)}),
    **_sizes("p5e", ("H200", "9.0", 141), {"48xlarge": (8, 192, 2048)}),
    **_sizes("p5en", ("H200", "9.0", 141), {"48xlarge": (8, 192, 2048)}),
    **_sizes("p6-b200", ("B200", "10.0", 179), {"48xlarge": (8, 192, 2048)}),
    **_without_gpus("m5", 4, f"large {_SIZES_OF_5}"),
    **_without_gpus("m6i", 4, _SIZES_OF_6),
    **_without_gpus("m7i", 4, _SIZES_OF_7),
    **_without_gpus("c5", 2, "xlarge 2xlarge 4xlarge 9xlarge 18xlarge"),
    **_without_gpus("c6i", 2, _SIZES_OF_6.removeprefix("large ")),
    **_without_gpus("c7i", 2, _SIZES_OF_7),
    **_without_gpus("r5", 8, f"large {_SIZES_OF_5} 8xlarge 16xlarge"),
    **_without_gpus("r7i", 8, _SIZES_OF_7),
}
