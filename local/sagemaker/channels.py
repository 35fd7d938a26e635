"""Input channels: copies the S3 data of a job to input/data/<channel> before training."""

from typing import Any

from .hosts import Host
from .storage import Storage, below, split_uri


class DownloadFailed(Exception):
    """The data of a channel is not there, or lies where this fake cannot reach."""


def download_channels(storage: Storage, request: dict[str, Any], hosts: list[Host]) -> None:
    for channel in request.get("InputDataConfig", []):
        source = channel["DataSource"].get("S3DataSource")
        if source is None or source["S3DataType"] != "S3Prefix":
            raise DownloadFailed(f"channel {channel['ChannelName']}: use an S3DataSource with S3DataType S3Prefix")
        _download(storage, source, channel["ChannelName"], hosts)


def _download(storage: Storage, source: dict[str, Any], channel: str, hosts: list[Host]) -> None:
    bucket, prefix = split_uri(source["S3Uri"])
    keys = storage.keys(bucket, prefix)
    if not keys:
        raise DownloadFailed(f'No S3 objects found under S3 URL "{source["S3Uri"]}" given in input data source.')
    sharded = source.get("S3DataDistributionType") == "ShardedByS3Key"
    for number, host in enumerate(hosts):
        folder = host.base / "input" / "data" / channel
        folder.mkdir(parents=True, exist_ok=True)
        for key in keys[number :: len(hosts)] if sharded else keys:
            storage.fetch(bucket, key, below(folder, relative_key(key, prefix)))


def relative_key(key: str, prefix: str) -> str:
    """`train/a.csv` under `train` or `train/` is `a.csv`; a prefix that ends inside a name keeps that name."""
    folder = prefix if prefix.endswith("/") else f"{prefix}/"
    return key.removeprefix(folder) if key.startswith(folder) else key[prefix.rfind("/") + 1 :]
