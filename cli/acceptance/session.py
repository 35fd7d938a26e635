"""Run an acceptance, from its first job to the removal of everything that it has made."""

import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from cli.acceptance import jobs
from cli.acceptance.cleanup import Cleanup
from cli.acceptance.jobs import JobPlan
from cli.acceptance.listener import Listener
from cli.acceptance.seen import Observation, Observations, ObservedAccount
from cli.acceptance.trials import TRIALS_BY_NAME, AcceptanceTrial
from cli.acceptance.watch import TrialStage, make_stage
from cli.doctor import quotas
from cli.doctor.check import CheckStatus, make_unanswered
from cli.doctor.deployment import Deployment
from cli.doctor.subject import Subject
from cli.place import Place, now
from cli.submit.packing import Source
from cli.submit.problem import Problem
from cli.submit.request import make_training_request
from cli.trouble import explain

# How long a trial is followed, on AWS's clock, and at least on a fast one, besides its steps.
PATIENCE_S, LEAST_PATIENCE_S = 2700.0, 900.0
POLL_S, LOCAL_POLL_S = 15.0, 1.0
# After the last trial, what may come late is waited for; a missing event or notice for longer.
LATE_S, MISSING_S = 30.0, 90.0
# A term without percent signs is a whole word, and most services say AccessDeniedException.
DENIED_TEXTS = ("%AccessDenied%", '"not authorized to perform"')
SignalHandler = Callable[[int, FrameType | None], None] | signal.Handlers
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt on Ctrl-C, SIGTERM and a closed terminal, and restore the handlers afterwards."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # A signal that is ignored, such as SIGHUP under nohup, stays ignored.
    with _handled_by(interrupt, [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]):
        yield


@contextmanager
def undisturbed_by_signals() -> Iterator[None]:
    """Ignore the same signals: only SIGKILL ends what runs meanwhile."""
    with _handled_by(signal.SIG_IGN, SIGNALS):
        yield


@contextmanager
def _handled_by(handler: SignalHandler, numbers: Sequence[signal.Signals]) -> Iterator[None]:
    """Set a handler for these signals, and restore the earlier ones afterwards."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def limit_patience(trials: Sequence[AcceptanceTrial], patience_s: float, scale: float) -> float:
    """Return for how many seconds the trials are followed."""
    least_s = LEAST_PATIENCE_S + max((trial.training_s for trial in trials), default=0.0)
    return max(least_s, patience_s / scale)


@dataclass
class AcceptanceSession:
    """The trials of one acceptance: starts them, follows them, and observes the account."""

    where: Place
    plan: JobPlan
    trials: Sequence[AcceptanceTrial]
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    # Why other trials are not started, by name.
    excluded: Mapping[str, str] = field(default_factory=dict)
    patience_s: float = PATIENCE_S
    was_interrupted: bool = False
    _stages: dict[str, TrialStage] = field(default_factory=dict)
    _not_tried: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.began = now()
        self._not_tried |= self.excluded
        # The quotas, which are read once.
        self._known: dict[str, Any] = {}
        self.listener = Listener(self.where, self.plan.id)
        self.cleanup = Cleanup(self.where, self.plan.bucket, self.plan.id, self.say)

    def run(self) -> Observations:
        """Run the trials and return what was seen; everything is removed whatever happens."""
        with interrupted_by_signals():
            try:
                try:
                    self.listener.start()
                    self._follow_all()
                except KeyboardInterrupt:
                    self.was_interrupted = True
                    self.say("interrupted: what was seen so far is evaluated, and everything is removed")
                with undisturbed_by_signals():
                    return self._observe()
            finally:
                with undisturbed_by_signals():
                    self.say("removing jobs, queue, rule, subscriptions and objects")
                    self.cleanup.remove_all()

    # Trials

    def _follow_all(self) -> None:
        """Start every trial as soon as the quota allows it, and follow those that were started."""
        code, waiting = jobs.pack_code(), list(self.trials)
        until = self.clock() + limit_patience(waiting, self.patience_s, self.plan.scale)
        with tempfile.TemporaryDirectory() as folder:
            wheel = str(jobs.write_agent(Path(folder)))
            while True:
                waiting = [trial for trial in waiting if not self._try_to_start(trial, code, wheel)]
                self._refresh()
                if not waiting and all(stage.is_over for stage in self._stages.values()):
                    break
                if self.clock() > until:
                    self.say("the time is up: what has not ended is evaluated as it is")
                    self._not_tried |= dict.fromkeys(
                        (trial.name for trial in waiting), "no machine within the quota became free in time"
                    )
                    break
                self.sleep(LOCAL_POLL_S if self.where.is_local else POLL_S)
        if self._stages:
            self._await_messages()

    def _try_to_start(self, trial: AcceptanceTrial, code: Source, wheel: str) -> bool:
        """Start a trial; return whether that is settled, be it that it cannot be tried."""
        name = trial.name
        request = self.plan.make_request(trial, code)
        if reason := self._find_lacking_quota(make_training_request(request)):
            self._not_tried[name] = reason
            self.say(f"{name}: not tried: {reason}")
            return True
        try:
            jobs.start(self.plan, request, code, wheel, self.where)
        except Problem as problem:
            if "quota" in problem.what and any(stage.is_live for stage in self._stages.values()):
                return False
            self._not_tried[name] = problem.what
            self.say(f"{name}: not tried: {problem.what}")
            return True
        self._stages[name] = make_stage(self.where, self.plan, trial)
        self.say(f"{name}: started {request.name}: {trial.summary}")
        return True

    def _find_lacking_quota(self, request: dict[str, Any]) -> str:
        """Return the doctor's answer if a quota excludes the job; "" if the quotas cannot be read."""
        subject = Subject(Deployment(self.where), request, {}, known=self._known)
        for question in (quotas.machine_quota, quotas.warm_pool_quota):
            try:
                answer = question(subject)
            except (ClientError, BotoCoreError) as error:
                answer = make_unanswered(error)
            if answer and answer.verdict is CheckStatus.BROKEN:
                return answer.said
        return ""

    def _refresh(self) -> None:
        for name, stage in self._stages.items():
            if stage.is_over:
                continue
            try:
                stage.refresh()
            except (ClientError, BotoCoreError) as error:
                self.say(f"{name}: cannot be looked at now: {explain(error).what}; it is looked at again")
                continue
            if stage.is_over:
                state = stage.run.state if stage.run else "without a record of Rerail's"
                self.say(f"{name}: ended {state}")
        try:
            self.listener.read()
        except (ClientError, BotoCoreError) as error:
            self.say(f"the temporary queue cannot be read now: {explain(error).what}; it is read again")

    def _await_messages(self) -> None:
        """Wait for late metrics, and until each end of a job and each relaunch has been reported."""
        until = self.clock() + MISSING_S
        self.sleep(LATE_S / min(self.plan.scale, 10.0))
        self._refresh()
        while not self._has_all_messages() and self.clock() < until:
            self.sleep(LOCAL_POLL_S if self.where.is_local else POLL_S)
            self._refresh()

    def _has_all_messages(self) -> bool:
        stages = self._stages.values()
        return self.listener.has_received(
            ended={job for stage in stages for job in stage.list_ended_jobs()},
            relaunched={stage.run_id for stage in stages if len(stage.jobs) > 1},
        )

    # The account

    def _observe(self) -> Observations:
        """Return everything that was seen."""
        trials = {name: Observation(name, not_tried=reason) for name, reason in self._not_tried.items()}
        for name, stage in self._stages.items():
            if self.was_interrupted and not stage.is_over:
                trials[name] = Observation(name, not_tried="it was interrupted")
                continue
            try:
                if stage.jobs:
                    stage.refresh()
                trials[name] = stage.observe()
            except (ClientError, BotoCoreError) as error:
                trials[name] = Observation(name, not_tried=f"its end cannot be looked at: {explain(error).what}")
        return Observations({name: trials[name] for name in TRIALS_BY_NAME if name in trials}, self._observe_account())

    def _observe_account(self) -> ObservedAccount:
        unread = dict(self.listener.unread)
        try:
            self.listener.read()
        except (ClientError, BotoCoreError) as error:
            unread.setdefault("events", explain(error).what)
            unread.setdefault("notices", explain(error).what)
        denials: tuple[str, ...] = ()
        try:
            denials = tuple(self._read_denials(self.began))
        except (ClientError, BotoCoreError) as error:
            unread["permissions"] = f"the functions' logs cannot be read: {explain(error).what}"
        mailbox, queue_key, data_key = "", "", ""
        try:
            mailbox, queue_key, data_key = self._read_encryption()
        except (ClientError, BotoCoreError) as error:
            unread["encryption"] = f"mailbox or queue cannot be looked at: {explain(error).what}"
        if self.where.is_local:
            unread["encryption"] = "the local AWS encrypts nothing"
        return ObservedAccount(
            events=tuple(self.listener.events),
            notices=tuple(self.listener.notices),
            denials=denials,
            mailbox_encryption=mailbox,
            queue_key=queue_key,
            data_key=data_key,
            unread=unread,
        )

    def _read_denials(self, since: datetime) -> Iterator[str]:
        """Yield the lines of the functions' logs that report a denied call."""
        logs = self.where.client("logs")
        for group in Deployment(self.where).list_resources("AWS::Logs::LogGroup").values():
            for text in DENIED_TEXTS:
                pages = logs.get_paginator("filter_log_events").paginate(
                    logGroupName=group, filterPattern=text, startTime=int(since.timestamp() * 1000)
                )
                for page in pages:
                    yield from (event["message"].strip() for event in page["events"])

    def _read_encryption(self) -> tuple[str, str, str]:
        """Return how an object that a job wrote to the mailbox is encrypted, the queue's key and the deployment's."""
        s3, bucket = self.where.client("s3"), self.where.outputs["MailboxBucket"]
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"runs/{self.plan.id}")
        names = [item["Key"] for page in pages for item in page.get("Contents", [])]
        written = [name for name in names if "/reports/" in name or name.endswith("/heartbeat.json")]
        mailbox = s3.head_object(Bucket=bucket, Key=written[0]).get("ServerSideEncryption", "none") if written else ""
        url = self.where.outputs["SignalsQueueUrl"]
        queue = self.where.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=["KmsMasterKeyId"])
        keys = Deployment(self.where).list_resources("AWS::KMS::Key")
        return str(mailbox), str(queue.get("Attributes", {}).get("KmsMasterKeyId", "")), next(iter(keys.values()), "")
