"""Script mode without AWS's image: what its training toolkit does with a job, for jobs on this machine.

Runs as the entry point of a job in the local AWS: `python script_mode.py`. It reads SageMaker's files, unpacks the code
that `sagemaker_submit_directory` names, and runs `sagemaker_program` with the hyperparameters as `--key value` and the
toolkit's SM_* variables; a failing script leaves its last words in the failure file. As in AWS's image, SIGTERM does
not reach the script. It installs no requirements.txt. A job's /opt/ml is elsewhere here: where the script or its
arguments say /opt/ml, the job's own folder is meant.
"""

import io
import json
import os
import subprocess
import sys
import tarfile
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import boto3

TOOLKIT = "sagemaker_"
CONTAINER = "/opt/ml"
LAST_LINES = 20

# Python 3.11 has this filter from 3.11.4 on; Debian's is older.
AS_DATA: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def main() -> int:
    """Run the script; return its exit code."""
    base = Path(os.environ["SAGEMAKER_BASE_DIR"])
    config = base / "input" / "config"
    given = {name: decode(value) for name, value in read(config / "hyperparameters.json").items()}
    mine = {name: value for name, value in given.items() if name.startswith(TOOLKIT)}
    theirs = {name: value for name, value in given.items() if not name.startswith(TOOLKIT)}
    unpack(mine["sagemaker_submit_directory"], base / "code")
    arguments = make_arguments(theirs, base)
    environment = make_environment(base, mine, theirs, arguments)
    program = str(mine["sagemaker_program"])
    command = [*make_launcher(mine, environment), program, *arguments]
    print(f"Invoking script with the following command: {' '.join(command)}", flush=True)
    return run(command, environment, base)


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return content


def decode(value: str) -> Any:
    """Return the value of a JSON text, or the text itself, as the toolkit does."""
    try:
        return json.loads(value)
    except (TypeError, ValueError):
        return value


def unpack(uri: str, folder: Path) -> None:
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    content = boto3.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        archive.extractall(folder, **AS_DATA)  # nosec B202: the user's own sources, which are run next
    for script in (*folder.rglob("*.py"), *folder.rglob("*.sh")):
        script.write_bytes(script.read_bytes().replace(CONTAINER.encode(), str(folder.parent).encode()))


def make_arguments(hyperparameters: Mapping[str, Any], base: Path) -> list[str]:
    """Return the arguments in the toolkit's order and format."""
    words: list[str] = []
    for name, value in sorted(hyperparameters.items()):
        words += [f"--{name}" if len(name) > 1 else f"-{name}", translate_path(str(value), base)]
    return words


def translate_path(word: str, base: Path) -> str:
    """Return a path below /opt/ml as the path that it has on this machine."""
    return f"{base}{word.removeprefix(CONTAINER)}" if f"{word}/".startswith(f"{CONTAINER}/") else word


def make_environment(
    base: Path, mine: Mapping[str, Any], theirs: Mapping[str, Any], arguments: list[str]
) -> dict[str, str]:
    """Return the environment with the SM_* variables that scripts read."""
    resources = read(base / "input" / "config" / "resourceconfig.json")
    inputs = read(base / "input" / "config" / "inputdataconfig.json")
    groups = {
        instance_group["instance_group_name"]: instance_group for instance_group in resources.get("instance_groups", [])
    }
    group = resources.get("current_group_name", "")
    facts: dict[str, Any] = {
        "input_dir": base / "input",
        "input_config_dir": base / "input" / "config",
        "model_dir": base / "model",
        "output_dir": base / "output",
        "output_data_dir": base / "output" / "data",
        "output_intermediate_dir": base / "output" / "intermediate",
        "input_data_config": inputs,
        "resource_config": resources,
        "hosts": resources["hosts"],
        "current_host": resources["current_host"],
        "current_instance_type": resources.get("current_instance_type", ""),
        "current_instance_group": group,
        "current_instance_group_hosts": groups.get(group, {}).get("hosts", []),
        "instance_groups": list(groups),
        "instance_groups_dict": groups,
        "distribution_instance_groups": [],
        "is_hetero": len(groups) > 1,
        "network_interface_name": resources.get("network_interface_name", ""),
        "num_cpus": os.cpu_count() or 1,
        "num_gpus": 0,
        "num_neurons": 0,
        "log_level": mine.get("sagemaker_container_log_level", 20),
        "module_dir": mine["sagemaker_submit_directory"],
        "module_name": Path(str(mine["sagemaker_program"])).stem,
    }
    channels = {name: base / "input" / "data" / name for name in inputs}
    training = {**facts, "hyperparameters": dict(theirs), "channel_input_dirs": channels}
    only_here = {
        "channels": sorted(inputs),
        "hps": dict(theirs),
        "user_args": arguments,
        "user_entry_point": mine["sagemaker_program"],
        "framework_module": "",
        "framework_params": {},
        "training_env": training,
    }
    named = {**facts, **only_here, **{f"channel_{name}": path for name, path in channels.items()}}
    named |= {
        f"hp_{name}": translate_path(value, base) if isinstance(value, str) else value for name, value in theirs.items()
    }
    paths = [str(base / "code"), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {f"SM_{name.upper()}": format_value(value) for name, value in named.items()}
    return {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(paths)}


def format_value(value: Any) -> str:
    """Return text unchanged, and other values as JSON without spaces."""
    plain = isinstance(value, str | Path)
    return str(value) if plain else json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def make_launcher(mine: Mapping[str, Any], environment: Mapping[str, str]) -> list[str]:
    """Return the launcher's command: Python, or torchrun with one process on each host."""
    if not mine.get("sagemaker_torch_distributed_enabled"):
        return [sys.executable]
    hosts = json.loads(environment["SM_HOSTS"])
    rank = hosts.index(environment["SM_CURRENT_HOST"])
    address, port = environment.get("MASTER_ADDR", hosts[0]), environment.get("MASTER_PORT", "7777")
    where = [f"--master_addr={address}", f"--master_port={port}"]
    shape = [f"--nnodes={len(hosts)}", f"--node_rank={rank}", "--nproc_per_node=1"]
    return [sys.executable, "-m", "torch.distributed.run", *shape, *where]


def run(command: list[str], environment: Mapping[str, str], base: Path) -> int:
    """Run the command and print its output; write the last lines into the failure file, in the toolkit's format."""
    process = subprocess.Popen(
        command, cwd=base / "code", env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout, "started with a pipe"
    last: deque[bytes] = deque(maxlen=LAST_LINES)
    for line in process.stdout:
        last.append(line)
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
    code = process.wait()
    code = 128 - code if code < 0 else code
    failure = base / "output" / "failure"
    if code and not failure.exists():
        words = b"".join(last).decode(errors="replace")
        text = f'ExecuteUserScriptError:\nExitCode {code}\nErrorMessage "{words}"\nCommand "{" ".join(command)}"'
        failure.write_text(text)
    return code


if __name__ == "__main__":
    sys.exit(main())
