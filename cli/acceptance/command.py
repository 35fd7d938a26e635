"""`rerail acceptance`: try in an account, for cents, what no emulator can show."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from botocore.exceptions import BotoCoreError, ClientError
from rich.markup import escape

from cli import place
from cli.acceptance import checks, result
from cli.acceptance.checks import CHECK_IDS, CheckResult, CheckVerdict
from cli.acceptance.cleanup import PREFIX, Cleanup, find_leftovers
from cli.acceptance.jobs import JobPlan, pack_code
from cli.acceptance.measure import measure
from cli.acceptance.seen import Observations
from cli.acceptance.session import AcceptanceSession, undisturbed_by_signals
from cli.acceptance.trials import INSTANCE_TYPE, MAX_RUNTIME_S, TRIALS_BY_NAME, AcceptanceTrial, fit_trials
from cli.console import Console
from cli.doctor import roles
from cli.doctor.check import CheckStatus, ask
from cli.doctor.deployment import Deployment
from cli.doctor.subject import Subject
from cli.durations import parse_seconds
from cli.names import complete_policies
from cli.place import AsJson, Local, Place, now
from cli.report import save
from cli.submit import options
from cli.submit.account import SubmissionAccount
from cli.submit.problem import Problem
from cli.submit.request import make_training_request
from cli.submit.settings import read_defaults, read_protection
from cli.submit.stages import make_settings
from cli.trouble import explain
from rerail.model.errors import RerailError
from rerail.model.formatting import format_dollars
from rerail.model.measurements import PARAMETER
from rerail.model.policy import Mode, Policy
from rerail.model.prices import find_price
from rerail.requests.relaunch import POLICY_TAG
from rerail.supervisor.pause import parse_pause

STYLES = {CheckVerdict.CONFIRMED: "green", CheckVerdict.REFUTED: "bold red", CheckVerdict.NOT_TRIED: "dim"}
INTERRUPTED, NOTHING_RAN, PATIENCE = 130, 3, "45m"


def acceptance(
    only: Annotated[str, typer.Option(help="CHECK,...: these checks alone, and the jobs that they need.")] = "",
    role: Annotated[str, typer.Option(help="The jobs' role, by name or ARN.")] = "",
    bucket: Annotated[str, typer.Option(help="Where code and checkpoints go (sagemaker-REGION-ACCOUNT).")] = "",
    image: Annotated[str, typer.Option(help="A training image with script mode and Python 3.11 (AWS's PyTorch).")] = "",
    policy: Annotated[str, typer.Option(help="The policy of the runs.", autocompletion=complete_policies)] = "default",
    output: Annotated[
        Path, typer.Option(help="The folder for acceptance.json and acceptance.html.", metavar="DIR")
    ] = Path("rerail-acceptance"),
    patience: Annotated[str, typer.Option(help="How long to wait for machines and jobs, such as 90m.")] = PATIENCE,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
    local: Local = False,
    as_json: AsJson = False,
) -> None:
    """Try in an account, for cents, what no emulator can show: jobs that fail are started, and everything is removed.

    Exit status 0 if nothing is refuted. Measures start, stop, events, metrics and uploads, which estimates then use.
    """
    console = Console(stderr=True, soft_wrap=True)
    chosen = [name.strip() for name in only.split(",") if name.strip()]
    if unknown := [name for name in chosen if name not in CHECK_IDS]:
        place.fail(f"--only {unknown[0]}: there is no such check", f"give some of {', '.join(CHECK_IDS)}")
    patience_s = parse_seconds(patience, "--patience")
    where = place.find(local=local)
    try:
        plan, rules = _make_plan(where, role, bucket, image, policy)
        leftovers = find_leftovers(where, plan.bucket)
    except Problem as problem:
        place.fail(problem.what, problem.remedy)
    except (ClientError, BotoCoreError) as error:
        place.fail(f"cannot look for what an earlier acceptance has left: {explain(error).what}", explain(error).remedy)
    _check_pause(where)
    _check_role(where, plan)
    _check_output(output)
    trials, excluded = fit_trials(checks.find_trials(chosen), rules)
    _confirm(trials, excluded, leftovers, patience_s, yes=yes)
    for id in leftovers:
        _remove(Cleanup(where, plan.bucket, id), console)

    def say(text: str) -> None:
        try:
            console.print(text, markup=False)
        except OSError:
            return  # the terminal is closed: what is to be removed still is

    session = AcceptanceSession(where, plan, trials, say, excluded=excluded, patience_s=patience_s)
    observed = session.run()
    results = checks.evaluate_all(observed, chosen)
    made = result.make_result(
        results,
        measure(observed),
        id=plan.id,
        region=plan.region,
        scale=plan.scale,
        began=session.began,
        made_at=now(),
        policy=policy,
        image=plan.image,
        interrupted=session.was_interrupted,
    )
    written = result.write_json(output, made)
    if plan.scale == 1 and not chosen and not session.was_interrupted:
        _store(where, result.make_stored_copy(made), say)
    if as_json:
        typer.echo(json.dumps(made, indent=2))
    else:
        _print([found for found in results if not chosen or found.id in chosen])
    save(output / result.PAGE_FILE, result.make_acceptance_report(made, results, observed))
    say(f"result: {written}, {output / result.PAGE_FILE}")
    for remaining in session.cleanup.problems:
        say(f"not removed: {remaining}; run `{where.complete_text('rerail acceptance')}` again")
    if status := _choose_status(session, results, observed, say):
        raise typer.Exit(status)


def _choose_status(
    session: AcceptanceSession, results: Sequence[CheckResult], observed: Observations, say: Callable[[str], None]
) -> int:
    """Return the exit status: 0 if jobs ran, nothing is refuted, and everything is removed."""
    if session.was_interrupted:
        return INTERRUPTED
    if session.cleanup.problems or any(found.verdict is CheckVerdict.REFUTED for found in results):
        return 1
    if any(trial.jobs for trial in observed.trials.values()):
        return 0
    say("no job could be started: nothing is proved")
    return NOTHING_RAN


def _make_plan(where: Place, role: str, bucket: str, image: str, policy: str) -> tuple[JobPlan, Policy]:
    """Return what the jobs have in common, and their policy; raise Problem for what is missing."""
    account = SubmissionAccount(is_local=where.is_local)
    usual = read_defaults(Path.cwd(), Path.home())
    given = {"instance_type": INSTANCE_TYPE, **({"image": image} if image else {})}
    rules = _read_policy(where, policy)
    plan = JobPlan(
        id=f"{PREFIX}{now():%Y%m%d%H%M%S}",
        role=account.find_role_arn(role or usual.get("role", "")),
        bucket=options.find_bucket(account, bucket or ("" if where.is_local else usual.get("bucket", ""))),
        image=options.find_image(account, make_settings(usual, given, is_local=where.is_local)),
        policy=policy,
        region=account.region,
        scale=_find_scale() if where.is_local else 1.0,
        protection=read_protection(usual),
        is_local=where.is_local,
    )
    account.check_bucket(plan.bucket)
    return plan, rules


def _read_policy(where: Place, name: str) -> Policy:
    """Return the deployed policy; raise Problem if it does not act."""
    from rerail.aws.ssm import SsmPolicies

    try:
        policy = SsmPolicies(where.outputs["PolicyPrefix"], now).get(name)
    except RerailError as error:
        raise Problem(f"--policy {name}: {error}", "name a deployed one, or deploy policies/ again") from error
    if policy.mode is not Mode.ACT:
        raise Problem(
            f"--policy {name}: its mode is {policy.mode}, so it relaunches nothing by itself", "name one with mode act"
        )
    return policy


def _find_scale() -> float:
    """Return how many times as fast as AWS the local clock runs."""
    from local.stack import LocalAws

    return LocalAws.attach(place.LOCAL_STATE).scale


def _check_pause(where: Place) -> None:
    value = where.client("ssm").get_parameter(Name=where.outputs["PauseParameter"])["Parameter"]["Value"]
    if parse_pause(value) is not False:
        place.fail("Rerail is paused for this account: it would relaunch nothing", "`rerail resume`, then try again")


def _check_role(where: Place, plan: JobPlan) -> None:
    """Exit with the doctor's answer if the jobs' role or Rerail's lacks a permission, as far as AWS simulates it."""
    request = make_training_request(plan.make_request(TRIALS_BY_NAME["crash"], pack_code()))
    subject = Subject(Deployment(where), request, {POLICY_TAG: plan.policy})
    for answer in ask("role", roles.QUESTIONS, subject):
        if answer.verdict is CheckStatus.BROKEN:
            place.fail(f"{answer.name}: {answer.said}", answer.remedy)


def _check_output(folder: Path) -> None:
    """Exit with an error if the result could not be written in the end."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".rerail-acceptance"
        probe.touch()
        probe.unlink()
    except OSError as error:
        place.fail(f"cannot write into {folder}: {error.strerror}", "name another folder with --output")


def _confirm(
    chosen: list[AcceptanceTrial], excluded: Mapping[str, str], leftovers: list[str], patience_s: float, *, yes: bool
) -> None:
    """Say what is started, what it costs and how long it takes, and ask."""
    names = ", ".join(trial.name for trial in chosen)
    hourly = find_price(INSTANCE_TYPE, {}) or 0.0
    most = sum(trial.jobs for trial in chosen) * hourly * MAX_RUNTIME_S / 3600
    typer.echo(
        f"This starts {len(chosen)} training jobs on {INSTANCE_TYPE} ({names}), which Rerail relaunches: "
        f"about {format_dollars(sum(trial.dollars for trial in chosen))} at list prices, at most "
        f"{format_dollars(most)}. It takes about 30 minutes, at most {patience_s / 60:.0f} and the time to end the "
        f"jobs; no job lasts longer than {MAX_RUNTIME_S // 60} minutes. It also makes a queue, a rule, a subscription "
        "to each topic of notices and objects in S3. All are removed at the end. Pages about these runs are sent "
        "to the person on call.",
        err=True,
    )
    for name, reason in excluded.items():
        typer.echo(f"Not tried: {name}: {reason}.", err=True)
    if leftovers:
        typer.echo(f"First it removes what earlier ones have left: {', '.join(leftovers)}.", err=True)
    if yes:
        return
    if not sys.stdin.isatty():
        place.fail("not started: there is no terminal to ask on", "--yes does not ask")
    if not typer.confirm("Start it?", err=True):
        place.fail("not started", "--yes does not ask")


def _remove(cleanup: Cleanup, console: Console) -> None:
    with undisturbed_by_signals():
        cleanup.remove_all()
    console.print(f"removed what {cleanup.id} had left: {', '.join(cleanup.removed) or 'nothing'}", markup=False)
    if cleanup.problems:
        place.fail(f"{cleanup.id} is not removed: {'; '.join(cleanup.problems)}", "remove the cause, then try again")


def _store(where: Place, text: str, say: Callable[[str], None]) -> None:
    """Have the deployment keep the measurements, which its estimates then use."""
    name = f"{where.outputs['PolicyPrefix'].rstrip('/')}/{PARAMETER}"
    try:
        where.client("ssm").put_parameter(Name=name, Value=text, Overwrite=True, Type="String")
    except (ClientError, BotoCoreError) as error:
        say(f"the deployment goes on with assumed times: {explain(error).what}")
        return
    say(f"stored: {name}; estimates of cost and checkpoint interval use it")


def _print(results: list[CheckResult]) -> None:
    console = Console(soft_wrap=True)
    for found in results:
        console.print(f"[{STYLES[found.verdict]}]{found.verdict:<10}[/]{found.id:<13} {escape(found.seen)}")
    console.print(result.count_verdicts(results))
