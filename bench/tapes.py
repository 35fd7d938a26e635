"""What the functions ask of AWS for a typical event, with the answers: recorded in a pretend account, played back where
nothing but the functions' own time is wanted."""

import json
import os
import pickle
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from botocore import xform_name
from moto import mock_aws
from moto.core.models import botocore_stubber
from moto.sagemaker.models import sagemaker_backends

LAMBDAS = Path(__file__).resolve().parent.parent / "lambdas"
SERVICES = ("dynamodb", "s3", "sqs", "sns", "sagemaker", "cloudwatch", "logs", "ssm", "events")
RUNS = 10
DIES = "run-3"
# By the name of the tape: the function, and what its event is.
EVENTS = {
    "supervise": ("supervise", "a job's event that changes nothing"),
    "sweep": ("sweep", f"a round over {RUNS} runs that train, half of them with the agent"),
    "notify": ("notify", "a page, told in four ways"),
    "report": ("report", "a run's page, drawn anew"),
    "relaunch": ("supervise", "a job's death: decided, recorded, its successor created, people told"),
}


@dataclass(frozen=True, slots=True)
class Tape:
    """An event of a function with the calls that it makes of it; `settings` is the environment of the function."""

    name: str
    function: str
    event: dict[str, Any]
    context: Any
    calls: tuple[dict[str, Any], ...]
    settings: dict[str, str]

    @property
    def services(self) -> list[str]:
        """Those that it asks, the most asked one first."""
        return [service for service, _ in Counter(call["service"] for call in self.calls).most_common()]

    def write(self, file: Path) -> None:
        """As `bench.lone` reads it."""
        file.write_bytes(pickle.dumps((self.event, self.context, self.calls)))


def record() -> dict[str, Tape]:
    """A tape for each function, of an event that it has handled before."""
    if str(LAMBDAS) not in sys.path:
        sys.path.append(str(LAMBDAS))
    with _account() as account:
        for number in range(RUNS):
            _train(account, f"run-{number}", agent=number % 2 == 0)
        return {name: _recorded(name, account) for name in EVENTS}


@contextmanager
def _account() -> Iterator[Any]:
    from tests.aws.places import our_own_clients
    from tests.functions.account import Account

    with our_own_clients(), mock_aws():
        account = Account()
        variables = {name: value for each in account.settings() for name, value in each.variables().items()}
        with patch.dict(os.environ, variables | {"POWERTOOLS_LOG_LEVEL": "ERROR"}):
            import observability

            # Powertools reads it from the environment when it is imported, which may have been long ago.
            with patch.object(observability.metrics.provider, "namespace", "Rerail"):
                yield account


def _train(account: Any, name: str, *, agent: bool) -> None:
    """A run in training, known to the supervisor; with an agent in it that has said hello and beats."""
    from rerail.model.liveness import Phase
    from rerail.model.mailbox import Heartbeat, Report, ReportKind, heartbeat_key, report_key, write
    from rerail.model.metrics import definitions

    account.submit(name)
    job = sagemaker_backends["123456789012"]["eu-west-1"].training_jobs[name]
    job.algorithm_specification["MetricDefinitions"] = [] if agent else definitions()
    _handle("supervise", batch({"source": "rerail.sweep", "detail": {"job": name}}))
    if agent:
        at = datetime.now(UTC)
        account.leave(report_key(name, "r1"), write(Report("r1", name, 1, name, ReportKind.HELLO, at)))
        filed = _sample("report_filed")
        filed["detail"]["object"]["key"] = report_key(name, "r1")
        _handle("supervise", batch(filed))
        account.leave(heartbeat_key(name), write(Heartbeat(name, 1, name, at, Phase.STEP, 60)))


def event_of(name: str) -> dict[str, Any]:
    """The event of the tape of that name."""
    if name == "sweep":
        return _sample("schedule")
    notice = _sample("notice_page")
    notice["detail"] |= {"run": "run-1"}
    if name == "notify":
        return notice
    heard = _sample("training_job_state_change")
    heard["detail"]["TrainingJobName"] = DIES if name == "relaunch" else "run-1"
    return batch(notice if name == "report" else heard)


def batch(body: dict[str, Any]) -> dict[str, Any]:
    """One message of the queue."""
    return {"Records": [{**_sample("sqs_batch")["Records"][0], "body": json.dumps(body)}]}


def _sample(name: str) -> dict[str, Any]:
    from tests.functions.account import sample

    return sample(name)


def _context(function: str) -> Any:
    from tests.functions.account import Context

    return SimpleNamespace(**asdict(Context(function)), get_remaining_time_in_millis=None)


def _handle(function: str, event: dict[str, Any]) -> None:
    with redirect_stdout(None):
        answer = import_module(function).handler(event, _context(function))
    if isinstance(answer, dict) and answer.get("batchItemFailures"):
        raise RuntimeError(f"{function} could not handle {event}; its log says why")


def _recorded(name: str, account: Any) -> Tape:
    from rerail.aws import clients

    function, event = EVENTS[name][0], event_of(name)
    _handle(function, event)  # what happens but once is no part of a typical event
    if name == "relaunch":
        _kill(account)
    clients.client.cache_clear()
    _forget(function)
    calls: list[dict[str, Any]] = []
    asked = threading.local()  # a round asks in several threads

    def note(params: dict[str, Any], model: Any, **_: Any) -> None:
        service, method = model.service_model.service_name, xform_name(model.name)
        asked.now = {"service": service, "method": method, "parameters": dict(params)}

    def answer(request: Any, event_name: str, **_: Any) -> Any:
        found = botocore_stubber(event_name, request)
        told = (found.status_code, dict(found.headers), found.content)
        found.raw.seek(0)
        operation = event_name.removeprefix("before-send.")
        sent = (request.method, request.url, request.body)
        calls.append({**asked.now, "operation": operation, "request": sent, "answer": told})
        return found

    for service in SERVICES:
        events = clients.client(service).meta.events
        events.register("provide-client-params.*.*", note)
        events.register_first("before-send", answer)
    _handle(function, event)
    names = {variable: value for variable, value in os.environ.items() if variable.startswith("RERAIL_")}
    return Tape(name, function, event, _context(function), tuple(calls), names)


def _kill(account: Any) -> None:
    """The job is lost by SageMaker, and its policy asks for no pause."""
    from rerail.aws.clients import client
    from tests.functions.account import PREFIX

    client("ssm").put_parameter(Name=f"{PREFIX}/default", Value='[backoff]\nbase = "0s"', Type="String", Overwrite=True)
    job = sagemaker_backends["123456789012"]["eu-west-1"].training_jobs[DIES]
    job.training_job_status = job.secondary_status = "Failed"
    job.failure_reason = "InternalServerError: We encountered an internal error."


def _forget(function: str) -> None:
    """What the function has made once, so that it is made, and its policies are read, again."""
    for made in vars(import_module(f"wiring.{function}")).values():
        if hasattr(made, "cache_clear"):
            made.cache_clear()
