"""The channels of a job: S3 folders, whole or shared out among the machines, and folders of file systems."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cli.submit.problem import Problem

CHANNEL_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
FILE_SYSTEM = re.compile(r"(?P<id>fs-[0-9a-f]{8,40})(?P<path>/[^:]*)(?::(?P<mode>ro|rw))?")
FSX, EFS = "FSxLustre", "EFS"
OPTIONS = {FSX: "--fsx", EFS: "--efs"}


@dataclass(frozen=True, slots=True)
class FileSystemFolder:
    """A folder of a file system, which a job mounts as a channel."""

    # FSxLustre or EFS.
    kind: str
    id: str
    # On FSx for Lustre it begins with the mount name: /abcdef01/dataset.
    path: str
    # ro or rw.
    mode: str = "ro"


def check_channel_name(option: str, name: str) -> None:
    """Raise Problem for a name that SageMaker would refuse."""
    if not CHANNEL_NAME.fullmatch(name):
        raise Problem(f"{option} {name}: not a channel's name", "use letters, digits, '.', '-' and '_'")


def parse_file_systems(kind: str, pairs: Mapping[str, str]) -> dict[str, FileSystemFolder]:
    """Return the folder that each CHANNEL=fs-ID/PATH[:rw] names."""
    folders = {}
    for name, text in pairs.items():
        option = OPTIONS[kind]
        check_channel_name(option, name)
        match = FILE_SYSTEM.fullmatch(text)
        if not match:
            raise Problem(
                f"{option} {name}={text}: not a folder of a file system",
                f"write {option} {name}=fs-0123456789abcdef0/folder, with :rw at the end to write there",
            )
        folders[name] = FileSystemFolder(kind, match["id"], match["path"], match["mode"] or "ro")
    return folders


def check_channels(
    channels: Mapping[str, str], folders: Mapping[str, FileSystemFolder], sharded: Sequence[str]
) -> None:
    """Raise Problem for a name that two channels have, and for a share of what is no S3 channel."""
    if twice := sorted(channels.keys() & folders.keys()):
        raise Problem(f"--input {twice[0]}: a file system has that name too", "give each channel its own name")
    for name in sharded:
        if name not in channels:
            known = ", ".join(channels) or "none was given"
            raise Problem(f"--shard {name}: not among the channels of --input ({known})", "name one of them")


def make_channels(
    channels: Mapping[str, str], folders: Mapping[str, FileSystemFolder], sharded: Sequence[str]
) -> list[dict[str, Any]]:
    """Return InputDataConfig of S3 folders by name and of folders of file systems."""
    return [
        *(make_s3_channel(name, uri, is_sharded=name in sharded) for name, uri in channels.items()),
        *(_make_mounted_channel(name, folder) for name, folder in folders.items()),
    ]


def make_s3_channel(name: str, uri: str, *, is_sharded: bool = False) -> dict[str, Any]:
    """Return the channel; each machine gets all objects of the prefix, or its share of them."""
    source = {
        "S3DataType": "S3Prefix",
        "S3Uri": uri,
        "S3DataDistributionType": "ShardedByS3Key" if is_sharded else "FullyReplicated",
    }
    return {"ChannelName": name, "DataSource": {"S3DataSource": source}}


def _make_mounted_channel(name: str, folder: FileSystemFolder) -> dict[str, Any]:
    source = {
        "FileSystemId": folder.id,
        "FileSystemType": folder.kind,
        "DirectoryPath": folder.path,
        "FileSystemAccessMode": folder.mode,
    }
    return {"ChannelName": name, "DataSource": {"FileSystemDataSource": source}}
