"""The mailbox in S3: write commands to agents, and read their reports and heartbeats up to a size limit."""

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial

from botocore.exceptions import BotoCoreError, ClientError

from rerail.aws.clients import client
from rerail.aws.error_codes import MISSING, THROTTLING, find_code, find_object_problem
from rerail.model.errors import BadMailboxObject, CommandNotStored, StateUnknown, Throttled
from rerail.model.mailbox import (
    SIZE_LIMIT,
    Command,
    Report,
    make_change_key,
    make_command_key,
    make_heartbeat_key,
    read_heartbeat,
    read_report,
    require_digest,
    run_of_report,
    serialize,
)
from rerail.model.signatures import is_signed, sign
from rerail.ports import ReceivedHeartbeat, ReceivedHeartbeats

READERS = 10  # parallel reads; the SDK keeps as many connections open


class S3Mailbox:
    """The port `MailboxPolicy` on one bucket."""

    def __init__(self, bucket: str) -> None:
        self._bucket = bucket

    def post(self, command: Command, signing_key: str = "") -> None:
        key = make_command_key(command.run)
        body = sign(serialize(command), name=key, key=signing_key)
        try:
            client("s3").put_object(Bucket=self._bucket, Key=key, Body=body, ContentType="application/json")
        except (ClientError, BotoCoreError) as error:
            unsent = Throttled if find_code(error) in THROTTLING else CommandNotStored
            raise unsent(f"PutObject {key} in {self._bucket}: {error}") from error

    def report(self, key: str, signing_key: str = "") -> Report | None:
        run, id = run_of_report(key)
        found = self._get(key)
        return read_report(found[0], run=run, id=id, signing_key=signing_key) if found else None

    def change(self, run: str, digest: str) -> bytes:
        key = make_change_key(run, digest)
        found = self._get(key)
        return require_digest(found[0] if found else None, key, digest)

    def heartbeats(self, folders: Collection[str], signing_keys: Mapping[str, str] | None = None) -> ReceivedHeartbeats:
        names = sorted(set(folders))
        read = partial(self._heartbeat, signing_keys or {})
        with ThreadPoolExecutor(READERS) as readers:
            answers = dict(zip(names, readers.map(read, names), strict=True))
        received = {name: answer for name, answer in answers.items() if isinstance(answer, ReceivedHeartbeat)}
        errors = {name: answer for name, answer in answers.items() if isinstance(answer, str)}
        return ReceivedHeartbeats(received, errors)

    def _heartbeat(self, signing_keys: Mapping[str, str], folder: str) -> ReceivedHeartbeat | str | None:
        """Return the heartbeat, or the reason why it cannot be read; None if there is none."""
        name = make_heartbeat_key(folder)
        try:
            if (stored := self._get(name)) is None:
                return None
            content, written_at = stored
            is_authentic = is_signed(content, name=name, key=signing_keys.get(folder, ""))
            return ReceivedHeartbeat(read_heartbeat(content, run=folder), written_at, is_authentic)
        except (BadMailboxObject, StateUnknown) as error:
            return str(error)

    def _get(self, key: str) -> tuple[bytes, datetime] | None:
        """Return an object's content up to one byte over the size limit, and when it was written; None if missing."""
        try:
            answer = client("s3").get_object(Bucket=self._bucket, Key=key)
            with answer["Body"] as body:
                return body.read(SIZE_LIMIT + 1), answer["LastModified"].astimezone(UTC)
        except (ClientError, BotoCoreError, OSError) as error:
            if find_code(error) in MISSING:
                return None
            if problem := find_object_problem(error):
                raise BadMailboxObject(f"object {key!r} cannot be read: {problem}", defect="unreadable") from error
            raise StateUnknown(f"GetObject {key} in {self._bucket}: {error}") from error
