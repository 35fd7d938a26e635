"""PID 1 of the image: turns SageMaker's files into a command line and becomes the training process.

It replaces itself (exec) and never stays as a parent: a parent that is PID 1 and does not forward SIGTERM is why a Stop
never reaches the script in the stock images. Run: `python launch.py`, no arguments.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import failure
from job import Cluster, base_folder, failure_file, read_json

TRAIN = Path(__file__).with_name("train.py")
DEFAULT_PORT = 7777  # the port that AWS's toolkit uses between the hosts of a job


def main() -> None:
    base = base_folder()
    with failure.recorded(failure_file(base), rank=0):
        hyperparameters = read_hyperparameters(base)
        cluster = Cluster.read(base)
        processes = processes_per_node(hyperparameters)
        os.environ.update(rendezvous(cluster, os.environ))
        os.environ["RERAIL_INSTANCE_TYPE"] = cluster.instance_type
        os.environ["RERAIL_LAUNCHER_PID"] = str(os.getpid())
        arguments = command_line(hyperparameters)
        if processes == 1:
            become_the_rank(cluster, arguments)
        become_torchrun(cluster, processes, arguments)


def become_the_rank(cluster: Cluster, arguments: list[str]) -> None:
    """One process per node needs no launcher: its exit code and its SIGTERM stay its own."""
    os.environ.update(
        RANK=str(cluster.node_rank), WORLD_SIZE=str(len(cluster.hosts)), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1"
    )
    # A SIGTERM that comes while torch is imported waits, blocked, until train.py has its handler: the mask and the
    # pending signal both survive exec, and Linux keeps a blocked signal even for PID 1.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    become([sys.executable, str(TRAIN), *arguments])


def become_torchrun(cluster: Cluster, processes: int, arguments: list[str]) -> None:
    """torchrun passes SIGTERM on to its ranks, but then gives them 30 s and ends with 1 even if all of them end with 0.

    SMDDP has its AllReduce only under mpirun; under torchrun it brings its AllGather and leaves the rest to NCCL. This
    image settles for that: one launcher everywhere.
    """
    become(
        [sys.executable, "-m", "torch.distributed.run", "--max-restarts=0"]
        + [f"--nnodes={len(cluster.hosts)}", f"--node-rank={cluster.node_rank}", f"--nproc-per-node={processes}"]
        + [f"--master-addr={os.environ['MASTER_ADDR']}", f"--master-port={os.environ['MASTER_PORT']}"]
        + [str(TRAIN), *arguments]
    )


def become(command: list[str]) -> None:
    sys.stdout.flush()
    os.execvp(command[0], command)


def read_hyperparameters(base: Path) -> dict[str, str]:
    path = base / "input" / "config" / "hyperparameters.json"
    return {key: decoded(value) for key, value in read_json(path).items()} if path.exists() else {}


def decoded(value: str) -> str:
    """SageMaker's values are strings; its Python SDK puts JSON into them, so that text has quotes of its own."""
    try:
        inner = json.loads(value)
    except (TypeError, ValueError):
        return str(value)
    return inner if isinstance(inner, str) else str(value)


def command_line(hyperparameters: Mapping[str, str]) -> list[str]:
    """`--key=value` for every hyperparameter but those that the SDK and this launcher keep for themselves."""
    ours = {"RERAIL_PROCESSES_PER_NODE"}
    return [
        f"--{key}={value}"  # one word, so that a value may begin with a dash
        for key, value in sorted(hyperparameters.items())
        if key not in ours and not key.startswith("sagemaker_")
    ]


def processes_per_node(hyperparameters: Mapping[str, str]) -> int:
    name = "RERAIL_PROCESSES_PER_NODE"
    asked = os.environ.get(name) or hyperparameters.get(name)
    if asked is None:
        return max(1, gpu_count())
    if not asked.isdigit() or int(asked) < 1:
        raise ValueError(f"{name}={asked!r}: must be a whole number from 1; leave it out for one process per GPU")
    return int(asked)


def gpu_count() -> int:
    """Counted from the driver's files: importing torch for this would cost every start two seconds."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip() not in ("", "-1")])
    return len([path for path in Path("/dev").glob("nvidia[0-9]*") if path.name.removeprefix("nvidia").isdigit()])


def rendezvous(cluster: Cluster, environment: Mapping[str, str]) -> dict[str, str]:
    """Where the ranks meet. MASTER_ADDR and MASTER_PORT win when they are set, as a local AWS does."""
    alone = len(cluster.hosts) == 1
    found = {
        "MASTER_ADDR": environment.get("MASTER_ADDR") or ("127.0.0.1" if alone else cluster.hosts[0]),
        "MASTER_PORT": environment.get("MASTER_PORT") or str(free_port() if alone else DEFAULT_PORT),
    }
    if cluster.network_interface in {name for _, name in socket.if_nameindex()} and not alone:
        for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            found[variable] = environment.get(variable) or cluster.network_interface
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
