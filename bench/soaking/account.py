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
from cli.demo.stage import DAY_S, NO_AGENT, make_agent_environment, scale_policy
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


class SoakAccount:
    """The local AWS with the deployed template, as the soak uses it."""

    def __init__(self, aws: LocalAws, folder: Path, scale: float) -> None:
        self.aws, self.folder, self.scale = aws, folder, scale
        place.use_local(aws.endpoint_url)
        self.runs = DynamoRuns(aws.outputs["TableName"])
        self.sagemaker, self.s3 = aws.client("sagemaker"), aws.client("s3")
        self.here = Place("the soak", aws.outputs)
        self.s3.create_bucket(Bucket=BUCKET)
        ssm = aws.client("ssm")
        deployed = ssm.get_parameter(Name=f"{aws.outputs['PolicyPrefix']}/default")["Parameter"]["Value"]
        self.policy = scale_policy(parse_policy(deployed, name="default"), scale)

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
        of_script = OURS.make_request(steps=steps, save_every=SAVE_EVERY, keep=KEPT, step_seconds=STEP_SECONDS)
        agent = make_agent_environment(self.policy.detection) if setup.agent and watched else NO_AGENT
        limit = {"MaxWaitTimeInSeconds": 2 * DAY_S} if spot else {}
        self.sagemaker.create_training_job(
            TrainingJobName=name,
            RoleArn=ROLE,
            AlgorithmSpecification={
                "TrainingImage": "rerail-training:soak",
                "TrainingInputMode": "File",
                "ContainerEntrypoint": ["python", str(HOST)],
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
        self.name, self.setup, self.account = f"reference-{setup.hosts}x{steps}", setup, account
        self.notes = Notes(account.folder)
        self.description: dict[str, Any] = {}
        account.order(self.name)
        account.submit(self.name, setup, steps=steps, tags={}, watched=False)

    def look(self) -> None:
        if not self.is_over:
            self.description = self.account.describe(self.name)
            self.notes.read([self.name])

    @property
    def is_over(self) -> bool:
        return bool(self.description) and JobStatus(self.description["TrainingJobStatus"]).is_terminal
