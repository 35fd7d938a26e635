"""The stages of a submission: its settings, the packed code, the job with its request, and the call that starts it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from secrets import token_hex
from typing import Any

from cli import place
from cli.place import Place
from cli.submit import continuation, delivery, options
from cli.submit.account import SubmissionAccount, split
from cli.submit.arguments import make_command_line, with_arguments
from cli.submit.docker_image import build_image, name_image
from cli.submit.packing import Source, pack
from cli.submit.problem import Problem
from cli.submit.request import JobRequest, make_training_request, make_uri
from cli.submit.screen import SubmitScreen
from cli.submit.settings import SubmitSettings, join, read_defaults, read_file
from cli.submit.start import START_CHANNEL, find_start
from cli.submit.training_role import PREFIX, PlannedRole, create_role, plan_role
from rerail.model.run import make_run_id
from rerail.requests.identity import COMMAND_SCRIPT, SCRIPT_SETTING
from rerail.requests.relaunch import read_signing_key, with_signing_key

SCRIPT_MODE = Path(__file__).with_name("script_mode.py")
IMAGE = ("image", "framework", "framework_version")
PACKING = ("entry", "command", "dependencies", "exclude")
# Settings of a run that its next attempt may change.
CHANGEABLE = (
    *(*PACKING, *IMAGE, "hyperparameters", "env", "metrics", "policy", "inputs"),
    *("instance_type", "count", "volume", "torchrun"),
)


class SubmitMode(StrEnum):
    """The handling of a job's request."""

    START = "start"
    DRY_RUN = "dry run"
    UPLOAD_ONLY = "upload only"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The submission that a command line or a task of a chain describes."""

    script: Path
    # The script's own; None: not given.
    arguments: Sequence[str] | None = None
    name: str = ""
    # The run whose next attempt it is; "" for a new one.
    continued: str = ""
    # Settings by their keys, and a file with more of them.
    given: Mapping[str, Any] = field(default_factory=dict)
    file: Path | None = None
    create_role: bool = False
    mode: SubmitMode = SubmitMode.START
    follow: bool = False
    download: Path | None = None
    local: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """A job before anything is made or uploaded for it."""

    job: JobRequest
    request: dict[str, Any]
    source: Source
    # The script's command line, for people.
    command_line: str
    role: PlannedRole
    # The Dockerfile of the image, if it is to be built.
    recipe: Path | None
    # The deployment, if it was looked up.
    where: Place | None = None


def carry_out(submission: Submission, screen: SubmitScreen) -> dict[str, Any]:
    """Carry out a submission; return its outcome, or the request if nothing is to be started.

    Raise Problem for anything that is not valid.
    """
    if submission.continued:
        return continue_run(submission, screen)
    planned = plan(submission, screen)
    if submission.mode is SubmitMode.DRY_RUN:
        screen.say(f"the script's command line: {planned.command_line}")
        return planned.request
    account = SubmissionAccount(is_local=submission.local)
    where = planned.where or delivery.find_deployment(screen)
    job = prepare(planned, where, screen)
    request = make_training_request(job)
    if submission.mode is SubmitMode.UPLOAD_ONLY:
        delivery.upload(account, job, planned.source, where, screen)
        return request
    sent = request if read_signing_key(request) else with_signing_key(request, token_hex(32))  # printed nowhere
    delivery.start(account, job, sent, planned.source, where, screen, role_is_new=planned.role.is_new)
    outcome = delivery.follow_run(job.name, where, account, submission.download, screen) if submission.follow else {}
    return {"run": make_run_id(job.name), "job": job.name, "request": request, **outcome}


def plan(submission: Submission, screen: SubmitScreen) -> PlannedJob:
    """Return the job of a submission, with nothing made or uploaded; raise Problem for anything that is not valid."""
    where, usual, given = read_settings(submission)
    settings = make_settings(usual, given, is_local=submission.local)
    packed = pack_source(submission.script, settings)
    if settings.start_from:
        where = where or delivery.find_deployment(screen)
        settings = replace(settings, inputs={**settings.inputs, START_CHANNEL: find_start(where, settings.start_from)})
    return replace(
        plan_job(submission, settings, packed, SubmissionAccount(is_local=submission.local), screen), where=where
    )


def read_settings(submission: Submission) -> tuple[Place | None, dict[str, Any], Mapping[str, Any]]:
    """Return the local deployment if it is meant, the usual settings, and those that the submission gives."""
    where = place.find(local=True) if submission.local else None
    folder = options.check_local_path("SCRIPT", submission.script)
    usual = read_defaults(folder if folder.is_dir() else folder.parent, Path.home())
    return where, usual, join(read_file(submission.file), submission.given) if submission.file else submission.given


def make_settings(usual: Mapping[str, Any], given: Mapping[str, Any], *, is_local: bool) -> SubmitSettings:
    """Return the settings of a new run; the local AWS ignores the image that the project usually has."""
    ignored = ("image", "dockerfile") if is_local else ()
    return SubmitSettings(**join({key: value for key, value in usual.items() if key not in ignored}, given))


def pack_source(script: Path, settings: SubmitSettings) -> Source:
    """Return the packed code; raise Problem if it cannot be packed."""
    return pack(script, **{key: getattr(settings, key) for key in PACKING})


def name_submitted(script: Path, settings: SubmitSettings) -> dict[str, str]:
    """Return the setting that says how the code was given, for a command that continues the run."""
    entry = f" --entry {settings.entry}" if settings.entry and script.expanduser().is_dir() else ""
    return {SCRIPT_SETTING: json.dumps(f"{script}{' --command COMMAND' if settings.command else entry}")}


def plan_job(
    submission: Submission, settings: SubmitSettings, packed: Source, account: SubmissionAccount, screen: SubmitScreen
) -> PlannedJob:
    """Return the job with all that is looked up for it; raise Problem for anything that is missing or not valid."""
    options.check_project(settings.project)
    options.check_inputs(settings.inputs)
    arguments, is_shell = submission.arguments or (), packed.entry.endswith(".sh")
    if is_shell and settings.torchrun:
        raise Problem("--torchrun: it starts Python scripts", "start torchrun in the shell script itself")
    launcher = "torchrun" if settings.torchrun else "shell:" if is_shell else "python"
    line = settings.command or make_command_line(packed.entry, arguments, settings.hyperparameters)
    source, hyperparameters = with_arguments(packed, arguments, settings.hyperparameters)
    recipe = options.find_recipe(settings, is_local=account.is_local)
    role = plan_role(account, settings.role, is_wanted=submission.create_role)
    job = make_job(
        account,
        settings,
        source,
        name=submission.name or options.make_name(submission.script, packed, settings.project),
        role=role.arn,
        image=name_image(recipe, account.find_number(), account.region) if recipe else "",
        hyperparameters={**hyperparameters, **name_submitted(submission.script, settings)},
        metrics=options.find_metrics(source, options.check_metrics(settings.metrics, screen), screen),
    )
    return PlannedJob(
        job=job,
        request=make_training_request(job),
        source=source,
        command_line=f"{launcher} {line}",
        role=role,
        recipe=recipe,
    )


def make_job(
    account: SubmissionAccount, settings: SubmitSettings, source: Source, *, name: str, image: str = "", **facts: Any
) -> JobRequest:
    """Return the job of this code, with its image and its places in S3; `facts` are other fields of a JobRequest."""
    store = f"s3://{options.find_bucket(account, settings.bucket)}/{PREFIX}/"
    wheel = options.find_wheel(settings.agent)
    return JobRequest(
        name=name,
        region=account.region,
        image=image or options.find_image(account, settings),
        folder=f"{store}{settings.project}/{name}/" if settings.project else f"{store}{name}/",
        program=source.entry,
        code=f"{store}code/{source.digest}/sourcedir.tar.gz",
        settings=settings,
        agent="" if account.is_local else make_uri(wheel, f"{store}agent/{Path(wheel).name}"),
        entrypoint=make_local_entrypoint(bool(wheel)) if account.is_local and not settings.image else (),
        **facts,
    )


def make_local_entrypoint(under_init: bool) -> tuple[str, ...]:
    """Return the command that runs a packed script locally; the agent is in every local image."""
    return (*(("python", "-m", "rerail_agent.init") if under_init else ()), "python", str(SCRIPT_MODE))


def prepare(planned: PlannedJob, where: Place | None, screen: SubmitScreen) -> JobRequest:
    """Create the role and build the image, if they are wanted; return the job with the image that was pushed."""
    job = planned.job
    if planned.role.is_new:
        mailbox = where.outputs.get("MailboxBucket", "") if where else ""
        create_role(job.role, job.region, split(job.code)[0], mailbox)
        screen.say(f"created the role {job.role}: Rerail relaunches its jobs once trainingRoleArns lists it")
    return replace(job, image=build_image(planned.recipe, job.image, screen)) if planned.recipe else job


def continue_run(submission: Submission, screen: SubmitScreen) -> dict[str, Any]:
    """Start the next attempt of a run and return the outcome; in a dry run return the change alone.

    What is not given stays as it was; the project's defaults say what is packed and no more.
    """
    found, usual, given = read_settings(submission)
    where = found or place.find(local=False)
    _refuse_kept(submission, given)
    run, account = submission.continued, SubmissionAccount(is_local=where.is_local)
    previous = continuation.find_previous_job(where, run)
    settings = SubmitSettings(**join({key: usual[key] for key in PACKING if key in usual}, given))
    if submission.script.expanduser().is_dir() and not (settings.command or settings.entry):
        before = previous.read_program()
        if (submission.script.expanduser() / before.get("entry", "")).exists():
            settings = replace(settings, **before)
    if given.keys() & set(IMAGE):
        machine = previous.description["ResourceConfig"].get("InstanceType", settings.instance_type)
        placed = replace(settings, instance_type=given.get("instance_type", machine))
        given = {**given, "image": options.find_image(account, placed)}
    options.check_inputs(settings.inputs)
    options.check_metrics(settings.metrics, screen)
    submitted = name_submitted(submission.script, settings)
    wanted = continuation.Continuation(pack_source(submission.script, settings), submission.arguments, given, submitted)
    source, change, arguments, named = continuation.make_change(previous, wanted)
    text = continuation.check_change(previous, change)
    packed, _ = wanted.source.files.get(COMMAND_SCRIPT, (b"", False))
    command_line = packed.decode().rstrip() if wanted.source.entry == COMMAND_SCRIPT else ""
    screen.say(f"the script's command line: {command_line or make_command_line(wanted.source.entry, arguments, named)}")
    if submission.mode is SubmitMode.DRY_RUN:
        return change
    policy = given.get("policy", "")
    delivery.check_policy(where, policy)
    continuation.upload(account, previous, source, settings.inputs)
    answer = continuation.send(previous, text, policy, screen)
    if answer:
        screen.say(answer)
    outcome = delivery.follow_run(run, where, account, submission.download, screen) if submission.follow else {}
    return {"run": run, "change": change, "decision": answer, **outcome}


def _refuse_kept(submission: Submission, given: Mapping[str, Any]) -> None:
    """Raise Problem for what a continued run cannot change."""
    kept = {"--name": submission.name, "--create-role": submission.create_role}
    kept["--upload-only"] = submission.mode is SubmitMode.UPLOAD_ONLY
    refused = [*(name for name, value in kept.items() if value), *(key for key in given if key not in CHANGEABLE)]
    if refused:
        raise Problem(
            f"{refused[0]} with --continue: the run keeps what it began with", "leave it out, or submit a new run"
        )
