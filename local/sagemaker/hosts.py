"""The /opt/ml tree and the environment that each host of a job finds."""

import json
import os
import shutil
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FROM_THIS_MACHINE = ("HOME", "LANG", "TMPDIR")
# Last on the import path of every job.
JOB_SITE = Path(__file__).parent / "job_site"
# Under network isolation a container has no credentials, and whatever it asks for ends at a closed door.
_NOTHING = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}
_FOLDERS = ("input/config", "input/data", "model", "output/data", "checkpoints", "code")


@dataclass(frozen=True)
class Host:
    """A host of a job, as a folder of this machine."""

    name: str
    # Stands for the container's `/`: /opt/ml is `root/opt/ml`.
    root: Path
    instance_type: str
    group: str

    @property
    def base(self) -> Path:
        return self.root / "opt" / "ml"

    def path_of(self, container_path: str) -> Path:
        return self.root / container_path.strip("/")


def hosts_of(request: dict[str, Any], job_folder: Path) -> list[Host]:
    resources = request["ResourceConfig"]
    groups = resources.get("InstanceGroups") or [_only_group(resources)]
    members = [group for group in groups for _ in range(group["InstanceCount"])]
    return [
        Host(name, job_folder / name, group["InstanceType"], group["InstanceGroupName"])
        for name, group in ((f"algo-{number}", group) for number, group in enumerate(members, start=1))
    ]


def _only_group(resources: dict[str, Any]) -> dict[str, Any]:
    kind = resources.get("InstanceType") or resources["SelectedInstanceType"]
    count = resources.get("InstanceCount") or resources["SelectedInstanceCount"]
    return {"InstanceGroupName": "homogeneousCluster", "InstanceType": kind, "InstanceCount": count}


def lay_out(host: Host, hosts: list[Host], request: dict[str, Any]) -> None:
    """Create an empty tree: as on a new instance, nothing of an earlier attempt remains on this host."""
    shutil.rmtree(host.root, ignore_errors=True)
    for folder in _FOLDERS:
        (host.base / folder).mkdir(parents=True)
    config = host.base / "input" / "config"
    _write(config / "hyperparameters.json", request.get("HyperParameters", {}))
    _write(config / "inputdataconfig.json", _channels(request))
    _write(config / "resourceconfig.json", _resources(host, hosts))


def _channels(request: dict[str, Any]) -> dict[str, Any]:
    mode = request["AlgorithmSpecification"]["TrainingInputMode"]
    return {channel["ChannelName"]: _channel(channel, mode) for channel in request.get("InputDataConfig", [])}


def _channel(channel: dict[str, Any], mode: str) -> dict[str, Any]:
    source = channel["DataSource"].get("S3DataSource", {})
    shown = {
        "TrainingInputMode": channel.get("InputMode", mode),
        "S3DistributionType": source.get("S3DataDistributionType", "FullyReplicated"),
        "RecordWrapperType": channel.get("RecordWrapperType", "None"),
    }
    return shown | ({"ContentType": channel["ContentType"]} if "ContentType" in channel else {})


def _resources(host: Host, hosts: list[Host]) -> dict[str, Any]:
    groups = {host.group: host.instance_type for host in hosts}
    return {
        "current_host": host.name,
        "current_instance_type": host.instance_type,
        "current_group_name": host.group,
        "hosts": [host.name for host in hosts],
        "instance_groups": [
            {
                "instance_group_name": group,
                "instance_type": instance_type,
                "hosts": [host.name for host in hosts if host.group == group],
            }
            for group, instance_type in groups.items()
        ],
        "network_interface_name": "lo",
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content))


def environment_of(
    host: Host,
    request: dict[str, Any],
    *,
    arn: str,
    endpoint_url: str,
    region: str,
    account_id: str,
    master_port: int,
    image: Mapping[str, str],
) -> dict[str, str]:
    """Nothing of this machine's environment gets in but a few plain names; credentials are dummies."""
    given = {**image, **request.get("Environment", {})}
    inherited = {key: os.environ[key] for key in _FROM_THIS_MACHINE if key in os.environ}
    isolated = request.get("EnableNetworkIsolation", False)
    reach = _NOTHING if isolated else {**_credentials(account_id), "AWS_ENDPOINT_URL": endpoint_url}
    return {
        **inherited,
        # What a launcher calls `python` is the image's, that is, this interpreter.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        **reach,
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(master_port),
        **given,
        "PYTHONPATH": os.pathsep.join([*filter(None, [given.get("PYTHONPATH")]), str(JOB_SITE)]),
        "SAGEMAKER_BASE_DIR": str(host.base),
        "TRAINING_JOB_NAME": request["TrainingJobName"],
        "TRAINING_JOB_ARN": arn,
    }


def _credentials(account_id: str) -> dict[str, str]:
    return {"AWS_ACCESS_KEY_ID": account_id, "AWS_SECRET_ACCESS_KEY": "local"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
