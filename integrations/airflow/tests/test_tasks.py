"""The operator, the sensor and the trigger on a fake AWS: each end of a run, each try, each way to end a task."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.exceptions import TaskDeferred
from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook
from airflow.providers_manager import ProvidersManager
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from botocore.exceptions import ClientError
from rerail_airflow.deployment import AwsSettings, Deployment, stop_run
from rerail_airflow.naming import BASE_LIMIT, make_job_name
from rerail_airflow.operators import SupervisedTrainingOperator
from rerail_airflow.sensors import RunSensor
from rerail_airflow.triggers import RunTrigger

from rerail.incident_report.location import make_page_key
from rerail.messages.messages import COMMAND, JOB_NAME, OPERATOR
from rerail.model.codec import dumps
from rerail.model.run import AfterStop, Attempt, JobStatus, PlannedStop, Run, RunState, make_run_id

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
CONFIG = {
    "TrainingJobName": "gpt",
    "RoleArn": "arn:aws:iam::111122223333:role/Training",
    "AlgorithmSpecification": {"TrainingImage": "image", "TrainingInputMode": "File"},
    "ResourceConfig": {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": "2", "VolumeSizeInGB": "30"},
    "OutputDataConfig": {"S3OutputPath": "s3://bucket/output/"},
    "StoppingCondition": {"MaxRuntimeInSeconds": "86400"},
}
DEPLOYMENT = Deployment("Runs", "rerail", "rerail-reports")


class FakeAws:
    """The calls that tasks make, with the jobs and runs that a test puts here."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.stopped: list[str] = []
        self.commands: list[dict[str, Any]] = []
        self.refuses = False

    def client(self, hook: AwsBaseHook) -> Any:
        return self

    def describe_stacks(self, StackName: str) -> dict[str, Any]:
        values = {"TableName": DEPLOYMENT.table, "BusName": DEPLOYMENT.bus, "ReportsBucket": DEPLOYMENT.reports}
        outputs = [{"OutputKey": name, "OutputValue": value} for name, value in values.items()]
        return {"Stacks": [{"Outputs": outputs if StackName == "Rerail" else []}]}

    def get_item(self, *, TableName: str, Key: Mapping[str, Any], ConsistentRead: bool) -> dict[str, Any]:
        assert TableName == DEPLOYMENT.table and ConsistentRead
        kind, _, name = Key["pk"]["S"].partition("#")
        run = self.runs.get(name) if kind == "run" else None
        return {"Item": {"doc": {"S": dumps(run)}}} if run else {}

    def describe_training_job(self, TrainingJobName: str) -> dict[str, Any]:
        if TrainingJobName not in self.jobs:
            raise ClientError({"Error": {"Code": "ValidationException", "Message": "not found"}}, "DescribeTrainingJob")
        return self.jobs[TrainingJobName]

    def create_training_job(self, **request: Any) -> dict[str, Any]:
        name = request["TrainingJobName"]
        if name in self.jobs:
            raise ClientError({"Error": {"Code": "ResourceInUse", "Message": "exists"}}, "CreateTrainingJob")
        self.jobs[name] = {**request, "TrainingJobStatus": "InProgress"}
        return {"ResponseMetadata": {"HTTPStatusCode": 200}}

    def stop_training_job(self, TrainingJobName: str) -> None:
        self.describe_training_job(TrainingJobName)
        self.stopped.append(TrainingJobName)

    def put_events(self, Entries: list[dict[str, Any]]) -> dict[str, Any]:
        if self.refuses:
            return {"FailedEntryCount": 1, "Entries": [{"ErrorMessage": "throttled"}]}
        self.commands += Entries
        return {"FailedEntryCount": 0, "Entries": [{"EventId": "e"}]}


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> FakeAws:
    fake = FakeAws()
    monkeypatch.setattr(AwsBaseHook, "conn", property(fake.client))
    monkeypatch.setattr(AwsBaseHook, "conn_region_name", "eu-west-1")
    monkeypatch.setattr(AwsBaseHook, "conn_partition", "aws")
    return fake


class TaskInstance(SimpleNamespace):
    """A task instance that keeps what is pushed."""

    def xcom_push(self, *, key: str, value: Any) -> None:
        self.pushed[key] = value


def make_context(**fields: Any) -> dict[str, Any]:
    values = {"dag_id": "nightly", "task_id": "train", "run_id": "manual__1", "map_index": -1, "try_number": 1}
    return {"ti": TaskInstance(**{**values, **fields}, pushed={})}


def make_operator(**options: Any) -> SupervisedTrainingOperator:
    return SupervisedTrainingOperator(task_id="train", config=json.loads(json.dumps(CONFIG)), **options)


def make_run(job: str, state: RunState, **fields: Any) -> Run:
    status = None if state.is_end else JobStatus.IN_PROGRESS
    return replace(Run(job, "default", state, NOON, (Attempt(1, job, status=status),)), **fields)


def defer(operator: Any, context: Mapping[str, Any]) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context)
    return deferred.value


def fire(deferred: TaskDeferred) -> dict[str, Any]:
    """Return the event of the trigger, as another triggerer makes it of its arguments."""
    path, arguments = deferred.trigger.serialize()
    assert path == "rerail_airflow.triggers.RunTrigger"

    async def take() -> Any:
        return await anext(RunTrigger(**json.loads(json.dumps(arguments))).run())

    return dict(asyncio.run(take()).payload)


def test_the_request_is_the_config_with_what_supervision_needs(aws: FakeAws) -> None:
    """Rendered numbers become integers, as SageMakerTrainingOperator does; only the name differs."""
    context = make_context()
    defer(make_operator(policy="large", supervision={"metrics": False}), context)
    (request,) = aws.jobs.values()
    assert request["TrainingJobName"] == make_job_name("gpt", context["ti"], 1)
    assert request["Tags"] == [{"Key": "rerail:policy", "Value": "large"}]
    assert request["ResourceConfig"] == {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2, "VolumeSizeInGB": 30}
    assert request["CheckpointConfig"]["S3Uri"] == f"s3://bucket/output/{request['TrainingJobName']}/checkpoints/"
    assert "MetricDefinitions" not in request["AlgorithmSpecification"]


def test_a_name_is_the_same_in_each_try_and_leaves_room_for_successors() -> None:
    first, again = make_context()["ti"], make_context(try_number=2)["ti"]
    assert make_job_name("gpt", first, 1) == make_job_name("gpt", again, 1)
    others = [{}, {"dag_id": "x"}, {"run_id": "x"}, {"task_id": "x"}, {"map_index": 3}]
    assert len({make_job_name("gpt", make_context(**other)["ti"], 1) for other in others}) == len(others)
    long = make_job_name("x" * (BASE_LIMIT - 1) + "-" + "y" * 40, first, 9)
    assert JOB_NAME.fullmatch(long) and make_run_id(long) == long


def test_the_xcom_is_the_last_attempt(aws: FakeAws) -> None:
    context, operator = make_context(), make_operator()
    deferred = defer(operator, context)
    (job,) = aws.jobs
    last = Attempt(2, f"{job}-a002", artifacts="s3://bucket/model.tar.gz")
    aws.runs[job] = make_run(job, RunState.COMPLETED, attempts=(Attempt(1, job), last))
    output = operator.execute_complete(context, fire(deferred))
    assert (output["run"], output["state"], output["job"], output["attempts"]) == (job, "completed", f"{job}-a002", 2)
    assert (output["artifacts"], output["dollars"]) == ("s3://bucket/model.tar.gz", 0.0)
    assert output["report"] == f"s3://rerail-reports/{make_page_key(job)}"
    for link in operator.operator_extra_links:
        pushed = context["ti"].pushed[link.key]
        assert link.format_link(**pushed).startswith("https://console.aws.amazon.com/")
    assert context["ti"].pushed["rerail_training_job"]["job"] == f"{job}-a002"


@pytest.mark.parametrize("deferrable", [True, False])
@pytest.mark.parametrize(
    ("state", "hint"), [(RunState.HELD, "fix the bug.*release the run and clear"), (RunState.STOPPED, "start another")]
)
def test_a_run_that_is_held_or_stopped_fails_the_task_without_a_retry(
    aws: FakeAws, state: RunState, hint: str, deferrable: bool
) -> None:
    context, operator = make_context(), make_operator(deferrable=deferrable, check_interval=0)
    job = make_job_name("gpt", context["ti"], 1)
    ended = make_run(job, state, hold_reason="the budget is spent", hold_advice="fix the bug")
    if deferrable:
        deferred = defer(operator, context)
        aws.runs[job] = ended
        with pytest.raises(AirflowFailException, match=hint):
            operator.execute_complete(context, fire(deferred))
    else:
        make_operator()._create(job)
        aws.runs[job] = make_run(job, RunState.WATCHING)
        operator.hook.conn.get_item = let_end(aws, ended)
        with pytest.raises(AirflowFailException, match=hint):
            operator.execute(context)


def let_end(aws: FakeAws, ended: Run) -> Any:
    """Return a get_item after whose first answer the run has ended."""

    def get_item(**request: Any) -> dict[str, Any]:
        answer = FakeAws.get_item(aws, **request)
        aws.runs[ended.id] = ended
        return answer

    return get_item


def test_a_job_that_does_not_become_a_run_fails_the_task_so_that_airflow_may_retry(aws: FakeAws) -> None:
    with pytest.raises(AirflowException, match="Max attempts exceeded") as error:
        operator = make_operator(max_attempts=1)
        operator.execute_complete(make_context(), fire(defer(operator, make_context())))
    assert not isinstance(error.value, AirflowFailException)


@pytest.mark.parametrize("state", [state for state in RunState if not state.is_end] + [RunState.HELD])
def test_a_retry_waits_for_the_run_that_goes_on(aws: FakeAws, state: RunState) -> None:
    """A held run too: it is for a person to release or stop it, not for a retry to start another."""
    context = make_context()
    defer(make_operator(), context)
    (job,) = aws.jobs
    aws.runs[job] = make_run(job, state)
    assert defer(make_operator(), make_context(try_number=2)).trigger.job == job
    assert list(aws.jobs) == [job]


def test_a_retry_waits_for_a_job_that_is_no_run_yet(aws: FakeAws) -> None:
    """Whether it is live or has just ended; one that ended long ago was never supervised."""
    defer(make_operator(), make_context())
    ((job, described),) = aws.jobs.items()
    assert defer(make_operator(), make_context()).trigger.job == job
    described |= {"TrainingJobStatus": "Failed", "TrainingEndTime": datetime.now(UTC)}
    assert defer(make_operator(), make_context()).trigger.job == job
    described["TrainingEndTime"] -= timedelta(hours=1)
    assert defer(make_operator(), make_context()).trigger.job == f"{job}-2"


def test_a_job_that_others_named_first_is_not_the_tasks(aws: FakeAws) -> None:
    """Nor is it one while the run goes on that Rerail made of it, or that a create races with."""
    job = make_job_name("gpt", make_context()["ti"], 1)
    defer(make_operator(), make_context())
    forged = {**aws.jobs[job], "AlgorithmSpecification": {"TrainingImage": "mallory", "TrainingInputMode": "File"}}
    aws.jobs[job] = forged
    for runs in ({}, {job: make_run(job, RunState.WATCHING)}):
        aws.runs = runs
        with pytest.raises(AirflowFailException, match="another image"):
            make_operator().execute(make_context())
    operator = make_operator()
    with pytest.raises(AirflowFailException, match="another image"):
        operator._create(job)


@pytest.mark.parametrize("state", [RunState.COMPLETED, RunState.STOPPED])
def test_a_task_whose_run_has_ended_starts_the_next_one(aws: FakeAws, state: RunState) -> None:
    defer(make_operator(), make_context())
    (job,) = aws.jobs
    aws.runs[job] = make_run(job, state)
    assert defer(make_operator(), make_context()).trigger.job == f"{job}-2"
    assert list(aws.jobs) == [job, f"{job}-2"]


def test_a_cleared_task_waits_for_the_stop_of_its_run_before_it_starts_another(aws: FakeAws) -> None:
    """Two runs of one task never train at once; a restart by an operator is not such a stop."""
    defer(make_operator(), make_context())
    (job,) = aws.jobs
    stop = PlannedStop(AfterStop.RELAUNCH, "moved", NOON, NOON)
    aws.runs[job] = make_run(job, RunState.SAVING, stop=stop)
    assert defer(make_operator(), make_context()).method_name == "execute_complete"
    aws.runs[job] = make_run(job, RunState.SAVING, stop=replace(stop, then=AfterStop.END))
    operator = make_operator()
    deferred = defer(operator, make_context())
    assert (deferred.method_name, deferred.trigger.stops_run, list(aws.jobs)) == ("execute_after_stop", False, [job])
    operator.on_kill()
    assert not aws.commands and not aws.stopped
    aws.runs[job] = make_run(job, RunState.STOPPED)
    with pytest.raises(TaskDeferred) as started:
        operator.execute_after_stop(make_context(), fire(deferred))
    assert started.value.trigger.job == f"{job}-2"


def test_ending_a_task_sends_the_command_of_rerail_stop(aws: FakeAws) -> None:
    """From the worker and from the triggerer; never a bare StopTrainingJob for a run."""
    operator = make_operator()
    deferred = defer(operator, make_context())
    (job,) = aws.jobs
    aws.runs[job] = make_run(job, RunState.WATCHING)
    operator.on_kill()
    asyncio.run(deferred.trigger.on_kill())
    assert not aws.stopped and len(aws.commands) == 2
    for entry in aws.commands:
        assert (entry["EventBusName"], entry["Source"], entry["DetailType"]) == ("rerail", OPERATOR, COMMAND)
        detail = json.loads(entry["Detail"])
        assert (detail["run"], detail["verb"], detail["who"]) == (job, "stop", "airflow")
        assert "nightly.train of manual__1" in detail["why"]


def test_a_refused_command_is_an_error_that_names_the_remedy(aws: FakeAws) -> None:
    aws.runs["gpt"], aws.refuses = make_run("gpt", RunState.WATCHING), True
    with pytest.raises(RuntimeError, match="throttled.*`rerail stop gpt`"):
        stop_run(AwsSettings(), DEPLOYMENT, "gpt", who="airflow", why="")


def test_a_job_that_is_no_run_yet_is_stopped_directly_and_an_ended_run_is_left(aws: FakeAws) -> None:
    aws.jobs["new"], aws.runs["old"] = {}, make_run("old", RunState.COMPLETED)
    for job in ("new", "old", "none"):
        stop_run(AwsSettings(), DEPLOYMENT, job, who="airflow", why="")
    assert (aws.stopped, aws.commands) == (["new"], [])


def test_a_task_that_was_not_started_stops_nothing(aws: FakeAws) -> None:
    make_operator().on_kill()
    assert not aws.commands and not aws.stopped


@pytest.mark.parametrize("deferrable", [True, False])
def test_the_sensor_waits_for_a_run_and_stops_none(aws: FakeAws, deferrable: bool) -> None:
    aws.runs["gpt"] = make_run("gpt", RunState.COMPLETED)
    sensor, context = RunSensor(task_id="seen", run="gpt", deferrable=deferrable), make_context()
    if deferrable:
        deferred = defer(sensor, context)
        output = sensor.execute_complete(context, fire(deferred))
        asyncio.run(deferred.trigger.on_kill())
    else:
        output = sensor.execute(context)
    assert (output["run"], output["state"]) == ("gpt", "completed") and not aws.commands


def test_the_sensor_fails_for_a_held_run_unless_it_is_to_wait(aws: FakeAws) -> None:
    aws.runs["gpt"] = make_run("gpt", RunState.HELD, hold_reason="the budget is spent", hold_advice="fix the bug")
    with pytest.raises(AirflowFailException, match="To do: fix the bug"):
        RunSensor(task_id="seen", run="gpt", deferrable=False).poke(make_context())
    assert not RunSensor(task_id="seen", run="gpt", on_hold="wait").poke(make_context()).is_done
    assert not RunSensor(task_id="seen", run="none").poke(make_context()).is_done


def test_bad_arguments_are_errors_that_name_the_field(aws: FakeAws) -> None:
    with pytest.raises(ValueError, match="on_hold 'go on'"):
        make_operator(on_hold="go on")
    operator = make_operator()
    del operator.config["TrainingJobName"]
    with pytest.raises(AirflowFailException, match="TrainingJobName: add it"):
        operator.execute(make_context())


def test_airflow_finds_the_provider() -> None:
    manager = ProvidersManager()
    assert "rerail-airflow" in manager.providers
    assert "rerail_airflow.links.IncidentReportLink" in manager.extra_links_class_names
