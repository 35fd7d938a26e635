"""The local AWS of a soak: its policies, its jobs, the reference runs, and the notices."""

import json
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any

from bench.soaking.faults import Setup
from bench.soaking.notes import Notes
from cli import place
from cli.demo.scripts import OURS
from cli.demo.stage import DAY_S, NO_AGENT, JobOutput, make_agent_environment, scale_policy
from cli.place import Place
from local.stack import LocalAws
from rerail.aws.dynamodb import DynamoRuns
from rerail.model.policy import parse_policy, to_toml
from rerail.model.run import JobStatus
from rerail.model.signatures import VARIABLE

BUCKET = "sagemaker-soak"
ROLE = "arn:aws:iam::000000000000:role/SoakSageMakerRole"
HOST = Path(__file__).resolve().parents[1] / "soak_worker" / "host.py"
STEP_SECONDS, SAVE_EVERY, KEPT = 0.08, 25, 400
TOPICS = {"pages": "PageTopicArn", "informs": "InformTopicArn"}


class SoakAccount:
    """The local AWS with the deployed template, as the soak uses it."""

    def __init__(self, aws: LocalAws, folder: Path, scale: float) -> None:
        self.aws, self.folder, self.scale = aws, folder, scale
        place.use_local(aws.endpoint_url)
        self.runs = DynamoRuns(aws.outputs["TableName"])
        self.sagemaker, self.s3, self.logs = (aws.client(name) for name in ("sagemaker", "s3", "logs"))
        self.here = Place("the soak", aws.outputs)
        self.s3.create_bucket(Bucket=BUCKET)
        ssm = aws.client("ssm")
        deployed = ssm.get_parameter(Name=f"{aws.outputs['PolicyPrefix']}/default")["Parameter"]["Value"]
        self.policy = scale_policy(parse_policy(deployed, name="default"), scale)
        self.people = {kind: self._listen(kind, topic) for kind, topic in TOPICS.items()}

    def _listen(self, name: str, topic: str) -> str:
        """Subscribe a new queue to the topic, and return its URL."""
        sqs = self.aws.client("sqs")
        url = str(sqs.create_queue(QueueName=f"soak-{name}")["QueueUrl"])
        arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        allowed = {"Effect": "Allow", "Principal": {"Service": "sns.amazonaws.com"}, "Action": "sqs:SendMessage"}
        policy = json.dumps({"Statement": [allowed | {"Resource": arn}]})
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
        self.aws.client("sns").subscribe(TopicArn=self.aws.outputs[topic], Protocol="sqs", Endpoint=arn)
        return url

    def read_subjects(self, kind: str) -> list[str]:
        """Take the messages of the topic from its queue, and return their subjects."""
        sqs, subjects = self.aws.client("sqs"), []
        while found := sqs.receive_message(QueueUrl=self.people[kind], MaxNumberOfMessages=10).get("Messages", []):
            for message in found:
                subjects.append(str(json.loads(message["Body"]).get("Subject", "")))
                sqs.delete_message(QueueUrl=self.people[kind], ReceiptHandle=message["ReceiptHandle"])
        return subjects

    def waiting_in(self, url: str) -> int:
        """Return the number of messages in a queue."""
        counts = self.aws.client("sqs").get_queue_attributes(
            QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"]
        )
        return int(counts["Attributes"]["ApproximateNumberOfMessages"])

    def policy_for(self, setup: Setup) -> str:
        """Return the name of the policy of such runs; create the policy if it does not exist."""
        name = f"soak-{setup.name}"
        text = to_toml(setup.policy(self.policy, self.scale))
        parameter = f"{self.aws.outputs['PolicyPrefix']}/{name}"
        self.aws.client("ssm").put_parameter(Name=parameter, Value=text, Overwrite=True, Type="String")
        return name

    def submit(self, name: str, setup: Setup, *, steps: int, tags: Mapping[str, str], watched: bool) -> None:
        """Create the first job of a run, or a reference run."""
        kept = {"KeepAlivePeriodInSeconds": setup.keep_alive} if setup.keep_alive and watched else {}
        machines = {"InstanceType": setup.machine, "InstanceCount": setup.hosts, "VolumeSizeInGB": 30}
        spot = setup.spot and watched
        of_script = setup.script.make_request(steps=steps, save_every=SAVE_EVERY, keep=KEPT, step_seconds=STEP_SECONDS)
        entry = {} if setup.script is not OURS else {"ContainerEntrypoint": ["python", str(HOST)]}
        agent = (
            make_agent_environment(self.policy.detection)
            if setup.agent and watched
            else NO_AGENT
            if setup.script is OURS
            else {}
        )
        breaks = {"BREAK_AT": str(setup.first)} if setup.script is not OURS and watched else {}
        limit = {"MaxWaitTimeInSeconds": 2 * DAY_S} if spot else {}
        self.sagemaker.create_training_job(
            TrainingJobName=name,
            RoleArn=ROLE,
            AlgorithmSpecification={
                "TrainingImage": "rerail-training:soak",
                "TrainingInputMode": "File",
                **entry,
                **of_script["AlgorithmSpecification"],
            },
            HyperParameters=of_script.get("HyperParameters", {}),
            ResourceConfig=machines | kept,
            CheckpointConfig={"S3Uri": f"s3://{BUCKET}/{name}/"},
            OutputDataConfig={"S3OutputPath": f"s3://{BUCKET}/output/"},
            StoppingCondition={"MaxRuntimeInSeconds": DAY_S, **limit},
            EnableManagedSpotTraining=spot,
            Environment={
                "SOAK_FOLDER": str(self.folder),
                "OMP_NUM_THREADS": "1",
                VARIABLE: token_hex(32),
                **of_script.get("Environment", {}),
                **agent,
                **breaks,
            },
            Tags=[{"Key": key, "Value": value} for key, value in tags.items()],
        )

    def order(self, job: str, *, drill: str = "", own: str = "") -> None:
        """Write the order that has an attempt break something."""
        partial = self.folder / f"{job}.json.partial"
        partial.write_text(json.dumps({"drill": drill, "own": own}))
        partial.rename(self.folder / f"{job}.json")

    def describe(self, job: str) -> dict[str, Any]:
        return dict(self.sagemaker.describe_training_job(TrainingJobName=job))


class ReferenceRun:
    """The same training without faults and without Rerail."""

    def __init__(self, account: SoakAccount, setup: Setup, steps: int) -> None:
        self.name, self.setup, self.account = f"reference-{setup.script_name}-{setup.hosts}x{steps}", setup, account
        self.notes = Notes(account.folder)
        self.curve = JobOutput(self.name, setup.script)
        self.description: dict[str, Any] = {}
        account.order(self.name)
        account.submit(self.name, setup, steps=steps, tags={}, watched=False)

    def look(self) -> None:
        if not self.is_over:
            self.description = self.account.describe(self.name)
            self.notes.read([self.name])
            if self.setup.script is not OURS:
                self.curve.read(self.account.logs)

    @property
    def is_over(self) -> bool:
        return bool(self.description) and JobStatus(self.description["TrainingJobStatus"]).is_terminal

    @property
    def seconds(self) -> float:
        """From its creation to its end."""
        return float((self.description["TrainingEndTime"] - self.description["CreationTime"]).total_seconds())
