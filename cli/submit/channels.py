"""The channels of a job: S3 folders, whole or shared out among the machines, and folders of file systems."""

import re
from collections.abc import Mapping
from typing import Any

from cli.submit.problem import Problem
from cli.submit.settings import SubmitSettings

CHANNEL_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
# On FSx for Lustre the path begins with the mount name: /abcdef01/dataset.
FILE_SYSTEM = re.compile(r"(?P<id>fs-[0-9a-f]{8,40})(?P<path>/[^:]*)(?::(?P<mode>ro|rw))?")


def check_channel_name(option: str, name: str) -> None:
    """Raise Problem for a name that SageMaker would refuse."""
    if not CHANNEL_NAME.fullmatch(name):
        raise Problem(f"{option} {name}: not a channel's name", "use letters, digits, '.', '-' and '_'")


def make_channels(settings: SubmitSettings, uris: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return InputDataConfig of the S3 folders by name and of the folders of file systems.

    Raise Problem for a name used twice, for a share of a channel outside S3, and for a file system without a VPC.
    """
    mounted = {name: _make_mounted_channel("fsx", "FSxLustre", name, text) for name, text in settings.fsx.items()}
    mounted |= {name: _make_mounted_channel("efs", "EFS", name, text) for name, text in settings.efs.items()}
    if twice := sorted((uris.keys() & mounted.keys()) | (settings.fsx.keys() & settings.efs.keys())):
        raise Problem(f"--input {twice[0]}: a file system has that name too", "give each channel its own name")
    for name in settings.shard:
        if name not in uris:
            known = ", ".join(uris) or "none was given"
            raise Problem(f"shard {name}: not among the channels of --input ({known})", "name one of them")
    if mounted and not settings.subnets:
        raise Problem(
            f"channel {next(iter(mounted))}: a file system is reached from inside its VPC alone",
            'name its network: subnets = ["subnet-..."] and security_groups = ["sg-..."]',
        )
    sources = (make_s3_channel(name, uri, is_sharded=name in settings.shard) for name, uri in uris.items())
    return [*sources, *mounted.values()]


def make_s3_channel(name: str, uri: str, *, is_sharded: bool = False) -> dict[str, Any]:
    """Return the channel; each machine gets all objects of the prefix, or its share of them."""
    source = {
        "S3DataType": "S3Prefix",
        "S3Uri": uri,
        "S3DataDistributionType": "ShardedByS3Key" if is_sharded else "FullyReplicated",
    }
    return {"ChannelName": name, "DataSource": {"S3DataSource": source}}


def _make_mounted_channel(key: str, kind: str, name: str, text: str) -> dict[str, Any]:
    """Return the channel of a folder that is written fs-ID/PATH, with :rw if the job writes there."""
    check_channel_name(key, name)
    match = FILE_SYSTEM.fullmatch(text)
    if not match:
        raise Problem(
            f"{key}: {name} = {text!r:.200}: not a folder of a file system",
            f'write {name} = "fs-0123456789abcdef0/folder", with :rw at the end to write there',
        )
    source = {"FileSystemId": match["id"], "FileSystemType": kind, "DirectoryPath": match["path"]}
    source["FileSystemAccessMode"] = match["mode"] or "ro"
    return {"ChannelName": name, "DataSource": {"FileSystemDataSource": source}}
