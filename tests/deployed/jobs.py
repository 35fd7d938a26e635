"""Training jobs for the deployed stack, and what became of their runs."""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import timedelta
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

from typer.testing import CliRunner

from cli import place
from cli.demo.stage import scale_policy
from cli.main import app
from local import deploy
from local.pace import Pace
from local.sagemaker.control import inject
from local.stack import LocalAws
from rerail.aws.dynamodb import DynamoRuns
from rerail.model.metrics import make_definitions
from rerail.model.policy import Policy, parse_policy, to_toml
from rerail.model.run import Run, RunState
from rerail.model.signatures import VARIABLE
from rerail.requests.relaunch import POLICY_TAG

BUCKET = "sagemaker-deployed"
ROLE = "arn:aws:iam::000000000000:role/SageMakerRole"
ROOT = Path(__file__).parents[2]
RERAIL = [sys.executable, "-m", "cli.main"]
MACHINES = {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 30}
# Ends a test that hangs, at reference speed: no test waits for so long.
HANG_S = 240.0
# Queues in which messages lie that nobody could handle.
DEAD = re.compile(r"DeadLetters|Undelivered")
# A refusal in the log of local/permissions.py, except those in sessions of the tests of forbidden calls.
REFUSAL = re.compile(r"\S+:assumed-role/(?!\S+/forbidden )\S+ may not .*")
SCHEDULE = ("Name", "GroupName", "ScheduleExpression", "FlexibleTimeWindow", "Target", "Description")
# Nothing comes after these; a held run may be released.
OVER = (RunState.COMPLETED, RunState.STOPPED)
T = TypeVar("T")

SCRIPT = Path(__file__).parent / "counting_script.py"
# Where a job waits for its fault: it has saved twice by then.
HALT_AT = 20
LOSSES = Path(__file__).parent / "loss_script.py"
AGENT = Path(__file__).parent / "agent_script.py"


@contextmanager
def apart(state: Path, **how: Any) -> Iterator[LocalAws]:
    """An AWS beside the suite's; whatever becomes of it, clients then look at the one of before again."""
    before = os.environ.get("AWS_ENDPOINT_URL")
    try:
        with LocalAws(state, **how) as aws:
            yield aws
    finally:
        if before:
            place.use_local(before)


@contextmanager
def apart_with(folder: Path, context: Mapping[str, Any], assemblies: Path, pace: Pace) -> Iterator["Account"]:
    """A local AWS with a deployment of these choices; at the end no call was refused, and no message was left over."""
    with apart(folder, scale=pace.scale, schedule_scale=pace.scale, stack=None) as aws:
        chosen = {**context, **deploy.LOCAL_SCOPE}
        assembly = deploy.synthesize(ROOT, assemblies, context=chosen, validate=False)
        aws.redeployed(deploy.deploy(assembly, "Rerail", aws.client))
        account = Account(aws, pace)
        account.set_up_for_tests()
        yield account
        assert refusals(aws) == []
        assert account.dead_letters() == []


def refusals(aws: LocalAws) -> list[str]:
    """Return the calls of functions that the emulator has refused, since the function's role does not allow them."""
    return REFUSAL.findall(aws.log_file.read_text(errors="replace"))


def patient(policy: Policy, pace: Pace) -> Policy:
    """Return the policy on the scaled clock, but in real time where it judges silence.

    A busy machine keeps a process waiting for seconds, and an agent for longer. On the scaled clock that would be a
    stall, or a save that nobody has answered. Notices are not repeated while a test looks at them.
    """
    scaled = scale_policy(policy, pace.scale)
    silences = {
        field.name: getattr(policy.detection, field.name)
        for field in fields(policy.detection)
        if isinstance(getattr(policy.detection, field.name), timedelta)
    }
    return replace(
        scaled,
        detection=replace(scaled.detection, **silences),
        save=policy.save,
        restart=replace(scaled.restart, deadline=policy.restart.deadline),
        notices=policy.notices,
        hyperpod=policy.hyperpod,
    )


class Account:
    """What a test does and sees in the deployed stack."""

    def __init__(self, aws: LocalAws, pace: Pace | None = None) -> None:
        self.aws, self.pace = aws, pace or Pace()
        self.sagemaker = aws.client("sagemaker")

    def look_here(self) -> None:
        """From now on the clients of this process are this account's."""
        if os.environ.get("AWS_ENDPOINT_URL") != self.aws.endpoint_url:
            place.use_local(self.aws.endpoint_url)

    @property
    def runs(self) -> DynamoRuns:
        """The table, of this account even where the process has looked at another one since."""
        self.look_here()
        return DynamoRuns(self.aws.outputs["TableName"])

    def set_up(self, adapt: Callable[[Policy], Policy] | None = None) -> None:
        """Look here, make the bucket, and deploy the adapted policy; by default it is hasty."""
        self.look_here()
        self.aws.client("s3").create_bucket(Bucket=BUCKET)
        self.add_policy("default", adapt or (lambda policy: scale_policy(policy, self.pace.scale)))

    def set_up_for_tests(self) -> None:
        """Set it up with a policy that no busy machine provokes."""
        self.set_up(lambda policy: patient(policy, self.pace))

    def add_policy(self, name: str, adapt: Callable[[Policy], Policy], *, base: str = "default") -> str:
        """Deploy under this name what becomes of the repository's policy `base`."""
        policy = adapt(parse_policy((ROOT / "policies" / f"{base}.toml").read_text(), name=name))
        parameter = f"{self.aws.outputs['PolicyPrefix']}/{name}"
        self.aws.client("ssm").put_parameter(Name=parameter, Value=to_toml(policy), Overwrite=True, Type="String")
        return name

    def listen(self, name: str, *topics: str) -> str:
        """A queue of this name that hears these topics, by the names of their outputs; its URL."""
        sqs, sns = self.aws.client("sqs"), self.aws.client("sns")
        url: str = sqs.create_queue(QueueName=name)["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        allowed = {"Effect": "Allow", "Principal": {"Service": "sns.amazonaws.com"}, "Action": "sqs:SendMessage"}
        policy = json.dumps({"Statement": [allowed | {"Resource": arn}]})
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
        for topic in topics:
            sns.subscribe(TopicArn=self.aws.outputs[topic], Protocol="sqs", Endpoint=arn)
        return url

    def submit(
        self,
        name: str,
        *,
        policy: str | None = "default",
        steps: int = 100,
        script: Path = SCRIPT,
        machines: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        **environment: str,
    ) -> str:
        """Start a job as a researcher would, with the tag or without it, and with others."""
        asked = {**({POLICY_TAG: policy} if policy else {}), **(tags or {})}
        request = self.make_request(name, steps=steps, script=script, machines=machines, tags=asked, **environment)
        self.sagemaker.create_training_job(**request)
        return name

    def make_request(
        self,
        name: str,
        *,
        steps: int = 100,
        script: Path = SCRIPT,
        machines: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        **environment: str,
    ) -> dict[str, Any]:
        """Return the request of a job, which is not started."""
        return {
            "TrainingJobName": name,
            "RoleArn": ROLE,
            "AlgorithmSpecification": {
                "TrainingImage": "rerail-training:test",
                "TrainingInputMode": "File",
                "ContainerEntrypoint": ["python", str(script)],
                "MetricDefinitions": make_definitions(),
            },
            "ResourceConfig": {**MACHINES, **(machines or {})},
            "CheckpointConfig": {"S3Uri": f"s3://{BUCKET}/{name}"},
            "OutputDataConfig": {"S3OutputPath": f"s3://{BUCKET}/output/"},
            "StoppingCondition": {"MaxRuntimeInSeconds": 86400},
            "Environment": {
                "STEPS": str(steps),
                "SLOWDOWN": str(self.pace.slowdown),
                VARIABLE: token_hex(32),
                **environment,
            },
            "Tags": [{"Key": key, "Value": value} for key, value in (tags or {}).items()],
        }

    def inject(self, fault: str, **fields: Any) -> None:
        inject(self.aws.endpoint_url, fault, **fields)

    def inject_at_step(self, name: str, fault: str, *, at_step: int) -> None:
        """Have this fault hit the job when it has done the step and what it has saved is in S3."""
        faults = [{"Fault": fault, "TrainingJobName": name}]
        self.inject("at", TrainingJobNames=[name], Step=at_step, Faults=faults)

    def submit_struck(self, name: str, fault: str, *, script: Path = SCRIPT, **more: Any) -> str:
        """Start a job that waits at its 20th step until the fault has hit it; its successor has one more save to do."""
        self.submit(name, script=script, **{"steps": HALT_AT + 10, "HALT_AT": str(HALT_AT), **more})
        self.inject_at_step(name, fault, at_step=HALT_AT)
        return name

    def wait(self, what: str, look: Callable[[], T | None], *, within_s: float = HANG_S) -> T:
        """Look again and again until there is something; the first thing that there is."""
        within_s = self.pace.real(within_s)
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            if found := look():
                return found
            time.sleep(0.2)
        raise AssertionError(f"{what}: not within {within_s:.0f} s\n{self.describe()}")

    def run_in(self, run_id: str, *states: str, within_s: float = HANG_S) -> Run:
        """The run, once it is in one of these states; one that has ended in another will not come to them any more."""

        def look() -> Run | None:
            run = self.runs.load(run_id)
            if run is None or run.state in states:
                return run
            assert run.state not in OVER, f"{run_id} is {run.state}, not {' or '.join(states)}\n{self.describe()}"
            return None

        return self.wait(f"{run_id} in {states}", look, within_s=within_s)

    def has_saved(self, name: str, *, steps: int) -> None:
        """Wait until a checkpoint of so many steps is in S3."""
        key = f"{name}/step-{steps:09d}/manifest.json"
        listed = lambda: self.aws.client("s3").list_objects_v2(Bucket=BUCKET, Prefix=key).get("KeyCount")  # noqa: E731
        self.wait(f"{key} in S3", listed)

    def jobs(self, prefix: str) -> list[str]:
        """Names of the jobs that begin so, oldest first."""
        answer = self.sagemaker.list_training_jobs(NameContains=prefix, SortBy="CreationTime", SortOrder="Ascending")
        return [job["TrainingJobName"] for job in answer["TrainingJobSummaries"]]

    def dead_letters(self) -> list[str]:
        """Return the dead-letter queues that hold messages, each with the errors that Lambda attached to them."""
        sqs, found = self.aws.client("sqs"), []
        for url in sqs.list_queues().get("QueueUrls", []):
            if DEAD.search(url) and self.lies_in(url):
                letters = sqs.receive_message(QueueUrl=url, MessageAttributeNames=["All"], VisibilityTimeout=0)
                errors = [
                    letter.get("MessageAttributes", {}).get("ErrorMessage", {}).get("StringValue", "")
                    for letter in letters.get("Messages", [])
                ]
                found.append(" ".join([url.rpartition("/")[2], *errors]).strip())
        return found

    def has_handled_all(self) -> bool:
        """Whether no signal waits for the supervisor, or is with it."""
        return not any(
            self.lies_in(self.aws.outputs[f"{name}QueueUrl"]) for name in ("Signals", "FiledReports", "Command")
        )

    def lies_in(self, queue_url: str) -> int:
        """How many messages wait in a queue, or are being handled."""
        counts = self.aws.client("sqs").get_queue_attributes(QueueUrl=queue_url, AttributeNames=["All"])["Attributes"]
        return sum(int(counts.get(f"ApproximateNumberOfMessages{which}", 0)) for which in ("", "NotVisible"))

    def describe(self) -> str:
        """For a failed test: every run and its decisions."""
        runs = [run for _, run in self.runs.all_runs() if run]
        return "\n".join(f"{run.id} {run.state}: {[e.reason for e in self.runs.timeline(run.id)]}" for run in runs)


class Answer(NamedTuple):
    """What a command said, and how it ended."""

    returncode: int
    stdout: str
    stderr: str


def rerail(environment: Mapping[str, str], *arguments: str) -> Answer:
    """Run the command within this process, which saves the seconds that a new one takes to start."""
    variables = {name: environment[name] for name in ("COLUMNS",)}
    with patch.object(place, "LOCAL_STATE", Path(environment["RERAIL_LOCAL_STATE"])):
        done = CliRunner().invoke(app, arguments, env=variables)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Answer(done.exit_code, done.stdout, done.stderr)


def checks(environment: Mapping[str, str], *words: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Ask the doctor; its exit status and what it has found, by the names of its checks."""
    answer = rerail(environment, "doctor", "--local", "--json", *words)
    assert answer.stdout, answer.stderr
    return answer.returncode, {check["name"]: check for check in json.loads(answer.stdout)["checks"]}


class NotificationQueue:
    """A queue that is subscribed to topics, and all that it has received so far."""

    def __init__(self, account: Account, name: str, *topics: str) -> None:
        self._sqs, self.queue = account.aws.client("sqs"), account.listen(name, *topics)
        self._received: list[dict[str, Any]] = []

    def received(self, about: str = "") -> list[dict[str, Any]]:
        """What SNS has sent so far with this in its subject."""
        while new := self._sqs.receive_message(QueueUrl=self.queue, MaxNumberOfMessages=10).get("Messages", []):
            for message in new:
                self._received.append(json.loads(message["Body"]))
                self._sqs.delete_message(QueueUrl=self.queue, ReceiptHandle=message["ReceiptHandle"])
        return [message for message in self._received if about in message.get("Subject", "")]


@contextmanager
def no_sweeps(account: Account) -> Iterator[None]:
    """Somebody has disabled the schedule; whatever comes of it, it is enabled again."""
    scheduler = account.aws.client("scheduler")
    (name,) = [schedule["Name"] for schedule in scheduler.list_schedules()["Schedules"]]
    found = scheduler.get_schedule(Name=name)
    schedule = {field: found[field] for field in SCHEDULE if field in found}
    scheduler.update_schedule(**schedule, State="DISABLED")
    try:
        yield
    finally:
        scheduler.update_schedule(**schedule, State="ENABLED")
