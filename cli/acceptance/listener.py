"""A temporary queue that receives SageMaker's events about the acceptance's jobs, and Rerail's notices."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from cli.acceptance.seen import ReceivedEvent, ReceivedNotice
from cli.place import Place
from cli.trouble import explain, is_missing
from rerail.model.run import JobStatus

TOPICS = ("PageTopicArn", "InformTopicArn")
KEPT_S = "86400"
DETAIL_TYPE = "SageMaker Training Job State Change"


class Listener:
    """The queue, a rule on the default bus and a subscription to each topic of notices, all named after the acceptance.

    `unread` has the name of the check to the reason why its messages cannot be received.
    """

    def __init__(self, where: Place, name: str) -> None:
        self._where, self._name = where, name
        self._url = ""
        self.events: list[ReceivedEvent] = []
        self.notices: list[ReceivedNotice] = []
        self.unread: dict[str, str] = {}

    def start(self) -> None:
        """Make the queue, and connect to it what can be connected."""
        try:
            arn = self._make_queue()
        except (ClientError, BotoCoreError) as error:
            reason = f"no temporary queue: {explain(error).what}"
            self.unread |= {"events": reason, "notices": reason}
            return
        try:
            self._connect_events(arn)
        except (ClientError, BotoCoreError) as error:
            self.unread["events"] = f"no temporary rule: {explain(error).what}"
        try:
            for topic in TOPICS:
                self._where.client("sns").subscribe(
                    TopicArn=self._where.outputs[topic], Protocol="sqs", Endpoint=arn, ReturnSubscriptionArn=True
                )
        except (ClientError, BotoCoreError) as error:
            self.unread["notices"] = f"no temporary subscription: {explain(error).what}"

    def _make_queue(self) -> str:
        sqs = self._where.client("sqs")
        url = str(sqs.create_queue(QueueName=self._name, Attributes={"MessageRetentionPeriod": KEPT_S})["QueueUrl"])
        arn = str(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"])
        _, partition, _, region, account, _ = arn.split(":")
        rule = f"arn:{partition}:events:{region}:{account}:rule/{self._name}"
        allowed = {
            "Effect": "Allow",
            "Principal": {"Service": ["events.amazonaws.com", "sns.amazonaws.com"]},
            "Action": "sqs:SendMessage",
            "Resource": arn,
            "Condition": {"ArnEquals": {"aws:SourceArn": [rule, *(self._where.outputs[name] for name in TOPICS)]}},
        }
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
        self._url = url
        return arn

    def _connect_events(self, arn: str) -> None:
        pattern = {
            "source": ["aws.sagemaker"],
            "detail-type": [DETAIL_TYPE],
            "detail": {"TrainingJobName": [{"prefix": self._name}]},
        }
        events = self._where.client("events")
        events.put_rule(Name=self._name, EventPattern=json.dumps(pattern))
        events.put_targets(Rule=self._name, Targets=[{"Id": "queue", "Arn": arn}])

    def read(self) -> None:
        """Take in the messages that have arrived; those that cannot be read now are read the next time."""
        if not self._url:
            return
        sqs = self._where.client("sqs")
        # Without a wait SQS looks into a part of the queue only.
        wait_s = 0 if self._where.is_local else 2
        while True:
            answer = sqs.receive_message(
                QueueUrl=self._url, MaxNumberOfMessages=10, AttributeNames=["SentTimestamp"], WaitTimeSeconds=wait_s
            )
            for message in answer.get("Messages", []):
                self._take_in(message)
                sqs.delete_message(QueueUrl=self._url, ReceiptHandle=message["ReceiptHandle"])
            if not answer.get("Messages"):
                return

    def has_received(self, *, ended: set[str], relaunched: set[str]) -> bool:
        """Return whether an event has reported the end of each of these jobs, and a notice each of these runs.

        What cannot be received is not waited for.
        """
        reported = {event.job for event in self.events if JobStatus(event.status).is_terminal}
        noted = {notice.run for notice in self.notices}
        return ("events" in self.unread or ended <= reported) and ("notices" in self.unread or relaunched <= noted)

    def _take_in(self, message: Mapping[str, Any]) -> None:
        arrived = _from_milliseconds(message["Attributes"]["SentTimestamp"])
        assert arrived is not None, "SQS sets it"
        body = json.loads(message["Body"])
        if not isinstance(body, dict):
            return  # of another sender
        if body.get("detail-type") == DETAIL_TYPE:
            detail = body["detail"]
            self.events.append(
                ReceivedEvent(
                    job=str(detail["TrainingJobName"]),
                    status=str(detail["TrainingJobStatus"]),
                    secondary=str(detail.get("SecondaryStatus") or ""),
                    changed_at=_from_milliseconds(detail.get("LastModifiedTime")),
                    arrived_at=arrived,
                )
            )
        elif (run := str(body.get("MessageAttributes", {}).get("run", {}).get("Value", ""))).startswith(self._name):
            sent = datetime.fromisoformat(body["Timestamp"].replace("Z", "+00:00"))
            self.notices.append(ReceivedNotice(run, str(body.get("Subject") or ""), sent, arrived))


def _from_milliseconds(value: Any) -> datetime | None:
    """Return the time of epoch milliseconds, which SageMaker gives as a number or as text; None for anything else."""
    try:
        return datetime.fromtimestamp(float(value) / 1000, UTC)
    except (TypeError, ValueError, OverflowError):
        return None


def remove_rule(where: Place, name: str) -> list[str]:
    """Remove the rule of this name; return what was removed."""
    events = where.client("events")
    try:
        targets = [target["Id"] for target in events.list_targets_by_rule(Rule=name)["Targets"]]
        if targets:
            events.remove_targets(Rule=name, Ids=targets)
        events.delete_rule(Name=name)
    except ClientError as error:
        if is_missing(error):
            return []
        raise
    return [f"rule {name}"]


def remove_subscriptions(where: Place, name: str) -> list[str]:
    """Remove the subscriptions of the queue of this name; return what was removed."""
    sns, removed = where.client("sns"), []
    for topic in TOPICS:
        pages = sns.get_paginator("list_subscriptions_by_topic").paginate(TopicArn=where.outputs[topic])
        for subscription in (item for page in pages for item in page["Subscriptions"]):
            arn = subscription["SubscriptionArn"]
            if subscription.get("Endpoint", "").endswith(f":{name}") and arn.startswith("arn:"):
                sns.unsubscribe(SubscriptionArn=arn)
                removed.append(f"subscription of {name}")
    return removed


def remove_queue(where: Place, name: str) -> list[str]:
    """Remove the queue of this name; return what was removed."""
    sqs = where.client("sqs")
    try:
        sqs.delete_queue(QueueUrl=sqs.get_queue_url(QueueName=name)["QueueUrl"])
    except sqs.exceptions.QueueDoesNotExist:
        return []
    return [f"queue {name}"]
