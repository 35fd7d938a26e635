"""What a finished job has left: its model and its outputs, downloaded and unpacked."""

import os
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from botocore.exceptions import ClientError

from cli.submit.account import split
from cli.submit.problem import Problem
from rerail.model.formatting import format_files

# Bytes of a path. The end of one that no system follows, of 1,024 on macOS, is resolved without looking for links.
LONGEST_PATH = 1_000
# Others may have stored any number of objects whose names lead out of the folder.
MOST_NAMED = 10
# Python 3.11 has this filter from 3.11.4 on; Debian's is older.
AS_DATA: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def download(s3: Any, job: dict[str, Any], folder: Path, say: Callable[[str], None]) -> list[Path]:
    """Download the job's model and output into `model/` and `output/` below the folder; return the files.

    Say which objects are left out because their names lead elsewhere.
    """
    uris = {"output": f"{job['OutputDataConfig']['S3OutputPath'].rstrip('/')}/{job['TrainingJobName']}/output/output"}
    if model := job.get("ModelArtifacts", {}).get("S3ModelArtifacts"):
        uris["model"] = model.removesuffix(".tar.gz").rstrip("/")
    return sorted(path for name, uri in uris.items() for path in _fetched(s3, uri, folder / name, say))


def _fetched(s3: Any, uri: str, folder: Path, say: Callable[[str], None]) -> list[Path]:
    bucket, key = split(uri)
    with TemporaryFile() as packed:
        try:
            s3.download_fileobj(bucket, f"{key}.tar.gz", packed)
        except ClientError as error:
            if error.response["Error"]["Code"] not in ("NoSuchKey", "404"):
                raise
            return _plain_files(s3, bucket, f"{key}/", folder, say)
        packed.seek(0)
        return _unpacked(packed, f"{uri}.tar.gz", folder)


def _unpacked(packed: IO[bytes], uri: str, folder: Path) -> list[Path]:
    """Member by member: where a later one leads may depend on the links among those before."""
    files = []
    try:
        with tarfile.open(fileobj=packed, mode="r:gz") as archive:
            for member in archive:
                if not _stays_within(folder.resolve(), member):
                    raise Problem(f"{uri} would write outside of {folder}: {member.name}", "look into it by hand")
                archive.extract(member, folder, **AS_DATA)
                files += [folder / member.name] if member.isfile() else []
    except (tarfile.TarError, EOFError, zlib.error, OSError, RuntimeError, KeyError, ValueError) as error:
        raise Problem(f"{uri} cannot be unpacked: {error}", "look into it by hand") from error
    return files


def _stays_within(folder: Path, member: tarfile.TarInfo) -> bool:
    """Neither the member nor what it links to lies elsewhere; what is neither file, folder nor link is not taken."""
    place = folder / member.name
    target = place.parent / member.linkname if member.issym() else folder / member.linkname
    ends = [place.resolve(), target.resolve()]
    inside = all(end.is_relative_to(folder) and len(os.fsencode(end)) <= LONGEST_PATH for end in ends)
    # A second name of a relative link leads elsewhere.
    is_plain_link = member.issym() or (member.islnk() and not target.is_symlink())
    return inside and (member.isfile() or member.isdir() or is_plain_link)


def _plain_files(s3: Any, bucket: str, prefix: str, folder: Path, say: Callable[[str], None]) -> list[Path]:
    """Download what a job with uncompressed output has stored, and return the files."""
    found, outside = [], []
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for item in page.get("Contents", []):
            path = (folder / item["Key"].removeprefix(prefix)).resolve()
            if item["Key"].endswith("/"):
                continue
            if not path.is_relative_to(folder.resolve()):
                outside.append(item["Key"])
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            s3.download_file(bucket, item["Key"], str(path))
            found.append(path)
    for key in outside[:MOST_NAMED]:
        say(f"not downloaded, because it leads out of {folder}: {key!r} of {bucket}")
    if len(outside) > MOST_NAMED:
        say(f"not downloaded for the same reason: {format_files(len(outside) - MOST_NAMED)} more")
    return found
