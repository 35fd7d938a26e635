"""Write and read checkpoints in S3 directly: no disk, no later upload, and the manifest is the last PUT.

Nothing can be renamed in S3, so a file that must not be confused with another attempt's has a name of its own. Works
with s3torchconnector, whose client is used without its torch part in the writer process.
"""

import hashlib
import os
import sys
import urllib.parse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import xxhash

from rerail.model.checkpoints import split_uri
from rerail_agent.checkpoints.manifest import (
    MANIFEST,
    METADATA,
    QUARANTINE,
    SIZE_LIMIT,
    UNREADABLE,
    DamagedCheckpoint,
    Manifest,
    dump,
    find_steps,
    format_now,
    make_folder_name,
    parse,
)

SMALLEST_PART = 8 << 20
MOST_PARTS = 9_000  # S3 takes 10,000
LARGEST_COPY = 5 << 30  # of one CopyObject
LEFT = ".left"  # the end of the name of an empty object beside one that could not be moved to quarantine
NUMBERED_NAMES = 9  # of one step in quarantine
ARN_REGION, ARN_ACCOUNT = 3, 4  # their places in an ARN
# s3torchconnector's exceptions have no code, only these words: of a HEAD and of a GET.
NOT_FOUND = ("The object was not found", "The key does not exist")
# The codes of a GET of an empty object, and of a conditional PUT of an existing one.
EMPTY = "InvalidRange"
TAKEN = ("412", "PreconditionFailed", "409", "ConditionalRequestConflict")
REFUSED = ("storage class", "kms:", "Server Side Encryption")


@dataclass(frozen=True)
class S3Store:
    """A prefix of a bucket; `prefix` is empty or ends with a slash."""

    bucket: str
    prefix: str
    region: str
    endpoint: str | None = None
    durability: str = "remote"
    is_shared: bool = True

    @classmethod
    def of(cls, uri: str) -> "S3Store":
        """Parse `s3://bucket/prefix`; region and, for a local AWS, endpoint are those of the environment."""
        bucket, prefix = split_uri(uri)
        if not bucket:
            raise ValueError(f"{uri}: must be s3://bucket/prefix")
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None
        _check_owner(bucket, _region(), _read_arn(ARN_ACCOUNT))
        return cls(bucket, prefix, _region(), endpoint)

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def file_name(self, rank: int, nonce: int) -> str:
        return f"__{rank}_{nonce}.distcp"

    def path(self, step: int) -> str:
        return f"{self.uri}{make_folder_name(step)}/"

    def write(self, step: int, name: str, chunks: Iterable[memoryview], *, total: int) -> dict[str, Any]:
        digest, size = xxhash.xxh3_64(), 0
        with _translate_errors():
            stream = self._client(total).put_object(self.bucket, self._key(step, name))
            for chunk in chunks:
                digest.update(chunk)
                stream.write(bytes(chunk))
                size += len(chunk)
            if size != total:
                raise OSError(f"{name}: {size} bytes were to be written instead of {total}")
            stream.close()  # only now there is an object
        return {"name": name, "bytes": size, "checksum": f"xxh3_64:{digest.hexdigest()}"}

    def _write_once(self, step: int, name: str, text: bytes) -> dict[str, Any]:
        """Write a file unless it exists, so that of two jobs that save one step at the same time one commits.

        s3torchconnector cannot send a condition.
        """
        from rerail_agent.mailbox_objects import make_s3_client, read_error_code

        key = self._key(step, name)
        client = make_s3_client(self.region, _read_arn(ARN_ACCOUNT), attempts=5)
        client.meta.events.register("before-call.s3.PutObject", _add_condition)
        try:
            client.put_object(Bucket=self.bucket, Key=key, Body=text)
        except Exception as error:
            if read_error_code(error) not in TAKEN:
                raise OSError(f"S3: {error}") from error
            if self._content(key) != text[:SIZE_LIMIT]:  # else an earlier try has arrived
                raise FileExistsError(f"another job saves {self.path(step)} at the same time") from error
        return {"name": name, "bytes": len(text), "checksum": f"xxh3_64:{xxhash.xxh3_64(text).hexdigest()}"}

    def reveal(self, step: int) -> None:
        """Do nothing: the files are in their final place, and invisible without a manifest."""

    def commit(self, manifest: Manifest, metadata: bytes) -> Manifest:
        step = manifest.step
        if f"{METADATA}{LEFT}" in self._sizes(self._key(step, "")):
            raise FileExistsError(f"{self.path(step)}{METADATA} is a part of a checkpoint in quarantine: it is kept")
        if self._content(self._key(step, MANIFEST)) is not None:
            raise FileExistsError(f"{self.path(step)} exists already, and a complete checkpoint is never replaced")
        index = self._write_once(step, METADATA, metadata)
        index["sha256"] = hashlib.sha256(metadata).hexdigest()
        complete = replace(manifest, files=(*manifest.files, index), saved_at=format_now())
        text = dump(complete)
        self.write(step, MANIFEST, [memoryview(text)], total=len(text))
        sizes = self._sizes(self._key(step, ""))
        if lost := [entry["name"] for entry in complete.files if sizes.get(entry["name"]) != entry["bytes"]]:
            self._delete(self._key(step, ""), [MANIFEST])
            raise OSError(f"{lost[0]} was deleted or replaced meanwhile: another job saves to {self.uri}")
        return complete

    def discard(self, step: int, name: str) -> None:
        """Delete the files that end like this one, unless they are committed: others may be saving the same step."""
        source, end = self._key(step, ""), name[name.rindex("_") :]
        if end.encode() not in (self._content(source + MANIFEST) or b""):
            sizes, index = self._sizes(source), self._content(source + METADATA) or b""
            own = {found for found in sizes if found.endswith(end) or (found == METADATA and end.encode() in index)}
            self._delete(source, {found for found in own if f"{found}{LEFT}" not in sizes})

    def delete_leftovers(self) -> None:
        """Do nothing: what a killed save left has no manifest, and retention deletes it."""

    def steps(self) -> list[int]:
        with _translate_errors():
            pages = list(self._client().list_objects(self.bucket, self.prefix, "/", 1000))
        return find_steps(path.rstrip("/").rpartition("/")[2] for page in pages for path in page.common_prefixes)

    def manifest(self, step: int) -> Manifest | None:
        try:
            text = self._content(self._key(step, MANIFEST))
        except OSError as error:
            if _is_refused(error):
                raise DamagedCheckpoint(UNREADABLE) from error
            raise
        return None if text is None else parse(text, folder=make_folder_name(step))

    def check(self, step: int, entry: dict[str, Any]) -> None:
        name, digest, size = entry["name"], xxhash.xxh3_64(), 0
        try:
            for chunk in self._read(self._key(step, name)):
                digest.update(chunk)
                size += len(chunk)
        except FileNotFoundError as error:
            raise DamagedCheckpoint(f"{name} is missing") from error
        if size != entry["bytes"]:
            raise DamagedCheckpoint(f"{name} has {size} bytes instead of {entry['bytes']}")
        if f"xxh3_64:{digest.hexdigest()}" != entry["checksum"]:
            raise DamagedCheckpoint(f"{name} does not match its checksum")

    def drop(self, step: int) -> None:
        source = self._key(step, "")
        sizes = self._sizes(source)
        left = {name for name in sizes if f"{name}{LEFT}" in sizes and name != MANIFEST}
        self._delete(source, sizes.keys() - left - {f"{name}{LEFT}" for name in left})

    def quarantine(self, step: int, attempt: int | str) -> str | None:
        """Copy, compare sizes and only then delete. A repetition after a kill copies all again: others can write there.

        An object that S3 refuses to copy, since its writer has archived or encrypted it, stays: an empty object beside
        it keeps it from being deleted as part of an outdated checkpoint. Return None for a folder without manifest,
        which a killed save or a killed deletion has left.
        """
        source = self._key(step, "")
        text = self._content(source + MANIFEST)
        if text is None:
            return None
        target = self._free_prefix(f"{self.prefix}{QUARANTINE}/a{attempt}-{make_folder_name(step)}", text)
        sizes, refused = self._sizes(source), []
        for name in sorted(sizes, key=lambda name: name == MANIFEST):  # the manifest last: it makes the copy count
            try:
                self._copy(source + name, target + name, sizes[name])
            except OSError as error:
                if not _is_refused(error):
                    raise
                refused.append(name)
                del sizes[name]
        if MANIFEST not in sizes:
            raise OSError(f"S3 does not copy the manifest of {source}; nothing was deleted")
        if {name: size for name, size in self._sizes(target).items() if name in sizes} != sizes:
            raise OSError(f"{target} is not a whole copy of {source}; nothing was deleted")
        marks = {f"{name}{LEFT}" for name in refused}
        for mark in marks:
            self.write(step, mark, (), total=0)
        self._delete(source, sizes.keys() - marks)
        moved = target.removeprefix(self.prefix).rstrip("/")
        return f"{moved}, without {len(refused)} of its objects, which S3 does not copy" if refused else moved

    def read_note(self, step: int, name: str) -> bytes | None:
        return self._content(self._key(step, name))

    def write_note(self, step: int, name: str, text: bytes) -> None:
        self.write(step, name, [memoryview(text)], total=len(text))

    def reader(self, manifest: Manifest) -> Any:
        from rerail_agent.checkpoints.safe_load import CheckpointReader

        reader = CheckpointReader(self.path(manifest.step), manifest.index)
        reader.fs, reader.path = S3FileSystem(self), self._key(manifest.step, "")
        return reader

    def _key(self, step: int, name: str) -> str:
        return f"{self.prefix}{make_folder_name(step)}/{name}"

    def _client(self, total: int = 0) -> Any:
        part = max(SMALLEST_PART, -(-total // MOST_PARTS))
        if "torch" not in sys.modules:
            return _plain_client(self.region, self.endpoint, part)
        # A training process may fork for its data loaders, and this client is safe for that.
        return _forkable_client(self.region, self.endpoint, part)._client

    def _content(self, key: str) -> bytes | None:
        """Return a small object's bytes up to SIZE_LIMIT; None if it does not exist."""
        content = bytearray()
        try:
            for chunk in self._read(key):
                content += chunk
                if len(content) >= SIZE_LIMIT:
                    break
        except FileNotFoundError:
            return None
        return bytes(content[:SIZE_LIMIT])

    def _read(self, key: str) -> Iterator[bytes]:
        """Yield an object's bytes; nothing of an empty one, of which S3 refuses any range."""
        try:
            with _translate_errors():
                yield from self._client().get_object(self.bucket, key, None, None)
        except OSError as error:
            if EMPTY not in str(error):
                raise

    def _sizes(self, prefix: str) -> dict[str, int]:
        with _translate_errors():
            pages = list(self._client().list_objects(self.bucket, prefix, "", 1000))
        return {item.key.removeprefix(prefix): item.size for page in pages for item in page.object_info}

    def _delete(self, prefix: str, names: Iterable[str]) -> None:
        for name in sorted(names, key=lambda name: name != MANIFEST):
            with _translate_errors():
                self._client().delete_object(self.bucket, prefix + name)

    def _copy(self, source: str, target: str, size: int) -> None:
        client = self._client(size)
        with _translate_errors():
            if size < LARGEST_COPY:
                client.copy_object(self.bucket, urllib.parse.quote(source), self.bucket, target)
                return
            stream = client.put_object(self.bucket, target)
            for chunk in client.get_object(self.bucket, source, None, None):
                stream.write(chunk)
            stream.close()

    def _free_prefix(self, wanted: str, manifest: bytes) -> str:
        """Return a prefix without manifest, or with a complete or partial copy of this very checkpoint.

        Others may have taken many names: after a few of them it is one made of the manifest.
        """
        for end in ("", *(f"-{number}" for number in range(2, NUMBERED_NAMES + 1))):
            if self._content(f"{wanted}{end}/{MANIFEST}") in (None, manifest):
                return f"{wanted}{end}/"
        return f"{wanted}-{hashlib.sha256(manifest).hexdigest()}/"


class S3FileSystem:
    """The file system that torch.distributed.checkpoint's reader needs, over the objects of a bucket.

    s3torchconnector has a reader of its own, which needs one more package and accepts no endpoint.
    """

    def __init__(self, place: S3Store) -> None:
        self.place = place

    def concat_path(self, path: str, suffix: str) -> str:
        return f"{path}{suffix}"

    @contextmanager
    def create_stream(self, path: str, mode: str) -> Iterator[Any]:
        from s3torchconnector import S3ReaderConstructor

        client = _forkable_client(self.place.region, self.place.endpoint, SMALLEST_PART)
        ranged = S3ReaderConstructor.range_based(buffer_size=SMALLEST_PART)
        with _translate_errors(), client.get_object(self.place.bucket, path, reader_constructor=ranged) as stream:
            yield stream


@lru_cache(maxsize=8)
def _plain_client(region: str, endpoint: str | None, part: int) -> Any:
    from s3torchconnectorclient._mountpoint_s3_client import MountpointS3Client

    return MountpointS3Client(region, endpoint=endpoint, part_size=part, force_path_style=endpoint is not None)


@lru_cache(maxsize=8)
def _forkable_client(region: str, endpoint: str | None, part: int) -> Any:
    from s3torchconnector import S3ClientConfig
    from s3torchconnector._s3client import S3Client

    settings = S3ClientConfig(part_size=part, force_path_style=endpoint is not None)
    return S3Client(region, endpoint=endpoint, s3client_config=settings)


@contextmanager
def _translate_errors() -> Iterator[None]:
    from s3torchconnectorclient import S3Exception

    try:
        yield
    except S3Exception as error:
        kind = FileNotFoundError if any(words in str(error) for words in NOT_FOUND) else OSError
        raise kind(f"S3: {error}") from error


def _add_condition(params: dict[str, Any], **_: Any) -> None:
    params["headers"]["If-None-Match"] = "*"


def _is_refused(error: OSError) -> bool:
    return any(words in str(error) for words in REFUSED)


@lru_cache(maxsize=8)
def _check_owner(bucket: str, region: str, account: str) -> None:
    """Raise PermissionError for a bucket of another account: s3torchconnector itself cannot ask who owns one.

    Outside of SageMaker the account is not known, and nothing is checked.
    """
    if not account:
        return
    # Checkpoints are loaded into the job, and written with its data: a name that someone else took gets neither.
    from rerail_agent.mailbox_objects import make_s3_client, read_error_code

    try:
        make_s3_client(region, account, attempts=5).head_bucket(Bucket=bucket)
    except Exception as error:
        if read_error_code(error) != "403":
            raise OSError(f"S3: {error}") from error
        raise PermissionError(
            f"s3://{bucket} is not a bucket of this job's account {account}, or the job's role may not list it: use a"
            " bucket of this account, and grant s3:ListBucket on it"
        ) from error


def _region() -> str:
    named = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return named or _read_arn(ARN_REGION) or "us-east-1"


def _read_arn(part: int) -> str:
    """Return a part of the job's ARN; "" outside of SageMaker."""
    arn = os.environ.get("TRAINING_JOB_ARN", "").split(":")
    return arn[part] if len(arn) > 5 else ""
