"""List a checkpoint folder in S3 within bounds, so that one run cannot take the time and memory of all others.

A small folder is listed as a whole. Of a large one, the names of the checkpoint folders are listed first, and then the
objects of those that are asked for.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC
from typing import Any

from rerail.aws.clients import client
from rerail.model.checkpoint_layouts import QUARANTINE, StoredObject, find_folder_step
from rerail.model.errors import BoundsExceeded

# Larger folders are listed by their checkpoint folders.
WHOLE_OBJECTS = 5_000
# Bounds of one listing. A third of a core takes some seconds for so many objects, of which each page has a thousand.
MAX_OBJECTS, MAX_CALLS, MAX_SECONDS = 20_000, 500, 10.0
ANY_NAME = re.compile(r".*", re.DOTALL)
# Members of each object in a listing.
LISTED = {"Key", "Size", "LastModified", "ETag"}
ADVICE = (
    "keep fewer checkpoints (save_total_limit of the Hugging Face Trainer, save_top_k of Lightning), move other data "
    "out of the checkpoint folder, then release the run if it is held"
)


class FolderListing:
    """The objects below a prefix, with keys relative to it; raise BoundsExceeded if they are too many."""

    def __init__(self, bucket: str, prefix: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.bucket, self.prefix = bucket, prefix
        self.objects: list[StoredObject] = []
        # The steps of all checkpoint folders, by the folder's key with its final slash.
        self.steps: dict[str, int] = {}
        self._left: set[str] = set()  # folders that are not listed yet
        self._clock, self._end = clock, clock() + MAX_SECONDS
        self._count, self._calls = 0, 0
        if not self._list_whole():
            self._list_folders()

    @property
    def is_whole(self) -> bool:
        """Return whether every object is listed."""
        return not self._left

    def newest(self, count: int, *, upto: int | None = None, named: re.Pattern[str] = ANY_NAME) -> list[str]:
        """Return the checkpoint folders of the newest steps, up to a step and so named, that are not listed yet."""
        wanted = (
            folder
            for folder in self._left
            if (upto is None or self.steps[folder] <= upto) and named.fullmatch(folder.rstrip("/").rpartition("/")[2])
        )
        return sorted(wanted, key=lambda folder: (self.steps[folder], folder), reverse=True)[:count]

    def oldest(self, count: int) -> list[str]:
        """Return the checkpoint folders of the oldest steps that are not listed yet."""
        return sorted(self._left, key=lambda folder: (self.steps[folder], folder))[:count]

    def add(self, folders: Iterable[str]) -> None:
        """List the objects of these checkpoint folders."""
        for folder in folders:
            if folder in self._left:
                for page in self._pages(folder):
                    self.objects += self._read(page)
                self._left.discard(folder)

    def check_time(self) -> None:
        """Raise BoundsExceeded once the time is over."""
        if self._clock() >= self._end:
            self._refuse(f"reading takes longer than {MAX_SECONDS:g} s", may_pass=True)

    def _list_whole(self) -> bool:
        """List everything; return False, with nothing kept, where it is a large folder."""
        for page in self._pages(""):
            self.objects += self._read(page)
            if len(self.objects) >= WHOLE_OBJECTS and page.get("IsTruncated"):
                self.objects, self._count = [], 0
                return False
        return True

    def _list_folders(self) -> None:
        """List what is outside of checkpoint folders, at any depth, and the names of those folders."""
        folders = [""]
        for folder in folders:
            for page in self._pages(folder, Delimiter="/"):
                self.objects += self._read(page)
                for item in page.get("CommonPrefixes", []):
                    name = item["Prefix"].removeprefix(self.prefix)
                    step = find_folder_step(name)
                    if step is not None:
                        self.steps[name] = step
                    elif not name.startswith(QUARANTINE):
                        folders.append(name)
        self._left = set(self.steps)

    def _pages(self, folder: str, **more: str) -> Iterator[dict[str, Any]]:
        paginator = client("s3").get_paginator("list_objects_v2")
        for page in paginator.paginate(Bucket=self.bucket, Prefix=f"{self.prefix}{folder}", **more):
            self._calls += 1
            self._count += len(page.get("Contents", [])) + len(page.get("CommonPrefixes", []))
            if self._count > MAX_OBJECTS:
                self._refuse(f"more than {MAX_OBJECTS:,} objects and folders have to be read")
            if self._calls > MAX_CALLS:
                self._refuse(f"more than {MAX_CALLS} folders have to be listed")
            yield page
            self.check_time()

    def _refuse(self, what: str, *, may_pass: bool = False) -> None:
        uri = f"s3://{self.bucket}/{self.prefix}"
        raise BoundsExceeded(f"the checkpoints under {uri} cannot be listed: {what}", advice=ADVICE, may_pass=may_pass)

    def _read(self, page: dict[str, Any]) -> list[StoredObject]:
        return [
            StoredObject(
                item["Key"].removeprefix(self.prefix), item["Size"], item["LastModified"].astimezone(UTC), item["ETag"]
            )
            for item in page.get("Contents", [])
            if item.keys() >= LISTED
        ]
