"""Read the log lines of training jobs from CloudWatch Logs, within limits."""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from rerail.aws.clients import client, quick_client
from rerail.aws.error_codes import find_code
from rerail.aws.validation import InvalidResponse, validate
from rerail.incident_report.facts import LogLine
from rerail.model.errors import StateUnknown, Throttled
from rerail.model.run import Job

GROUP = "/aws/sagemaker/TrainingJobs"
STREAM = re.compile(r"algo-[1-9]\d{0,4}-\d{1,16}", re.ASCII)
BEFORE = timedelta(minutes=5)  # the clocks of two services differ
# Log streams read per job: with a thousand machines the first few are representative.
STREAM_LIMIT = 4
# Pages of a job's streams, until those of so many hosts are known; others may make streams that sort before its own.
STREAM_PAGES, STREAM_HOSTS = 20, 16
# What `read_ends` reads of a failed job: hosts, lines and characters of each, and the seconds after which it stops.
END_HOSTS, END_LINES, LINE_CHARS, END_SECONDS = STREAM_HOSTS, 200, 2_000, 8.0
# Pages of a stream that are read for its end.
END_PAGES = 5
THROTTLING = ("ThrottlingException", "Throttling", "LimitExceededException", "ServiceUnavailableException")


class CloudWatchLogs:
    """The port `Logs` on the log group of all training jobs."""

    def tail(self, job: str, *, until: datetime, lines: int) -> Sequence[LogLine]:
        end = int(until.timestamp() * 1000) + 1
        found = [
            line
            for stream in self._streams(job, f"{job}/algo-")[:STREAM_LIMIT]
            for line in self._end(stream, lines, endTime=end)
        ]
        return sorted(found, key=lambda line: line.at)[-lines:]

    def whole(self, job: str, *, pages: int) -> tuple[Sequence[LogLine] | None, int]:
        found: list[LogLine] = []
        read = 0
        for stream in self._streams(job, f"{job}/algo-1-"):
            token = ""
            while True:
                if read >= pages:
                    return None, read
                place: dict[str, Any] = {"nextToken": token} if token else {}
                page, following = self._page(stream, startFromHead=True, **place)
                read += 1
                found += page
                if following == token:  # only the last page returns the token of the request; others may be empty
                    break
                token = following
        return sorted(found, key=lambda line: line.at), read

    def read_ends(self, job: Job) -> Sequence[str]:
        deadline = time.monotonic() + END_SECONDS
        # A host has a stream for each time that SageMaker started the job; the last one tells how it ended.
        streams = self._streams(job.name, f"{job.name}/algo-", of=job, deadline=deadline)
        newest = {_host(stream)[0]: stream for stream in streams}
        ends: list[str] = []
        for stream in [*newest.values()][:END_HOSTS]:
            if ends and time.monotonic() > deadline:
                break
            lines = self._end(stream, END_LINES, is_quick=True)
            ends.append("\n".join(line.text[:LINE_CHARS] for line in lines))
        return ends

    def _streams(self, job: str, prefix: str, *, of: Job | None = None, deadline: float | None = None) -> Sequence[str]:
        """Return the streams that SageMaker may have made for the job; others may make some of other names before it.

        With a deadline of the monotonic clock, return what is known then. The Systems Manager agent writes to
        `<job>/algo-1-<time>/ssm`.
        """
        least, found = (of.created_at - BEFORE).timestamp() * 1000 if of else 0, list[str]()
        place: dict[str, Any] = {"logGroupName": GROUP, "logStreamNamePrefix": prefix}
        for _ in range(STREAM_PAGES):
            answer = _call("describe_log_streams", is_quick=deadline is not None, **place)
            with _readable(f"the logs of {job}"):
                rows = [row for row in answer.get("logStreams", []) if row and "logStreamName" in row]
                names = [row["logStreamName"] for row in rows if row.get("creationTime", least) >= least]
                own = [name for name in names if STREAM.fullmatch(name.removeprefix(f"{job}/"))]
                found += [name for name in own if of is None or _host(name)[0] <= of.cluster.count]
                place["nextToken"] = answer.get("nextToken", "")
            if not place["nextToken"] or len({_host(name)[0] for name in found}) >= STREAM_HOSTS:
                break
            if deadline is not None and time.monotonic() > deadline:
                break
        return sorted(found, key=_host)

    def _end(self, stream: str, count: int, *, is_quick: bool = False, **asked: Any) -> list[LogLine]:
        """Return the last lines of a stream, of a limited number of pages: a page may be empty though more follow."""
        lines: list[LogLine] = []
        token = ""
        for _ in range(END_PAGES):
            place: dict[str, Any] = {"nextToken": token} if token else {}
            page, before = self._page(
                stream, is_quick=is_quick, limit=count - len(lines), startFromHead=False, **asked, **place
            )
            lines = page + lines
            if before == token or len(lines) >= count:
                break
            token = before
        return lines

    def _page(self, stream: str, *, is_quick: bool = False, **asked: Any) -> tuple[list[LogLine], str]:
        """Return the lines of a page and the token of the next one in the direction of reading."""
        token = "nextForwardToken" if asked["startFromHead"] else "nextBackwardToken"
        answer = _call("get_log_events", is_quick=is_quick, logGroupName=GROUP, logStreamName=stream, **asked)
        with _readable(f"the log {stream}"):
            return list(_lines(stream, answer.get("events", []))), answer.get(token, "")


def _host(stream: str) -> tuple[int, str]:
    return int(stream.rpartition("/algo-")[2].split("-")[0]), stream


def _lines(stream: str, events: Sequence[dict[str, Any]]) -> Iterator[LogLine]:
    source = stream.rpartition("/")[2]
    for event in events:
        yield LogLine(datetime.fromtimestamp(event["timestamp"] / 1000, UTC), source, str(event["message"]))


@contextmanager
def _readable(what: str) -> Iterator[None]:
    try:
        with validate("CloudWatch Logs"):
            yield
    except InvalidResponse as error:
        raise StateUnknown(f"{what}: {error}") from error


def _call(call: str, *, is_quick: bool = False, **request: Any) -> dict[str, Any]:
    """Return the answer; empty if the log group or stream does not exist (yet).

    Raises Throttled or StateUnknown."""
    try:
        answer: dict[str, Any] = getattr(quick_client("logs") if is_quick else client("logs"), call)(**request)
        return answer
    except (ClientError, BotoCoreError) as error:
        if find_code(error) == "ResourceNotFoundException":
            return {}
        raise (Throttled if find_code(error) in THROTTLING else StateUnknown)(f"{call}: {error}") from error
