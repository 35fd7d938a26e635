"""`rerail wait`: return when a run has ended, or trains, over all of its attempts."""

import json
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import typer
from botocore.exceptions import BotoCoreError, ClientError

from cli import place
from cli.durations import parse_seconds
from cli.names import complete_runs, explain_unknown_run
from cli.operators import say
from cli.place import AsJson, Local, Place
from cli.trouble import is_passing
from rerail.messages.messages import JOB_NAME
from rerail.model.errors import JobNotFound
from rerail.model.run import JobStatus, Run, RunState
from rerail.requests.relaunch import POLICY_TAG

PAUSE_S, LOCAL_PAUSE_S = 15.0, 1.0
# A tagged job becomes a run with its first event, or with the next sweep.
ADOPTION_S = 180.0
ENDED_OTHERWISE, TIMED_OUT, INTERRUPTED = 1, 3, 130
# For as long without an answer of AWS a wait goes on: a network that is down for a moment ends no pipeline.
SILENCE_S = 900.0


class WaitGoal(StrEnum):
    """The state of a run that ends the wait."""

    COMPLETED = "completed"
    TRAINING = "training"


def wait(
    run: Annotated[
        str,
        typer.Argument(
            help="The run, as `rerail status` names it, or a new training job.",
            autocompletion=complete_runs,
            metavar="RUN",
        ),
    ],
    until: Annotated[WaitGoal, typer.Option("--until", help="The run's end, or a job of it that trains.")] = (
        WaitGoal.COMPLETED
    ),
    timeout: Annotated[
        str, typer.Option("--timeout", help="Such as 90m or 2d; without it, for as long as it takes.")
    ] = "",
    local: Local = False,
    as_json: AsJson = False,
) -> None:
    """Wait until a run has completed, over all of its attempts.

    Exit status 0 if it has, 1 if it was stopped or is held, 3 after the timeout.
    """
    where = place.find(local=local)
    limit_s = parse_seconds(timeout, "--timeout") if timeout else None
    pause_s = LOCAL_PAUSE_S if local else PAUSE_S
    try:
        record = await_run(where, run, until, limit_s=limit_s, pause_s=pause_s, show=lambda line: say(line, as_json))
    except KeyboardInterrupt:
        say(f"{run}: no longer waited for; it goes on, and so does its supervision", as_json)
        raise typer.Exit(INTERRUPTED) from None
    reached = record is not None and has_reached(record, until)
    if as_json:
        typer.echo(json.dumps(where.complete_plain(describe(run, record, reached=reached)), indent=2))
    if not reached:
        is_end = record is not None and record.state.is_end
        if not is_end:
            say(f"{run}: not {until.value} within {timeout}; it goes on, and so does its supervision", as_json)
        raise typer.Exit(ENDED_OTHERWISE if is_end else TIMED_OUT)


def await_run(
    where: Place,
    name: str,
    until: WaitGoal,
    *,
    limit_s: float | None,
    pause_s: float,
    show: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Run | None:
    """Return the run when it has reached the goal or ended, or after the limit; print each change of its state.

    None: the limit came before the job was adopted. Exit with an error for a name that is neither a run nor a job.
    """
    started, shown = clock(), ""
    answered: float | None = None
    record: Run | None = None
    while True:
        try:
            record = where.runs.load(name)
            if record is None:
                check_adoption(where, name, waited_s=clock() - started)
            answered = clock()
        except (ClientError, BotoCoreError) as error:
            if answered is None or not is_passing(error) or clock() - answered > SILENCE_S:
                raise
        if record is not None:
            state = format_progress(record)
            if state != shown:
                shown = state
                show(f"{name}: {state}")
            if has_reached(record, until) or record.state.is_end:
                return record
        left_s = pause_s if limit_s is None else min(pause_s, started + limit_s - clock())
        if left_s <= 0:
            return record
        sleep(left_s)


def has_reached(run: Run, goal: WaitGoal) -> bool:
    """Return whether the run has reached the goal; a run that has completed has trained too."""
    if run.state is RunState.COMPLETED:
        return True
    return goal is WaitGoal.TRAINING and run.state is RunState.WATCHING and run.current.training_started_at is not None


def check_adoption(where: Place, name: str, *, waited_s: float) -> None:
    """Exit with an error unless this is a tagged training job that will become a run."""
    from rerail.aws.sagemaker import SageMakerJobs

    if not JOB_NAME.fullmatch(name):
        place.fail(f"{name!r} is not a valid name of a run", "use 1-63 letters, digits or hyphens")
    jobs = SageMakerJobs()
    try:
        job, _ = jobs.describe(name)
        tags = jobs.tags(job.arn)
    except JobNotFound:
        place.fail(*explain_unknown_run(where, name))
    if POLICY_TAG not in tags:
        place.fail(f"{name} is a training job without the tag {POLICY_TAG}", "add it, then `rerail adopt` the job")
    if job.status is not JobStatus.IN_PROGRESS:
        place.fail(f"{name} is a training job without a run, and it is {job.status}", "see `rerail doctor --job`")
    if waited_s > ADOPTION_S:
        place.fail(
            f"{name} has not become a run within {ADOPTION_S:.0f} s", f"ask `rerail doctor --job {name}` for the reason"
        )


def format_progress(run: Run) -> str:
    """Return the state with the attempt, as a line for people."""
    trains = " and trains" if run.state is RunState.WATCHING and run.current.training_started_at is not None else ""
    return f"{run.state.value}{trains}, attempt {run.current.number} ({run.current.job_name})"


def describe(name: str, run: Run | None, *, reached: bool) -> dict[str, object]:
    """Return what `--json` prints."""
    if run is None:
        return {"run": name, "reached": reached, "state": None, "attempts": 0, "job": name}
    facts = {"state": run.state.value, "attempts": len(run.attempts), "job": run.current.job_name}
    return {"run": name, "reached": reached, **facts}
