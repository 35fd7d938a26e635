"""What the options of a submission mean: names, pairs, paths, buckets, images and metrics."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cli.place import now
from cli.submit.account import SubmissionAccount
from cli.submit.images import NEWEST, find_pytorch_image
from cli.submit.packing import Source
from cli.submit.problem import Problem
from cli.submit.screen import SubmitScreen

LOCAL_IMAGE = "rerail-training:local"
LOCAL_BUCKET = "sagemaker-local"
# A script that has these in it prints our metric line.
AGENT = ("rerail_agent", "rerail step=")


def make_name(script: Path, source: Source) -> str:
    """The script's name, or its folder's where it has the usual one, and the time."""
    path = script.expanduser().resolve()
    stem = Path(source.entry).stem
    name = (path if path.is_dir() else path.parent).name if stem in ("train", "main") else stem
    words = "-".join(re.findall("[a-zA-Z0-9]+", name)) or "training"
    return f"{words[:40].rstrip('-')}-{now():%Y%m%d-%H%M%S}"


def parse_pairs(option: str, given: list[str] | None) -> dict[str, str]:
    """NAME=VALUE, each name once."""
    found: dict[str, str] = {}
    for text in given or ():
        name, is_pair, value = text.partition("=")
        if not is_pair or not name:
            raise Problem(f"{option} {text}: not NAME=VALUE", f"write {option} NAME=VALUE")
        if name in found:
            raise Problem(f"{option} {name}: given twice", "give it once")
        found[name] = value
    return found


def check_local_path(option: str, given: str | Path) -> Path:
    """The whole path of a file or folder, whether it is there or not; a name that no file system takes is a problem."""
    try:
        path = Path(given).expanduser().resolve()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise Problem(f"{option} {str(given)[:200]}: {why}", "give a path of this machine") from error
    return path


def parse_paths(given: list[str] | None) -> dict[str, str]:
    """Channel to S3 folder or local path; each path is there."""
    paths = parse_pairs("--input", given)
    for channel, path in paths.items():
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", channel):
            raise Problem(f"--input {channel}: not a channel's name", "use letters, digits, '.', '-' and '_'")
        if not path.startswith("s3://") and not check_local_path("--input", path).exists():
            raise Problem(f"--input {channel}={path}: there is no such file or folder", "give a path or s3://...")
    return paths


def make_uri(given: str, uploaded: str) -> str:
    """Where a channel's data lies, or will lie."""
    return uploaded if given and not given.startswith("s3://") else given


def find_wheel(given: str) -> str:
    """The agent's wheel, a file here or in S3."""
    if given and not given.endswith(".whl"):
        raise Problem(f"--agent {given}: not a wheel", "make one: pip wheel --no-deps ./agent")
    if given and not given.startswith("s3://") and not check_local_path("--agent", given).is_file():
        raise Problem(f"--agent {given}: there is no such file", "make one: pip wheel --no-deps ./agent")
    return given


def find_bucket(account: SubmissionAccount, bucket: str) -> str:
    """The one that is named, or the usual one."""
    if bucket:
        return bucket.removeprefix("s3://").rstrip("/")
    return LOCAL_BUCKET if account.is_local else account.find_default_bucket()


def find_image(account: SubmissionAccount, asked: str, version: str, usual: Mapping[str, Any], machine: str) -> str:
    """The image that is named, or AWS's; the local AWS knows neither the project's usual one nor AWS's."""
    if asked or account.is_local:
        return asked or LOCAL_IMAGE
    if usual.get("image") and not version:
        return str(usual["image"])
    return find_pytorch_image(version or usual.get("framework_version", NEWEST), _typed(machine), account.region)


def _typed(machine: str) -> str:
    if len(machine.split(".")) != 3:
        raise Problem(f"--instance-type {machine}: not a type of SageMaker's", "they look like ml.g5.xlarge")
    return machine


def find_metrics(source: Source, own: dict[str, str], screen: SubmitScreen) -> dict[str, str] | None:
    """The script's own; Rerail's where it prints our line; none for a script whose lines nobody knows."""
    if own:
        return own
    if source.mentions(*AGENT):
        return None
    screen.say("the loss is not watched: name it in the log with --metric loss='loss: ([0-9.]+)', and step alike")
    return {}
