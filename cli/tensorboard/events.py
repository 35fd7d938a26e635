"""A run's own event files in S3, brought home: one folder an attempt, whoever wrote them and wherever they lie."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from rerail.model.checkpoints import split_uri
from rerail.model.errors import JobNotFound
from rerail.model.run import Attempt, Run

# events.out.tfevents.<seconds since 1970>.<host>...
WRITTEN = re.compile(r"tfevents\.(\d{9,11})(?:\.|$)")
# Pages of a listing, with 1,000 objects each; and what is downloaded, since others may write into the folders.
MOST_PAGES, MOST_FILES, MOST_BYTES = 100, 1_000, 8 << 30


@dataclass(frozen=True, slots=True)
class EventFile:
    """An event file in S3, the attempt that wrote it, and where below that attempt's folder it belongs."""

    bucket: str
    key: str
    size: int
    attempt: int
    path: str


def find_folder(attempt: int) -> str:
    """Return an attempt's folder, which is its name in TensorBoard's list of runs."""
    return f"attempt-{attempt:03d}"


def find_places(run: Run) -> list[str]:
    """Return the S3 folders that may have event files: SageMaker's copy, and the checkpoints' folder."""
    from rerail.aws.sagemaker import SageMakerJobs

    found = []
    for attempt in list_launched(run):
        try:
            _, description = SageMakerJobs().describe(attempt.job_name)
        except JobNotFound:
            continue
        found.append((description.get("TensorBoardOutputConfig") or {}).get("S3OutputPath", ""))
    return list(dict.fromkeys(uri.rstrip("/") + "/" for uri in (*found, run.checkpoint_uri) if uri))


def list_launched(run: Run) -> list[Attempt]:
    """Return the attempts that became jobs, oldest first."""
    return [attempt for attempt in run.attempts if attempt.exists]


def list_event_files(s3: Any, run: Run, uris: Sequence[str], problems: list[str]) -> Iterator[EventFile]:
    """Return the event files below these folders that belong to the run, each once; add what was not listed.

    If the jobs have folders of their own, only files in the run's own folders belong to it: other runs may share the
    parent.
    """
    seen = set()
    for uri in uris:
        bucket, prefix = split_uri(uri)
        found = []
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        for number, page in enumerate(islice(pages, MOST_PAGES), start=1):
            if number == MOST_PAGES and page.get("IsTruncated"):
                problems.append(f"{uri}: event files after its first {MOST_PAGES},000 objects are not read")
            for item in page.get("Contents", []):
                key, path = item["Key"], item["Key"].removeprefix(prefix)
                if "tfevents" not in key.rpartition("/")[2] or (bucket, key) in seen:
                    continue
                seen.add((bucket, key))
                if (attempt := find_writer(run, path, item["LastModified"])) is not None:
                    found.append(EventFile(bucket, key, item["Size"], attempt, path))
        named = [file for file in found if _named(run, file.path) is not None]
        yield from named or found


def find_writer(run: Run, path: str, stored: datetime) -> int | None:
    """Return the attempt that wrote a file, or None for a file that is older than the run.

    The job's name in its path decides, then the time in its own name, then the time at which it was stored.
    """
    if (owner := _named(run, path)) is not None:
        return owner
    attempts = list_launched(run)
    named = WRITTEN.search(path)
    at = datetime.fromtimestamp(int(named[1]), UTC) if named else stored.astimezone(UTC)
    begun = [attempt for attempt in attempts if attempt.created_at and _seconds(attempt.created_at) <= at]
    return begun[-1].number if begun else None


def _named(run: Run, path: str) -> int | None:
    """The attempt whose job has a folder of its own in the path."""
    folders = path.split("/")[:-1]
    return next((attempt.number for attempt in list_launched(run) if attempt.job_name in folders), None)


def _seconds(at: datetime) -> datetime:
    """The name of a file has no fractions of a second."""
    return at.replace(microsecond=0)


def bring(s3: Any, files: Sequence[EventFile], folder: Path) -> list[str]:
    """Download what is new or has grown; return why a file was left out. Nothing is written outside of the folder.

    Where there is more than a limit, files of the newest attempts are taken.
    """
    problems, left = list[str](), MOST_BYTES
    for number, file in enumerate(sorted(files, key=lambda file: -file.attempt)):
        left -= file.size
        if number == MOST_FILES or left < 0:
            most = f"at most {MOST_FILES:,} files of {MOST_BYTES >> 30} GiB in all are downloaded"
            return [f"{len(files) - number} of {len(files)} event files were left out: {most}", *problems]
        try:
            path = (folder / find_folder(file.attempt) / file.path).resolve()
            if not path.is_relative_to(folder.resolve()) or (path.exists() and path.stat().st_size == file.size):
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            s3.download_file(file.bucket, file.key, str(path))
        except (OSError, ValueError, ClientError) as error:  # others choose the names, and who may read what they wrote
            problems.append(f"{file.key:.200} was left out: {error!s:.200}")
    return problems
