"""What waits for a run, over a crash, a rollback and a stop: state machines, pipelines, and rules on both buses."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from aws_cdk import Duration

from local.pace import Pace
from local.stack import ROOT
from rerail.messages.messages import COMMAND, OPERATOR
from rerail.requests.supervised import supervised
from rerail_agent.waiting import RunWaiter
from stacks.parts.train_supervised import make_definition
from tests.deployed.conftest import ASSEMBLIES
from tests.deployed.jobs import BUCKET, HALT_AT, SCHEDULE, Account, apart_with, rerail

pytestmark = pytest.mark.slow
CONTEXT = {"orchestration": True, "forwardRunEvents": True}


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory, pace: Pace) -> Iterator[Account]:
    """A deployment for which others wait, and which forwards the runs' events to the default bus."""
    with apart_with(tmp_path_factory.mktemp("waiting"), CONTEXT, ASSEMBLIES, pace) as account:
        yield account


def start(account: Account, name: str, machine: str = "", **environment: str) -> str:
    """Start an execution for a job of this name; return its ARN."""
    request = supervised(account.make_request(name, **environment))
    machine = machine or account.aws.outputs["TrainSupervisedArn"]
    states = account.aws.client("stepfunctions")
    answer = states.start_execution(stateMachineArn=machine, name=name, input=json.dumps({"Request": request}))
    return str(answer["executionArn"])


def find_end(account: Account, execution: str) -> dict[str, Any]:
    """Return the execution once it has ended."""
    states = account.aws.client("stepfunctions")

    def look() -> dict[str, Any] | None:
        described = states.describe_execution(executionArn=execution)
        return described if described["status"] != "RUNNING" else None

    return account.wait(f"the end of {execution}", look)


def list_waits(account: Account) -> list[Any]:
    """Return what the table has of waits."""
    answer = account.aws.client("dynamodb").query(
        TableName=account.aws.outputs["TableName"],
        KeyConditionExpression="pk = :waits",
        ExpressionAttributeValues={":waits": {"S": "waits"}},
    )
    return list(answer["Items"])


def roll_back(account: Account, name: str, attempt: int, *, to: int) -> None:
    """Have the run go back to a step as an operator, once the attempt waits at its halt."""
    account.wait(
        f"attempt {attempt}", lambda: (run := account.runs.load(name)) and run.current.number == attempt and run
    )
    account.has_saved(name, steps=HALT_AT)
    account.run_in(name, "watching")
    detail = {"run": name, "verb": "rollback", "who": "test", "why": "bad data", "step": to}
    entry = {"Source": OPERATOR, "DetailType": COMMAND, "Detail": json.dumps(detail)}
    events = account.aws.client("events")
    assert not events.put_events(Entries=[{**entry, "EventBusName": account.aws.outputs["BusName"]}])[
        "FailedEntryCount"
    ]


class EventQueue:
    """A queue that receives the run events of a bus, as a rule of the account's own would."""

    def __init__(self, account: Account, name: str, bus: str) -> None:
        events, self._sqs = account.aws.client("events"), account.aws.client("sqs")
        self._url = account.listen(name)
        arn = self._sqs.get_queue_attributes(QueueUrl=self._url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        pattern = {"source": ["rerail"], "detail-type": ["Rerail Run State Change"]}
        events.put_rule(Name=name, EventBusName=bus, EventPattern=json.dumps(pattern))
        events.put_targets(Rule=name, EventBusName=bus, Targets=[{"Id": "queue", "Arn": arn}])
        self._received: list[dict[str, Any]] = []

    def received(self, run: str) -> list[dict[str, Any]]:
        """Return the details of the run's events so far, without repetitions, in their order."""
        while new := self._sqs.receive_message(QueueUrl=self._url, MaxNumberOfMessages=10).get("Messages", []):
            for message in new:
                self._received.append(json.loads(message["Body"])["detail"])
                self._sqs.delete_message(QueueUrl=self._url, ReceiptHandle=message["ReceiptHandle"])
        distinct = {detail["id"]: detail for detail in self._received if detail["run"] == run}
        return sorted(distinct.values(), key=lambda detail: detail["sequence"])


def test_an_execution_goes_on_over_a_crash_and_a_rollback(waiting: Account):
    """Its output is that of the attempt that succeeded."""
    account, name = waiting, "in-a-machine"
    account.inject_at_step(name, "internal_error", at_step=HALT_AT)
    execution = start(account, name, STEPS=str(HALT_AT + 10), HALT_AT=str(HALT_AT), HALTS="2")
    roll_back(account, name, 2, to=HALT_AT - 10)
    described = find_end(account, execution)
    assert described["status"] == "SUCCEEDED", described
    output = json.loads(described["output"])
    assert (output["run"], output["state"], output["job"], output["attempts"]) == (name, "completed", f"{name}-a003", 3)
    assert output["artifacts"] == f"s3://{BUCKET}/output/{name}-a003/output/model.tar.gz"
    assert account.jobs(name) == [name, f"{name}-a002", f"{name}-a003"]
    account.wait("the wait to be forgotten", lambda: not list_waits(account))


def test_a_held_run_fails_its_execution_with_what_to_do(waiting: Account):
    account, name = waiting, "held-in-a-machine"
    described = find_end(account, start(account, name, BUG_AT="20"))
    assert (described["status"], described["error"]) == ("FAILED", "Rerail.RunHeld")
    assert f"run {name} is held" in described["cause"] and "To do:" in described["cause"]


def test_stopping_an_execution_stops_its_run(waiting: Account):
    """Step Functions tells no task that its execution was stopped: the next check finds out."""
    account, name = waiting, "cancelled-in-a-machine"
    execution = start(account, name, STEPS="10000")
    account.run_in(name, "watching")
    account.wait("the wait", lambda: list_waits(account))
    account.aws.client("stepfunctions").stop_execution(executionArn=execution)
    account.run_in(name, "stopped")
    assert account.jobs(name) == [name]
    account.wait("the wait to be forgotten", lambda: not list_waits(account))


def test_a_callback_step_is_answered_with_the_model_and_stopped_with_its_pipeline(waiting: Account):
    """The messages are those of a pipeline's callback step; the second pipeline is stopped."""
    account, sqs = waiting, waiting.aws.client("sqs")

    def send(token: str, status: str, job: str) -> None:
        message = {"token": token, "pipelineExecutionArn": execution, "arguments": {"job": job}, "status": status}
        sqs.send_message(QueueUrl=account.aws.outputs["CallbackQueueUrl"], MessageBody=json.dumps(message))

    def find_step(token: str) -> dict[str, Any] | None:
        listed = account.sagemaker.list_pipeline_execution_steps()["PipelineExecutionSteps"]
        return next((step for step in listed if step["StepName"] == token), None)

    execution = "arn:aws:sagemaker:us-east-1:000000000000:pipeline/nightly/execution/abc123"
    first = account.submit_struck("in-a-pipeline", "internal_error", HALTS="2")
    send("AbCdE12345", "Executing", first)
    other = account.submit("stopped-with-its-pipeline", steps=10_000, RERAIL_EXECUTION=execution)
    send("FgHiJ67890", "Executing", other)
    send("KlMnO13579", "Executing", "no_job")
    account.run_in(other, "watching")
    account.wait("both waits", lambda: len(list_waits(account)) == 2 or find_step("AbCdE12345"))
    account.sagemaker.stop_pipeline_execution(PipelineExecutionArn=execution, ClientRequestToken="x" * 32)
    send("FgHiJ67890", "Stopping", other)
    roll_back(account, first, 2, to=HALT_AT - 10)

    step = account.wait("the first answer", lambda: find_step("AbCdE12345"))
    outputs = {pair["Name"]: pair["Value"] for pair in step["Metadata"]["Callback"]["OutputParameters"]}
    assert (step["StepStatus"], outputs["job"], set(outputs)) == (
        *("Succeeded", f"{first}-a003"),
        {"job", "artifacts", "report"},
    )
    assert outputs["artifacts"] == f"s3://{BUCKET}/output/{first}-a003/output/model.tar.gz"
    stopped = account.wait("the second answer", lambda: find_step("FgHiJ67890"))
    assert stopped["StepStatus"] == "Failed" and stopped["FailureReason"].startswith("Rerail.RunStopped: ")
    refused = account.wait("the third answer", lambda: find_step("KlMnO13579"))
    assert refused["FailureReason"] == "Rerail.BadRequest: job 'no_job': name the training job that was started"


def test_a_chain_is_a_state_machine_that_starts_each_run_once(waiting: Account, tmp_path: Path):
    """A second execution waits for the same runs, and `rerail chain` finds them complete."""
    account, states = waiting, waiting.aws.client("stepfunctions")
    environment = {"RERAIL_LOCAL_STATE": str(account.aws.state_dir), "COLUMNS": "200"}
    shutil.copytree(ROOT / "local" / "examples" / "chain", tmp_path / "chain")
    file = tmp_path / "chain" / "rerail.toml"
    beside = 'script = "evaluate/evaluate.py"\ninputs = { data = "prepare.output", model = "pretrain.model" }'
    # Rerail takes up no job that has completed before its functions, which are cold at first, have seen it.
    slow = file.read_text().replace('"--samples", 400', f'"--samples", 400, "--seconds", {account.pace.real(5)}')
    file.write_text(f"{slow}\n[chain.digits.baseline]\n{beside}\n")
    chain = ["chain", "--file", str(file), "--local"]
    printed = rerail(environment, *chain, "--state-machine")
    assert printed.returncode == 0, printed.stderr
    role = states.describe_state_machine(stateMachineArn=account.aws.outputs["TrainSupervisedArn"])["roleArn"]
    machine = states.create_state_machine(name="Digits", definition=printed.stdout, roleArn=role)["stateMachineArn"]

    for number in (1, 2):
        execution = states.start_execution(stateMachineArn=machine, name=f"digits-{number}", input="{}")
        described = find_end(account, execution["executionArn"])
        assert described["status"] == "SUCCEEDED", (described.get("error"), described.get("cause"))
    output = json.loads(described["output"])
    tasks = {task["task"]: task for task in json.loads(rerail(environment, *chain, "--json").stdout)["tasks"]}
    assert {f"task_{task}": found["run"] for task, found in tasks.items()} == {
        key: found["run"] for key, found in output.items()
    }
    assert {found["does"] for found in tasks.values()} == {"skip"} and len(tasks) == 5
    assert [account.jobs(found["run"]) for found in tasks.values()] == [[found["run"]] for found in tasks.values()]
    assert all(account.runs.load(found["run"]).signing_key for found in tasks.values())
    over = rerail(environment, *chain, "--state-machine")
    assert over.returncode == 2 and "all of its tasks are complete" in over.stderr


def test_heartbeats_end_only_with_rerail(waiting: Account):
    """The machine's heartbeat is short: the task lives while the waits are checked, and fails once nobody does."""
    account, name = waiting, "without-rerail"
    states, scheduler = account.aws.client("stepfunctions"), account.aws.client("scheduler")
    answer = account.aws.client("lambda").get_function(FunctionName=account.aws.outputs["OrchestrateFunctionName"])
    arn = answer["Configuration"]["FunctionArn"]
    period_s = max(10, int(account.pace.real(10)))
    definition = make_definition(arn, heartbeat=Duration.seconds(period_s))
    role = states.describe_state_machine(stateMachineArn=account.aws.outputs["TrainSupervisedArn"])["roleArn"]
    machine = states.create_state_machine(name="Hasty", definition=json.dumps(definition), roleArn=role)
    began = time.monotonic()
    execution = start(account, name, machine["stateMachineArn"], STEPS="10000")
    account.run_in(name, "watching")
    account.wait("more than one period", lambda: time.monotonic() - began > 1.5 * period_s)
    assert states.describe_execution(executionArn=execution)["status"] == "RUNNING"

    found = [scheduler.get_schedule(Name=schedule["Name"]) for schedule in scheduler.list_schedules()["Schedules"]]
    (schedule,) = [found_one for found_one in found if found_one["Target"]["Arn"] == arn]
    kept = {field: schedule[field] for field in SCHEDULE if field in schedule}
    scheduler.update_schedule(**kept, State="DISABLED")
    try:
        assert find_end(account, execution)["error"] == "States.HeartbeatTimeout"
    finally:
        scheduler.update_schedule(**kept, State="ENABLED")
    account.wait("the wait to be forgotten", lambda: not list_waits(account))
    assert account.run_in(name, "watching"), "Rerail's own absence stops no run"
    account.sagemaker.stop_training_job(TrainingJobName=name)
    account.run_in(name, "stopped")


def test_a_run_whose_job_crashes_has_one_end_on_both_buses(waiting: Account):
    """The event of the end names the job that succeeded, its model, and the report that exists."""
    from jsonschema import validate  # takes seconds of each worker that collects this file

    account = waiting
    own = EventQueue(account, "own-events", account.aws.outputs["BusName"])
    default = EventQueue(account, "default-events", "default")
    name = account.submit_struck("told-to-others", "internal_error")
    result = RunWaiter(boto3.Session()).wait(Run=name, WaiterConfig={"Delay": 0.2})
    assert (result.job, result.attempts) == (f"{name}-a002", 2)
    is_over = lambda queue: any(detail["is_end"] for detail in queue.received(name))  # noqa: E731
    account.wait("the end on both buses", lambda: is_over(own) and is_over(default))
    events = own.received(name)
    schema = json.loads((ROOT / "docs" / "run.schema.json").read_text())
    for detail in events:
        validate(detail, schema)
    assert [detail["previous_state"] for detail in events] == ["", *(detail["state"] for detail in events[:-1])]
    assert default.received(name) == events
    (end,) = [detail for detail in events if detail["is_end"]]
    assert (end["state"], end["job"], end["first_job"], end["attempts"]) == ("completed", f"{name}-a002", name, 2)
    assert end["artifacts"] == result.artifacts == f"s3://{BUCKET}/output/{name}-a002/output/model.tar.gz"
    bucket, key = end["report"].removeprefix("s3://").split("/", 1)
    assert bucket == account.aws.outputs["ReportsBucket"] and bucket != BUCKET
    s3 = account.aws.client("s3")
    account.wait("the report", lambda: s3.list_objects_v2(Bucket=bucket, Prefix=key).get("KeyCount"))
