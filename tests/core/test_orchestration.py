"""Who waits for a run is answered once, by its end; only a stop by a person reaches the run."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from rerail.messages.messages import JobStateChanged
from rerail.model.codec import BadRecord, dumps, loads
from rerail.model.errors import BadMessage
from rerail.model.run import JobStatus, RunState
from rerail.model.signals import OperatorVerb
from rerail.orchestration.orchestrator import ADOPTED_WITHIN, MOST_OF_A_JOB, MOST_WAITS, REFUSED_WITHIN, Orchestrator
from rerail.orchestration.waits import Caller, CallerState, KeyWithdrawn, RunWait, WaitIsOver, read_message, read_task
from rerail.requests.identity import make_digest
from rerail.requests.states import EXECUTION_VARIABLE
from stacks.parts.train_supervised import HEARTBEAT
from tests.core.failures import NODE_LOST
from tests.fakes import MIDNIGHT, World

MODEL = "s3://bucket/gpt/output/model.tar.gz"
WAIT = RunWait("token", Caller.STEP_FUNCTIONS, "gpt", MIDNIGHT, "arn:execution")


@dataclass
class FakeWaits:
    """Waits as text, by token."""

    kept: dict[str, str] = field(default_factory=dict)

    def keep(self, wait: RunWait) -> None:
        self.kept[wait.token] = dumps(wait)

    def forget(self, wait: RunWait) -> None:
        self.kept.pop(wait.token, None)

    def list_waits(self) -> Iterable[RunWait]:
        return [loads(RunWait, text) for text in self.kept.values()]


@dataclass
class FakeCallers:
    """Executions that take one answer each; `broken` are tokens with which every call fails, "keyless" in its way.

    `listed` are the tokens that SageMaker lists for pipelines, `stopped` the pipelines that it says are being stopped.
    """

    answers: dict[str, Any] = field(default_factory=dict)
    heartbeats: list[str] = field(default_factory=list)
    states: dict[str, CallerState] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    listed: set[str] = field(default_factory=set)
    stopped: set[str] = field(default_factory=set)

    def is_listed(self, wait: RunWait) -> bool:
        return wait.token in self.listed

    def is_stopped(self, wait: RunWait) -> bool:
        return wait.execution in self.stopped

    def find_state(self, wait: RunWait) -> CallerState:
        if wait.token in self.broken:
            raise KeyWithdrawn() if wait.token == "keyless" else RuntimeError("Step Functions does not answer")
        return self.states.get(wait.token, CallerState.WAITS)

    def succeed(self, wait: RunWait, output: Mapping[str, Any]) -> None:
        self._answer(wait, json.loads(json.dumps(output)))

    def fail(self, wait: RunWait, error: str, cause: str) -> None:
        self._answer(wait, (error, cause))

    def send_heartbeat(self, wait: RunWait) -> None:
        if wait.token in self.answers:
            raise WaitIsOver("TaskDoesNotExist")
        self.heartbeats.append(wait.token)

    def _answer(self, wait: RunWait, answer: Any) -> None:
        if wait.token in self.answers:
            raise WaitIsOver("TaskDoesNotExist")
        self.answers[wait.token] = answer


class Waiting:
    """A world with a run `gpt`, and what waits for it."""

    def __init__(self, *, adopted: bool = True, execution: str = WAIT.execution) -> None:
        self.world, self.waits, self.callers = World(), FakeWaits(), FakeCallers()
        self.commands: list[Mapping[str, Any]] = []
        self.orchestrator = Orchestrator(
            self.waits, self.callers, self.world.runs, self.world.policies, self, self.world.clock, "pages"
        )
        self.world.sagemaker.submit("gpt", request={"Environment": {EXECUTION_VARIABLE: execution}})
        if adopted:
            self.world.supervisor().handle(JobStateChanged("gpt"))

    def send_command(self, detail: Mapping[str, Any]) -> None:
        self.commands.append(detail)

    def complete(self, job: str = "gpt") -> None:
        self.world.sagemaker.end(job, JobStatus.COMPLETED, artifacts=MODEL)
        self.world.minutes(1)


def test_a_wait_goes_on_over_a_relaunch_with_heartbeats_and_has_one_answer():
    waiting = Waiting()
    waiting.orchestrator.begin(WAIT)
    waiting.world.sagemaker.fail("gpt", NODE_LOST)
    waiting.world.minutes(6)
    waiting.orchestrator.check_all()
    assert waiting.callers.heartbeats == ["token", "token"] and not waiting.callers.answers
    waiting.complete("gpt-a002")
    waiting.orchestrator.check_all()
    waiting.orchestrator.check_all()
    answer = waiting.callers.answers["token"]
    assert (answer["job"], answer["attempts"], answer["artifacts"]) == ("gpt-a002", 2, MODEL)
    assert answer["report"] == "s3://pages/runs/gpt/report.html"
    assert not waiting.waits.kept and not waiting.commands


def test_a_wait_whose_first_check_fails_is_not_kept():
    """An execution that cannot be described, such as a name in place of its ARN, would fail each turn for ever."""
    waiting = Waiting()
    waiting.callers.broken.add("token")
    with pytest.raises(RuntimeError):
        waiting.orchestrator.begin(WAIT)
    assert waiting.waits.kept == {}


@pytest.mark.threat("T36")
def test_waits_are_bounded():
    """Who can send messages can keep only so many waits, each of which is read each minute; one more fails at once."""
    waiting = Waiting()
    for number in range(MOST_OF_A_JOB + 5):
        waiting.orchestrator.begin(replace(WAIT, token=f"t{number}"))
    assert len(waiting.waits.kept) == MOST_OF_A_JOB
    assert {error for error, _ in waiting.callers.answers.values()} == {"Rerail.TooManyWaits"}
    for number in range(MOST_WAITS):
        waiting.waits.keep(replace(WAIT, token=f"other{number}", job=f"other-{number}"))
    waiting.orchestrator.begin(replace(WAIT, token="new", job="new"))
    assert "new" not in waiting.waits.kept and waiting.callers.answers["new"][0] == "Rerail.TooManyWaits"
    waiting.orchestrator.begin(replace(WAIT, token="step", caller=Caller.PIPELINE))
    assert "step" in waiting.waits.kept, "pipelines have room of their own"


@pytest.mark.threat("T36")
@pytest.mark.parametrize("full", [MOST_OF_A_JOB, MOST_WAITS], ids=["of_the_job", "of_all"])
def test_invented_tokens_take_no_room_from_a_pipeline(full):
    """Messages may invent tokens; a step that SageMaker lists is accepted all the same."""
    waiting = Waiting()
    for number in range(full):
        job = "gpt" if full == MOST_OF_A_JOB else f"other-{number}"
        waiting.waits.keep(replace(WAIT, token=f"invented{number}", caller=Caller.PIPELINE, job=job))
    waiting.callers.listed.add("real")
    for token in ("real", "invented"):
        message = {"token": token, "pipelineExecutionArn": "arn:pipeline", "arguments": {"job": "gpt"}}
        waiting.orchestrator.on_callback(read_message(json.dumps(message), at=MIDNIGHT))
    assert "real" in waiting.waits.kept and "invented" not in waiting.waits.kept
    assert waiting.callers.answers["invented"][0] == "Rerail.TooManyWaits"


@pytest.mark.threat("T36")
def test_what_a_message_makes_rerail_keep_is_small():
    """All waits are read with each message, and a flood of them is paid for by their size."""
    body = {
        "token": "t" * 64,
        "pipelineExecutionArn": "a" * 9_999,
        "arguments": {"job": "j" * 63, "outputs": 999 * "o,"},
    }
    assert len(dumps(read_message(json.dumps(body), at=MIDNIGHT).wait)) < 1_600
    with pytest.raises(BadMessage, match="token: must be a text of 1 to 64 characters"):
        read_message(json.dumps({**body, "token": "t" * 65}), at=MIDNIGHT)


def test_a_wait_that_cannot_be_read_stops_no_other(monkeypatch):
    """It is raised once all others were checked."""
    waiting = Waiting()
    waiting.orchestrator.begin(WAIT)
    waiting.complete()
    read = waiting.waits.list_waits
    monkeypatch.setattr(waiting.waits, "list_waits", lambda: [BadRecord("a RunWait of a later version"), *read()])
    with pytest.raises(BadRecord):
        waiting.orchestrator.check_all()
    assert waiting.callers.answers["token"]["state"] == "completed"


def test_a_run_that_has_ended_before_is_answered_at_once():
    waiting = Waiting()
    waiting.complete()
    waiting.orchestrator.begin(WAIT)
    assert waiting.callers.answers["token"]["state"] == "completed" and not waiting.waits.kept


def test_an_answer_that_was_given_and_not_recorded_is_not_given_again():
    """The function has ended between answer and record."""
    waiting = Waiting()
    waiting.orchestrator.begin(WAIT)
    waiting.callers.answers["token"] = "given"
    waiting.complete()
    waiting.orchestrator.check_all()
    assert waiting.callers.answers["token"] == "given" and not waiting.waits.kept


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_hold_is_a_failure_or_waited_out_as_asked(goes_on):
    waiting = Waiting()
    waiting.orchestrator.begin(replace(WAIT, goes_on_while_held=goes_on))
    waiting.world.send_command(OperatorVerb.HOLD, 1)
    assert waiting.world.run().state is RunState.HELD
    waiting.orchestrator.check_all()
    if goes_on:
        assert not waiting.callers.answers and waiting.waits.kept
        waiting.world.send_command(OperatorVerb.RELEASE, 2)
        waiting.complete()
        waiting.orchestrator.check_all()
        assert waiting.callers.answers["token"]["state"] == "completed"
    else:
        error, cause = waiting.callers.answers["token"]
        assert error == "Rerail.RunHeld" and "run gpt is held after 1 attempts. ada" in cause


def test_a_person_who_stops_the_job_fails_the_step():
    waiting = Waiting()
    waiting.orchestrator.begin(WAIT)
    waiting.world.sagemaker.end("gpt", JobStatus.STOPPED)
    waiting.world.minutes(1)
    waiting.orchestrator.check_all()
    assert waiting.callers.answers["token"][0] == "Rerail.RunStopped"


def test_a_cancelled_execution_stops_its_run_and_one_that_timed_out_does_not():
    """It may have timed out because Rerail itself was gone: that stops no healthy job."""
    waiting = Waiting()
    for token, state in (("cancelled", CallerState.CANCELLED), ("timed out", CallerState.OVER)):
        waiting.orchestrator.begin(replace(WAIT, token=token))
        waiting.callers.states[token] = state
        waiting.orchestrator.check_all()
        assert not waiting.waits.kept
    (command,) = waiting.commands
    assert (command["run"], command["verb"], command["who"]) == ("gpt", "stop", "step_functions")


@pytest.mark.threat("T35")
def test_a_run_that_others_named_first_is_not_the_executions():
    """Its artifacts would be what the next task reads."""
    waiting = Waiting()
    request = waiting.world.runs.request("gpt")
    wait = {"execution": WAIT.execution, "job": "gpt", "expects": make_digest(request)}
    others = {"another image": {"expects": make_digest({**request, "HyperParameters": {"lr": "9"}})}}
    others["it reads data from nowhere"] = {"places": {"data": "s3://bucket/data/"}}
    for token, changed in [("own", {}), *others.items()]:
        waiting.orchestrator.begin(read_task({**wait, "token": token, **changed}, at=MIDNIGHT))
    assert set(waiting.callers.answers) == set(others)
    (kept,) = waiting.waits.list_waits()
    assert (kept.token, kept.expects) == ("own", ""), "its request is not read again"
    for text, (error, cause) in waiting.callers.answers.items():
        assert error == "Rerail.AnotherJob" and text in cause
    with pytest.raises(BadMessage, match="places"):
        read_task({**wait, "token": "t", "places": ["s3://bucket/data/"]}, at=MIDNIGHT)
    with pytest.raises(BadMessage, match="places"):
        read_task({**wait, "token": "t", "places": {"x" * 65: "s3://bucket/data/"}}, at=MIDNIGHT)
    longest = {f"{number:064}": "s3://bucket/data/" for number in range(20)}
    assert read_task({**wait, "token": "t", "places": longest}, at=MIDNIGHT).places == longest


@pytest.mark.threat("T35")
@pytest.mark.parametrize(("owner", "named"), [("arn:another", ""), ("arn:another", "arn:execution"), ("", "")])
def test_an_execution_stops_no_run_that_it_has_not_started(owner, named):
    """Who may invoke the function, or write to the callback queue, names any job and any execution."""
    waiting = Waiting(execution=owner)
    waiting.orchestrator.begin(replace(WAIT, execution=named))
    waiting.callers.states["token"] = CallerState.CANCELLED
    waiting.orchestrator.check_all()
    message = {"token": "t1", "pipelineExecutionArn": named, "arguments": {"job": "gpt"}}
    for status in ("Executing", "Stopping"):
        waiting.orchestrator.on_callback(read_message(json.dumps({**message, "status": status}), at=MIDNIGHT))
    assert not waiting.commands


def test_a_job_that_never_becomes_a_run_fails_its_step_and_a_cancelled_one_is_stopped_once_it_is_a_run():
    waiting = Waiting(adopted=False)
    waiting.orchestrator.begin(WAIT)
    waiting.orchestrator.begin(replace(WAIT, token="cancelled"))
    waiting.callers.states["cancelled"] = CallerState.CANCELLED
    waiting.orchestrator.check_all()
    assert set(waiting.waits.kept) == {"token", "cancelled"} and not waiting.commands
    waiting.world.clock.pass_by(REFUSED_WITHIN + timedelta(minutes=1))
    waiting.orchestrator.check(WAIT)
    assert not waiting.callers.answers, "nobody has looked at the job yet: Rerail itself may be late"
    waiting.world.clock.pass_by(ADOPTED_WITHIN)
    waiting.orchestrator.check(WAIT)
    assert waiting.callers.answers["token"][0] == "Rerail.NotSupervised"
    waiting.world.supervisor().handle(JobStateChanged("gpt"))
    waiting.orchestrator.check_all()
    assert len(waiting.commands) == 1 and not waiting.waits.kept


def test_a_job_that_was_looked_at_and_refused_fails_its_step_soon():
    waiting = Waiting(adopted=False)
    waiting.world.sagemaker.job_tags["gpt"] = {}
    waiting.world.supervisor().handle(JobStateChanged("gpt"))
    waiting.orchestrator.begin(WAIT)
    assert not waiting.callers.answers
    waiting.world.clock.pass_by(REFUSED_WITHIN + timedelta(minutes=1))
    waiting.orchestrator.check(WAIT)
    assert waiting.callers.answers["token"][0] == "Rerail.NotSupervised"


@pytest.mark.threat("T36")
def test_a_wait_that_cannot_be_checked_does_not_hold_up_the_others():
    """One that its owner has made unreadable is forgotten: it would fail the function, and page, each minute."""
    waiting = Waiting()
    waiting.orchestrator.begin(WAIT)
    for token in ("broken", "keyless", "later"):
        waiting.waits.keep(replace(WAIT, token=token))
    waiting.callers.broken = {"broken", "keyless"}
    with pytest.raises(RuntimeError, match="does not answer"):
        waiting.orchestrator.check_all()
    assert sorted(waiting.callers.heartbeats) == ["later", "token", "token"] and "keyless" not in waiting.waits.kept


@pytest.mark.parametrize("call_s", [0.1, 0.4])
def test_slow_calls_let_a_thousand_waits_be_checked_in_turns(call_s, monkeypatch):
    """No turn reaches the function's minute, and no wait goes without a heartbeat for the state machine's limit."""
    waiting = Waiting()
    for number in range(MOST_WAITS):
        waiting.waits.keep(replace(WAIT, token=f"t{number}"))
    clock, waits = waiting.world.clock, list(waiting.waits.list_waits())
    monkeypatch.setattr(waiting.waits, "list_waits", lambda: waits)
    monkeypatch.setattr(waiting.callers, "find_state", lambda wait: clock.pass_by(timedelta(seconds=call_s)))
    last = {wait.token: clock() for wait in waits}
    for minute in range(1, 121):
        waiting.callers.heartbeats.clear()
        left = waiting.orchestrator.check_all()
        assert len(waiting.callers.heartbeats) + left == MOST_WAITS
        assert clock() < MIDNIGHT + timedelta(minutes=minute - 1, seconds=41)
        last |= dict.fromkeys(waiting.callers.heartbeats, clock())
        clock.now = MIDNIGHT + timedelta(minutes=minute)
        assert clock() - min(last.values()) < timedelta(minutes=HEARTBEAT.to_minutes())


@pytest.mark.threat("T35")
@pytest.mark.parametrize("adopted", [True, False], ids=["a_run", "not_a_run_yet"])
def test_a_pipeline_that_is_stopped_stops_the_run_of_its_own_token_alone(adopted):
    """Everyone who may describe the job reads that ARN: a message that names it is only a reason to ask SageMaker."""
    waiting = Waiting(execution="arn:pipeline", adopted=adopted)
    message = {"token": "t1", "pipelineExecutionArn": "arn:pipeline", "arguments": {"job": "gpt", "on_hold": "wait"}}
    executing = read_message(json.dumps({**message, "status": "Executing"}), at=MIDNIGHT)
    waiting.orchestrator.on_callback(executing)
    assert executing.wait.goes_on_while_held
    waiting.orchestrator.on_callback(
        read_message(json.dumps({**message, "token": "t2", "status": "Stopping"}), at=MIDNIGHT)
    )
    assert not waiting.commands
    waiting.orchestrator.on_callback(read_message(json.dumps({**message, "status": "Stopping"}), at=MIDNIGHT))
    if not adopted:
        waiting.world.supervisor().handle(JobStateChanged("gpt"))
    waiting.orchestrator.check_all()
    assert not waiting.commands, "SageMaker does not say that it is being stopped"
    waiting.callers.stopped.add("arn:pipeline")
    waiting.orchestrator.check_all()
    waiting.orchestrator.check_all()
    assert [command["verb"] for command in waiting.commands] == ["stop"] and "t1" in waiting.waits.kept


@pytest.mark.parametrize("job", ["", "no_job", "a" * 64, f"a{'-' * 62}b", None, 7, "gpt#other"])
def test_a_request_without_a_job_fails_its_step_with_the_remedy(job):
    waiting = Waiting()
    waiting.orchestrator.begin(read_task({"token": "token", "execution": "arn", "job": job}, at=MIDNIGHT))
    error, cause = waiting.callers.answers["token"]
    assert error == "Rerail.BadRequest" and "name the training job that was started" in cause
    assert not waiting.waits.kept
