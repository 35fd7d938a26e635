"""Run ranks under mpirun, for SMDDP's AllReduce: the first host runs it, the others accept it and wait for its end.

mpirun connects to the other hosts by ssh, as in AWS's toolkit: their image needs an sshd, and keys that let root in. It
passes almost no environment on, so each host writes its own to a file, which its ranks read. Run by launch.py: `python
mpi.py lead|follow|rank ...`.
"""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from job import TrainingCluster

SMDDP_INSTANCES = ("ml.p4d.24xlarge", "ml.p4de.24xlarge")
SMDDP_PORT = 7592  # as in AWS's toolkit
SSH_PORT = 22
# For hosts that start one after the other.
PATIENCE_S = 1200.0
SSHD = "/usr/sbin/sshd"


def make_command(
    cluster: TrainingCluster, processes: int, script: Sequence[str], *, place: Path, smddp: bool
) -> list[str]:
    """Return what this host runs under init."""
    this = [sys.executable, str(Path(__file__).resolve())]
    if cluster.node_rank > 0:
        return [*this, "follow"]
    rank = [*this, "rank", str(place), *script]
    smddp = smddp and cluster.instance_type in SMDDP_INSTANCES
    others = ",".join(cluster.hosts[1:])
    return [
        *this,
        "lead",
        others,
        *make_mpirun_command(cluster, processes, smddp=smddp),
        *(["smddprun"] if smddp else []),
        *rank,
    ]


def make_mpirun_command(cluster: TrainingCluster, processes: int, *, smddp: bool) -> list[str]:
    """Return Open MPI 4's command line.

    The options are those of AWS's toolkit; no --tag-output, which changes every line.
    """
    hosts = cluster.hosts if len(cluster.hosts) > 1 else ("localhost",)
    settings = {
        "orte_abort_on_non_zero_status": "1",
        "plm_rsh_no_tree_spawn": "1",  # the other hosts need no way to each other
        "plm_rsh_num_concurrent": str(len(hosts)),
        "pml": "ob1",
        "btl": "^openib",
        "btl_vader_single_copy_mechanism": "none",
    }
    if len(hosts) > 1 and cluster.network_interface:
        settings |= dict.fromkeys(("btl_tcp_if_include", "oob_tcp_if_include"), cluster.network_interface)
    variables = make_smddp_environment(cluster) if smddp else {}
    return [
        "mpirun",
        "--host",
        ",".join(f"{host}:{processes}" for host in hosts),
        "-np",
        str(len(hosts) * processes),
        "--allow-run-as-root",
        "--oversubscribe",
        "--bind-to",
        "none",
        *(word for name, value in settings.items() for word in ("-mca", name, value)),
        *(word for name in ("PATH", "LD_LIBRARY_PATH") for word in ("-x", name)),
        *(word for name, value in variables.items() for word in ("-x", f"{name}={value}")),
    ]


def make_smddp_environment(cluster: TrainingCluster) -> dict[str, str]:
    """Return the variables that SMDDP and EFA need, as AWS's toolkit sets them."""
    variables = {
        "FI_PROVIDER": "efa",
        "FI_EFA_USE_DEVICE_RDMA": "1",
        "RDMAV_FORK_SAFE": "1",
        "NCCL_PROTO": "simple",  # for EFA, which delivers data out of order
        **find_hostname_library(),
    }
    if len(cluster.hosts) == 1:
        return {**variables, "SMDATAPARALLEL_USE_SINGLENODE": "1"}
    return {
        **variables,
        "SMDATAPARALLEL_USE_HOMOGENEOUS": "1",
        "SMDATAPARALLEL_SERVER_ADDR": cluster.hosts[0],
        "SMDATAPARALLEL_SERVER_PORT": str(SMDDP_PORT),
        "SAGEMAKER_INSTANCE_TYPE": cluster.instance_type,
    }


def find_hostname_library() -> dict[str, str]:
    """Return what preloads the host names that SageMaker gave; empty where AWS's toolkit is not installed."""
    found = importlib.util.find_spec("gethostname")
    return {"LD_PRELOAD": found.origin} if found and found.origin else {}


def write_environment(base: Path, environment: Mapping[str, str]) -> Path:
    """Write this host's environment for its ranks; only this user can read it, since it may hold keys."""
    place = base / "rerail-environment.json"
    place.unlink(missing_ok=True)
    with os.fdopen(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        json.dump(dict(environment), file)
    return place


def lead(others: str, words: Sequence[str]) -> NoReturn:
    """Become mpirun, once all other hosts accept ssh."""
    waiting = [host for host in others.split(",") if host]
    if waiting:
        start_sshd()  # AWS's toolkit has one on the first host too
    for host in waiting:
        wait_until(lambda host=host: is_open(host, SSH_PORT), f"host {host} does not let ssh in")  # type: ignore[misc]
    os.execvp(words[0], list(words))


def follow() -> int:
    """Accept mpirun, and stay until its daemon has come and gone."""
    sshd = start_sshd()
    wait_until(lambda: is_running("orted"), "mpirun did not come to this host")
    while is_running("orted"):
        time.sleep(1)
    sshd.terminate()
    return 0


def become_rank(place: str, words: Sequence[str]) -> NoReturn:
    """Become the training script, with the environment of its host and the variables of mpirun."""
    environment = {**os.environ, **json.loads(Path(place).read_text())}
    if environment.get("RERAIL_LAUNCHER_PID") != str(os.getppid()):
        environment.pop("RERAIL_LAUNCHER_PID", None)  # a wrapper is between: the rank cannot end with mpirun itself
    os.execvpe(words[0], list(words), environment)


def start_sshd() -> "subprocess.Popen[bytes]":
    if not Path(SSHD).exists():
        sys.exit(f"{SSHD} is missing: mpirun needs it on several hosts; install it, or leave RERAIL_LAUNCHER out")
    Path("/var/run/sshd").mkdir(parents=True, exist_ok=True)
    return subprocess.Popen([SSHD, "-D"])


def wait_until(happened: Callable[[], bool], complaint: str, *, patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not happened():
        if time.monotonic() > deadline:
            sys.exit(f"{complaint} after {patience_s:g} s")
        time.sleep(1)


def is_open(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError:
        return False
    return True


def is_running(program: str) -> bool:
    return any(_name(path) == program for path in Path("/proc").glob("[0-9]*/comm"))


def _name(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["lead", others, *words]:
            lead(others, words)
        case ["follow"]:
            sys.exit(follow())
        case ["rank", place, *words]:
            become_rank(place, words)
        case _:
            sys.exit("usage: mpi.py lead HOSTS COMMAND... | follow | rank FILE COMMAND...")
