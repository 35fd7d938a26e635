"""Store in S3 what each task of a chain was last started with, so that another machine can resume the chain.

The runs' names follow from their fingerprints, so that a lost record loses reasons and repetitions, but never starts a
run twice. Everyone with write access to the bucket can change it, so results of runs are not read from here.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from botocore.exceptions import ClientError

from cli.chains.fingerprints import TaskFacts, check_counts, check_texts, read_facts
from cli.submit.problem import Problem
from cli.trouble import get_code

VERSION = 1
CONFLICTS = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
TRIES = 8
MOST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ChainRecord:
    """The stored record of a chain."""

    # The run that each task stood for last.
    runs: Mapping[str, str] = field(default_factory=dict)
    # The facts of that run.
    facts: Mapping[str, TaskFacts] = field(default_factory=dict)
    # How often a task was asked for again, by the fingerprint of its first run.
    repetitions: Mapping[str, int] = field(default_factory=dict)
    # Runs that go on with other code, arguments or options, by the name of the run that these would have had.
    continued: Mapping[str, str] = field(default_factory=dict)

    def with_run(self, task: str, run: str, facts: TaskFacts) -> "ChainRecord":
        """Return the record with the run that the task stands for now."""
        return replace(self, runs={**self.runs, task: run}, facts={**self.facts, task: facts})

    def with_repetition(self, fingerprint: str, number: int) -> "ChainRecord":
        """Return the record in which these facts are asked for again."""
        return replace(self, repetitions={**self.repetitions, fingerprint: number})

    def with_continued(self, name: str, run: str) -> "ChainRecord":
        """Return the record in which a run goes on in place of the one that would have had this name."""
        return replace(self, continued={**self.continued, name: run})


def format_record(record: ChainRecord) -> bytes:
    """Return the record as JSON."""
    plain = {
        "version": VERSION,
        "runs": dict(record.runs),
        "facts": {task: facts.to_plain() for task, facts in record.facts.items()},
        "repetitions": dict(record.repetitions),
        "continued": dict(record.continued),
    }
    return json.dumps(plain, indent=1).encode()


def read_record(text: bytes, where: str) -> ChainRecord:
    """Return the record; raise Problem if it cannot be read."""
    try:
        if len(text) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        plain = json.loads(text)
        if plain["version"] > VERSION:
            raise Problem(f"{where} was written by a later version of rerail", "update this one")
        check_texts(*plain["runs"].values(), *plain["continued"].values())
        check_counts(*plain["repetitions"].values())
        return ChainRecord(
            plain["runs"],
            {task: read_facts(facts) for task, facts in plain["facts"].items()},
            plain["repetitions"],
            plain["continued"],
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Problem(
            f"{where} cannot be read: {error!r}", "delete it: the runs are found again by their names"
        ) from error


class ChainRecords:
    """One chain's record: read, and changed by conditional writes, so that no change of another laptop is lost."""

    def __init__(self, s3: Any, bucket: str, key: str) -> None:
        self._s3, self._place = s3, {"Bucket": bucket, "Key": key}
        self._etag = ""
        self.record = ChainRecord()

    @property
    def uri(self) -> str:
        """Return where the record lies."""
        return "s3://{Bucket}/{Key}".format(**self._place)

    def read(self) -> ChainRecord:
        """Return the record as it is now; an empty one if there is none yet."""
        try:
            answer = self._s3.get_object(**self._place)
            self._etag, self.record = answer["ETag"], read_record(answer["Body"].read(MOST_BYTES + 1), self.uri)
        except ClientError as error:
            if get_code(error) not in ("NoSuchKey", "NoSuchBucket", "404"):
                raise
            self._etag, self.record = "", ChainRecord()
        return self.record

    def change(self, change: Callable[[ChainRecord], ChainRecord]) -> None:
        """Apply the change to the newest record and write it, if it changes anything."""
        for _ in range(TRIES):
            changed = change(self.record)
            if changed == self.record:
                return
            condition = {"IfMatch": self._etag} if self._etag else {"IfNoneMatch": "*"}
            try:
                answer = self._s3.put_object(
                    **self._place, Body=format_record(changed), ContentType="application/json", **condition
                )
            except ClientError as error:
                if get_code(error) not in CONFLICTS:
                    raise
                self.read()
                continue
            self._etag, self.record = answer["ETag"], changed
            return
        raise Problem(f"{self.uri} is being changed by others all the time", "run the chain from one place")
