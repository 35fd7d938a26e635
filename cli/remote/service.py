"""Submit, observe and stop the remote functions of another process: one line of JSON for each request and answer.

`rerail_cli.functions` starts it. The signing key of a call passes through the pipe only: no command line shows it.
"""

import io
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from typing import Any

import typer
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
)

from cli import place
from cli.lean_values import IS_LOCAL
from cli.logbook import Logbook
from cli.operators import ask_to_stop
from cli.place import Place, client
from cli.remote.observation import find_call, observe
from cli.remote.submission import submit_call
from cli.submit import delivery
from cli.submit.account import SubmissionAccount
from cli.submit.problem import Problem
from cli.submit.screen import SubmitScreen
from cli.trouble import explain
from rerail.model.run import make_run_id
from rerail.model.signals import OperatorVerb

Request = Mapping[str, Any]
AGAIN_S = 60.0
# The deployment of the account and of this machine, and when it was looked for.
_places: dict[bool, tuple[Place | None, float]] = {}
WHY = "cancelled by the program that called the remote function"

# What was read of each run's log, and the jobs that it was read of.
_books: dict[str, tuple[Logbook, list[str]]] = {}


def serve() -> None:
    """Answer the requests on stdin until it is closed."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever else prints must not look like an answer
    for line in sys.stdin:
        answers.write(f"{json.dumps(answer(json.loads(line)))}\n")
        answers.flush()


def answer(request: Request) -> dict[str, Any]:
    """Return the answer to one request: facts, or a problem with its remedy; and what is to be printed."""
    printed = io.StringIO()
    IS_LOCAL.set(request.get("local", False))
    try:
        with redirect_stderr(printed):
            facts = OPERATIONS[request["operation"]](request)
    except Problem as problem:
        remedy = place.complete_text(problem.remedy) if IS_LOCAL.get() else problem.remedy
        facts = {"problem": problem.what, "remedy": remedy}
    except typer.Exit:  # the text of place.fail
        problem_text, _, remedy = printed.getvalue().rpartition("to do: ")
        return {"problem": problem_text.strip().removeprefix("error: "), "remedy": remedy.strip()}
    except (ClientError, BotoCoreError) as error:
        trouble = explain(error)
        facts = {"problem": trouble.what, "remedy": trouble.remedy}
    return {**facts, "messages": [line for line in printed.getvalue().splitlines() if line.strip()]}


def _submit(request: Request) -> dict[str, Any]:
    _places.clear()  # a local AWS may have been started again since
    where = _find_place(request["local"])
    return {"folder": submit_call(request, _find_account(request), where, SubmitScreen(as_json=True))}


def _look(request: Request) -> dict[str, Any]:
    try:
        seen = observe(
            _find_place(request["local"]), request["run"], request["folder"], request["into"], request["known"]
        )
        return {**seen, "lines": _read_lines(request["run"], seen["job"]) if request["logs"] else []}
    # Of botocore: the caller waits for the network.
    except (ConnectionError, HTTPClientError, IncompleteReadError, FlexibleChecksumError) as error:
        return {"unreachable": str(error)}


def _read_lines(run: str, job: str) -> list[str]:
    """Return what the run's newest job, and the one before it, have printed since the last look."""
    book, jobs = _books.setdefault(run, (Logbook(client("logs")), [run]))
    if job not in jobs:
        jobs.append(job)
    try:
        return [f"{name} | {line.shown}" for name in jobs[-2:] for line in book.read_new_lines(name)]
    except ClientError as error:
        SubmitScreen(as_json=True).say(f"warning: the log of {run} cannot be read: {explain(error).what}")
        return []


def _find(request: Request) -> dict[str, Any]:
    _find_account(request).expect_own_buckets()  # the job names the bucket of its results
    return find_call(_find_place(request["local"]), request["run"])


def _stop(request: Request) -> dict[str, Any]:
    where, run = _find_place(request["local"]), request["run"]
    if where is None or where.runs.load(make_run_id(run)) is None:
        client("sagemaker").stop_training_job(TrainingJobName=run)
    else:
        ask_to_stop(where, run, OperatorVerb.STOP, WHY, at_once=True, as_json=True)
    return {}


def _find_account(request: Request) -> SubmissionAccount:
    return SubmissionAccount(is_local=request["local"])


def _find_place(local: bool) -> Place | None:
    """Return the deployment; one that was not found is looked for again later: the network may have been the reason."""
    found, looked_at = _places.get(local, (None, -AGAIN_S))
    if found is None and time.monotonic() - looked_at >= AGAIN_S:
        found = place.find(local=True) if local else delivery.find_deployment(SubmitScreen(as_json=True))
        _places[local] = (found, time.monotonic())
    return found


OPERATIONS: dict[str, Callable[[Request], dict[str, Any]]] = {
    "submit": _submit,
    "look": _look,
    "find": _find,
    "stop": _stop,
}
