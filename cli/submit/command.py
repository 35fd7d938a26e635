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
from cli.submit.account import SubmissionAccount, split
from cli.submit.arguments import make_command_line, with_arguments
from cli.submit.channels import EFS, FSX, parse_file_systems
from cli.submit.continuation import Continuation
from cli.submit.defaults import read_defaults, read_protection
from cli.submit.docker_image import build_image, name_image
from cli.submit.images import DEFAULTS, NEWEST, TENSORFLOW
from cli.submit.packing import COMMAND_SCRIPT, pack
from cli.submit.problem import Problem
from cli.submit.request import JobRequest, make_training_request, parse_seconds
from cli.submit.screen import SubmitScreen
from cli.submit.start import START_CHANNEL, find_start
from cli.submit.training_role import PREFIX, plan_role
from cli.submit.training_role import create_role as create_training_role
from rerail.model.run import make_run_id
from rerail.requests.relaunch import read_signing_key, with_signing_key
from rerail.requests.supervised import CHANNEL

USUAL_INSTANCE, DAY = "ml.m5.xlarge", "24h"
SCRIPT_MODE = Path(__file__).with_name("script_mode.py")
MODEL_CHANNEL = "model"
TENSORFLOWS = DEFAULTS[TENSORFLOW]
Follow = Annotated[bool, typer.Option("--follow", help="Print the logs of all attempts, and what becomes of the run.")]
Download = Annotated[
    Path | None, typer.Option(help="When the run has ended, its model and outputs go here. Implies --follow.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for another program; the rest goes to stderr.")]


def submit(
    script: Annotated[
        Path, typer.Argument(help="A Python or shell script, with all that lies in its folder; or a folder.")
    ],
    arguments: Annotated[list[str] | None, typer.Argument(help="After --: the script's own arguments.")] = None,
    entry: Annotated[str, typer.Option(help="Which script of the folder runs (train.py, main.py).")] = "",
    command: Annotated[str, typer.Option(help="A shell command that runs in the packed folder instead.")] = "",
    name: Annotated[str, typer.Option(help="The run's and the first job's name (the script's, and the time).")] = "",
    role: Annotated[str, typer.Option(help="The job's role, by name or ARN.")] = "",
    bucket: Annotated[
        str, typer.Option(help="Where code, checkpoints and outputs go (sagemaker-REGION-ACCOUNT).")
    ] = "",
    project: Annotated[str, typer.Option(help="Begins names and S3 folders of its runs, and is a tag.")] = "",
    create_role: Annotated[bool, typer.Option("--create-role", help="Create --role first if there is none.")] = False,
    image: Annotated[str, typer.Option(help="A training image (AWS's for PyTorch).")] = "",
    dockerfile: Annotated[
        Path | None, typer.Option(help="Build the image with docker and push it to ECR, if its folder is new.")
    ] = None,
    framework: Annotated[str, typer.Option(help="Whose image of AWS: pytorch or tensorflow.")] = "",
    framework_version: Annotated[str, typer.Option(help=f"Its version ({NEWEST}; TensorFlow: {TENSORFLOWS}).")] = "",
    instance_type: Annotated[str, typer.Option(help=f"The machine ({USUAL_INSTANCE}).")] = "",
    count: Annotated[int | None, typer.Option(help="How many machines (1).")] = None,
    volume: Annotated[int | None, typer.Option(help="Disk of each machine in GB (30).")] = None,
    torchrun: Annotated[bool | None, typer.Option("--torchrun", help="One process per GPU, by torchrun.")] = None,
    spot: Annotated[bool | None, typer.Option("--spot/--no-spot", help="Spot machines.")] = None,
    max_runtime: Annotated[str, typer.Option(help=f"Such as 90m, 12h, 5d ({DAY}).")] = "",
    max_wait: Annotated[str, typer.Option(help="With --spot: waiting and running together (max-runtime + 24h).")] = "",
    retries: Annotated[
        int | None, typer.Option(help="How often SageMaker itself tries again after an internal error, at most 30.")
    ] = None,
    keep_alive: Annotated[str, typer.Option(help="Keep the machines warm so long after the job, at most 6h.")] = "",
    input: Annotated[list[str] | None, typer.Option(help="CHANNEL=s3://... or CHANNEL=PATH to upload.")] = None,
    hyperparameter: Annotated[list[str] | None, typer.Option(help="NAME=VALUE, an option of the script.")] = None,
    shard: Annotated[
        list[str] | None, typer.Option(help="CHANNEL: each machine gets its share of the objects.")
    ] = None,
    fsx: Annotated[
        list[str] | None, typer.Option(help="CHANNEL=fs-ID/MOUNT/PATH[:rw], a folder of FSx for Lustre.")
    ] = None,
    efs: Annotated[list[str] | None, typer.Option(help="CHANNEL=fs-ID/PATH[:rw], a folder of EFS.")] = None,
    subnet: Annotated[list[str] | None, typer.Option(help="A subnet of the job's VPC.")] = None,
    security_group: Annotated[list[str] | None, typer.Option(help="A security group of the job's VPC.")] = None,
    model_uri: Annotated[str, typer.Option(help="A model to begin with, s3://... or a path: the channel model.")] = "",
    start_from: Annotated[
        str, typer.Option(help="RUN, RUN:STEP or s3://...: that checkpoint is the channel start.")
    ] = "",
    env: Annotated[list[str] | None, typer.Option(help="NAME=VALUE in the job's environment.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="NAME=VALUE on the job.")] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="NAME=REGEX that finds step or loss in the script's own log lines.")
    ] = None,
    checkpoint_path: Annotated[str, typer.Option(help="Where the script saves (/opt/ml/checkpoints).")] = "",
    agent: Annotated[str, typer.Option(help="The agent's wheel, here or in S3: SIGTERM then reaches the script.")] = "",
    dependency: Annotated[list[str] | None, typer.Option(help="A file or folder to pack beside the script.")] = None,
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
        if continue_run and folder.is_dir() and not (command or entry):
            where = where or place.find(local=False)
            command = continuation.find_previous_job(where, continue_run).read_command()
        source = pack(
            script,
            entry=entry,
            exclude=[*usual.get("exclude", ()), *(exclude or ())],
            command=command,
            dependencies=[*usual.get("dependencies", ()), *(dependency or ())],
        )
        if continue_run:
            kept: dict[str, object] = {
                "--name": name,
                "--role": role,
                "--bucket": bucket,
                "--spot": spot,
                "--max-runtime": max_runtime,
            }
            kept |= {"--max-wait": max_wait, "--keep-alive": keep_alive, "--tag": tag, "--agent": agent}
            kept |= {"--project": project, "--create-role": create_role or None, "--retries": retries, "--shard": shard}
            kept |= {"--fsx": fsx, "--efs": efs, "--subnet": subnet, "--security-group": security_group}
            kept |= {"--model-uri": model_uri, "--start-from": start_from, "--dockerfile": dockerfile}
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
                metrics=options.parse_metrics(options.parse_pairs("--metric", metric), screen),
                inputs=options.parse_paths(input),
                policy=policy,
            )
            chosen = (image, framework_version, framework)
            where = where or place.find(local=False)
            outcome = _continue(continue_run, where, wanted, chosen, dry_run, screen)
            if follow or download:
                account = SubmissionAccount(is_local=local)
                outcome |= delivery.follow_run(continue_run, where, account, download, screen)
            screen.end({"run": continue_run, **outcome})
            return
        project = options.check_project(project or usual.get("project", ""))
        job = name or options.make_name(script, source, project)
        named = options.parse_pairs("--hyperparameter", hyperparameter)
        is_shell = source.entry.endswith(".sh")
        command_line = command or make_command_line(source.entry, arguments or (), named)
        source, hyperparameters = with_arguments(source, arguments or (), named)
        account = SubmissionAccount(is_local=local)
        machine = instance_type or usual.get("instance_type", USUAL_INSTANCE)
        store = f"s3://{options.find_bucket(account, bucket or usual.get('bucket', ''))}/{PREFIX}/"
        folder_uri = f"{store}{project}/{job}/" if project else f"{store}{job}/"
        paths = options.parse_paths(input)
        if model_uri:
            paths |= options.parse_paths([f"{MODEL_CHANNEL}={model_uri}"])
        if start_from:
            where = where or delivery.find_deployment(screen)
            paths[START_CHANNEL] = find_start(where, start_from)
        wheel = options.find_wheel(agent or usual.get("agent", ""))
        runtime = parse_seconds("--max-runtime", max_runtime or usual.get("max_runtime", DAY))
        patience = max_wait or usual.get("max_wait", "")
        warm = keep_alive or usual.get("keep_alive", "")
        if dockerfile and (image or framework or framework_version or local):
            raise Problem(
                "--dockerfile: it is built for SageMaker, in place of --image and AWS's images",
                "leave out --image, --framework, --framework-version and --local",
            )
        recipe = dockerfile and (dockerfile / "Dockerfile" if dockerfile.is_dir() else dockerfile)
        built = name_image(recipe, account.find_number(), account.region) if recipe else ""
        network = {"subnets": subnet, "security_groups": security_group}
        own_role = plan_role(account, role or usual.get("role", ""), is_wanted=create_role)
        job_request = JobRequest(
            name=job,
            role=own_role.arn,
            region=account.region,
            image=built or options.find_image(account, image, framework_version, usual, machine, framework),
            folder=folder_uri,
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
                channel: options.make_uri(given, f"{folder_uri}input/{channel}/") for channel, given in paths.items()
            },
            tags={
                **({"project": project} if project else {}),
                **usual.get("tags", {}),
                **options.parse_pairs("--tag", tag),
            },
            environment={**usual.get("env", {}), **options.parse_pairs("--env", env)},
            metrics=options.find_metrics(
                source,
                options.parse_metrics({**usual.get("metrics", {}), **options.parse_pairs("--metric", metric)}, screen),
                screen,
            ),
            agent="" if local else options.make_uri(wheel, f"{store}agent/{Path(wheel).name}"),
            entrypoint=make_local_entrypoint(bool(wheel)) if local and not image else (),
            sharded=shard or (),
            file_systems={
                **parse_file_systems(FSX, options.parse_pairs("--fsx", fsx)),
                **parse_file_systems(EFS, options.parse_pairs("--efs", efs)),
            },
            **read_protection(usual | {name: given for name, given in network.items() if given}),
            retries=retries if retries is not None else usual.get("retries", 0),
        )
        if is_shell and job_request.torchrun:
            raise Problem("--torchrun: it starts Python scripts", "start torchrun in the shell script itself")
        request = make_training_request(job_request)
        if dry_run:
            launcher = "torchrun" if job_request.torchrun else "shell:" if is_shell else "python"
            screen.say(f"the script's command line: {launcher} {command_line}")
            typer.echo(json.dumps(request, indent=2))
            return
        where = where or delivery.find_deployment(screen)
        if own_role.is_new:
            mailbox = where.outputs.get("MailboxBucket", "") if where else ""
            create_training_role(own_role.arn, account.region, split(store)[0], mailbox)
            screen.say(f"created the role {own_role.arn}: Rerail relaunches its jobs once trainingRoleArns lists it")
        if recipe:
            job_request = replace(job_request, image=build_image(recipe, built, screen))
            request = make_training_request(job_request)
        uploads = {**paths, CHANNEL: wheel} if job_request.agent else paths
        if upload_only:
            delivery.upload(account, job_request, source, uploads, where, screen)
            typer.echo(json.dumps(request, indent=2))
            return
        sent = request if read_signing_key(request) else with_signing_key(request, token_hex(32))  # printed nowhere
        delivery.start(account, job_request, sent, source, uploads, where, screen, role_is_new=own_role.is_new)
        outcome = delivery.follow_run(job, where, account, download, screen) if follow or download else {}
    except Problem as problem:
        place.fail(problem.what, problem.remedy)
    screen.end({"run": make_run_id(job), "job": job, "request": request, **outcome})


def _continue(
    run: str, where: Place, wanted: Continuation, chosen: tuple[str, str, str], dry_run: bool, screen: SubmitScreen
) -> dict[str, Any]:
    """Start the next attempt of a run, or print what would change; return the decision."""
    account = SubmissionAccount(is_local=where.is_local)
    previous = continuation.find_previous_job(where, run)
    if any(chosen):
        machine = wanted.instance_type or previous.description["ResourceConfig"].get("InstanceType", USUAL_INSTANCE)
        image, version, framework = chosen
        wanted = replace(wanted, image=options.find_image(account, image, version, {}, machine, framework))
    source, change, arguments, named = continuation.make_change(previous, wanted)
    text = continuation.check_change(previous, change)
    packed, _ = wanted.source.files.get(COMMAND_SCRIPT, (b"", False))
    command_line = packed.decode().rstrip() if wanted.source.entry == COMMAND_SCRIPT else ""
    command_line = command_line or make_command_line(wanted.source.entry, arguments, named)
    screen.say(f"the script's command line: {command_line}")
    if dry_run:
        typer.echo(json.dumps(change, indent=2))
        raise typer.Exit
    delivery.check_policy(where, wanted.policy)
    continuation.upload(account, previous, source, wanted.inputs)
    answer = continuation.send(previous, text, wanted.policy, screen)
    if answer:
        screen.say(answer)
    return {"change": change, "decision": answer}


def make_local_entrypoint(under_init: bool) -> tuple[str, ...]:
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
