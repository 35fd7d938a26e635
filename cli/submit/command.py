"""`rerail submit`: pack a script, start it as a supervised training job, follow it and fetch what it leaves."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cli import place
from cli.names import complete_policies, complete_runs
from cli.place import Local
from cli.submit import delivery
from cli.submit.account import SubmissionAccount
from cli.submit.options import parse_pairs
from cli.submit.problem import Problem
from cli.submit.screen import SubmitScreen
from cli.submit.settings import KINDS, SubmitSettings
from cli.submit.stages import Submission, SubmitMode, carry_out

USUAL = SubmitSettings()
Follow = Annotated[bool, typer.Option("--follow", help="Print the logs of all attempts, and what becomes of the run.")]
Download = Annotated[
    Path | None, typer.Option(help="When the run has ended, its model and outputs go here. Implies --follow.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for another program; the rest goes to stderr.")]


def submit(
    context: typer.Context,
    script: Annotated[
        Path, typer.Argument(help="A Python or shell script, with all that lies in its folder; or a folder.")
    ],
    arguments: Annotated[list[str] | None, typer.Argument(help="After --: the script's own arguments.")] = None,
    entry: Annotated[str, typer.Option(help="Which script of the folder runs (train.py, main.py).")] = "",
    command: Annotated[str, typer.Option(help="A shell command that runs in the packed folder instead.")] = "",
    name: Annotated[str, typer.Option(help="The run's and the first job's name (the script's, and the time).")] = "",
    settings: Annotated[
        Path | None, typer.Option(help="A TOML file with more settings, in a table [submit] as in rerail.toml.")
    ] = None,
    role: Annotated[str, typer.Option(help="The job's role, by name or ARN.")] = "",
    bucket: Annotated[
        str, typer.Option(help="Where code, checkpoints and outputs go (sagemaker-REGION-ACCOUNT).")
    ] = "",
    create_role: Annotated[bool, typer.Option("--create-role", help="Create --role first if there is none.")] = False,
    image: Annotated[str, typer.Option(help="A training image (AWS's for PyTorch).")] = "",
    instance_type: Annotated[str, typer.Option(help=f"The machine ({USUAL.instance_type}).")] = "",
    count: Annotated[int | None, typer.Option(help="How many machines (1).")] = None,
    volume: Annotated[int | None, typer.Option(help="Disk of each machine in GB (30).")] = None,
    torchrun: Annotated[bool | None, typer.Option("--torchrun", help="One process per GPU, by torchrun.")] = None,
    spot: Annotated[bool | None, typer.Option("--spot/--no-spot", help="Spot machines.")] = None,
    max_runtime: Annotated[str, typer.Option(help=f"Such as 90m, 12h, 5d ({USUAL.max_runtime}).")] = "",
    inputs: Annotated[
        list[str] | None, typer.Option("--input", help="CHANNEL=s3://... or CHANNEL=PATH to upload.")
    ] = None,
    start_from: Annotated[
        str, typer.Option(help="RUN, RUN:STEP or s3://...: that checkpoint is the channel start.")
    ] = "",
    env: Annotated[list[str] | None, typer.Option(help="NAME=VALUE in the job's environment.")] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option("--metric", help="NAME=REGEX that finds step or loss in the script's own log lines."),
    ] = None,
    agent: Annotated[str, typer.Option(help="The agent's wheel, here or in S3: SIGTERM then reaches the script.")] = "",
    dependencies: Annotated[
        list[str] | None, typer.Option("--dependency", help="A file or folder to pack beside the script.")
    ] = None,
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
    starts. Defaults, and settings without an option (subnets, tags, retries...), come from the table submit in
    rerail.toml or --settings.
    """
    mode = SubmitMode.DRY_RUN if dry_run else SubmitMode.UPLOAD_ONLY if upload_only else SubmitMode.START
    screen = SubmitScreen(as_json or mode is not SubmitMode.START)
    try:
        submission = Submission(
            script=script,
            arguments=arguments,
            name=name,
            continued=continue_run,
            given=read_given(context),
            file=settings,
            create_role=create_role,
            mode=mode,
            follow=follow or download is not None,
            download=download,
            local=local,
        )
        outcome = carry_out(submission, screen)
    except Problem as problem:
        place.fail(problem.what, problem.remedy)
    screen.end(outcome)


def read_given(context: typer.Context) -> dict[str, Any]:
    """Return the settings among the options, by their keys; raise Problem for a pair that is none."""
    given = {}
    for option in context.command.params:
        value = context.params[str(option.name)]
        if option.name in KINDS and value not in (None, "", []):
            given[option.name] = parse_pairs(option.opts[0], value) if KINDS[option.name] is dict else value
    return given


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
