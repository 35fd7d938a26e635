"""The other runs of the account, which fail together with the demo's own: how the relaunch limit handled them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rerail.aws.dynamodb import DynamoRuns
from rerail.decisions.deferrals import RATE_LIMITED
from rerail.model.run import Run, TimelineEntry


@dataclass
class OtherRuns:
    """The supervised runs by name, updated by `read`; `ours` is the demo's own, counted with them."""

    ours: str
    size: int
    runs: dict[str, Run] = field(default_factory=dict)
    timelines: dict[str, Sequence[TimelineEntry]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Those beside our own."""
        return [f"{self.ours}-{number}" for number in range(2, self.size + 2)]

    def read(self, records: DynamoRuns) -> None:
        """Read their records and timelines."""
        for name in (self.ours, *self.names):
            if run := records.load(name):
                self.runs[name], self.timelines[name] = run, records.timeline(name)

    @property
    def is_over(self) -> bool:
        """All of them have ended, with nothing owed."""
        return len(self.runs) == self.size + 1 and not any(run.is_open for run in self.runs.values())

    def summarize(self) -> dict[str, Any]:
        """Return when relaunches were admitted, how many were deferred, and how often on-call was paged.

        The limit counts decisions: how soon after one the job is created depends on this machine.
        """
        entries = [entry for timeline in self.timelines.values() for entry in timeline]
        pages = [a for entry in entries for a in entry.actions if a.get("key", "").startswith("rerail/brake-")]
        made = sorted(self._admitted())
        return {
            "runs": len(self.runs),
            "states": sorted(run.state.value for run in self.runs.values()),
            "relaunched_at_s": [round((at - made[0]).total_seconds(), 1) for at in made],
            "rate_limited": len({e.run for e in entries if e.finding == RATE_LIMITED}),
            "pages": len(pages),
            "page": pages[0]["body"] if pages else "",
        }

    def _admitted(self) -> Iterator[datetime]:
        """Yield the time of the last decision to create each later job; the rate limit refused those before it."""
        for name, run in self.runs.items():
            for attempt in (attempt for attempt in run.attempts[1:] if attempt.exists):
                yield max(entry.at for entry in self.timelines[name] if _creates(entry, attempt.job_name))


def _creates(entry: TimelineEntry, job: str) -> bool:
    return any(action.get("type") == "CreateJob" and action.get("job_name") == job for action in entry.actions)
