"""Turn SageMaker's files into a command line, and run it under the agent's init, as PID 1 of the image.

Init forwards SIGTERM to the ranks, reaps, and writes why a rank failed that wrote nothing: see rerail_agent/init.py.
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
from instances import make_network_settings
from job import TrainingCluster, find_base_folder, find_failure_file, read_json
from rerail_agent import failure, init
from rerail_agent.in_place_restarts import next_port
from rerail_agent.spawn import STOP_SIGNALS

TRAIN = Path(__file__).with_name("train.py")
# Operations that torch keeps for the diagnosis of a hang, by its former and its present name.
FLIGHT_RECORDER = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE")
DEFAULT_PORT = 7777  # the port that AWS's toolkit uses between the hosts of a job
# Hyperparameters that train.py does not know.
OURS = ("RERAIL_LAUNCHER", "RERAIL_PROCESSES_PER_NODE", "RERAIL_SNAPSHOT_STEPS")


def main() -> NoReturn:
    # Signals that come before init has its handlers stay blocked until then: Linux keeps a blocked signal
    # even for PID 1, and drops any other for which PID 1 has no handler.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    with failure.record_failure(find_failure_file(find_base_folder()), rank=0):
        command, environment = prepare(os.environ)
    # The ranks end with their launcher, whose pid is in this variable, and the launcher with init.
    sys.exit(init.run(command, environment=environment, pid_as="RERAIL_LAUNCHER_PID", prepare=prepare))


def prepare(environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return what this host runs under init, and its environment; also for a restart in place."""
    base = find_base_folder(environment)
    hyperparameters = read_hyperparameters(base)
    cluster = TrainingCluster.read(base)
    environment = {
        **make_network_settings(cluster.instance_type),
        **dict.fromkeys(FLIGHT_RECORDER, "2000"),
        **environment,
        **choose_rendezvous(cluster, environment),
        "RERAIL_INSTANCE_TYPE": cluster.instance_type,
        "RERAIL_SNAPSHOT_STEPS": read_setting("RERAIL_SNAPSHOT_STEPS", hyperparameters) or "0",
    }
    processes = count_processes(hyperparameters, cluster.instance_type)
    arguments = make_arguments(hyperparameters)
    script = [sys.executable, str(TRAIN), *arguments]
    if choose_launcher(hyperparameters) == "mpirun":
        place = mpi.write_environment(base, environment)
        smddp = shutil.which("smddprun") is not None
        return mpi.make_command(cluster, processes, script, place=place, smddp=smddp), environment
    if processes == 1:
        return script, environment | make_single_rank_environment(cluster)
    return make_torchrun_command(cluster, processes, arguments, environment), environment


def choose_launcher(hyperparameters: Mapping[str, str]) -> str:
    """Return the launcher: SMDDP's AllReduce needs mpirun; under torchrun it only provides its AllGather."""
    asked = read_setting("RERAIL_LAUNCHER", hyperparameters) or "torchrun"
    if asked not in ("torchrun", "mpirun"):
        raise ValueError(f"RERAIL_LAUNCHER={asked!r}: must be torchrun or mpirun; leave it out for torchrun")
    return asked


def make_single_rank_environment(cluster: TrainingCluster) -> dict[str, str]:
    """Return the rank's variables where one process per node needs no launcher, and keeps its exit code."""
    return {
        "RANK": str(cluster.node_rank),
        "WORLD_SIZE": str(len(cluster.hosts)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }


def make_torchrun_command(
    cluster: TrainingCluster, processes: int, arguments: Sequence[str], environment: Mapping[str, str]
) -> list[str]:
    """Return torchrun's command line, without --redirects and --tee: the ranks' output stays as it is."""
    return (
        [sys.executable, "-m", "torch.distributed.run", "--max-restarts=0"]
        + [f"--nnodes={len(cluster.hosts)}", f"--node-rank={cluster.node_rank}", f"--nproc-per-node={processes}"]
        + [f"--master-addr={environment['MASTER_ADDR']}", f"--master-port={environment['MASTER_PORT']}"]
        + [str(TRAIN), *arguments]
    )


def read_hyperparameters(base: Path) -> dict[str, str]:
    path = base / "input" / "config" / "hyperparameters.json"
    return {key: decode(value) for key, value in read_json(path).items()} if path.exists() else {}


def decode(value: str) -> str:
    """Decode a hyperparameter: values are strings, into which SageMaker's Python SDK puts JSON."""
    try:
        inner = json.loads(value)
    except (TypeError, ValueError):
        return str(value)
    return inner if isinstance(inner, str) else str(value)


def make_arguments(hyperparameters: Mapping[str, str]) -> list[str]:
    """Return `--key=value` for every hyperparameter except those of the SDK and of this launcher."""
    return [
        f"--{key}={value}"  # one word, so that a value may begin with a dash
        for key, value in sorted(hyperparameters.items())
        if key not in OURS and not key.startswith("sagemaker_")
    ]


def read_setting(name: str, hyperparameters: Mapping[str, str]) -> str | None:
    """Return the environment variable, else the hyperparameter."""
    return os.environ.get(name) or hyperparameters.get(name)


def count_processes(hyperparameters: Mapping[str, str], instance_type: str = "") -> int:
    """Return the processes of this machine: one for each GPU, or as asked: `8`, or by type `8,ml.m5.xlarge=4`."""
    name = "RERAIL_PROCESSES_PER_NODE"
    asked = read_setting(name, hyperparameters)
    if asked is None:
        return max(1, count_gpus())
    by_type = dict(part.strip().rpartition("=")[::2] for part in asked.split(","))
    count = by_type.get(instance_type, by_type.get("", ""))
    if not count.isdigit() or int(count) < 1:
        raise ValueError(
            f"{name}={asked!r}: must have a whole number from 1 for {instance_type or 'this machine'}, as in 8 or"
            " 8,ml.m5.xlarge=4; leave it out for one process per GPU"
        )
    return int(count)


def count_gpus() -> int:
    """Count the driver's device files: importing torch for this would cost every start two seconds."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip() not in ("", "-1")])
    return len([path for path in Path("/dev").glob("nvidia[0-9]*") if path.name.removeprefix("nvidia").isdigit()])


def choose_rendezvous(cluster: TrainingCluster, environment: Mapping[str, str]) -> dict[str, str]:
    """Return where the ranks meet; MASTER_ADDR and MASTER_PORT take precedence, as a local AWS sets them.

    After a restart in place they meet at another port, where no old rank can join.
    """
    alone, restart = len(cluster.hosts) == 1, int(environment.get("RERAIL_RESTART") or 0)
    if restart:
        port = find_free_port() if alone else next_port(int(environment.get("MASTER_PORT") or DEFAULT_PORT), restart)
        environment = {**environment, "MASTER_PORT": str(port)}
    found = {
        "MASTER_ADDR": environment.get("MASTER_ADDR") or ("127.0.0.1" if alone else cluster.hosts[0]),
        "MASTER_PORT": environment.get("MASTER_PORT") or str(find_free_port() if alone else DEFAULT_PORT),
    }
    if cluster.network_interface in {name for _, name in socket.if_nameindex()} and not alone:
        for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            found[variable] = environment.get(variable) or cluster.network_interface
    return found


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
