"""Copies of files that a script overwrites in place: such a file has no predecessor of its own."""

from dataclasses import dataclass
from datetime import datetime

from rerail.model.record import Record


@dataclass(frozen=True, slots=True)
class FileCopy(Record):
    """A copy that Rerail made of such a file, or is about to make."""

    # The file's path below the checkpoint folder.
    name: str
    # The copy's key in the same bucket.
    key: str
    # The file's ETag, size and time when it was copied.
    etag: str
    bytes: int
    saved_at: datetime
    # The attempt that saved it.
    attempt: int
    # The step that the job had reported when the file was listed; None: unknown.
    step: int | None = None
    # The copy's own ETag, which differs under a KMS key or with other parts; empty until it is made.
    copy_etag: str = ""
