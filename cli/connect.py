"""`rerail connect`: a shell in the container of a run's job, by Systems Manager and SageMaker's remote debugging."""

import json
import os
import sys
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

ROLE_NEEDS = [f"ssmmessages:{call}{kind}Channel" for call in ("Create", "Open") for kind in ("Control", "Data")]
YOU_NEED = ["ssm:StartSession", "ssm:TerminateSession"]


def connect(
    run: RunName,
    host: Annotated[str, typer.Option(help="Which machine: algo-1 is the first.")] = "algo-1",
    only_print: Annotated[bool, typer.Option("--print", help="Print the command, and do not open it.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Switch remote debugging on without asking.")] = False,
    local: Local = False,
    as_json: AsJson = False,
) -> None:
    """Open a shell in the running job of a run. The job is changed only after asking; its training goes on."""
    where = place.find(local=local)
    described = _find_job(find_run(where, run), host)
    job, is_on = described["TrainingJobName"], (described.get("RemoteDebugConfig") or {}).get("EnableRemoteDebug")
    target = f"sagemaker-training-job:{job}_{host}"
    region = str(where.client("sagemaker").meta.region_name)
    command = ["aws", "ssm", "start-session", "--target", target, "--region", region]
    if not is_on:
        _switch_on(where, job, yes=yes, may_ask=not as_json and _is_somebody_there())
    needs = {"role": described["RoleArn"], "role_needs": ROLE_NEEDS, "you_need": YOU_NEED}
    if as_json:
        facts = {"run": run, "job": job, "host": host, "target": target, "command": command, "switched_on": not is_on}
        typer.echo(json.dumps(facts | needs, indent=2))
        return
    console = Console(stderr=True, markup=False, soft_wrap=True)
    console.print(f"the role {needs['role']} needs {', '.join(ROLE_NEEDS)}", style="dim")
    console.print(f"you need {', '.join(YOU_NEED)}, and the session-manager-plugin beside the AWS CLI", style="dim")
    if where.is_local:
        console.print("a job of the local AWS is a process of this machine: it has no container to open a shell in")
    if only_print or where.is_local:
        typer.echo(" ".join(command))
        return
    try:
        os.execvp(command[0], command)  # in place of this process: Ctrl-C is then the shell's in the container
    except FileNotFoundError:
        place.fail("the AWS CLI (aws) is not installed", "install it, or use --print to copy the command")


def _find_job(run: Run, host: str) -> dict[str, Any]:
    """Return the description of the run's newest job, if its machine can be entered now; else exit with an error."""
    from rerail.aws.sagemaker import SageMakerJobs

    launched, advice = [attempt for attempt in run.attempts if attempt.exists], f"`rerail show {run.id}` tells why"
    if not launched:
        place.fail(f"the run {run.id} has no job yet ({run.state})", advice)
    job = launched[-1].job_name
    try:
        _, description = SageMakerJobs().describe(job)
    except JobNotFound:
        place.fail(f"the job {job} is gone", advice)
    state, secondary = description["TrainingJobStatus"], description.get("SecondaryStatus", "")
    if state != "InProgress":
        place.fail(f"the job {job} does not run: {state}", advice)
    if secondary not in ("Downloading", "Training"):
        repaired = f" ({format_repairs(launched[-1].repairs)})" if launched[-1].repairs else ""
        place.fail(f"the job {job} is {secondary}{repaired}: no session can be opened yet", "try again when it trains")
    if description.get("EnableNetworkIsolation"):
        place.fail(f"the job {job} has EnableNetworkIsolation: no session can be opened", "look at its log instead")
    resources = description.get("ResourceConfig", {})
    groups = [group.get("InstanceCount", 1) for group in resources.get("InstanceGroups", [])]
    count = sum(groups) or resources.get("InstanceCount") or resources.get("SelectedInstanceCount") or 1
    if host not in [f"algo-{number}" for number in range(1, count + 1)]:
        last = f" to algo-{count}" if count > 1 else ""
        place.fail(f"--host {host}: the job {job} has no such machine", f"give algo-1{last}")
    return dict(description)


def _switch_on(where: Place, job: str, *, yes: bool, may_ask: bool) -> None:
    """Switch remote debugging on, or exit with an error."""
    said = f"remote debugging of the job {job} is off"
    if not yes and not may_ask:
        place.fail(said, "say --yes to switch it on; the job trains on meanwhile")
    if not yes and not typer.confirm(f"{said}. Switch it on? The job trains on.", err=True):
        place.fail(said, "nothing was changed")
    try:
        where.client("sagemaker").update_training_job(
            TrainingJobName=job, RemoteDebugConfig={"EnableRemoteDebug": True}
        )
    except ClientError as error:
        what, remedy = explain(error)
        if is_denied(error):
            remedy = "ask for sagemaker:UpdateTrainingJob (a policy may forbid it by sagemaker:EnableRemoteDebug)"
        place.fail(f"remote debugging of {job} cannot be switched on: {what}", remedy)


def _is_somebody_there() -> bool:
    return sys.stdin.isatty()
