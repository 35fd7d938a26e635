"""What jobs have printed: the one way in which the command line reads their log streams, each line once."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from cli.console import make_printable

LOG_GROUP = "/aws/sagemaker/TrainingJobs"
MOST_STREAMS = 8


@dataclass(frozen=True, slots=True)
class JobLogLine:
    """One line of one host of a job, and when it arrived."""

    job: str
    host: str
    text: str
    at: datetime | None = None

    @property
    def shown(self) -> str:
        """As a terminal may be given it: of a progress bar only its last state."""
        states = [part for part in self.text.rstrip("\r\n").split("\r") if part.strip()]
        return make_printable(states[-1] if states else "").replace("\n", " ")


@dataclass
class Logbook:
    """Reads job after job, and remembers how far; `since`: nothing that arrived before."""

    logs: Any
    since: datetime | None = None
    _tokens: dict[str, str] = field(default_factory=dict)

    def read_new_lines(self, job: str) -> Iterator[JobLogLine]:
        """What every host has printed since the last look; raises what boto3 raises."""
        for stream in self.list_streams(job):
            yield from self._lines(job, stream, to_the_end=False)

    def read_lines(self, job: str) -> Iterator[JobLogLine]:
        """All that is there, of all hosts by the time of its arrival."""
        hosts = [self._lines(job, stream, to_the_end=True) for stream in self.list_streams(job)]
        return heapq.merge(*hosts, key=lambda line: line.at.timestamp() if line.at else 0.0)

    def _lines(self, job: str, stream: str, *, to_the_end: bool) -> Iterator[JobLogLine]:
        """An empty page is not the end if lines were skipped: only a token that stays the same is."""
        host = stream.rpartition("/")[2].rpartition("-")[0]
        where: dict[str, Any] = {"logGroupName": LOG_GROUP, "logStreamName": stream, "startFromHead": True}
        where |= {"startTime": int(self.since.timestamp() * 1000)} if self.since else {}
        while True:
            token = self._tokens.get(stream)
            answer = self.logs.get_log_events(**where, **({"nextToken": token} if token else {}))
            self._tokens[stream] = answer["nextForwardToken"]
            for event in answer["events"]:
                yield JobLogLine(job, host, event["message"], _time(event))
            if token == answer["nextForwardToken"] or not (answer["events"] or to_the_end):
                return

    def list_streams(self, job: str) -> list[str]:
        """Those of every host, or of the first alone where there are many: reading them all would be throttled."""
        from rerail.aws.logs import STREAM, STREAM_PAGES

        pages = self.logs.get_paginator("describe_log_streams").paginate(
            logGroupName=LOG_GROUP, logStreamNamePrefix=f"{job}/algo-"
        )
        try:
            names = [row["logStreamName"] for page in islice(pages, STREAM_PAGES) for row in page["logStreams"]]
        except self.logs.exceptions.ResourceNotFoundException:
            return []  # no job of this account has printed anything yet
        # Neither those of a remote shell, nor what others have made.
        own = sorted(name for name in names if STREAM.fullmatch(name.removeprefix(f"{job}/")))
        first = [stream for stream in own if stream.startswith(f"{job}/algo-1-")]
        return own if len(own) <= MOST_STREAMS else first


def _time(event: dict[str, Any]) -> datetime | None:
    return datetime.fromtimestamp(event["timestamp"] / 1000, UTC) if "timestamp" in event else None
