"""What a run prints and what is decided about it, as it happens: the logs of all its attempts, one after the other."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from cli.logbook import JobLogLine, Logbook
from rerail.model.run import JobStatus, Run

REASON = 300  # characters of it; the log has the rest
# How long after a job's end it may take until the supervisor has heard of the job, and its last lines have arrived.
UNHEARD_S, LINES_S = 120.0, 6.0


@dataclass(frozen=True, slots=True)
class News:
    """One line: a job's own, or (without a source) what became of the run."""

    text: str
    source: str = ""
    line: JobLogLine | None = None


@dataclass
class Follower:
    """Follows one run, or one job where no supervisor is deployed (`runs` is None); `ended` says how it ended."""

    run_id: str
    job: str
    sagemaker: Any
    logs: Any
    runs: Any = None
    pause_s: float = 3.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    run: Run | None = None
    ended: str = ""
    why: str = ""
    since: datetime | None = None
    _book: Logbook | None = None
    _statuses: dict[str, str] = field(default_factory=dict)
    _printed: int = 0
    _trouble: str = ""

    def __post_init__(self) -> None:
        self._book = Logbook(self.logs, self.since)

    def read_news(self) -> Iterator[News]:
        """Yield everything new until the run has ended and its last lines are read."""
        over_since: float | None = None
        while True:
            spoke = False
            for line in self._look():
                spoke = spoke or bool(line.source)
                yield line
            ended, why = self._ending()
            if not ended:
                over_since = None
            elif over_since is None or spoke:
                over_since = self.clock()
            elif self.clock() - over_since >= self._patience(ended):
                self.ended, self.why = ended, why
                return
            self.sleep(self.pause_s)

    @property
    def last_job(self) -> str:
        """The newest job there is."""
        names = self._jobs()
        return names[-1] if names else self.job

    def _look(self) -> Iterator[News]:
        try:
            if self.runs is not None:
                self.run = self.runs.load(self.run_id) or self.run
                yield from self._decisions()
            for name in self._jobs():
                yield from self._state_of(name)
                yield from self._lines_of(name)
            self._trouble = ""
        except (ClientError, BotoCoreError) as error:
            if str(error) != self._trouble:  # said once, and looked for again
                self._trouble = str(error)
                yield News(f"cannot look now: {error}; trying again")

    def _jobs(self) -> list[str]:
        if self.run is None:
            return [self.job]
        return [attempt.job_name for attempt in self.run.attempts if attempt.exists or attempt.number == 1]

    def _decisions(self) -> Iterator[News]:
        if self.run is None or self.runs is None:
            return
        entries = [entry for entry in self.runs.timeline(self.run_id) if entry.version > self._printed]
        for entry in sorted(entries, key=lambda entry: entry.version):
            self._printed = entry.version
            yield News(f"{self.run_id} is {entry.after}: {entry.reason}")

    def _state_of(self, job: str) -> Iterator[News]:
        if JobStatus(self._statuses.get(job, JobStatus.IN_PROGRESS).partition(" ")[0]).is_terminal:
            return
        description = self.sagemaker.describe_training_job(TrainingJobName=job)
        status, secondary = description["TrainingJobStatus"], description.get("SecondaryStatus", "")
        now = f"{status} {secondary}" if secondary not in ("", status) else status
        if now != self._statuses.get(job):
            self._statuses[job] = now
            reason = " ".join(description.get("FailureReason", "").split())[:REASON]
            yield News(f"{job} is {now}" + (f": {reason}" if reason else ""))

    def _lines_of(self, job: str) -> Iterator[News]:
        assert self._book is not None
        yield from (News(line.text, f"{job} {line.host}", line) for line in self._book.read_new_lines(job))

    def _ending(self) -> tuple[str, str]:
        if self.run is not None:
            if not self.run.state.is_end or self.run.is_open:
                return "", ""
            return str(self.run.state), self.run.hold_text or self.run.current.failure_reason
        status = self._statuses.get(self.job, "").partition(" ")[0]
        return (status.lower(), "") if status and JobStatus(status).is_terminal else ("", "")

    def _patience(self, ended: str) -> float:
        unheard = self.runs is not None and self.run is None and ended == "failed"
        return UNHEARD_S if unheard else min(LINES_S, 2 * self.pause_s)
