"""List what SageMaker's instance types have: accelerators, their memory, and the network between machines."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Instance:
    """The hardware of one instance type."""

    gpu: str
    gpus: int
    # Of one accelerator.
    memory_gib: int
    # Between two machines.
    network_gbit: int


# GPUs and memory: https://docs.aws.amazon.com/batch/latest/userguide/gpu-jobs.html (that table adds the GPUs up) and
# the pages of the families under https://aws.amazon.com/ec2/instance-types/. Without accelerators: not listed.
INSTANCES = {
    "ml.g4dn.xlarge": Instance("T4", 1, 16, 25),
    "ml.g4dn.2xlarge": Instance("T4", 1, 16, 25),
    "ml.g4dn.4xlarge": Instance("T4", 1, 16, 25),
    "ml.g4dn.8xlarge": Instance("T4", 1, 16, 50),
    "ml.g4dn.12xlarge": Instance("T4", 4, 16, 50),
    "ml.g4dn.16xlarge": Instance("T4", 1, 16, 50),
    "ml.g5.xlarge": Instance("A10G", 1, 24, 10),
    "ml.g5.2xlarge": Instance("A10G", 1, 24, 10),
    "ml.g5.4xlarge": Instance("A10G", 1, 24, 25),
    "ml.g5.8xlarge": Instance("A10G", 1, 24, 25),
    "ml.g5.12xlarge": Instance("A10G", 4, 24, 40),
    "ml.g5.16xlarge": Instance("A10G", 1, 24, 25),
    "ml.g5.24xlarge": Instance("A10G", 4, 24, 50),
    "ml.g5.48xlarge": Instance("A10G", 8, 24, 100),
    "ml.g6.xlarge": Instance("L4", 1, 24, 10),
    "ml.g6.2xlarge": Instance("L4", 1, 24, 10),
    "ml.g6.4xlarge": Instance("L4", 1, 24, 25),
    "ml.g6.8xlarge": Instance("L4", 1, 24, 25),
    "ml.g6.12xlarge": Instance("L4", 4, 24, 40),
    "ml.g6.16xlarge": Instance("L4", 1, 24, 25),
    "ml.g6.24xlarge": Instance("L4", 4, 24, 50),
    "ml.g6.48xlarge": Instance("L4", 8, 24, 100),
    "ml.g6e.xlarge": Instance("L40S", 1, 48, 20),
    "ml.g6e.2xlarge": Instance("L40S", 1, 48, 20),
    "ml.g6e.4xlarge": Instance("L40S", 1, 48, 20),
    "ml.g6e.8xlarge": Instance("L40S", 1, 48, 25),
    "ml.g6e.12xlarge": Instance("L40S", 4, 48, 100),
    "ml.g6e.16xlarge": Instance("L40S", 1, 48, 35),
    "ml.g6e.24xlarge": Instance("L40S", 4, 48, 200),
    "ml.g6e.48xlarge": Instance("L40S", 8, 48, 400),
    "ml.p3.2xlarge": Instance("V100", 1, 16, 10),
    "ml.p3.8xlarge": Instance("V100", 4, 16, 10),
    "ml.p3.16xlarge": Instance("V100", 8, 16, 25),
    "ml.p3dn.24xlarge": Instance("V100", 8, 32, 100),
    "ml.p4d.24xlarge": Instance("A100", 8, 40, 400),
    "ml.p4de.24xlarge": Instance("A100", 8, 80, 400),
    "ml.p5.4xlarge": Instance("H100", 1, 80, 100),
    "ml.p5.48xlarge": Instance("H100", 8, 80, 3200),
    "ml.p5e.48xlarge": Instance("H200", 8, 141, 3200),
    "ml.p5en.48xlarge": Instance("H200", 8, 141, 3200),
    "ml.p6-b200.48xlarge": Instance("B200", 8, 179, 3200),
}

# Those for which AWS's own launcher (sagemaker-training 5.1, torch_distributed.py) asks libfabric for the EFA provider,
# and those where it has the network card read GPU memory directly; later families have joined by their names.
EFA = {
    "ml.g4dn.8xlarge",
    "ml.g4dn.12xlarge",
    "ml.g5.48xlarge",
    "ml.p3dn.24xlarge",
    "ml.p4d.24xlarge",
    "ml.p4de.24xlarge",
    "ml.p5.48xlarge",
    "ml.trn1.32xlarge",
}
EFA_RDMA = {"ml.p4d.24xlarge", "ml.p4de.24xlarge", "ml.trn1.32xlarge"}


def has_efa(instance_type: str) -> bool:
    return instance_type in EFA or instance_type.startswith(("ml.p5e", "ml.p6"))


def make_network_settings(instance_type: str) -> dict[str, str]:
    """Return the environment that makes NCCL use EFA; empty where there is none."""
    rdma = instance_type in EFA_RDMA or instance_type.startswith("ml.p6e-")
    return ({"FI_PROVIDER": "efa"} if has_efa(instance_type) else {}) | (
        {"FI_EFA_USE_DEVICE_RDMA": "1"} if rdma else {}
    )
