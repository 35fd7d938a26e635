"""Move objects to quarantine in S3: copy, verify, then delete; an interrupted move is repeated. Copy versions of files.

Large objects are copied in parts. A later turn continues an unfinished multipart upload, so that even an object that
takes longer than the function's timeout is moved eventually.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from botocore.exceptions import BotoCoreError, ClientError

from rerail.aws.clients import client
from rerail.aws.error_codes import MISSING, THROTTLING, find_code, find_object_problem
from rerail.decisions.quarantine import QuarantineMove
from rerail.model.errors import ActionUnfinished, CallFailed, QuarantineFailed, Throttled

# Out of the supervisor's timeout of one minute for ten messages; a turn may try the same action twice.
BUDGET_S = 15.0
MOVERS = 8
MiB = 1 << 20
# CopyObject is limited to 5 GiB and has no bound on its duration; a part of this size is copied in seconds.
WHOLE, PART = 1024 * MiB, 256 * MiB
FORBIDDEN = ("403", "AccessDenied", "Forbidden", "AllAccessDisabled")
CHANGED = ("412", "PreconditionFailed")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes in bytes that decide how an object is copied."""

    whole: int = WHOLE  # up to this size, with a single CopyObject
    part: int = PART  # size of the parts of larger objects


@dataclass(slots=True)
class ObjectMover:
    """Moves objects within one bucket, within a time budget."""

    bucket: str
    seconds: float = BUDGET_S  # time budget of one call
    clock: Callable[[], float] = time.monotonic  # in seconds
    sizes: Sizes = field(default_factory=Sizes)
    _end: float = field(default=0.0, init=False)

    def move(self, moves: Sequence[QuarantineMove]) -> None:
        """Carry out every move; an object whose move raises is not deleted.

        Raises ActionUnfinished, Throttled, CallFailed or QuarantineFailed."""
        self._end = self.clock() + self.seconds
        # Pointers first and one by one: the target of a new pointer must still be in place.
        for move in (m for m in moves if m.is_replaced):
            self._move_in_time(move)
        with ThreadPoolExecutor(MOVERS) as movers:
            for _ in movers.map(self._move_in_time, [m for m in moves if not m.is_replaced]):
                pass

    def copy_version(self, key: str, target: str, *, etag: str) -> str:
        """Copy the object with this ETag, unless that was done; return the copy's ETag, "" if the object has changed.

        The parts of an unfinished copy are given up then. Raises as `move` does."""
        self._end = self.clock() + self.seconds
        try:
            kept, source = self._head(target), self._head(key)
            if source is None or source["ETag"].strip('"') != etag:
                for upload in self._list_uploads(target):
                    if self.clock() < self._end:
                        client("s3").abort_multipart_upload(Bucket=self.bucket, Key=target, UploadId=upload["UploadId"])
                return ""
            if kept is None or not _is_same(source, kept):  # others may write there
                # Its ETag is recorded, so it need not be that of the source: fewer parts cost less.
                return self._copy(source, key, target, tags=self._read_tags(key), keeps_parts=False)
        except (ClientError, BotoCoreError) as error:
            raise self._translate(error, key) from error
        return str(kept["ETag"]).strip('"')

    def delete(self, keys: Sequence[str]) -> None:
        """Delete these objects; those that do not exist count as deleted."""
        for key in keys:
            try:
                client("s3").delete_object(Bucket=self.bucket, Key=key)
            except (ClientError, BotoCoreError) as error:
                raise self._translate(error, key) from error

    def _move_in_time(self, move: QuarantineMove) -> None:
        if self.clock() >= self._end:
            raise ActionUnfinished("the time budget is used up before all objects were moved; the next turn continues")
        try:
            self._move(move)
        except (ClientError, BotoCoreError) as error:
            self._end = 0.0  # the other moves would fail in the same way
            raise self._translate(error, move.source.key) from error

    def _move(self, move: QuarantineMove) -> None:
        source = self._head(move.source.key)
        if source is None:
            return  # it was moved before, or its owner has deleted it
        if (version := source["ETag"].strip('"')) != move.source.etag.strip('"'):
            raise ActionUnfinished(f"{move.source.key} has changed since it was listed; the next turn lists it again")
        target, etag = move.target, ""
        kept = self._head(target)
        if move.is_replaced and kept is not None and not _is_same(source, kept):
            # It is another's, or an earlier version: neither is evidence of this one, and neither is written over.
            target = f"{target}.{version}"
            kept = self._head(target)
        # Others may write there too: what cannot be compared is copied again.
        is_copied = kept is None or (not move.is_replaced and _is_same(source, kept) is None)
        tags = self._read_tags(move.source.key) if is_copied or move.is_replaced else ""
        if is_copied:
            etag = self._copy(source, move.source.key, target, tags=tags)
            kept = self._head(target)
        is_same = kept is not None and _is_same(source, kept, copied_as=etag)
        # What is replaced over several turns was copied in the first one.
        if is_same is False or (is_same is None and not move.is_replaced):
            raise QuarantineFailed(
                f"s3://{self.bucket}/{target} is not the same as {move.source.key}",
                advice="find out who wrote it, move it elsewhere, then release the run",
            )
        if move.is_replaced:
            self._replace(move, tags)
        else:
            # What its owner has written since is not deleted.
            client("s3").delete_object(Bucket=self.bucket, Key=move.source.key, IfMatch=source["ETag"])

    def _read_tags(self, key: str) -> str:
        """Return the object's tags as a query string: permissions may depend on them."""
        tags = client("s3").get_object_tagging(Bucket=self.bucket, Key=key)["TagSet"]
        return urlencode([(tag["Key"], tag["Value"]) for tag in tags])

    def _replace(self, move: QuarantineMove, tags: str) -> None:
        if move.copy_key:
            copy = self._head(move.copy_key)
            if move.copy_etag and (copy is None or copy["ETag"].strip('"') != move.copy_etag):
                raise QuarantineFailed(
                    f"s3://{self.bucket}/{move.copy_key} is not the copy that was made of {move.source.key}",
                    advice=f"replace {move.source.key} by a sound file by hand, then release the run",
                )
            if copy is None:
                raise ActionUnfinished(
                    f"{move.copy_key} has been deleted since it was listed; the next turn lists it again"
                )
            self._copy(copy, move.copy_key, move.source.key, tags=tags, since=move.since)
        else:
            client("s3").put_object(Bucket=self.bucket, Key=move.source.key, Body=move.text.encode(), **_tagging(tags))

    def _head(self, key: str, **more: Any) -> dict[str, Any] | None:
        try:
            answer: dict[str, Any] = client("s3").head_object(
                Bucket=self.bucket, Key=key, ChecksumMode="ENABLED", **more
            )
        except ClientError as error:
            if find_code(error) in MISSING:
                return None
            raise
        return answer

    def _copy(
        self,
        source: dict[str, Any],
        key: str,
        target: str,
        *,
        tags: str,
        since: datetime | None = None,
        keeps_parts: bool = True,
    ) -> str:
        """Copy the object, by default in the parts that it was uploaded in; return the copy's ETag."""
        size, in_parts = source["ContentLength"], keeps_parts and _is_multipart(source)
        if not size or (size <= self.sizes.whole and not in_parts):
            answer = client("s3").copy_object(
                Bucket=self.bucket,
                Key=target,
                CopySource={"Bucket": self.bucket, "Key": key},
                CopySourceIfMatch=source["ETag"],
                TaggingDirective="REPLACE",
                **_tagging(tags),
            )
            return str(answer["CopyObjectResult"]["ETag"]).strip('"')
        first = self._head(key, PartNumber=1) if in_parts else None
        part = first["ContentLength"] if first and first["ContentLength"] < size else min(size, self.sizes.part)
        return self._copy_parts(source, key, target, part=part, tags=tags, since=since)

    def _copy_parts(
        self, source: dict[str, Any], key: str, target: str, *, part: int, tags: str, since: datetime | None
    ) -> str:
        s3, size, place = client("s3"), source["ContentLength"], {"Bucket": self.bucket, "Key": target}
        is_first = not self._list_uploads(target)
        upload = s3.create_multipart_upload(**place, **_metadata(source), **_tagging(tags))["UploadId"]
        copied: dict[int, str] = {}
        uploads = {} if is_first else {item["UploadId"]: item for item in self._list_uploads(target)}
        is_hidden = not is_first and upload not in uploads
        if upload in uploads:
            upload, copied = self._find_upload(target, upload, uploads, source, part=part, since=since)

        def copy(number: int) -> None:
            if self.clock() >= self._end:
                raise ActionUnfinished(f"{key} is copied in part; the next turn continues")
            first, last = (number - 1) * part, min(number * part, size) - 1
            answer = s3.upload_part_copy(
                **place,
                UploadId=upload,
                PartNumber=number,
                CopySource={"Bucket": self.bucket, "Key": key},
                CopySourceIfMatch=source["ETag"],
                CopySourceRange=f"bytes={first}-{last}",
            )
            copied[number] = answer["CopyPartResult"]["ETag"]

        numbers = range(1, -(-size // part) + 1)
        try:
            with ThreadPoolExecutor(MOVERS) as copiers:
                for _ in copiers.map(copy, [number for number in numbers if number not in copied]):
                    pass
        except ActionUnfinished as error:
            if not is_hidden:
                raise
            s3.abort_multipart_upload(**place, UploadId=upload)
            raise QuarantineFailed(
                f"s3://{self.bucket}/{target} has more than {len(uploads)} unfinished uploads, so that the next turn "
                "cannot find this copy again",
                advice="abort those that others have begun, then release the run",
            ) from error
        parts = [{"PartNumber": number, "ETag": copied[number]} for number in numbers]
        answer = s3.complete_multipart_upload(**place, UploadId=upload, MultipartUpload={"Parts": parts})
        return str(answer["ETag"]).strip('"')

    def _list_uploads(self, target: str) -> list[dict[str, Any]]:
        """Return the unfinished uploads to this key, which S3 lists first, of one page: others may begin any number."""
        page = client("s3").list_multipart_uploads(Bucket=self.bucket, Prefix=target)
        return [upload for upload in page.get("Uploads", []) if upload["Key"] == target]

    def _find_upload(
        self,
        target: str,
        new: str,
        uploads: Mapping[str, dict[str, Any]],
        source: dict[str, Any],
        *,
        part: int,
        since: datetime | None,
    ) -> tuple[str, dict[int, str]]:
        """Return the upload id of an earlier turn, else the new one, and its parts of the same size and version.

        One that another principal has begun, or of before `since`, may have parts with other content."""
        s3 = client("s3")
        initiator = uploads[new].get("Initiator")
        own = [id for id, upload in uploads.items() if id != new and upload.get("Initiator") == initiator]
        if not (own := [id for id in own if not since or uploads[id]["Initiated"] >= since]):
            return new, {}
        s3.abort_multipart_upload(Bucket=self.bucket, Key=target, UploadId=new)
        pages = s3.get_paginator("list_parts").paginate(Bucket=self.bucket, Key=target, UploadId=own[0])
        listed, size = [item for page in pages for item in page.get("Parts", [])], source["ContentLength"]
        parts = [item for item in listed if item["LastModified"] > source["LastModified"]]
        usable = [item for item in parts if item["Size"] == min(part, size - (item["PartNumber"] - 1) * part)]
        return own[0], {item["PartNumber"]: item["ETag"] for item in usable}

    def _translate(self, error: Exception, key: str) -> Exception:
        code, what = find_code(error), f"{getattr(error, 'operation_name', 'a call')} for s3://{self.bucket}/{key}"
        if code in FORBIDDEN:
            return QuarantineFailed(
                f"{what} is not allowed ({code})",
                advice="list its folder in the context value quarantineFolders, and its key in checkpointKeyArns; "
                "see that its own policy does not deny it, or move the unusable checkpoints away by hand; then release "
                "the run",
            )
        if problem := find_object_problem(error):
            return QuarantineFailed(
                f"s3://{self.bucket}/{key} cannot be moved: {problem}",
                advice="move the unusable checkpoints away by hand, then release the run",
            )
        if code in THROTTLING:
            return Throttled(f"{what}: {error}")
        if code in (*CHANGED, *MISSING):
            return ActionUnfinished(f"{what}: it has changed since it was listed; the next turn lists it again")
        return CallFailed(f"{what}: {error}")


def _tagging(tags: str) -> dict[str, str]:
    """Return the parameter that sets these tags; setting none needs no permission."""
    return {"Tagging": tags} if tags else {}


def _is_multipart(head: dict[str, Any]) -> bool:
    return "-" in head["ETag"]


def _metadata(source: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata to set on a multipart upload; CopyObject copies it by itself."""
    return {name: source[name] for name in ("Metadata", "ContentType") if source.get(name)}


def _is_same(one: dict[str, Any], other: dict[str, Any], *, copied_as: str = "") -> bool | None:
    """Return whether the ETags agree, and the size and any full-object checksum of the same kind.

    Equal checksums prove nothing: other content with the same CRC is easily made. ETags of KMS-encrypted objects are
    not checksums, and those of multipart objects depend on the parts. In these cases compare with `copied_as`, the ETag
    that S3 returned for Rerail's own copy; return None without one."""
    sums = [name for name in one if name.startswith("Checksum") and name != "ChecksumType" and name in other]
    is_whole = all(head.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT" for head in (one, other))
    if any(one[name] != other[name] for name in ("ContentLength", *(sums if is_whole else ()))):
        return False
    is_encrypted = any("kms" in head.get("ServerSideEncryption", "") for head in (one, other))
    if is_encrypted or (one["ETag"] != other["ETag"] and (_is_multipart(one) or _is_multipart(other))):
        return other["ETag"].strip('"') == copied_as if copied_as else None
    return bool(one["ETag"] == other["ETag"])
