"""A deployment of Rerail as a task uses it: its runs, its bus, its incident reports."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook
from airflow.providers.amazon.aws.utils import trim_none_values
from botocore.exceptions import ClientError

from rerail_agent.waiting import RunResult, RunWaiter

# What `rerail stop` puts on the bus.
OPERATOR, COMMAND = "rerail.operator", "Rerail Command"
WHY_LIMIT = 400


@dataclass(frozen=True, slots=True)
class AwsSettings:
    """The connection settings of the Amazon provider's hooks, as its operators and sensors take them."""

    aws_conn_id: str | None = "aws_default"
    region_name: str | None = None
    verify: bool | str | None = None
    botocore_config: dict[str, Any] | None = None

    def client(self, service: str) -> Any:
        """Return the client of a service; RunWaiter uses this object as its session."""
        hook = AwsBaseHook(
            aws_conn_id=self.aws_conn_id,
            client_type=service,
            region_name=self.region_name,
            verify=self.verify,
            config=self.botocore_config,
        )
        return hook.conn

    def to_arguments(self) -> dict[str, Any]:
        """Return the settings that are not None, as a trigger keeps them."""
        return {"aws_conn_id": self.aws_conn_id, **trim_none_values(asdict(self))}


@dataclass(frozen=True, slots=True)
class Deployment:
    """The names of a deployment's resources."""

    table: str
    bus: str
    # The bucket of the incident reports.
    reports: str

    def make_report_key(self, run: str) -> str:
        """Return the key of the run's incident report in `reports`."""
        return f"runs/{run}/report.html"

    def describe(self, result: RunResult) -> dict[str, Any]:
        """Return the run as tasks hand it on: the fields that the state machine TrainSupervised returns."""
        return {
            "run": result.run,
            "state": result.state,
            "job": result.job,
            "attempts": result.attempts,
            "artifacts": result.artifacts,
            "dollars": result.dollars,
            "report": f"s3://{self.reports}/{self.make_report_key(result.run)}" if self.reports else "",
        }


def find_deployment(aws: AwsSettings, stack: str) -> Deployment:
    """Return the deployment of this stack in the account and region of the connection."""
    (found,) = aws.client("cloudformation").describe_stacks(StackName=stack)["Stacks"]
    outputs = {output["OutputKey"]: output["OutputValue"] for output in found["Outputs"]}
    return Deployment(outputs["TableName"], outputs["BusName"], outputs.get("ReportsBucket", ""))


def make_waiter(aws: AwsSettings, deployment: Deployment, **options: str) -> RunWaiter:
    """Return the waiter for the runs of the deployment; the options are RunWaiter's."""
    return RunWaiter(aws, table=deployment.table, **options)


def stop_run(aws: AwsSettings, deployment: Deployment, job: str, *, who: str, why: str) -> str:
    """Stop the run that begins with this job, as `rerail stop` does; return what was done, for the log.

    The job then saves a checkpoint before it is stopped. A job that is no run yet is stopped directly: Rerail counts
    that as a person's stop, and never relaunches it. A run that has ended, and a job that does not exist, are left.
    """
    run = make_waiter(aws, deployment).load(job)
    if run is None:
        return _stop_job(aws, job)
    if run.state.is_end and not run.current.may_be_live:
        return f"run {run.id} has ended ({run.state.value}): nothing to stop"
    detail = {"run": run.id, "verb": "stop", "who": who, "why": why[:WHY_LIMIT]}
    entry = {"EventBusName": deployment.bus, "Source": OPERATOR, "DetailType": COMMAND, "Detail": json.dumps(detail)}
    answer: Mapping[str, Any] = aws.client("events").put_events(Entries=[entry])
    if answer["FailedEntryCount"]:
        problem = answer["Entries"][0].get("ErrorMessage", "")
        raise RuntimeError(f"the bus refused the command: {problem}; the run goes on: `rerail stop {run.id}` stops it")
    return f"asked Rerail to stop run {run.id}; it waits for a checkpoint first"


def is_missing(error: ClientError) -> bool:
    """Return whether SageMaker's error means that there is no such job."""
    return bool(error.response["Error"]["Code"] in ("ValidationException", "ResourceNotFound"))


def _stop_job(aws: AwsSettings, job: str) -> str:
    try:
        aws.client("sagemaker").stop_training_job(TrainingJobName=job)
    except ClientError as error:
        if not is_missing(error):
            raise
        return f"there is no live job {job}: nothing to stop"
    return f"stopped {job}, which is no run yet"
