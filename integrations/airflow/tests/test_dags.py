"""DAGs on the local AWS: over a crash of the first attempt, over a lost worker, and ended by a user."""

import asyncio
from collections import deque
from threading import Thread
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from airflow.exceptions import TaskDeferred
from airflow.jobs.triggerer_job_runner import TriggerRunner
from airflow.sdk import DAG
from conftest import ROOT
from rerail_airflow.deployment import AwsSettings, find_deployment, make_waiter
from rerail_airflow.operators import SupervisedTrainingOperator
from rerail_airflow.triggers import RunTrigger

from rerail.model.run import Run

# Where a job waits for its fault; its successor has one more save to do.
HALT_AT = 20
LOSSES = ROOT / "tests" / "deployed" / "loss_script.py"


def load(name: str) -> Run | None:
    aws = AwsSettings()
    return make_waiter(aws, find_deployment(aws, "Rerail")).load(name)


def make_dag(name: str) -> DAG:
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag()
    assert not bag.import_errors
    return bag.dags[name]


def play(name: str, request: dict[str, Any]) -> Any:
    """Return the DAG run of a DAG over this request, once it has ended."""
    return make_dag(name).test(run_conf={"request": request})


def read_xcom(dag_run: Any, task_id: str) -> Any:
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        query = XComModel.get_many(run_id=dag_run.run_id, key="return_value", task_ids=task_id, dag_ids=dag_run.dag_id)
        return XComModel.deserialize_value(session.scalars(query).one())


def test_a_dag_goes_on_with_the_model_of_the_attempt_that_succeeded(account, database):
    """The first attempt is ended by a fault; the tasks behind it get the second one's job and artifacts."""
    request = account.call("make_request", "in-a-dag", steps=HALT_AT + 10, HALT_AT=str(HALT_AT))

    def break_first_job() -> None:
        (job,) = account.wait("the job", lambda: account.call("jobs", "in-a-dag"))
        account.call("inject_at_step", job, "internal_error", at_step=HALT_AT)

    breaker = Thread(target=break_first_job)
    breaker.start()
    dag_run = play("trains", request)
    breaker.join()
    assert dag_run.state == "success"
    run = read_xcom(dag_run, "train")
    first, second = account.call("jobs", "in-a-dag")
    assert first.startswith("in-a-dag-") and second == f"{first}-a002"
    assert (run["run"], run["state"], run["job"], run["attempts"]) == (first, "completed", second, 2)
    assert run["artifacts"].endswith(f"/output/{second}/output/model.tar.gz") and run["dollars"] >= 0
    assert run["report"].endswith(f"/runs/{first}/report.html")
    assert read_xcom(dag_run, "seen") == run
    assert read_xcom(dag_run, "read_model") == f"{second} {run['artifacts']}"


def test_a_dag_goes_on_over_a_rollback(account, database):
    """No job fails: its loss is no number from a step on, so Rerail stops it and goes back before that step."""
    fault = {"FAULT": "nan", "FAULT_STEP": "80"}
    request = account.call("make_request", "rolled-back", steps=100, script=str(LOSSES), **fault)
    dag_run = play("retries", request)
    assert dag_run.state == "success"
    run, (first, second) = read_xcom(dag_run, "train"), account.call("jobs", "rolled-back")
    assert (run["job"], run["attempts"]) == (second, 2)
    described = boto3.client("sagemaker").describe_training_job(TrainingJobName=first)
    assert described["TrainingJobStatus"] == "Stopped"
    assert 0 < load(first).current.resumed_from_step <= 80


def test_a_retry_waits_for_the_run_of_the_try_before(account, database):
    """The first try is lost after it has started the job; the second one starts none."""
    dag_run = play("retries", account.call("make_request", "tried-twice", steps=400))
    assert dag_run.state == "success"
    (job,) = account.call("jobs", "tried-twice")
    assert read_xcom(dag_run, "train")["job"] == job
    assert dag_run.get_task_instance("train").try_number == 2


@pytest.mark.parametrize("state", ["run", "job"])
def test_a_deferred_task_that_a_user_ends_stops_its_run(account, state):
    """The triggerer's own code cancels the trigger: of a run, and of a job that is no run yet."""
    name = f"ended-{state}"
    request = account.call("make_request", name, steps=10_000)
    ti = SimpleNamespace(dag_id="d", task_id="t", run_id=name, map_index=-1, try_number=1, xcom_push=lambda **_: None)
    operator = SupervisedTrainingOperator(task_id="t", config=request, check_interval=1)
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute({"ti": ti})
    path, arguments = deferred.value.trigger.serialize()
    trigger = RunTrigger(**arguments)
    assert path == "rerail_airflow.triggers.RunTrigger"
    if state == "run":
        account.wait("the run", lambda: (run := load(trigger.job)) and run.state == "watching")
    asyncio.run(end_by_user(trigger))
    run = account.wait("its end", lambda: (run := load(trigger.job)) and run.state == "stopped" and run)
    assert len(run.attempts) == 1 and account.call("jobs", name) == [trigger.job]
    described = boto3.client("sagemaker").describe_training_job(TrainingJobName=trigger.job)
    assert described["TrainingJobStatus"] == "Stopped"


async def end_by_user(trigger: RunTrigger) -> None:
    """Let the triggerer run the trigger, then cancel it as if its task were cleared."""
    runner = TriggerRunner()
    task = asyncio.create_task(runner.run_trigger(1, trigger))
    runner.triggers[1] = {"task": task, "is_watcher": False, "name": "trigger", "events": 0}
    await asyncio.sleep(1)
    assert not task.done()
    runner.to_cancel = deque([1])
    await runner.cancel_triggers()
    with pytest.raises(asyncio.CancelledError):
        await task
