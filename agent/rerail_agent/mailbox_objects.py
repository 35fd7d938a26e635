"""Read and write objects of the mailbox bucket, and classify failures as passing or lasting.

boto3 is imported with the first request, by the requesting thread, which is never the training thread.
"""

import os
import threading
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from rerail.model.bucket_owner import add_bucket_owner
from rerail.model.mailbox import SIZE_LIMIT
from rerail.model.signatures import sign
from rerail_agent.identity import Identity

CONNECT_S, READ_S = 3, 10
FORK_WAIT_S = 15
LASTING = {"AccessDenied", "NoSuchBucket", "AllAccessDisabled", "InvalidAccessKeyId", "SignatureDoesNotMatch", "403"}

_importing = threading.Lock()
_held_for_fork = False


def _before_fork() -> None:
    global _held_for_fork
    _held_for_fork = _importing.acquire(timeout=FORK_WAIT_S)


def _after_fork() -> None:
    if _held_for_fork:
        _importing.release()


if hasattr(os, "register_at_fork"):
    # A data loader's worker that is forked in the middle of an import keeps half a module and its lock for ever.
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


class Unreachable(Exception):
    """An object could not be read or written; `lasting`: only a person can fix the cause."""

    def __init__(self, message: str, *, lasting: bool) -> None:
        super().__init__(message)
        self.lasting = lasting


class MailboxObject(NamedTuple):
    """An object's content, its ETag, which changes with each version, and S3's time of the answer."""

    text: bytes
    tag: str
    at: datetime


class MailboxBucket:
    """One bucket of this account, for one thread; objects are signed with the run's key, if there is one."""

    def __init__(self, bucket: str, region: str, signing_key: str = "", account: str = "") -> None:
        self.bucket, self._region, self._signing_key, self._account = bucket, region, signing_key, account
        self._client: Any = None
        self._headers: dict[str, str] = {}

    @classmethod
    def of(cls, identity: Identity) -> "MailboxBucket":
        """Return the mailbox of a job."""
        return cls(identity.bucket, identity.region, identity.signing_key, identity.account)

    def read(self, key: str, *, unless: str = "") -> MailboxObject | None:
        """Return the object, or None if there is none or it still has the tag `unless`. Raises Unreachable."""
        condition = {"IfNoneMatch": unless} if unless else {}
        try:
            answer = self._s3().get_object(Bucket=self.bucket, Key=key, **condition)
            at = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
            return MailboxObject(answer["Body"].read(SIZE_LIMIT + 1), answer["ETag"], at)
        except Exception as error:
            if read_error_code(error) in ("304", "NotModified", "404", "NoSuchKey"):
                return None
            raise self._failed(error) from error

    def write(self, key: str, text: bytes, *, once: bool = False) -> None:
        """Put an object, replacing the existing one; `once`: leave an existing one alone. Raises Unreachable."""
        body = sign(text, name=key, key=self._signing_key)
        self._headers = {"If-None-Match": "*"} if once else {}
        try:
            self._s3().put_object(Bucket=self.bucket, Key=key, Body=body, ContentType="application/json")
        except Exception as error:
            # Its name was random: an earlier try of this agent has arrived, and its answer was lost.
            if not (once and read_error_code(error) in ("412", "PreconditionFailed")):
                raise self._failed(error) from error

    def _add_headers(self, params: dict[str, Any], **_: Any) -> None:
        params["headers"].update(self._headers)

    def _failed(self, error: Exception) -> Unreachable:
        """Return the failure; where S3 gave no answer, forget the client, which keeps the environment that it met.

        A library may clear the environment for a moment in another thread, as Hugging Face's accelerate does. A client
        that was made then lacks credentials, proxy and endpoint; the next one has them."""
        if not read_error_code(error):
            self._client = None
        return _unreachable(error)

    def _s3(self) -> Any:
        if self._client is None:
            # A single attempt: the mailbox client decides what to retry, and when.
            self._client = make_s3_client(self._region, self._account, attempts=1)
            # boto3 has a parameter for it since 1.35.2, and training images are older.
            self._client.meta.events.register("before-call.s3.PutObject", self._add_headers)
        return self._client


def make_s3_client(region: str, account: str, *, attempts: int) -> Any:
    """Return a client whose calls S3 refuses if a bucket belongs to another account than this, where one is given."""

    def add_owner(params: dict[str, Any], model: Any, **_: Any) -> None:
        add_bucket_owner(params, model, account)

    with _importing:
        import boto3
        from botocore.config import Config

        config = Config(connect_timeout=CONNECT_S, read_timeout=READ_S, retries={"total_max_attempts": attempts})
        client = boto3.session.Session(region_name=region or None).client("s3", config=config)
    client.meta.events.register("before-parameter-build.s3", add_owner)
    return client


def read_error_code(error: Exception) -> str:
    """Return the code of AWS's answer, or an empty string."""
    answer = getattr(error, "response", None)
    return str(answer.get("Error", {}).get("Code", "")) if isinstance(answer, dict) else ""


def _unreachable(error: Exception) -> Unreachable:
    lasting = read_error_code(error) in LASTING or isinstance(error, ImportError)
    text = str(error) if read_error_code(error) else f"{type(error).__name__}: {error}"
    return Unreachable(text[:300], lasting=lasting)
