"""The function that thinks: messages in, runs in the table, and only what failed goes back."""

import json

import pytest
from moto.sagemaker.models import sagemaker_backends

import supervise
import wiring.supervise
import wiring.sweep
from rerail.aws.clients import client
from rerail.model.policy import Mode, Policy
from rerail.model.run import RunState
from tests.functions.account import Context, sample


def batch(*bodies: object, queue: str = "") -> dict:
    record = sample("sqs_batch")["Records"][0]
    record |= {"eventSourceARN": queue} if queue else {}
    texts = (body if isinstance(body, str) else json.dumps(body) for body in bodies)
    return {"Records": [{**record, "messageId": f"message-{n}", "body": text} for n, text in enumerate(texts)]}


def failed(event: dict) -> list[str]:
    return [item["itemIdentifier"] for item in supervise.handler(event, Context())["batchItemFailures"]]


def test_of_three_messages_the_malformed_one_goes_back_alone(account):
    """Two are about a supervised job, one names no job at all: the batch succeeds but for that one."""
    account.submit("gpt-7b")
    event = sample("sqs_batch")
    assert failed(event) == [event["Records"][1]["messageId"]]
    run = account.runs.load("gpt-7b")
    assert run is not None and run.state in (RunState.STARTING, RunState.WATCHING)
    assert not run.pending


def test_a_message_that_there_is_no_time_for_goes_back(account, monkeypatch):
    """The messages before have taken the time; what they did is kept, and this one comes again."""
    account.submit("gpt-7b")
    left = iter((60_000, 20_000))
    monkeypatch.setattr(Context, "get_remaining_time_in_millis", lambda context: next(left, 20_000))
    event = batch(sample("training_job_state_change"), sample("training_job_state_change"))
    assert failed(event) == ["message-1"]
    assert account.runs.load("gpt-7b") is not None


@pytest.mark.parametrize("make", [wiring.supervise.make_supervisor, wiring.sweep.make_sweep])
def test_without_roles_and_buckets_functions_only_observe(account, monkeypatch, make):
    """The variable of the template reaches the policies, and no bucket is called, even one that does not exist."""
    monkeypatch.setenv("RERAIL_OBSERVE_ONLY", "trainingRoleArns is not set")
    made = make()
    assert made.policies.with_pause(Policy()).mode is Mode.OBSERVE
    assert made.checkpoints.list_checkpoints("s3://elsewhere/gpt/") == ()
    assert made.checkpoints.list_saves("s3://elsewhere/gpt/").times == ()


def test_a_job_in_an_event_is_adopted_once(account):
    """SageMaker repeats its events: the second one finds the run and changes nothing."""
    account.submit("gpt-7b")
    event = batch(sample("training_job_state_change"))
    assert failed(event) == []
    version = account.runs.load("gpt-7b").version
    assert failed(event) == []
    assert account.runs.load("gpt-7b").version == version
    assert [entry.finding for entry in account.runs.timeline("gpt-7b")][0] == "adopted"


@pytest.mark.threat("T11")
def test_only_the_queue_of_commands_commands(account, logged):
    """EventBridge alone may write there. The sweep, which may send to the queue of signals, can claim no command,
    alarm, check or cluster: what comes so is counted and ends in the dead-letter queue."""
    account.submit("gpt-7b")
    assert failed(batch(sample("training_job_state_change"))) == []
    stop = sample("operator_command")
    stop["detail"] |= {"run": "gpt-7b", "verb": "stop"}
    check = sample("operator_command")
    check["detail"] = {"verb": "check", "check": "0" * 32}  # it passes exactly where commands pass
    for body in (stop, sample("alarm_on_a_job"), check, sample("hyperpod_cluster_failed")):
        assert failed(batch(body)) == ["message-0"]
    assert account.runs.load("gpt-7b").stop is None
    assert sum(line.get("RejectedMessages", 0) == [1.0] for line in logged()) == 4
    assert failed(batch(sample("training_job_state_change"))) == [], "a hint, about which SageMaker is asked"


def test_mail_that_cannot_be_read_does_not_come_back(account):
    """Neither a torn report, nor one that is gone, nor one of a run that nobody knows fills the dead-letter queue."""
    account.submit("gpt-7b")
    event = sample("report_filed")
    keys = [
        "runs/gpt-7b/reports/torn.json",
        "runs/gpt-7b/reports/gone.json",
        "runs/who/reports/r.json",
        "runs/x y.json",
    ]
    account.leave(keys[0], b"{")
    account.leave(keys[2], b"{")
    filed = [{**event, "detail": {**event["detail"], "object": {"key": key}}} for key in keys]
    assert failed(batch(sample("training_job_state_change"), *filed)) == []
    assert account.runs.load("gpt-7b").defects == ("json",)


def test_a_batch_that_fails_whole_goes_back_whole(account):
    """Lambda is told of each message, and of no error of the function's own."""
    assert failed(batch("{", {"source": "rerail.sweep", "detail": {"run": "nobody"}})) == ["message-0", "message-1"]


def test_each_message_has_one_log_line(account, logged):
    """One line a message: what woke us, which run, and its state."""
    account.submit("gpt-7b")
    failed(batch(sample("training_job_state_change")))
    (line,) = [line for line in logged() if line.get("message") == "looked"]
    assert line["run"] == "gpt-7b"
    assert "gpt-7b" in str(line["received"])


@pytest.mark.parametrize("variable", ["RERAIL_TABLE", "RERAIL_BUS", "RERAIL_POLICY_PREFIX", "RERAIL_MAILBOX"])
def test_a_missing_variable_is_named(account, monkeypatch, variable, logged):
    """Without its settings no message is handled, and the log names the variable."""
    monkeypatch.delenv(variable)
    assert failed(batch(sample("training_job_state_change"))) == ["message-0"]
    assert variable in json.dumps(logged())
    with pytest.raises(KeyError, match=variable):
        supervise.make_supervisor()


def fail(account, name: str) -> None:
    """The job fails; moto has no call for it."""
    job = sagemaker_backends["123456789012"]["eu-west-1"].training_jobs[name]
    job.training_job_status, job.secondary_status = "Failed", "Failed"
    job.failure_reason = "InternalServerError: We encountered an internal error."


def due(name: str) -> dict:
    return {"source": "rerail.sweep", "detail": {"run": name}}


def launched(account) -> list[str]:
    return [job["TrainingJobName"] for job in account.sagemaker.list_training_jobs()["TrainingJobSummaries"]]


@pytest.fixture
def hasty(account):
    """Return an account whose policy has no backoff."""
    text = '[backoff]\nbase = "0s"'
    client("ssm").put_parameter(Name="/rerail/policies/default", Value=text, Type="String", Overwrite=True)
    return account


def test_a_pause_keeps_a_dead_job_dead(hasty):
    """Paused: the failure is judged, the relaunch waits. Resumed, a minute later: it is made."""
    hasty.submit("gpt-7b")
    client("ssm").put_parameter(Name="/rerail/switch", Value="off", Type="String", Overwrite=True)
    assert failed(batch(sample("training_job_state_change"))) == []
    fail(hasty, "gpt-7b")
    assert failed(batch(due("gpt-7b"), due("gpt-7b"))) == []
    assert hasty.runs.load("gpt-7b").blocked_by == "pause"
    assert launched(hasty) == ["gpt-7b"]
    client("ssm").put_parameter(Name="/rerail/switch", Value="on", Type="String", Overwrite=True)
    wiring.supervise.make_supervisor.cache_clear()  # another instance of the function, which has believed nothing yet
    assert failed(batch(due("gpt-7b"))) == []
    assert sorted(launched(hasty)) == ["gpt-7b", "gpt-7b-a002"]
