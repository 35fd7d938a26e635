"""A thousand jobs die within one minute: when is the last one relaunched, and in what order?

    python -m bench.deaths [--jobs 1000] [--brake]

The functions `sweep` and `supervise` themselves run against a made-up AWS that takes two CreateTrainingJob calls a
second, each environment in a process of its own, on a clock that is made up too (`virtual_lambda`): calls take as long
as named there, and each second of CPU counts 3.5 times, as it would in Lambda. The queue behaves as SQS does: batches
of ten to as many environments as the template allows, what fails or runs out of time comes back after the queue's
visibility timeout, and to the dead-letter queue after as many tries as the template says."""

import argparse
import heapq
import json
import os
import random
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.made_aws import PER_SECOND, MadeAws
from bench.made_fleet import ACCOUNT, MAILBOX, PAUSE_PARAMETER, PREFIX, REGION, TABLE, Fleet
from bench.virtual_lambda import Call, Done, Environment
from rerail.model.policy import parse_policy

MINUTE_S = 60.0
NEVER = float("inf")
BEGINS = datetime(2026, 11, 2, 3, 0, tzinfo=UTC).timestamp()
# The template's own, which a test compares: stacks/parts/supervise.py and signals_queue.py.
CONCURRENCY, BATCH, TIMEOUT_S, VISIBILITY_S, TRIES = 8, 10, 60.0, 360.0, 5
SWEEP_TIMEOUT_S, READERS = 120.0, 8
# Assumed: a job's event comes so late, is repeated or is lost so often; a new job starts up for so long.
EVENT_LATE_S, REPEATED, LOST, START_UP_S = (0.5, 5.0), 0.3, 0.02, 180.0
# Of a hundred runs so many, with the number that their policy gives them.
PRIORITIES = {"urgent": (10, 90), "normal": (60, 50), "whenever": (30, 10)}
# So long before the first death the sweep begins: its environment is warm, and knows the runs.
BEFORE_S = 3 * MINUTE_S
# So long after the last relaunch it is looked at whether anything is launched twice.
AFTERWARDS_S = 120.0
REASON = "InternalServerError: We encountered an internal error. Please try again."


@dataclass(order=True)
class Message:
    """A message of the queue, and when it can be received next."""

    visible_at: float
    number: int
    body: str = field(compare=False)
    sent_at: float = field(compare=False, default=0.0)
    received_at: float = field(compare=False, default=0.0)
    tries: int = field(compare=False, default=0)


@dataclass
class Night:
    """What became of the jobs: when each died and when its successor was accepted, in seconds."""

    died: dict[str, float] = field(default_factory=dict)
    relaunched: dict[str, float] = field(default_factory=dict)
    accepted: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    dead_letters: int = 0
    timeouts: int = 0
    failures: int = 0
    oldest_s: float = 0.0
    busy_s: float = 0.0
    invocations: int = 0
    notices: Counter[str] = field(default_factory=Counter)
    titles: Counter[str] = field(default_factory=Counter)
    sweeps: list[float] = field(default_factory=list)
    failed_sweeps: list[str] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def took_s(self) -> float:
        """From the first death to the last relaunch."""
        return max(self.relaunched.values(), default=float("inf")) - min(self.died.values())


class Account:
    """The queue, the jobs and the environments; `now` is how far the night is."""

    def __init__(self, jobs: int, *, brake: bool, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = BEGINS - BEFORE_S
        self.aws = MadeAws(lambda: self.now, seed=seed)
        limit = "" if brake else "[limits]\naccount_relaunches = 0\n"
        texts = {name: f'mode = "act"\npriority = {number}\n{limit}' for name, (_, number) in PRIORITIES.items()}
        policy = parse_policy(texts["normal"], name="normal")
        self.fleet = Fleet(self.aws, jobs, share=0.0, policy=policy, policies=texts, chosen=_policy_of, kept=3)
        self.night = Night()
        self.queue: list[Message] = []
        self.sent = 0
        self.later: list[tuple[float, int, str]] = []
        self.aws.on_create = self.created
        for name in sorted(self.aws.jobs):
            self.night.died[name] = BEGINS + self.random.uniform(0, MINUTE_S)
        self.deaths = sorted((at, name) for name, at in self.night.died.items())

    def created(self, request: dict[str, Any]) -> None:
        """SageMaker has accepted a successor: it starts, and trains after a while."""
        name, at = request["TrainingJobName"], self.now
        run = name.rpartition("-a")[0]
        self.night.accepted[run] += 1
        self.night.relaunched[run] = at
        told = {**self.aws.jobs[run], **request, "TrainingJobArn": _arn(name), "TrainingJobStatus": "InProgress"}
        told |= {"SecondaryStatus": "Starting", "CreationTime": at, "LastModifiedTime": at}
        told["SecondaryStatusTransitions"] = [{"Status": "Starting", "StartTime": at, "StatusMessage": "Starting"}]
        for gone in ("TrainingStartTime", "TrainingEndTime", "FailureReason", "Tags"):
            told.pop(gone, None)
        self.aws.jobs[name], self.aws.tags[name] = told, request["Tags"]
        self.event(name, at)
        heapq.heappush(self.later, (at + START_UP_S, len(self.later), name))

    def event(self, job: str, at: float) -> None:
        """SageMaker tells of a change: late, sometimes twice, sometimes not at all."""
        if self.random.random() < LOST:
            return
        for _ in range(2 if self.random.random() < REPEATED else 1):
            detail = {"TrainingJobName": job, "TrainingJobStatus": self.aws.jobs[job]["TrainingJobStatus"]}
            body = {"source": "aws.sagemaker", "detail-type": "SageMaker Training Job State Change", "detail": detail}
            self.send(json.dumps(body), at + self.random.uniform(*EVENT_LATE_S))

    def send(self, body: str, at: float) -> None:
        self.sent += 1
        heapq.heappush(self.queue, Message(at, self.sent, body, sent_at=at))

    def next_at(self) -> float:
        """When a job dies or begins to train."""
        return min(self.deaths[0][0] if self.deaths else NEVER, self.later[0][0] if self.later else NEVER)

    def happens(self) -> None:
        """Jobs die, and others begin to train: all that is due by now."""
        while self.deaths and self.deaths[0][0] <= self.now:
            then, name = self.deaths.pop(0)
            job = self.aws.jobs[name]
            job |= {"TrainingJobStatus": "Failed", "SecondaryStatus": "Failed", "FailureReason": REASON}
            job |= {"TrainingEndTime": then, "LastModifiedTime": then}
            self.event(name, then)
        while self.later and self.later[0][0] <= self.now:
            then, _, name = heapq.heappop(self.later)
            job = self.aws.jobs[name]
            job |= {"SecondaryStatus": "Training", "TrainingStartTime": then, "LastModifiedTime": then}
            self.event(name, then)

    def answer(self, environment: Environment, call: Call) -> None:
        """One call of AWS; what it sends is in the queue from then on."""
        answer = self.aws.answer(call.method, call.path, call.headers, call.body)
        for body in self.aws.sent:
            self.send(body, self.now)
        self.aws.sent.clear()
        environment.answer(answer)

    def delivered(self) -> list[Message]:
        """The next batch of what can be received by now."""
        batch: list[Message] = []
        while self.queue and len(batch) < BATCH and self.queue[0].visible_at <= self.now:
            batch.append(heapq.heappop(self.queue))
        for message in batch:
            message.received_at = message.received_at or self.now
            self.night.oldest_s = max(self.night.oldest_s, self.now - message.sent_at)
        self.night.invocations += 1
        self.night.messages += len(batch)
        return batch

    def handled(self, batch: list[Message], done: Done, began: float) -> None:
        """What failed, or ran out of time, comes back."""
        night = self.night
        night.busy_s += done.at - began
        night.timeouts += done.result is None
        back = {each["itemIdentifier"] for each in done.result["batchItemFailures"]} if done.result else None
        for message in batch:
            if back is None or str(message.number) in back:
                night.failures += 1
                message.tries += 1
                if message.tries >= TRIES:
                    night.dead_letters += 1
                    continue
                message.visible_at = max(self.now, began + VISIBILITY_S)
                heapq.heappush(self.queue, message)


def _policy_of(number: int) -> str:
    """Every tenth is urgent, and so on: by its place among a hundred."""
    place = number * 37 % 100
    for name, (share, _) in PRIORITIES.items():
        if place < share:
            return name
        place -= share
    raise AssertionError("the shares of the priorities are a hundred in all")


def _arn(job: str) -> str:
    return f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-job/{job}"


def play(jobs: int, *, brake: bool, minutes: int, seed: int = 1) -> Iterator[Night]:
    """The night, minute by minute, until all are relaunched or the minutes are over."""
    account = Account(jobs, brake=brake, seed=seed)
    night = account.night
    workers = [Environment("supervise") for _ in range(CONCURRENCY)]
    sweepers: list[Environment] = []
    try:
        for began, done in _sweeps(account, workers, sweepers):
            night.calls, night.refused = account.aws.calls, account.aws.refused
            if began >= BEGINS:
                night.sweeps.append(done.at - began)
            if done.result is None:  # it fails aloud; the next minute's is there already
                night.failed_sweeps.append(done.error or "ran out of time")
            yield night
            over = len(night.relaunched) == jobs and account.now > max(night.relaunched.values()) + AFTERWARDS_S
            if over or len(night.sweeps) == minutes:
                break
    finally:
        for environment in (*workers, *sweepers):
            environment.kill()
    night.notices.update(told["severity"] for told in account.aws.told)
    night.titles.update(told["title"].partition(": ")[2] or told["title"] for told in account.aws.told)


def _sweeps(account: Account, workers: list[Environment], sweepers: list[Environment]) -> Iterator[tuple[float, Done]]:
    """Whatever comes next, again and again; each sweep that is over, with when it began."""
    busy: dict[Environment, tuple[list[Message], float]] = {}
    sweep_at = account.now
    while True:
        idle = [each for each in workers if each not in busy]
        calls = {each: each.listen().at for each in busy}
        delivery_at = account.queue[0].visible_at if idle and account.queue else NEVER
        world_at = account.next_at()
        account.now = max(account.now, min(world_at, delivery_at, sweep_at, *calls.values()))
        if world_at <= account.now:
            account.happens()
        elif sweep_at <= account.now:
            if all(each in busy for each in sweepers):  # Lambda starts another one
                sweepers.append(Environment("sweep", readers=READERS))
            sweeper = next(each for each in sweepers if each not in busy)
            sweeper.invoke({}, at=account.now, timeout_s=SWEEP_TIMEOUT_S)
            busy[sweeper] = [], account.now
            sweep_at += MINUTE_S
        elif delivery_at <= account.now:
            batch = account.delivered()
            idle[0].invoke({"Records": [_record(each) for each in batch]}, at=account.now, timeout_s=TIMEOUT_S)
            busy[idle[0]] = batch, account.now
        else:
            environment = min(calls, key=lambda each: calls[each])
            heard = environment.listen()
            if isinstance(heard, Call):
                account.answer(environment, heard)
                continue
            environment.rest()
            batch, began = busy.pop(environment)
            if environment in sweepers:
                yield began, heard
            else:
                account.handled(batch, heard, began)


def _record(message: Message) -> dict[str, Any]:
    attributes = {
        "SentTimestamp": str(int(message.sent_at * 1000)),
        "ApproximateFirstReceiveTimestamp": str(int(message.received_at * 1000)),
        "ApproximateReceiveCount": str(message.tries + 1),
    }
    place = {"eventSource": "aws:sqs", "eventSourceARN": f"arn:aws:sqs:{REGION}:{ACCOUNT}:signals"}
    return {
        "messageId": str(message.number),
        "receiptHandle": str(message.number),
        "body": message.body,
        "attributes": attributes,
        "messageAttributes": {},
        "awsRegion": REGION,
        **place,
    }


def environment() -> dict[str, str]:
    """What the functions are told."""
    return {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": REGION,
        "POWERTOOLS_METRICS_NAMESPACE": "Rerail",
        "POWERTOOLS_SERVICE_NAME": "bench",
        "POWERTOOLS_LOG_LEVEL": "CRITICAL",
        "RERAIL_TABLE": TABLE,
        "RERAIL_BUS": "rerail",
        "RERAIL_QUEUE_URL": f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT}/signals",
        "RERAIL_POLICY_PREFIX": PREFIX,
        "RERAIL_PAUSE_PARAMETER": PAUSE_PARAMETER,
        "RERAIL_MAILBOX": MAILBOX,
    }


def unseen(_: Night) -> None:
    """Nobody looks on."""


def played(jobs: int, *, brake: bool, minutes: int, seed: int, seen: Callable[[Night], None] = unseen) -> Night:
    """The whole night."""
    os.environ |= environment()
    night = Night()
    for night in play(jobs, brake=brake, minutes=minutes, seed=seed):
        seen(night)
    return night


def priority_of(run: str) -> str:
    """The policy of a run of the fleet."""
    return _policy_of(int(run.rpartition("-")[2]))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.deaths")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--minutes", type=int, default=40, help="at most")
    parser.add_argument("--brake", action="store_true", help="with the default policy's brake on relaunches")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("relaunching", total=options.jobs)

        def seen(night: Night) -> None:
            progress.update(task, completed=len(night.relaunched))

        night = played(options.jobs, brake=options.brake, minutes=options.minutes, seed=options.seed, seen=seen)
    bound = options.jobs / PER_SECOND["CreateTrainingJob"]
    print(f"relaunched {len(night.relaunched)} of {options.jobs} in {night.took_s:.0f} s, bound {bound:.0f} s")
    print(f"twice: {sum(n > 1 for n in night.accepted.values())}, dead letters {night.dead_letters}")
    print(f"messages {night.messages}, time-outs {night.timeouts}, come back {night.failures}")
    print(f"oldest signal {night.oldest_s:.0f} s; sweeps {max(night.sweeps):.0f} s; busy {night.busy_s:.0f} s")
    print(f"sweeps that failed {night.failed_sweeps}")
    print(f"calls {dict(night.calls)} refused {dict(night.refused)}")
    print(f"notices {dict(night.notices)} {night.titles.most_common(5)}")
    for name in PRIORITIES:
        times = [at - BEGINS for run, at in night.relaunched.items() if priority_of(run) == name]
        if times:
            print(name, len(times), f"median {statistics.median(times):.0f} s, last {max(times):.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
