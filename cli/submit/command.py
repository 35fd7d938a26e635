"""`rerail submit`: pack a script, start it as a supervised training job, follow it and fetch what it leaves."""

import json
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any

import typer

from cli import place
from cli.names import complete_policies, complete_runs
from cli.place import Local, Place
from cli.submit import continuation, delivery, options
from cli.submit.account import SubmissionAccount
from cli.submit.arguments import make_command_line, with_arguments
from cli.submit.continuation import Continuation
from cli.submit.defaults import read_defaults
from cli.submit.images import NEWEST
from cli.submit.packing import pack
from cli.submit.problem import Problem
from cli.submit.request import JobRequest, make_training_request, parse_seconds
from cli.submit.screen import SubmitScreen
from rerail.model.run import make_run_id
from rerail.requests.relaunch import read_signing_key, with_signing_key
from rerail.requests.supervised import CHANNEL

USUAL_INSTANCE, DAY = "ml.m5.xlarge", "24h"
SCRIPT_MODE = Path(__file__).with_name("script_mode.py")
PREFIX = "rerail"
Follow = Annotated[bool, typer.Option("--follow", help="Print the logs of all attempts, and what becomes of the run.")]
Download = Annotated[
    Path | None, typer.Option(help="When the run has ended, its model and outputs go here. Implies --follow.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for another program; the rest goes to stderr.")]


def submit(
    script: Annotated[Path, typer.Argument(help="A Python script, with all that lies in its folder; or a folder.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="After --: the script's own arguments.")] = None,
    entry: Annotated[str, typer.Option(help="Which script of the folder runs (train.py, main.py).")] = "",
    name: Annotated[str, typer.Option(help="The run's and the first job's name (the script's, and the time).")] = "",
    role: Annotated[str, typer.Option(help="The job's role, by name or ARN.")] = "",
    bucket: Annotated[
        str, typer.Option(help="Where code, checkpoints and outputs go (sagemaker-REGION-ACCOUNT).")
    ] = "",
    image: Annotated[str, typer.Option(help="A training image (AWS's for PyTorch).")] = "",
    framework_version: Annotated[str, typer.Option(help=f"PyTorch's version, for AWS's image ({NEWEST}).")] = "",
    instance_type: Annotated[str, typer.Option(help=f"The machine ({USUAL_INSTANCE}).")] = "",
    count: Annotated[int | None, typer.Option(help="How many machines (1).")] = None,
    volume: Annotated[int | None, typer.Option(help="Disk of each machine in GB (30).")] = None,
    torchrun: Annotated[bool | None, typer.Option("--torchrun", help="One process per GPU, by torchrun.")] = None,
    spot: Annotated[bool | None, typer.Option("--spot/--no-spot", help="Spot machines.")] = None,
    max_runtime: Annotated[str, typer.Option(help=f"Such as 90m, 12h, 5d ({DAY}).")] = "",
    max_wait: Annotated[str, typer.Option(help="With --spot: waiting and running together (max-runtime + 24h).")] = "",
    keep_alive: Annotated[str, typer.Option(help="Keep the machines warm so long after the job, at most 60m.")] = "",
    input: Annotated[list[str] | None, typer.Option(help="CHANNEL=s3://... or CHANNEL=PATH to upload.")] = None,
    hyperparameter: Annotated[list[str] | None, typer.Option(help="NAME=VALUE, an option of the script.")] = None,
    env: Annotated[list[str] | None, typer.Option(help="NAME=VALUE in the job's environment.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="NAME=VALUE on the job.")] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="NAME=REGEX that finds step or loss in the script's own log lines.")
    ] = None,
    checkpoint_path: Annotated[str, typer.Option(help="Where the script saves (/opt/ml/checkpoints).")] = "",
    agent: Annotated[str, typer.Option(help="The agent's wheel, here or in S3: SIGTERM then reaches the script.")] = "",
    exclude: Annotated[list[str] | None, typer.Option(help="What not to pack, as in .gitignore; !X packs it.")] = None,
    policy: Annotated[
        str, typer.Option(help="Rerail's policy for the run (default).", autocompletion=complete_policies)
    ] = "",
    continue_run: Annotated[
        str,
        typer.Option(
            "--continue",
            help="A held or stopped run: start its next attempt with this code; what is not given stays as it was.",
            autocompletion=complete_runs,
        ),
    ] = "",
    follow: Follow = False,
    download: Download = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print request and command line; start nothing.")] = False,
    upload_only: Annotated[
        bool, typer.Option("--upload-only", help="As --dry-run, but upload what the request names.")
    ] = False,
    as_json: AsJson = False,
    local: Local = False,
) -> None:
    """Start a script as a supervised training job.

    A relaunch goes on from the last checkpoint, if the script saves to /opt/ml/checkpoints and looks there when it
    starts. Defaults come from the table submit in rerail.toml.
    """
    screen = SubmitScreen(as_json or dry_run or upload_only)
    where = place.find(local=True) if local else None
    try:
        folder = options.check_local_path("SCRIPT", script)
        usual = read_defaults(folder if folder.is_dir() else folder.parent, Path.home())
        source = pack(script, entry=entry, exclude=[*usual.get("exclude", ()), *(exclude or ())])
        if continue_run:
            kept: dict[str, object] = {
                "--name": name,
                "--role": role,
                "--bucket": bucket,
                "--spot": spot,
                "--max-runtime": max_runtime,
            }
            kept |= {"--max-wait": max_wait, "--keep-alive": keep_alive, "--tag": tag, "--agent": agent}
            options.refuse_kept({**kept, "--checkpoint-path": checkpoint_path, "--upload-only": upload_only or None})
            wanted = Continuation(
                source=source,
                arguments=arguments,
                named=options.parse_pairs("--hyperparameter", hyperparameter),
                instance_type=instance_type,
                count=count,
                volume_gb=volume,
                torchrun=torchrun,
                environment=options.parse_pairs("--env", env),
                metrics=options.parse_pairs("--metric", metric),
                inputs=options.parse_paths(input),
                policy=policy,
            )
            chosen = (image, framework_version)
            where = where or place.find(local=False)
            outcome = _continue(continue_run, where, wanted, chosen, dry_run, screen)
            if follow or download:
                account = SubmissionAccount(is_local=local)
                outcome |= delivery.follow_run(continue_run, where, account, download, screen)
            screen.end({"run": continue_run, **outcome})
            return
        job = name or options.make_name(script, source)
        named = options.parse_pairs("--hyperparameter", hyperparameter)
        command_line = make_command_line(source.entry, arguments or (), named)
        source, hyperparameters = with_arguments(source, arguments or (), named)
        account = SubmissionAccount(is_local=local)
        machine = instance_type or usual.get("instance_type", USUAL_INSTANCE)
        store = f"s3://{options.find_bucket(account, bucket or usual.get('bucket', ''))}/{PREFIX}/"
        paths = options.parse_paths(input)
        wheel = options.find_wheel(agent or usual.get("agent", ""))
        runtime = parse_seconds("--max-runtime", max_runtime or usual.get("max_runtime", DAY))
        patience = max_wait or usual.get("max_wait", "")
        warm = keep_alive or usual.get("keep_alive", "")
        job_request = JobRequest(
            name=job,
            role=account.find_role_arn(role or usual.get("role", "")),
            region=account.region,
            image=options.find_image(account, image, framework_version, usual, machine),
            folder=f"{store}{job}/",
            program=source.entry,
            code=f"{store}code/{source.digest}/sourcedir.tar.gz",
            hyperparameters=hyperparameters,
            instance_type=machine,
            count=count if count is not None else usual.get("count", 1),
            volume_gb=volume if volume is not None else usual.get("volume", 30),
            policy=policy or usual.get("policy", "default"),
            max_runtime_s=runtime,
            max_wait_s=parse_seconds("--max-wait", patience) if patience else runtime + 86400,
            keep_alive_s=parse_seconds("--keep-alive", warm) if warm else 0,
            spot=spot if spot is not None else usual.get("spot", False),
            torchrun=torchrun if torchrun is not None else usual.get("torchrun", False),
            checkpoint_path=checkpoint_path or usual.get("checkpoint_path", ""),
            channels={
                channel: options.make_uri(given, f"{store}{job}/input/{channel}/") for channel, given in paths.items()
            },
            tags={**usual.get("tags", {}), **options.parse_pairs("--tag", tag)},
            environment={**usual.get("env", {}), **options.parse_pairs("--env", env)},
            metrics=options.find_metrics(
                source, {**usual.get("metrics", {}), **options.parse_pairs("--metric", metric)}, screen
            ),
            agent="" if local else options.make_uri(wheel, f"{store}agent/{Path(wheel).name}"),
            entrypoint=_local_entrypoint(bool(wheel)) if local and not image else (),
        )
        request = make_training_request(job_request)
        if dry_run:
            screen.say(f"the script's command line: {'torchrun' if job_request.torchrun else 'python'} {command_line}")
            typer.echo(json.dumps(request, indent=2))
            return
        where = where or delivery.find_deployment(screen)
        uploads = {**paths, CHANNEL: wheel} if job_request.agent else paths
        if upload_only:
            delivery.upload(account, job_request, source, uploads, where, screen)
            typer.echo(json.dumps(request, indent=2))
            return
        sent = request if read_signing_key(request) else with_signing_key(request, token_hex(32))  # printed nowhere
        delivery.start(account, job_request, sent, source, uploads, where, screen)
        outcome = delivery.follow_run(job, where, account, download, screen) if follow or download else {}
    except Problem as problem:
        place.fail(problem.what, problem.remedy)
    screen.end({"run": make_run_id(job), "job": job, "request": request, **outcome})


def _continue(
    run: str, where: Place, wanted: Continuation, chosen: tuple[str, str], dry_run: bool, screen: SubmitScreen
) -> dict[str, Any]:
    """Start the next attempt of a run, or print what would change; return the decision."""
    account = SubmissionAccount(is_local=where.is_local)
    previous = continuation.find_previous_job(where, run)
    if any(chosen):
        machine = wanted.instance_type or previous.description["ResourceConfig"].get("InstanceType", USUAL_INSTANCE)
        wanted = replace(wanted, image=options.find_image(account, *chosen, {}, machine))
    source, change, arguments, named = continuation.make_change(previous, wanted)
    text = continuation.check_change(previous, change)
    screen.say(f"the script's command line: {make_command_line(wanted.source.entry, arguments, named)}")
    if dry_run:
        typer.echo(json.dumps(change, indent=2))
        raise typer.Exit
    delivery.check_policy(where, wanted.policy)
    continuation.upload(account, previous, source, wanted.inputs)
    answer = continuation.send(previous, text, wanted.policy, screen)
    if answer:
        screen.say(answer)
    return {"change": change, "decision": answer}


def _local_entrypoint(under_init: bool) -> tuple[str, ...]:
    """Script mode; the agent is in every local image."""
    return (*(("python", "-m", "rerail_agent.init") if under_init else ()), "python", str(SCRIPT_MODE))


def follow(
    run: Annotated[
        str,
        typer.Argument(help="The run, as `rerail status` names it, or a training job.", autocompletion=complete_runs),
    ],
    download: Download = None,
    local: Local = False,
    as_json: AsJson = False,
) -> None:
    """Print the logs of all attempts of a run and what is decided about it, until it has ended.

    `rerail logs` prints the lines alone, also those of the past and of one attempt.
    """
    screen = SubmitScreen(as_json)
    where = place.find(local=True) if local else delivery.find_deployment(screen)
    try:
        delivery.check_known(run, where)
        outcome = delivery.follow_run(run, where, SubmissionAccount(is_local=local), download, screen)
    except Problem as problem:
        place.fail(problem.what, problem.remedy)
    screen.end({"run": run, **outcome})
