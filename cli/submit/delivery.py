"""A submission on its way: the job is started, followed to its end, and what it leaves is brought home."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from botocore.exceptions import BotoCoreError, ClientError

from cli import place
from cli.names import explain_unknown_run
from cli.place import Place, client, now
from cli.submit import results
from cli.submit.account import SubmissionAccount, describe_upload, list_input_files, split
from cli.submit.following import Follower
from cli.submit.packing import Source
from cli.submit.problem import Problem
from cli.submit.request import JobRequest
from cli.submit.screen import SubmitScreen
from cli.trouble import explain, explain_credentials, is_denied
from rerail.decisions.decision import format_next_command
from rerail.model.errors import PolicyError
from rerail.model.formatting import format_files
from rerail.model.run import RunState, make_run_id
from rerail.requests.supervised import CHANNEL

if TYPE_CHECKING:
    from rerail.aws.dynamodb import DynamoRuns


def find_deployment(screen: SubmitScreen) -> Place | None:
    """Return Rerail's deployment in this account; None if there is none or it cannot be looked up."""
    from local.deploy import outputs_of

    try:
        outputs = outputs_of(client("cloudformation"), place.STACK)
    except (ClientError, BotoCoreError) as error:
        screen.say(f"warning: cannot see whether Rerail is deployed here: {error}")
        return None
    return Place(f"stack {place.STACK}", outputs)


def start(
    account: SubmissionAccount,
    job_request: JobRequest,
    request: Mapping[str, Any],
    source: Source,
    where: Place | None,
    screen: SubmitScreen,
    *,
    role_is_new: bool = False,
) -> None:
    """Upload what the job needs, then create it."""
    upload(account, job_request, source, where, screen)
    account.create(request, role_is_new=role_is_new)
    follow = f"rerail follow {make_run_id(job_request.name)}{' --local' if account.is_local else ''}"
    screen.say(f"started {job_request.name} under policy {job_request.settings.policy}; `{follow}` follows it")


def upload(
    account: SubmissionAccount, job_request: JobRequest, source: Source, where: Place | None, screen: SubmitScreen
) -> None:
    """Upload the code, the agent, and the local files and folders of the channels."""
    check_policy(where, job_request.settings.policy)
    bucket = split(job_request.code)[0]
    owner = account.check_bucket(bucket)
    paths = {name: Path(path).expanduser() for name, path in job_request.uploads.items()}
    files = {channel: list_input_files(path) for channel, path in paths.items()}
    chosen = job_request.settings
    machines = f"{chosen.count} x {chosen.instance_type} for at most {chosen.max_runtime}"
    screen.say(f"the job will have {machines}, and the permissions of {job_request.role}")
    screen.say(f"uploading to s3://{bucket} of account {owner}: {describe_upload(source, files)}")
    is_new = account.upload_code(source, job_request.code)
    screen.say(f"{'packed' if is_new else 'packed before:'} {format_files(len(source.files))}, {source.digest[:12]}")
    folders = {**job_request.channels, CHANNEL: job_request.agent.rpartition("/")[0] + "/"}
    for channel, path in paths.items():
        account.upload_input(path, files[channel], folders[channel])
        screen.say(f"uploaded {format_files(len(files[channel]))} for the channel {channel}")


def check_policy(where: Place | None, policy: str) -> None:
    """Raise Problem for a policy that is not deployed: the run would only be observed."""
    from rerail.aws.ssm import SsmPolicies

    if where is None or not policy:
        return
    try:
        SsmPolicies(where.outputs["PolicyPrefix"], now).get(policy)
    except PolicyError as error:
        raise Problem(f"--policy {policy}: {error}", "name a deployed one, or deploy policies/ again") from error
    except (ClientError, BotoCoreError):
        return  # a researcher need not be allowed to read them; the supervisor says it too


def follow_run(
    job: str, where: Place | None, account: SubmissionAccount, folder: Path | None, screen: SubmitScreen
) -> dict[str, Any]:
    """Follow the run to its end, and download its results if a folder is given."""
    run = make_run_id(job)
    follower = Follower(
        run_id=run,
        job=job,
        sagemaker=client("sagemaker"),
        logs=client("logs"),
        runs=_readable(where, run, screen),
        pause_s=0.5 if account.is_local else 5.0,
    )
    try:
        _show_news(follower, screen)
    except KeyboardInterrupt:
        _left(run, account, screen)
    outcome: dict[str, Any] = {"state": follower.ended, "why": follower.why}
    if follower.run:
        outcome["attempts"] = [attempt.job_name for attempt in follower.run.attempts if attempt.exists]
        outcome["decisions"] = [entry.reason for entry in where.runs.timeline(run)] if where else []
    screen.say(f"{run} {follower.ended}" + (f": {follower.why}" if follower.why else ""))
    if follower.ended == RunState.HELD:
        command = format_next_command(follower.run) if follower.run else f"rerail release {run}"
        screen.say(f"to do: fix the cause, then {command}")
    if folder:
        outcome["downloaded"] = [str(path) for path in _fetched(follower, folder, screen)]
        screen.say(f"downloaded {format_files(len(outcome['downloaded']))} to {folder}")
    return outcome


def _show_news(follower: Follower, screen: SubmitScreen) -> None:
    for news in follower.read_news():
        if news.source:
            screen.show(f"{news.source} | {news.line.shown if news.line else news.text}")
        else:
            screen.say(news.text)


def _readable(where: Place | None, run: str, screen: SubmitScreen) -> "DynamoRuns | None":
    """The supervisor's table, if it may be read."""
    if where is None:
        return None
    try:
        where.runs.load(run)
    except (ClientError, BotoCoreError) as error:
        screen.say(f"warning: the first job alone is followed, for the runs cannot be read: {error}")
        return None
    return where.runs


def check_known(run: str, where: Place | None) -> None:
    """Raise Problem if neither such a run nor such a job exists."""
    try:
        if where and where.runs.load(run):
            return
        client("sagemaker").describe_training_job(TrainingJobName=run)
    except (ClientError, BotoCoreError) as error:
        if trouble := explain_credentials(error):
            raise Problem(*trouble) from error
        if is_denied(error):
            raise Problem(*explain(error)) from error
        problem, remedy = f"there is no run and no training job {run!r} here", "look at your region, or add --local"
        raise Problem(problem, f"{explain_unknown_run(where, run)[1]}; {remedy}" if where else remedy) from error


def _left(run: str, account: SubmissionAccount, screen: SubmitScreen) -> NoReturn:
    option = " --local" if account.is_local else ""
    screen.say(f"{run} goes on; `rerail follow {run}{option}` follows it again, `rerail stop {run}{option}` ends it")
    raise typer.Exit(130)


def _fetched(follower: Follower, folder: Path, screen: SubmitScreen) -> list[Path]:
    try:
        job = client("sagemaker").describe_training_job(TrainingJobName=follower.last_job)
        return results.download(client("s3"), job, folder, screen.say)
    except (ClientError, BotoCoreError, OSError, RuntimeError, ValueError) as error:
        raise Problem(
            f"--download: cannot fetch what the run has left: {error}", "fetch it from its S3 folder"
        ) from error
