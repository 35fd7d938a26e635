"""`rerail deploy`: look, ask, deploy. `rerail destroy`: say what goes and what stays, ask, delete the stack."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer
from botocore.exceptions import BotoCoreError, ClientError

from cli import place
from cli.console import Console
from cli.deploy import cdk, changes, choices, kept, organization, permissions, screen
from cli.deploy import target as targets
from cli.deploy.assembly import Assembly, synthesize
from cli.deploy.changes import ResourceChange
from cli.deploy.first import make_first_template, wait_for_sweep
from cli.deploy.formation import LOCAL_PAUSE_S, PAUSE_S, Formation
from cli.deploy.permissions import strip_hash
from cli.deploy.target import DEPLOY_ROLE, EXECUTION_ROLE, LEAST_BOOTSTRAP, LOOKUP_ROLE, Target
from cli.doctor.check import Check, CheckStatus, make_unanswered
from cli.doctor.delivery import PATIENCE_AFTER_DEPLOYMENT_S, check_delivery
from cli.place import AsJson, Local
from cli.project import CHOICES, read_choices
from local import deploy as emulated
from local.deploy import LOCAL_BOOTSTRAP, LOCAL_SCOPE, QUALIFIER, DeployError
from local.stack import LOCAL_CHOICES

STACK = "Rerail"  # as the app calls it

Profile = Annotated[str, typer.Option("--profile", help="The AWS profile to use.")]
Region = Annotated[str, typer.Option("--region", help="The region; that of the profile or of AWS_REGION otherwise.")]
Given = Annotated[
    list[str], typer.Option("-c", "--context", help="name=value: wins over the file of choices, this once.")
]
# What a first deployment, or a removal, may end in. Such a stack can only be deleted.
FAILED = (
    *("ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "CREATE_FAILED", "DELETE_FAILED"),
    *("IMPORT_ROLLBACK_COMPLETE", "IMPORT_ROLLBACK_FAILED"),
)


class Declined(Exception):
    """The person at the keyboard said no."""


def deploy(
    profile: Profile = "",
    region: Region = "",
    given: Given = [],  # noqa: B006  (Typer copies it)
    yes: Annotated[
        bool, typer.Option("--yes", help="Ask nothing, for CI; what would lose data is still refused.")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be done, and do nothing.")] = False,
    allow_loss: Annotated[
        list[str],
        typer.Option("--allow-loss", help="A table, bucket or key that may be replaced or removed, by its id."),
    ] = [],  # noqa: B006
    for_organization: Annotated[
        bool, typer.Option("--organization", help="The accounts of an organization, by a StackSet.")
    ] = False,
    local: Local = False,
    as_json: AsJson = False,
) -> None:
    """Deploy Rerail into an account and region, or bring it up to date; open runs go on."""

    def elsewhere(where: str) -> Target:
        return targets.find(local=local, profile=profile, region=where)

    deployment = _Deployment(elsewhere(region), as_json, yes=yes, plan=plan)
    context = choices.read(given)
    if for_organization:
        deployment.carry_out(lambda: deployment.deploy_organization(context, elsewhere))
    else:
        deployment.carry_out(lambda: deployment.deploy_account(context, allow_loss))


def destroy(
    profile: Profile = "",
    region: Region = "",
    confirm: Annotated[
        str, typer.Option("--confirm", help=f"{STACK}: the stack's name, so that nothing asks for it.")
    ] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Also while runs are open; their jobs go on unsupervised.")
    ] = False,
    local: Local = False,
    as_json: AsJson = False,
) -> None:
    """Take Rerail out of an account and region. Runs, mail, reports, logs and the key stay for a later deployment."""
    _Removal(targets.find(local=local, profile=profile, region=region), as_json).run(confirm, force)


class _Step:
    """What both commands have: where they go, and where their words go."""

    def __init__(self, target: Target, as_json: bool) -> None:
        self.target, self.as_json = target, as_json
        self.console = Console(stderr=as_json, soft_wrap=True)

    def make_formation(self, role: str = DEPLOY_ROLE, execution: str = EXECUTION_ROLE) -> Formation:
        """Return the stack, with the roles of the bootstrap if they may be assumed, as the CDK does."""
        target = self.target
        within = target.fill(execution) if role and target.may_act_as(role) else ""
        pause_s = LOCAL_PAUSE_S if target.is_local else PAUSE_S
        return Formation(target.client("cloudformation", role=role), STACK, within, pause_s)

    def settle(self, formation: Formation) -> str:
        """Return the stack's status after a failed first deployment is deleted; exit with an error for the rest."""
        status = formation.read_status()
        if status.endswith("_IN_PROGRESS") and status != "REVIEW_IN_PROGRESS":
            place.fail(
                f"stack {STACK} is {status}: another deployment is running", "wait until it has ended, then try again"
            )
        if status == "UPDATE_ROLLBACK_FAILED":
            undo = f"aws cloudformation continue-update-rollback --stack-name {STACK}"
            place.fail(f"stack {STACK} is {status}", f"`{undo}`, then try again")
        return status

    def remember(self, outputs: dict[str, str]) -> None:
        """Save the outputs, by which commands with --local find the local deployment."""
        if self.target.aws:
            self.target.aws.redeployed(outputs)

    def print_json(self, facts: dict[str, Any]) -> None:
        if self.as_json:
            about = {"account": self.target.account, "region": self.target.region, "stack": STACK}
            typer.echo(json.dumps({**about, **facts}, indent=2))


class _Deployment(_Step):
    def __init__(self, target: Target, as_json: bool, *, yes: bool, plan: bool) -> None:
        super().__init__(target, as_json)
        self.yes, self.plan = yes, plan
        self.asks = not (yes or plan or as_json) and Console().is_terminal

    def carry_out(self, work: Callable[[], None]) -> None:
        """Run the action; exit with one error if it fails."""
        if not (self.yes or self.plan or self.asks):
            place.fail("there is no terminal", "add --yes to deploy without, or --plan for the changes")
        try:
            work()
        except Declined:
            place.fail("nothing was deployed", "run it again when you are ready")
        except DeployError as error:
            place.fail(str(error), "fix the cause, then run the same command again: it continues from what is there")
        except (ClientError, BotoCoreError) as error:
            place.fail(f"AWS refused: {error}", "check the permissions of your credentials (docs/deploying.md)")

    def deploy_organization(self, context: dict[str, Any], elsewhere: Callable[[str], Target]) -> None:
        """Deploy the StackSet of an organization from its hub account."""
        screen.show_target(self.console, self.target, organization.HUB, "the hub of an organization")
        self._choose_scope(context)
        facts = organization.deploy(self.target, context, elsewhere, self._confirm_or_plan, self.console)
        self.print_json(facts)

    def _confirm_or_plan(self, question: str) -> None:
        if self.plan:
            raise typer.Exit
        self._confirm(question)

    def deploy_account(self, context: dict[str, Any], allow_loss: list[str]) -> None:
        """Deploy the stack of one account and region."""
        looking = self.make_formation()
        status = self.settle(looking)
        old = None if status in FAILED else looking.read_template()
        screen.show_target(self.console, self.target, STACK, status)
        address = self._address(context, old)
        self._choose_scope(context)
        self.console.print("synthesizing (half a minute when something changed)")
        assembly = Assembly(synthesize(context), STACK)
        new = assembly.template
        change = permissions.find_changes(old, new, assembly.reasons)
        screen.show_permissions(self.console, change)
        if status in FAILED and not self.plan:
            with screen.show_progress(self.console, "taking away what failed", ()) as happened:
                looking.delete(happened)
        taken = {} if old else kept.find(self.target, new)
        if taken:
            self.console.print("taken up again, from an earlier deployment:")
            for id, name in taken.items():
                self.console.print(f"  {strip_hash(id)}: {name}", markup=False)
        if not self._bootstrapped():
            self.console.print("plan: bootstrap, then deploy all of this; nothing was done")
            self.print_json(_facts("planned", change, [], {}))
            return
        formation = replace(self.make_formation(assembly.deploy_role, assembly.execution_role), tags=assembly.tags)
        assembly.publish(self.target)
        if taken and not self.plan:
            self._confirm(f"Take up these {len(taken)} and deploy into {self.target.name}?")
            self._take_up(formation, assembly, taken)
        first = make_first_template(new, is_import=bool(taken)) if old is None else None
        found = self._propose(formation, assembly, first or new)
        screen.show_resources(self.console, found)
        self._refuse_losses(formation, found, allow_loss)
        if self.plan:
            formation.forget()
            self.print_json(_facts("planned", change, found, formation.read_outputs()))
            return
        if found:
            self._execute(formation, {change.id for change in found}, is_confirmed=bool(taken))
        outputs = formation.read_outputs()
        self.remember(outputs)
        delivery = self._check_delivery(outputs)
        if first:
            self._complete_first(formation, assembly)
        screen.show_next_steps(
            self.console, outputs, address=address, was_there=bool(old or taken), local=self.target.is_local
        )
        action = ("updated" if old else "created") if found else "unchanged"
        self.print_json(_facts(action, change, found, outputs) | {"delivery": delivery.said})
        if delivery.verdict is CheckStatus.BROKEN:
            place.fail(f"it is deployed, but {delivery.said}", delivery.remedy)

    def _execute(self, formation: Formation, ids: set[str], *, is_confirmed: bool) -> None:
        """Carry out the proposed change of these resources, once it is confirmed."""
        try:
            if not is_confirmed:
                self._confirm(f"Deploy into {self.target.name}?")
        except Declined:
            formation.forget()
            raise
        with screen.show_progress(self.console, "deploying", ids) as happened:
            formation.execute(happened)

    def _check_delivery(self, outputs: dict[str, str]) -> Check:
        """Send an event through the new deployment; without the permission, say who can."""
        self.console.print("sending an event through bus, rule and queue")
        try:
            check = check_delivery(self.target.client, outputs, patience_s=PATIENCE_AFTER_DEPLOYMENT_S)
        except (ClientError, BotoCoreError) as error:
            check = make_unanswered(error)
        self.console.print(f"  {check.said}", markup=False)
        return check

    def _address(self, context: dict[str, Any], old: Any) -> str:
        """Who is paged: given with -c, in cdk.json, as deployed, or asked for. A deployment never unsubscribes
        somebody only because a checkout does not know of them."""
        if choices.PAGE in context:
            return str(context[choices.PAGE])
        written = str(read_choices().get(choices.PAGE) or "")
        address = written or choices.find_page_address(old)
        if not address and self.asks:
            address = typer.prompt("Who is paged (e-mail; empty for no one)", default="", show_default=False).strip()
            if address:
                choices.check(address)
                choices.remember(address)
                self.console.print(f"written into {CHOICES.name}: commit it, and every later deployment knows")
        if address and not written:
            context[choices.PAGE] = address
        return address

    def _choose_scope(self, context: dict[str, Any]) -> None:
        """Ask for roles and buckets that neither cdk.json nor -c names, with those of tagged jobs as a proposal.

        They have no default: without a terminal, the proposal cannot be confirmed, and the deployment fails.
        """
        written = read_choices()
        missing = [name for name in choices.SCOPE if not context.get(name, written.get(name))]
        if self.target.is_local:
            context.update(LOCAL_BOOTSTRAP)
            # As `rerail local up` does: without folders a rollback would hold the runs of this machine.
            scope = LOCAL_SCOPE | {"quarantineFolders": LOCAL_CHOICES["quarantineFolders"]}
            context.update({name: scope[name] for name in scope if not context.get(name, written.get(name))})
            return
        proposed = choices.find_scope(self.target) if missing else {}
        for name in missing:
            found = ",".join(proposed[name])
            answer = typer.prompt(choices.SCOPE[name], default=found or None) if self.asks else ""
            context[name] = [part.strip() for part in answer.split(",") if part.strip()]
            if not context[name]:
                tagged = f" -c {name}={found}, which your tagged jobs use" if found else f" -c {name}=..."
                place.fail(f"{name} is not set", f"write a list into {CHOICES.name}, or add{tagged}")
            choices.remember(context[name], name=name)
            self.console.print(f"written into {CHOICES.name}: commit it, and every later deployment knows")

    def _bootstrapped(self) -> bool:
        """Whether the CDK's bucket is here; it is made unless this is a plan."""
        target = self.target
        if (version := target.read_bootstrap_version()) >= LEAST_BOOTSTRAP:
            return True
        if self.plan:
            return False
        if version and target.qualifier != QUALIFIER:
            place.fail(
                f"the CDK's bootstrap {target.qualifier!r} has version {version}, and {LEAST_BOOTSTRAP} is needed",
                f"who made it updates it: `cdk bootstrap --qualifier {target.qualifier}`, with its own toolkit stack",
            )
        self._confirm(f"The CDK has not been bootstrapped in {target.name}. Do it (a bucket and five roles)?")
        if target.aws:
            emulated.bootstrap(target.aws.client, {"AccountId": target.account, "Region": target.region})
        else:
            cdk.bootstrap(target.account, target.region, profile=target.profile, qualifier=target.qualifier)
        return True

    def _take_up(self, formation: Formation, assembly: Assembly, taken: dict[str, str]) -> None:
        template, listed = kept.make_import(assembly.template, taken)
        text = _compact(template)
        formation.propose("IMPORT", text, url=assembly.upload(self.target, text), imported=listed)
        with screen.show_progress(
            self.console, "taking up", {resource["LogicalResourceId"] for resource in listed}
        ) as happened:
            formation.execute(happened, is_import=True)

    def _propose(self, formation: Formation, assembly: Assembly, template: Mapping[str, Any]) -> list[ResourceChange]:
        text = _compact(template)
        kind = "UPDATE" if formation.exists() else "CREATE"
        return formation.propose(kind, text, url=assembly.upload(self.target, text))

    def _complete_first(self, formation: Formation, assembly: Assembly) -> None:
        """Deploy the whole template, once the first sweep is seen or does not come."""
        self.console.print("waiting for the first sweep, before its absence may page")
        try:
            has_come = wait_for_sweep(self.target.client, pause_s=formation.pause_s)
        except (ClientError, BotoCoreError) as error:
            self.console.print(f"  cannot tell: {make_unanswered(error).said}", markup=False)
        else:
            self.console.print("  it has come" if has_come else "  none has come: `rerail doctor` says why")
        if found := self._propose(formation, assembly, assembly.template):
            with screen.show_progress(self.console, "protecting", {change.id for change in found}) as happened:
                formation.execute(happened)

    def _refuse_losses(self, formation: Formation, found: list[ResourceChange], allowed: list[str]) -> None:
        losses = list(changes.find_refused(found, allowed))
        if losses and not self.plan:
            formation.forget()
            lost = "; ".join(f"{change.spoken}, and with it {change.danger}" for change in losses)
            flags = " ".join(f"--allow-loss {strip_hash(change.id)}" for change in losses)
            place.fail(f"this deployment would put data out of reach: {lost}", f"if that is meant, add {flags}")

    def _confirm(self, question: str) -> None:
        if self.asks and not typer.confirm(question):
            raise Declined


class _Removal(_Step):
    def run(self, confirm: str, force: bool) -> None:
        try:
            self._run(confirm, force)
        except DeployError as error:
            place.fail(str(error), "look at the stack's events, then run the same command again")
        except (ClientError, BotoCoreError) as error:
            place.fail(f"AWS refused: {error}", "check the permissions of your credentials (docs/deploying.md)")

    def _run(self, confirm: str, force: bool) -> None:
        formation = self.make_formation()
        status = self.settle(formation)
        screen.show_target(self.console, self.target, STACK, status)
        template = formation.read_template()
        if template is None:
            place.fail(f"there is no stack {STACK} in {self.target.name}", "nothing: there is nothing to take away")
        # The bootstrap's deploy role may not list them before its version 33.
        reader = Formation(self.target.client("cloudformation", role=LOOKUP_ROLE), STACK)
        names, stays = reader.list_names(), kept.find_retained(template)
        going = [id for id in template["Resources"] if id not in stays]
        self.console.print(
            f"{len(going)} resources go: functions, rules, queues, topics with who is subscribed, alarms"
        )
        self.console.print(f"{len(stays)} stay, and a later `rerail deploy` takes them up again:")
        for id, kind in sorted(stays.items(), key=lambda item: item[1]):
            label = kind.removeprefix("AWS::").replace("::", " ")
            self.console.print(f"  {label}: {names.get(id, strip_hash(id))}", markup=False)
        runs = self._open_runs(formation.read_outputs())
        if runs and not force:
            some = ", ".join(runs[:5]) + (f" and {len(runs) - 5} more" if len(runs) > 5 else "")
            remedy = "wait for them, `rerail stop` them, or add --force: their jobs go on without supervision"
            place.fail(f"{len(runs)} runs are open: {some}", remedy)
        if runs:
            self.console.print(f"{len(runs)} runs are open: their jobs go on unsupervised", style="yellow")
        if not confirm and Console().is_terminal and not self.as_json:
            confirm = typer.prompt(f"Type the stack's name to take it away from {self.target.name}")
        if confirm != STACK:
            place.fail("nothing was taken away: the name was not given", f"add --confirm {STACK}")
        with screen.show_progress(self.console, "taking away", names) as happened:
            formation.delete(happened)
        self.remember({})
        self.console.print(
            "gone. `rerail deploy` brings it back with its runs; docs/deploying.md says how to delete those."
        )
        self.print_json({"action": "destroyed", "kept": {id: names.get(id, "") for id in stays}, "open_runs": runs})

    def _open_runs(self, outputs: dict[str, str]) -> list[str]:
        from rerail.aws.dynamodb import DynamoRuns

        if "TableName" not in outputs:
            return []
        return sorted({name for name, _ in DynamoRuns(outputs["TableName"]).open_runs()})


def _facts(
    action: str, change: permissions.Change, found: list[ResourceChange], outputs: dict[str, str]
) -> dict[str, Any]:
    granted = {name: [asdict(grant) for grant in sorted(grants)] for name, grants in change._asdict().items()}
    return {
        "action": action,
        "permissions": granted,
        "resources": [asdict(resource_change) for resource_change in found],
        "outputs": outputs,
    }


def _compact(template: Any) -> str:
    return json.dumps(template, separators=(",", ":"))
