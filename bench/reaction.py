"""How long the deployed stack takes from a job's death to its successor, and from a finding to a stop.

The template runs in the local AWS, its functions as processes of their own; a hook in them (`time_worker`) notes when
they begin and when they call. One machine's calls take a few milliseconds, AWS's a few tens: what carries over is how
many calls there are, and what stands between them."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from cli import place
from local.stack import LocalAws
from rerail.model.mailbox import Report, ReportKind, read_report, run_of_report
from rerail.model.policy import parse_policy, to_toml
from rerail.model.run import Run
from tests.deployed.jobs import AGENT, BUCKET, Account

WORKER = Path(__file__).parent / "time_worker"
SCALE, PATIENCE_S = 60, 60.0
CREATE, STOP, POST = "CreateTrainingJob", "StopTrainingJob", "PutObject"
WRITES = ("TransactWriteItems", "PutItem", "PutEvents", POST)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """A line of the hook: an AWS call of a worker, or with no operation the worker's first moment. Times are in
    seconds since 1970."""

    function: str
    worker: int
    operation: str
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Relaunch:
    """Seconds of one relaunch: from the job's end until a worker took its event up (`cold`: with the start of that
    worker), in reads, in writes, in the function's own code, and in the call that creates the successor."""

    cold: bool
    until_taken: float
    of_it_start: float
    reads: float
    writes: float
    own: float
    creates: float
    calls: int

    @property
    def total(self) -> float:
        return self.until_taken + self.reads + self.writes + self.own + self.creates


@dataclass(frozen=True, slots=True)
class Handshake:
    """Seconds since the agent found its job in trouble: the command is in the mailbox, the checkpoint is safe (by the
    agent's own clock), the stop is called."""

    asked: float
    durable: float
    stopped: float


def relaunch(calls: Sequence[Call], *, ended_at: float) -> Relaunch:
    """What the calls of the worker that created the successor say; `ended_at` is when the job ended."""
    (create, *_) = (call for call in calls if call.operation == CREATE and call.began > ended_at)
    own = [call for call in calls if call.worker == create.worker and ended_at < call.began <= create.began]
    made = [call for call in own if call.operation]
    born = [call.began for call in own if not call.operation]
    reads = sum(call.ended - call.began for call in made if call.operation not in (*WRITES, CREATE))
    writes = sum(call.ended - call.began for call in made if call.operation in WRITES)
    creates = create.ended - create.began
    return Relaunch(
        cold=bool(born),
        until_taken=made[0].began - ended_at,
        of_it_start=made[0].began - born[0] if born else 0.0,
        reads=reads,
        writes=writes,
        own=create.ended - made[0].began - reads - writes - creates,
        creates=creates,
        calls=len(made),
    )


class Stand:
    """The deployed stack with the hook in its functions."""

    def __init__(self, aws: LocalAws, times: Path) -> None:
        self.aws, self._times = aws, times
        self.account = Account(aws)
        self.account.set_up()
        self._fresh = 0
        ssm, name = aws.client("ssm"), f"{aws.outputs['PolicyPrefix']}/default"
        policy = parse_policy(ssm.get_parameter(Name=name)["Parameter"]["Value"], name="default")
        at_once = replace(policy, backoff=replace(policy.backoff, base=timedelta(0)))
        ssm.put_parameter(Name=name, Value=to_toml(at_once), Overwrite=True, Type="String")
        self.freshen()

    def freshen(self) -> None:
        """The next event of each function finds no worker."""
        self._fresh += 1
        functions = self.aws.client("lambda")
        for function in functions.list_functions()["Functions"]:
            variables = function.get("Environment", {}).get("Variables", {})
            hook = {"PYTHONPATH": str(WORKER), "TIMES_FILE": str(self._times), "FRESH": str(self._fresh)}
            functions.update_function_configuration(
                FunctionName=function["FunctionName"], Environment={"Variables": variables | hook}
            )

    def die(self, name: str, *, cold: bool) -> Relaunch:
        """A job is lost by SageMaker: how its successor came about."""
        self.account.submit(name, steps=100_000)
        self._until(lambda: self._in(name, "watching"), f"{name} in training")
        self.account.has_saved(name, steps=10)
        if cold:
            self.freshen()
        self.account.inject("internal_error", TrainingJobName=name)
        jobs = self._until(lambda: self._jobs(name, 2), f"the successor of {name}")
        ended = self.account.sagemaker.describe_training_job(TrainingJobName=name)["TrainingEndTime"]
        self._until(lambda: [call for call in self._calls() if call.operation == CREATE], "the note of the call")
        found = relaunch(self._calls(), ended_at=ended.timestamp())
        self.account.sagemaker.stop_training_job(TrainingJobName=jobs[-1])
        self._until(lambda: self._in(name, "stopped"), f"the end of {name}")
        self._times.write_text("")
        return found

    def shake_hands(self, name: str) -> Handshake:
        """An agent finds its job slow: it is asked to save, saves, and is stopped."""
        mailbox = self.aws.outputs["MailboxBucket"]
        self.account.submit(name, script=AGENT, steps=150, DURABILITY="remote", MAILBOX=mailbox, BUCKET=BUCKET)
        self._until(lambda: self._in(name, "completed"), f"the end of {name}", within_s=2 * PATIENCE_S)
        said = {report.told: report.at.timestamp() for report in self._reports(name)}
        found, durable = said[ReportKind.FINDINGS], said[ReportKind.CHECKPOINT]
        calls = [call for call in self._calls() if call.function == "supervise" and call.began > found]
        asked, stopped = (next(call for call in calls if call.operation == what) for what in (POST, STOP))
        self._times.write_text("")
        return Handshake(asked.ended - found, durable - found, stopped.ended - found)

    def _reports(self, name: str) -> Iterator[Report]:
        """As they lie in the mailbox: of what somebody has seen before, no report is on record."""
        s3, mailbox = self.aws.client("s3"), self.aws.outputs["MailboxBucket"]
        for item in s3.list_objects_v2(Bucket=mailbox, Prefix=f"runs/{name}/reports/")["Contents"]:
            run, id = run_of_report(item["Key"])
            body = s3.get_object(Bucket=mailbox, Key=item["Key"])["Body"].read()
            if (report := read_report(body, run=run, id=id)).attempt == 1:
                yield report

    def _in(self, name: str, state: str) -> Run | None:
        run = self.account.runs.load(name)
        return run if run and run.state == state else None

    def _jobs(self, name: str, least: int) -> list[str] | None:
        jobs = self.account.jobs(name)
        return jobs if len(jobs) >= least else None

    def _calls(self) -> list[Call]:
        lines = self._times.read_text().splitlines() if self._times.exists() else []
        return [Call(**json.loads(line)) for line in lines if line.endswith("}")]

    def _until(self, look: Callable[[], T | None], what: str, *, within_s: float = PATIENCE_S) -> T:
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            if found := look():
                return found
            time.sleep(0.05)
        raise TimeoutError(f"{what} did not come within {within_s:g} s\n{self.account.story()}")


@contextmanager
def stand(home: Path) -> Iterator[Stand]:
    """The local AWS with the template in it."""
    with LocalAws(home / "aws", scale=SCALE, assemblies=place.SYNTHESES) as aws:
        yield Stand(aws, home / "times.jsonl")
