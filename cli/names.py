"""How the command line takes names: one argument for runs, the nearest name for a wrong one, completion for all."""

import difflib
import re
import threading
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from cli import place
from cli.place import Place
from cli.project import find_policies
from rerail.model.run import Run, RunState, make_run_id

# A shell that waits for a completion seems to hang.
COMPLETED_WITHIN_S = 2.0
MOST = 100
# The end of a relaunch's name; the digest in the name of a chain's run has more digits.
ATTEMPT = re.compile(r"-a\d{3,6}$")


def complete_runs(ctx: typer.Context, args: list[str], incomplete: str) -> list[str]:
    """Runs that begin so, for the shell: those that are known within two seconds, and none if there is no answer."""
    local = bool(ctx.params.get("local")) or "--local" in args
    found: list[str] = []

    def look() -> None:
        for name in list_run_names(_quick_place(local=local), incomplete):
            found.append(name)
            if len(found) >= MOST:
                return

    _tried(look, COMPLETED_WITHIN_S)
    return sorted(found)


def complete_policies(incomplete: str) -> list[str]:
    """Policies of this project that begin so."""
    return [name for name in list_policy_names() if name.startswith(incomplete)]


def complete_states(incomplete: str) -> list[str]:
    """States of a run that begin so."""
    return [state.value for state in RunState if state.value.startswith(incomplete)]


RunName = Annotated[
    str, typer.Argument(help="The run, as `rerail status` names it.", autocompletion=complete_runs, metavar="RUN")
]


def find_run(where: Place, name: str) -> Run:
    """The run of this name, or one clear error that names the nearest, and exit status 2."""
    record = where.runs.load(name)
    if record is None:
        place.fail(*explain_unknown_run(where, name))
    return record


def explain_unknown_run(where: Place, name: str) -> tuple[str, str]:
    """What to say of a run that is not there, and what to do: the nearest name, where one is near."""
    known = list(list_run_names(where, ""))
    problem = f"there is no run {name!r} in {where.name}"
    if nearest := find_near(name, known):
        return problem, where.complete_text(f"did you mean {' or '.join(nearest)}? `rerail status` lists the runs")
    if not known:
        return problem, "no job is supervised yet: start one with the tag rerail:policy=default"
    return problem, where.complete_text("`rerail status` lists the runs")


def find_near(name: str, known: list[str]) -> list[str]:
    """At most three names that may have been meant: the run of a job's name first."""
    of_the_job = [run for run in (ATTEMPT.sub("", name), make_run_id(name)) if run in known]
    return list(dict.fromkeys([*of_the_job, *difflib.get_close_matches(name, known, n=3)]))[:3]


def list_run_names(where: Place, prefix: str) -> Iterator[str]:
    """The names alone, which is what a completion needs of a table of thousands."""
    scan, table = where.client("dynamodb").get_paginator("scan"), where.outputs["TableName"]
    chosen, names = "sk = :run AND begins_with(pk, :prefix)", {":run": {"S": "run"}, ":prefix": {"S": f"run#{prefix}"}}
    for page in scan.paginate(
        TableName=table, FilterExpression=chosen, ProjectionExpression="pk", ExpressionAttributeValues=names
    ):
        yield from (item["pk"]["S"].removeprefix("run#") for item in page["Items"])


def list_policy_names() -> list[str]:
    """The policies of this project."""
    return sorted(file.stem for file in find_policies().glob("*.toml"))


def _quick_place(*, local: bool) -> Place:
    """The deployment by clients that give up at once: a completion may find nothing, but must not wait."""
    if local:
        return place.find(local=True)
    from local.deploy import outputs_of

    outputs = outputs_of(_quick_client("cloudformation"), place.STACK)
    return _QuickPlace(f"stack {place.STACK}", outputs)


class _QuickPlace(Place):
    """As a place, with clients that do not try again."""

    def client(self, service: str) -> Any:
        return _quick_client(service)


def _quick_client(service: str) -> Any:
    import boto3
    from botocore.config import Config

    quick = Config(retries={"max_attempts": 1}, connect_timeout=1, read_timeout=2)
    return boto3.Session().client(service, config=quick)


def _tried(look: Callable[[], None], within_s: float) -> None:
    """Look for so long, and say nothing of what went wrong: a completion that fails is a completion without names."""

    def quietly() -> None:
        # Whatever it is - no credentials, no stack, no network - the shell must not show it between two keystrokes.
        try:
            look()
        except (Exception, typer.Exit):
            return

    thread = threading.Thread(target=quietly, daemon=True)
    thread.start()
    thread.join(within_s)
