"""Read and write objects of the mailbox bucket, and classify failures as passing or lasting.

boto3 is imported with the first request, by the requesting thread, which is never the training thread.
"""

import os
import threading
from typing import Any, NamedTuple

from rerail.model.mailbox import SIZE_LIMIT
from rerail.model.signatures import sign

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
    """An object's content and its ETag, which changes with each version."""

    text: bytes
    tag: str


class MailboxBucket:
    """One bucket, for one thread; objects are written with a signature by the run's key, if there is one."""

    def __init__(self, bucket: str, region: str, signing_key: str = "") -> None:
        self.bucket, self._region, self._signing_key = bucket, region, signing_key
        self._client: Any = None

    def read(self, key: str, *, unless: str = "") -> MailboxObject | None:
        """Return the object, or None if there is none or it still has the tag `unless`. Raises Unreachable."""
        condition = {"IfNoneMatch": unless} if unless else {}
        try:
            answer = self._s3().get_object(Bucket=self.bucket, Key=key, **condition)
            return MailboxObject(answer["Body"].read(SIZE_LIMIT + 1), answer["ETag"])
        except Exception as error:
            if _code(error) in ("304", "NotModified", "404", "NoSuchKey"):
                return None
            raise self._failed(error) from error

    def write(self, key: str, text: bytes) -> None:
        """Put an object, replacing the existing one. Raises Unreachable."""
        body = sign(text, name=key, key=self._signing_key)
        try:
            self._s3().put_object(Bucket=self.bucket, Key=key, Body=body, ContentType="application/json")
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> Unreachable:
        """Return the failure; without credentials, forget the client, which never looks for them again.

        A library may clear the environment for a moment in another thread, as Hugging Face's accelerate does: what
        seems to lack credentials then has them a second later."""
        if "Credentials" in type(error).__name__:
            self._client = None
        return _unreachable(error)

    def _s3(self) -> Any:
        if self._client is None:
            with _importing:
                import boto3
                from botocore.config import Config

                # A single attempt: the mailbox client decides what to retry, and when.
                config = Config(connect_timeout=CONNECT_S, read_timeout=READ_S, retries={"total_max_attempts": 1})
                if os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
                    # A local AWS has one host name for all buckets.
                    config = config.merge(Config(s3={"addressing_style": "path"}))
                session = boto3.session.Session(region_name=self._region or None)
                self._client = session.client("s3", config=config)
        return self._client


def _code(error: Exception) -> str:
    answer = getattr(error, "response", None)
    return str(answer.get("Error", {}).get("Code", "")) if isinstance(answer, dict) else ""


def _unreachable(error: Exception) -> Unreachable:
    lasting = _code(error) in LASTING or isinstance(error, ImportError)
    text = str(error) if _code(error) else f"{type(error).__name__}: {error}"
    return Unreachable(text[:300], lasting=lasting)
