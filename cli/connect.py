"""`rerail connect`: a shell in the container of a run's job, by Systems Manager and SageMaker's remote debugging."""

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from botocore.exceptions import ClientError

from cli import place
from cli.console import Console
from cli.names import RunName, find_run
from cli.place import AsJson, Local, Place
from cli.trouble import explain, is_denied
from rerail.model.errors import JobNotFound
from rerail.model.run import Run
from rerail.model.self_repairs import format_repairs

# SageMaker allows remote debugging in these states, and a session only in Training.
SWITCHABLE, OPEN = ("Downloading", "Training"), "Training"
ROLE_NEEDS = (
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
)
YOU_NEED = ("ssm:StartSession", "ssm:TerminateSession")
PLUGIN = "session-manager-plugin"
FIRST_HOST = "algo-1"


@dataclass(frozen=True, slots=True)
class Door:
    """The container to enter, and whether its job has been told to let people in."""

    job: str
    host: str
    region: str
    role: str
    is_on: bool

    @property
    def target(self) -> str:
        return f"sagemaker-training-job:{self.job}_{self.host}"

    @property
    def command(self) -> list[str]:
        return ["aws", "ssm", "start-session", "--target", self.target, "--region", self.region]


def connect(
    run: RunName,
    host: Annotated[str, typer.Option(help="Which machine: algo-1 is the first.")] = FIRST_HOST,
    only_print: Annotated[bool, typer.Option("--print", help="Print the command, and do not open it.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Switch remote debugging on without asking.")] = False,
    local: Local = False,
    as_json: AsJson = False,
) -> None:
    """Open a shell in the running job of a run. The job is changed only after asking; its training goes on."""
    where = place.find(local=local)
    door = _door(where, find_run(where, run), host)
    switched = not door.is_on and _switch_on(where, door, yes=yes, may_ask=not as_json)
    if as_json:
        facts = {
            "run": run,
            "job": door.job,
            "host": door.host,
            "target": door.target,
            "command": door.command,
            "switched_on": switched,
            "role": door.role,
            "role_needs": list(ROLE_NEEDS),
            "you_need": list(YOU_NEED),
        }
        typer.echo(json.dumps(facts, indent=2))
        return
    _open(door, only_print=only_print, is_local=where.is_local)


def _door(where: Place, run: Run, host: str) -> Door:
    """The door of the run's newest job, if there is one to open now; one clear error otherwise."""
    from rerail.aws.sagemaker import SageMakerJobs

    launched = [attempt for attempt in run.attempts if attempt.exists]
    if not launched:
        place.fail(f"the run {run.id} has no job yet ({run.state})", f"`rerail show {run.id}` tells why")
    job = launched[-1].job_name
    try:
        _, description = SageMakerJobs().describe(job)
    except JobNotFound:
        place.fail(f"the job {job} is gone", f"`rerail show {run.id}` tells what became of it")
    secondary = description.get("SecondaryStatus", "")
    is_on = bool((description.get("RemoteDebugConfig") or {}).get("EnableRemoteDebug"))
    if description["TrainingJobStatus"] != "InProgress":
        place.fail(
            f"the job {job} does not run: {description['TrainingJobStatus']}", f"`rerail show {run.id}` tells why"
        )
    if secondary not in SWITCHABLE:
        repaired = f" ({format_repairs(launched[-1].repairs)})" if launched[-1].repairs else ""
        place.fail(f"the job {job} is {secondary}{repaired}: no session can be opened yet", "try again when it trains")
    if secondary != OPEN and is_on:
        place.fail(f"the job {job} is {secondary}: no session can be opened before it trains", "try again later")
    if description.get("EnableNetworkIsolation"):
        place.fail(f"the job {job} has EnableNetworkIsolation: no session can be opened", "look at its log instead")
    _check_host(job, host, description)
    region = str(where.client("sagemaker").meta.region_name)
    return Door(job, host, region, str(description["RoleArn"]), is_on)


def _check_host(job: str, host: str, description: Mapping[str, Any]) -> None:
    resources = description.get("ResourceConfig", {})
    groups = [group.get("InstanceCount", 1) for group in resources.get("InstanceGroups", [])]
    count = sum(groups) or resources.get("InstanceCount") or resources.get("SelectedInstanceCount") or 1
    name, _, number = host.rpartition("-")
    if name != "algo" or not number.isdigit() or not 1 <= int(number) <= count:
        last = f" to algo-{count}" if count > 1 else ""
        place.fail(f"--host {host}: the job {job} has no such machine", f"give algo-1{last}")


def _switch_on(where: Place, door: Door, *, yes: bool, may_ask: bool) -> bool:
    """Remote debugging is on afterwards, or this ends."""
    said = f"remote debugging of the job {door.job} is off"
    if not yes and not (may_ask and _is_somebody_there()):
        place.fail(said, "say --yes to switch it on; the job trains on meanwhile")
    if not yes and not typer.confirm(f"{said}. Switch it on? The job trains on.", err=True):
        place.fail(said, "nothing was changed")
    try:
        where.client("sagemaker").update_training_job(
            TrainingJobName=door.job, RemoteDebugConfig={"EnableRemoteDebug": True}
        )
    except ClientError as error:
        what, remedy = explain(error)
        if is_denied(error):
            remedy = "ask for sagemaker:UpdateTrainingJob (a policy may forbid it by sagemaker:EnableRemoteDebug)"
        place.fail(f"remote debugging of {door.job} cannot be switched on: {what}", remedy)
    return True


def _is_somebody_there() -> bool:
    return sys.stdin.isatty()


def _open(door: Door, *, only_print: bool, is_local: bool) -> None:
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    console.print(f"the role {door.role} needs {', '.join(ROLE_NEEDS)}", style="dim")
    console.print(f"you need {', '.join(YOU_NEED)}, and the {PLUGIN} beside the AWS CLI", style="dim")
    if is_local:
        console.print("a job of the local AWS is a process of this machine: there is nothing behind the door")
    if only_print or is_local:
        typer.echo(" ".join(door.command))
        return
    for program, remedy in (
        ("aws", "install the AWS CLI, or copy the command of `rerail connect RUN --print` to where it is"),
        (PLUGIN, f"install the {PLUGIN} (AWS's page 'Install the Session Manager plugin'), or use --print"),
    ):
        if shutil.which(program) is None:
            place.fail(f"there is no {program} on this machine", remedy)
    # In place of this process: Ctrl-C is then the shell's in the container, and not ours.
    os.execvp(door.command[0], door.command)
