"""PID 1 of the image: turns SageMaker's files into a command line and runs it under the agent's init.

Init passes SIGTERM on to the ranks, reaps, and says why a rank failed that could not say so: see rerail_agent/init.py.
Run: `python launch.py`, no arguments.
"""

import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import mpi
from instances import network_settings
from job import Cluster, base_folder, failure_file, read_json
from rerail_agent import failure, init
from rerail_agent.in_place_restarts import next_port
from rerail_agent.spawn import STOPS

TRAIN = Path(__file__).with_name("train.py")
DEFAULT_PORT = 7777  # the port that AWS's toolkit uses between the hosts of a job
# Hyperparameters that train.py does not know.
OURS = ("RERAIL_LAUNCHER", "RERAIL_PROCESSES_PER_NODE", "RERAIL_SNAPSHOT_STEPS")


def main() -> NoReturn:
    # What comes while this file reads others waits, blocked, until init has its handlers: Linux keeps a blocked signal
    # even for PID 1, and drops every other that PID 1 has no handler for.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    with failure.record_failure(failure_file(base_folder()), rank=0):
        command, environment = prepared(os.environ)
    # The ranks die with their launcher, which knows itself by this variable, and the launcher with init.
    sys.exit(init.run(command, environment=environment, pid_as="RERAIL_LAUNCHER_PID", prepare=prepared))


def prepared(environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """What this host runs under init, and in which environment; a restart in place is prepared as the start was."""
    base = base_folder(environment)
    hyperparameters = read_hyperparameters(base)
    cluster = Cluster.read(base)
    environment = {
        **network_settings(cluster.instance_type),
        **environment,
        **rendezvous(cluster, environment),
        "RERAIL_INSTANCE_TYPE": cluster.instance_type,
        "RERAIL_SNAPSHOT_STEPS": setting("RERAIL_SNAPSHOT_STEPS", hyperparameters) or "0",
    }
    processes = processes_per_node(hyperparameters)
    arguments = command_line(hyperparameters)
    script = [sys.executable, str(TRAIN), *arguments]
    if launcher(hyperparameters) == "mpirun":
        place = mpi.leave_environment(base, environment)
        smddp = shutil.which("smddprun") is not None
        return mpi.command(cluster, processes, script, place=place, smddp=smddp), environment
    if processes == 1:
        return script, environment | the_only_rank(cluster)
    return torchrun(cluster, processes, arguments, environment), environment


def launcher(hyperparameters: Mapping[str, str]) -> str:
    """SMDDP has its AllReduce only under mpirun; under torchrun it brings its AllGather and leaves the rest to NCCL."""
    asked = setting("RERAIL_LAUNCHER", hyperparameters) or "torchrun"
    if asked not in ("torchrun", "mpirun"):
        raise ValueError(f"RERAIL_LAUNCHER={asked!r}: must be torchrun or mpirun; leave it out for torchrun")
    return asked


def the_only_rank(cluster: Cluster) -> dict[str, str]:
    """One process per node needs no launcher: its exit code stays its own."""
    return {
        "RANK": str(cluster.node_rank),
        "WORLD_SIZE": str(len(cluster.hosts)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }


def torchrun(cluster: Cluster, processes: int, arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Its ranks' stdout and stderr stay as they are: no --redirects, no --tee."""
    return (
        [sys.executable, "-m", "torch.distributed.run", "--max-restarts=0"]
        + [f"--nnodes={len(cluster.hosts)}", f"--node-rank={cluster.node_rank}", f"--nproc-per-node={processes}"]
        + [f"--master-addr={environment['MASTER_ADDR']}", f"--master-port={environment['MASTER_PORT']}"]
        + [str(TRAIN), *arguments]
    )


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
    return [
        f"--{key}={value}"  # one word, so that a value may begin with a dash
        for key, value in sorted(hyperparameters.items())
        if key not in OURS and not key.startswith("sagemaker_")
    ]


def setting(name: str, hyperparameters: Mapping[str, str]) -> str | None:
    """The environment outweighs the hyperparameter."""
    return os.environ.get(name) or hyperparameters.get(name)


def processes_per_node(hyperparameters: Mapping[str, str]) -> int:
    name = "RERAIL_PROCESSES_PER_NODE"
    asked = setting(name, hyperparameters)
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
    """Where the ranks meet. MASTER_ADDR and MASTER_PORT win when they are set, as a local AWS does. After a restart in
    place they meet at another port, where no old rank can join."""
    alone, restart = len(cluster.hosts) == 1, int(environment.get("RERAIL_RESTART") or 0)
    if restart:
        port = free_port() if alone else next_port(int(environment.get("MASTER_PORT") or DEFAULT_PORT), restart)
        environment = {**environment, "MASTER_PORT": str(port)}
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
