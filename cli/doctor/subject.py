"""A job, or the request of one to come, as the doctor's questions see it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from cli import names, place
from cli.doctor.deployment import Deployment
from cli.trouble import explain
from rerail.model.checkpoints import split_uri
from rerail.model.errors import JobNotFound, PolicyError, RerailError
from rerail.model.policy import Policy
from rerail.model.run import Run, make_run_id
from rerail.requests.relaunch import POLICY_TAG, read_checkpoint_uri

DAY = 86400
PROBLEM_LIMIT = 300


@dataclass
class Subject:
    """`request` is in CreateTrainingJob's words, whether it was sent or not; `exists` says that it was."""

    deployment: Deployment
    request: Mapping[str, Any]
    tags: Mapping[str, str]
    exists: bool = False
    run: Run | None = None
    known: dict[str, Any] = field(default_factory=dict)

    def client(self, service: str) -> Any:
        return self.deployment.client(service)

    @property
    def name(self) -> str:
        return str(self.request.get("TrainingJobName", ""))

    @property
    def run_name(self) -> str:
        return self.run.id if self.run else make_run_id(self.name)

    @property
    def role(self) -> str:
        return str(self.request.get("RoleArn", ""))

    @property
    def image(self) -> str:
        """Return the address of the training image; "" for an algorithm of SageMaker's own."""
        return str((self.request.get("AlgorithmSpecification") or {}).get("TrainingImage", ""))

    @property
    def uri(self) -> str:
        """Where its checkpoints come to lie; "" where Rerail cannot look."""
        return read_checkpoint_uri(self.request)

    @property
    def bucket(self) -> str:
        return split_uri(self.uri)[0]

    @property
    def prefix(self) -> str:
        """The folder of the checkpoints, with its slash; "" for a whole bucket."""
        return split_uri(self.uri)[1]

    @property
    def resources(self) -> Mapping[str, Any]:
        return self.request.get("ResourceConfig") or {}

    @property
    def instance_type(self) -> str:
        preferred = self.resources.get("InstancePreferences") or [{}]
        return str(self.resources.get("InstanceType") or preferred[0].get("InstanceType", ""))

    @property
    def instance_count(self) -> int:
        return int(self.resources.get("InstanceCount") or 1)

    @property
    def is_spot(self) -> bool:
        return bool(self.request.get("EnableManagedSpotTraining"))

    @property
    def max_runtime_s(self) -> int | None:
        return (self.request.get("StoppingCondition") or {}).get("MaxRuntimeInSeconds")

    @property
    def metric_definitions(self) -> list[Mapping[str, str]]:
        return list((self.request.get("AlgorithmSpecification") or {}).get("MetricDefinitions") or [])

    @property
    def has_agent(self) -> bool:
        """Whether its command says that the agent's init runs it."""
        algorithm = self.request.get("AlgorithmSpecification") or {}
        words = [*(algorithm.get("ContainerEntrypoint") or []), *(algorithm.get("ContainerArguments") or [])]
        return any("rerail_agent" in word for word in words)

    @cached_property
    def policy(self) -> Policy:
        """The one that its tag names, or the default one where that cannot be had."""
        from rerail.aws.ssm import SsmPolicies

        policies = SsmPolicies(self.deployment.output("PolicyPrefix"), place.now)
        try:
            return policies.get(self.tags.get(POLICY_TAG, "default"))
        except PolicyError:
            return Policy()


def describe_job(deployment: Deployment, job: str, run: Run | None = None) -> Subject:
    """A job that SageMaker knows, or one clear error and exit status 2."""
    from rerail.aws.sagemaker import SageMakerJobs

    try:
        found, description = SageMakerJobs().describe(job)
        tags = SageMakerJobs().tags(found.arn)
    except JobNotFound:
        place.fail(
            f"SageMaker knows no training job {job!r} in {deployment.region}",
            "give the name of a job, or --run for a run; `rerail status` lists the runs",
        )
    except RerailError as error:
        cause = error.__cause__
        what, remedy = explain(cause) if isinstance(cause, Exception) else (str(error), "try again")
        place.fail(f"the job {job} cannot be looked at: {what}", remedy)
    return Subject(deployment, description, tags, exists=True, run=run or deployment.where.runs.load(make_run_id(job)))


def describe_run(deployment: Deployment, name: str) -> Subject:
    """The newest job of a run."""
    run = names.find_run(deployment.where, name)
    launched = [attempt.job_name for attempt in run.attempts if attempt.exists]
    if not launched:
        place.fail(f"the run {name} has no job yet", f"`rerail show {name}` tells why")
    return describe_job(deployment, launched[-1], run)


def read_request(deployment: Deployment, file: Path) -> Subject:
    """A request that was not sent yet, such as `rerail submit --dry-run` prints, or one clear error."""
    try:
        request = json.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        place.fail(f"--request {file}: {error}", "give a JSON file of a CreateTrainingJob request")
    if not isinstance(request, dict) or not ({"RoleArn", "AlgorithmSpecification", "ResourceConfig"} & request.keys()):
        place.fail(f"--request {file}: is not a CreateTrainingJob request", "`rerail submit --dry-run` prints one")
    request = {name: value for name, value in request.items() if value is not None}
    if problem := _misshapen(request):
        place.fail(f"--request {file}: {problem}", "`rerail submit --dry-run` prints one to compare it with")
    tags = {tag["Key"]: tag.get("Value", "") for tag in request.get("Tags") or [] if "Key" in tag}
    return Subject(deployment, request, tags)


def _misshapen(request: Mapping[str, Any]) -> str:
    """The first member that is not of the form that CreateTrainingJob takes, by the SDK's model; what is missing, or
    more than that, is for the questions to say."""
    from botocore.validate import ParamValidator

    report = ParamValidator().validate(request, _shape()).generate_report()
    wrong = (line for line in report.splitlines() if line.startswith("Invalid type for parameter"))
    return next(wrong, "")[:PROBLEM_LIMIT]


@cache
def _shape() -> Any:
    from botocore.session import Session

    return Session().get_service_model("sagemaker").operation_model("CreateTrainingJob").input_shape
