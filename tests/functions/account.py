"""An AWS account as the stack leaves it, and what has happened in it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moto.sagemaker.models import sagemaker_backends

from rerail.aws.clients import client
from rerail.aws.dynamodb import DynamoRuns
from rerail.notices.notifiers.targets import NOTIFIERS
from settings import AnswerSettings, NotifySettings, ReportSettings, Settings, SuperviseSettings, SweepSettings
from tests.aws.places import ACCOUNT, TABLE, make_table

EVENTS = Path(__file__).parents[1] / "events"
PREFIX = "/rerail/policies"
PAUSE_PARAMETER = "/rerail/switch"
TOPICS = ("page", "inform", "chat-page", "chat-inform")
MAILBOX = "sagemaker-rerail-123456789012-eu-west-1"
REPORTS = "rerail-reports"
COMMANDS = "arn:aws:sqs:eu-west-1:111122223333:Rerail-CommandQueue"
ANSWERS = "https://a1b2c3.execute-api.eu-west-1.amazonaws.com"


def sample(name: str) -> dict[str, Any]:
    """A sample event."""
    event: dict[str, Any] = json.loads((EVENTS / f"{name}.json").read_text())
    return event


@dataclass
class Context:
    """What Lambda tells a function of itself."""

    function_name: str = "supervise"
    memory_limit_in_mb: int = 512
    invoked_function_arn: str = "arn:aws:lambda:eu-west-1:123456789012:function:supervise"
    aws_request_id: str = "52fdfc07-2182-454f-963f-5f0f9a621d72"

    def get_remaining_time_in_millis(self) -> int:
        return 30_000


class Account:
    """Table, queue, bus, topics and policies; training jobs are whatever the test submits."""

    def __init__(self) -> None:
        self.sqs, self.sns, self.sagemaker = client("sqs"), client("sns"), client("sagemaker")
        make_table(client("dynamodb"))
        client("events").create_event_bus(Name="rerail")
        client("ssm").put_parameter(Name=f"{PREFIX}/default", Value='mode = "act"', Type="String")
        client("ssm").put_parameter(Name=PAUSE_PARAMETER, Value="on", Type="String")
        for bucket in ("bucket", MAILBOX, REPORTS):
            client("s3").create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
        self.queue = self.sqs.create_queue(QueueName="signals")["QueueUrl"]
        self.topics = {name: self._topic(name) for name in TOPICS}
        self.runs = DynamoRuns(TABLE)
        key = client("kms").create_key(KeySpec="HMAC_256", KeyUsage="GENERATE_VERIFY_MAC")
        self.answer_key: str = key["KeyMetadata"]["KeyId"]

    def settings(self) -> tuple[Settings, ...]:
        """What the stack would tell the functions."""
        common = {"table": TABLE, "policy_prefix": PREFIX, "pause_parameter": PAUSE_PARAMETER}
        common |= {"mailbox": MAILBOX, "account": ACCOUNT}
        return (
            SuperviseSettings(bus="rerail", commands=COMMANDS, **common),
            SweepSettings(queue_url=self.queue, **common),
            ReportSettings(
                table=TABLE,
                policy_prefix=PREFIX,
                reports=REPORTS,
                account=ACCOUNT,
                region="eu-west-1",
                docs_url="https://docs.example.com",
            ),
            NotifySettings(
                page_topic=self.topics["page"],
                inform_topic=self.topics["inform"],
                chat_page_topic=self.topics["chat-page"],
                chat_inform_topic=self.topics["chat-inform"],
                bus="rerail",
                targets=",".join(target.name for target in NOTIFIERS),
                reports=REPORTS,
                report_links="signed",
                docs_url="https://docs.example.com",
                answer_url=ANSWERS,
                answer_key=self.answer_key,
            ),
            AnswerSettings(table=TABLE, bus="rerail", answer_key=self.answer_key),
        )

    def submit(self, name: str, *, policy: str | None = "default") -> None:
        """A user's own training job, which trains at once."""
        self.sagemaker.create_training_job(
            TrainingJobName=name,
            RoleArn="arn:aws:iam::123456789012:role/Training",
            AlgorithmSpecification={"TrainingImage": "training:1", "TrainingInputMode": "File"},
            OutputDataConfig={"S3OutputPath": "s3://bucket/out/"},
            ResourceConfig={"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 1, "VolumeSizeInGB": 100},
            StoppingCondition={"MaxRuntimeInSeconds": 86400},
            CheckpointConfig={"S3Uri": f"s3://bucket/{name}/"},
            Tags=[{"Key": "rerail:policy", "Value": policy}] if policy else [],
        )
        job = sagemaker_backends["123456789012"]["eu-west-1"].training_jobs[name]
        # moto calls a job completed at its birth.
        job.training_job_status, job.secondary_status, job.training_end_time = "InProgress", "Training", None

    def leave(self, key: str, text: bytes) -> None:
        """An agent leaves something in the mailbox."""
        client("s3").put_object(Bucket=MAILBOX, Key=key, Body=text)

    def waiting(self) -> list[Any]:
        """The messages in the signals queue."""
        return self._messages(self.queue)

    def received(self, topic: str) -> list[Any]:
        """What the subscribers of a topic were told."""
        return self._messages(self.sqs.get_queue_url(QueueName=f"{topic}-ears")["QueueUrl"])

    def _topic(self, name: str) -> str:
        arn: str = self.sns.create_topic(Name=name)["TopicArn"]
        self.sqs.create_queue(QueueName=f"{name}-ears")
        self.sns.subscribe(TopicArn=arn, Protocol="sqs", Endpoint=f"arn:aws:sqs:eu-west-1:123456789012:{name}-ears")
        return arn

    def _messages(self, url: str) -> list[Any]:
        found = self.sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])
        return [json.loads(message["Body"]) for message in found]
