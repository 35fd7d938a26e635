"""A local AWS whose functions can be broken: what is noted of their calls, and what is left lying in its queues."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3.session
import botocore.session

from local.pace import Pace
from local.stack import LocalAws
from rerail.aws.clients import CONFIG
from rerail.model.policy import Ladder, Policy, parse_policy, to_toml
from tests.deployed.faults.points import Call, call_of
from tests.deployed.jobs import Account

WORKER = Path(__file__).parent / "worker"
SCALE = 300.0
# As the policy's durations: faster than that a busy machine passes for a stall.
SWEEPS = 60.0
# How many times faster reports are drawn once more; and what hangs is given up, by the SDK and by Lambda.
PACE = 15.0
# A message whose function has died comes back when every function's time is up, as it does on AWS.
VISIBLE_AGAIN_S = 6
# Of saves there are a few here, not thousands of steps; and one row of metrics that is no number is enough.
LADDER = Ladder(margin_steps=5, near_steps=100, skip_batches=5, far_skip_batches=10)
# Events of functions grow old as fast as jobs start: a quarter of an hour would be three seconds, which a cold start
# takes on a busy machine, and whoever fails then would not be asked again.
EVENT_AGE_S, RETRIES = 6 * 3600, 2
# A scenario is one run: more environments than these are only more cold starts.
CONCURRENCY = 2
# Where letters end that nobody could deliver or handle.
DEAD = re.compile(r"DeadLetters|Undelivered")


class FaultyAws:
    """A local AWS, the hook in its function workers, the queue of those who are told, and its dead letters."""

    def __init__(
        self, aws: LocalAws, folder: Path, pace: Pace | None = None, adapt: Callable[[Policy], Policy] | None = None
    ) -> None:
        """`pace` is the speed of this machine, for what is waited; `adapt` changes the policy before it is deployed."""
        self.aws, self.folder, self.pace = aws, folder, pace or Pace()
        self.marks = folder / "marks"
        self.marks.mkdir(parents=True)
        self.account = Account(aws, self.pace)
        self.account.set_up(adapt)
        self.runs, self.sagemaker = self.account.runs, self.account.sagemaker
        self.s3, self.sqs, self.cloudwatch = aws.client("s3"), aws.client("sqs"), aws.client("cloudwatch")
        self._functions = aws.client("lambda")
        self._fresh = 0
        self._read = 0
        self.notices: dict[str, Counter[str]] = defaultdict(Counter)
        self._hasten()
        self.freshen()
        self.notices_url = self.account.listen("people", "PageTopicArn", "InformTopicArn")
        self.dead = [url for url in self.sqs.list_queues()["QueueUrls"] if DEAD.search(url)]
        self.alarms = alarms_of_queues(self.cloudwatch)

    def _hasten(self) -> None:
        """What keeps real time in the local AWS passes faster; the ladder knows that runs are short."""
        for url in self.sqs.list_queues().get("QueueUrls", []):
            asked = ["VisibilityTimeout", "DelaySeconds", "RedrivePolicy"]
            found = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=asked)["Attributes"]
            if "RedrivePolicy" in found:
                delay = round(int(found["DelaySeconds"]) / PACE)
                times = {"VisibilityTimeout": str(VISIBLE_AGAIN_S), "DelaySeconds": str(delay)}
                self.sqs.set_queue_attributes(QueueUrl=url, Attributes=times)
        for function in self._all():
            if function.get("DeadLetterConfig", {}).get("TargetArn"):
                self._functions.put_function_event_invoke_config(
                    FunctionName=function["FunctionName"],
                    MaximumEventAgeInSeconds=EVENT_AGE_S,
                    MaximumRetryAttempts=RETRIES,
                )
        for mapping in self._functions.list_event_source_mappings()["EventSourceMappings"]:
            self._functions.update_event_source_mapping(
                UUID=mapping["UUID"], ScalingConfig={"MaximumConcurrency": CONCURRENCY}
            )
        ssm, name = self.aws.client("ssm"), f"{self.aws.outputs['PolicyPrefix']}/default"
        policy = parse_policy(ssm.get_parameter(Name=name)["Parameter"]["Value"], name="default")
        detection = replace(policy.detection, non_finite_patience=1)
        policy = replace(policy, ladder=LADDER, detection=detection)
        ssm.put_parameter(Name=name, Value=to_toml(policy), Overwrite=True, Type="String")

    def _all(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._functions.list_functions()["Functions"]
        return found

    def freshen(self, only: str = "") -> None:
        """Fresh workers, which have the hook and remember nothing of what they have read before: all functions', or
        those of one."""
        self._fresh += 1
        for function in self._all():
            variables = function.get("Environment", {}).get("Variables", {})
            if only not in ("", variables.get("POWERTOOLS_SERVICE_NAME")):
                continue
            hook = {
                "PYTHONPATH": str(WORKER),
                "FAULT_FOLDER": str(self.folder),
                "FAULT_PACE": str(PACE),
                "FAULT_TIMEOUT": str(function["Timeout"]),
                "FRESH": str(self._fresh),
            }
            self._functions.update_function_configuration(
                FunctionName=function["FunctionName"], Environment={"Variables": variables | hook}
            )

    def now(self, run: str, phase: str, fault: dict[str, str] | None = None) -> None:
        """From now on calls are this run's and this phase's, and one is broken if a fault is due: its site, how it is
        broken, and which file says that it was."""
        partial = self.folder / "now.partial"
        partial.write_text(json.dumps({"run": run, "phase": phase, "fault": fault}))
        partial.rename(self.folder / "now.json")

    def has_fired(self, name: str) -> bool:
        return (self.folder / name).exists()

    def new_calls(self) -> list[Call]:
        """What the functions have called since this was asked last."""
        log = self.folder / "calls.jsonl"
        if not log.exists():
            return []
        with log.open("rb") as lines:
            lines.seek(self._read)
            new = lines.read()
        new = new[: new.rfind(b"\n") + 1]
        self._read += len(new)
        return [call_of(line) for line in new.splitlines()]

    def read_notices(self) -> None:
        """Take in all that people were told since."""
        while messages := self.sqs.receive_message(QueueUrl=self.notices_url, MaxNumberOfMessages=10).get(
            "Messages", []
        ):
            for message in messages:
                notices = json.loads(message["Body"])
                run = notices.get("MessageAttributes", {}).get("run", {}).get("Value", "")
                self.notices[run][notices.get("Subject", "")] += 1
                self.sqs.delete_message(QueueUrl=self.notices_url, ReceiptHandle=message["ReceiptHandle"])

    def dead_letters(self) -> Iterator[str]:
        """The queues in which letters lie that nobody could handle."""
        for url in self.dead:
            asked = ["ApproximateNumberOfMessages"]
            found = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=asked)["Attributes"]
            if found["ApproximateNumberOfMessages"] != "0":
                yield url.rpartition("/")[2]

    def is_alarmed(self, queue: str) -> bool:
        """On-call was told that the alarm on this queue of dead letters has gone off, and was not told so before."""
        self.read_notices()
        notices = self.notices[""]
        for subject in [notice for notice in notices if notice.startswith("ALARM")]:
            if any(f'"{alarm}"' in subject for alarm in self.alarms.get(queue, [])):
                del notices[subject]
                return True
        return False

    def empty(self, queue: str) -> list[str]:
        """Take out what lies there; the letters."""
        url, letters = self.sqs.get_queue_url(QueueName=queue)["QueueUrl"], []
        while found := self.sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", []):
            letters += [message["Body"] for message in found]
            for message in found:
                self.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return letters


def alarms_of_queues(cloudwatch: Any) -> dict[str, list[str]]:
    """Queues with the names of the alarms on how much lies in them."""
    found: dict[str, list[str]] = {}
    for page in cloudwatch.get_paginator("describe_alarms").paginate():
        for alarm in page["MetricAlarms"]:
            for dimension in alarm.get("Dimensions", []):
                if dimension["Name"] == "QueueName" and alarm["MetricName"].endswith("MessagesVisible"):
                    found.setdefault(dimension["Value"], []).append(alarm["AlarmName"])
    return found


def modelled_errors(sites: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The errors that the service's model declares for the call of each site."""
    session = boto3.session.Session(botocore_session=botocore.session.Session(), region_name="us-east-1")
    models: dict[str, Any] = {}
    errors = {}
    for site in sites:
        service, _, operation = site.split()[1].partition(":")
        if service not in models:
            models[service] = session.client(service, config=CONFIG).meta.service_model
        shapes = models[service].operation_model(operation).error_shapes
        errors[site] = tuple(dict.fromkeys(s.metadata.get("error", {}).get("code", s.name) for s in shapes))
    return errors
