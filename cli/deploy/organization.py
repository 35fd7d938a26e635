"""`rerail deploy --organization`: the functions' code into each region, then the StackSet for the accounts.

The members get the template of the hub's own stack, see stacks/organization_stack.py and docs/organization.md."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError
from rich.console import Console

from cli import place
from cli.deploy import permissions, screen
from cli.deploy.assembly import Assembly, synthesize
from cli.deploy.formation import LOCAL_PAUSE_S, PAUSE_S, Formation
from cli.deploy.target import LEAST_BOOTSTRAP, Target
from cli.project import CHOICES
from rerail.model.formatting import format_files

ASSETS, HUB, STACK_SET = "RerailOrganizationAssets", "RerailOrganization", "Rerail"
REGIONS = "organizationRegions"
Elsewhere = Callable[[str], Target]


def deploy(
    target: Target, context: Mapping[str, Any], elsewhere: Elsewhere, confirm: Callable[[str], None], console: Console
) -> dict[str, Any]:
    """Deploy the hub and its StackSet after the permissions were shown and confirmed; `elsewhere` finds a region's
    target."""
    folder = synthesize(context)
    regions = list_regions(folder)
    member = find_member(folder)
    old = read_deployed_template(target, call_as=find_caller(folder))
    console.print(f"the accounts of the organization, in {', '.join(regions)}:")
    change = permissions.find_changes(old, member.template, member.reasons)
    screen.show_permissions(console, change)
    confirm(f"Roll this out to the organization from account {target.account}?")
    for region in regions:
        prepare(elsewhere(region), folder, console)
    here = elsewhere(target.region)
    outputs = roll_out(here, Assembly(folder, HUB), console)
    console.print(
        f"rolling out: `aws cloudformation list-stack-instances --stack-set-name {STACK_SET}` tells how far it is"
    )
    return {"regions": regions, "added": len(change.added), "removed": len(change.removed), "outputs": outputs}


def find_member(folder: Path) -> Assembly:
    """Return the members' stack in the assembly."""
    (template,) = (folder / "assembly-Member").glob("*.template.json")
    return Assembly(template.parent, template.name.removesuffix(".template.json"))


def list_regions(folder: Path) -> list[str]:
    """Return the regions in which the members' stacks are deployed."""
    (members,) = _read_hub(folder)
    return [region for group in members["Properties"]["StackInstancesGroup"] for region in group["Regions"]]


def find_caller(folder: Path) -> str:
    """Return as whom the hub calls StackSets: it is the management account, or a delegated administrator."""
    (members,) = _read_hub(folder)
    return str(members["Properties"].get("CallAs", "SELF"))


def _read_hub(folder: Path) -> list[Mapping[str, Any]]:
    """Return the StackSets of the hub's stack."""
    template = folder / f"{HUB}.template.json"
    if not template.exists():
        place.fail(
            f"{CHOICES.name} names no organizational unit",
            "set organizationId, organizationalUnits and organizationRegions there (docs/organization.md)",
        )
    resources = json.loads(template.read_text())["Resources"].values()
    return [resource for resource in resources if resource["Type"] == "AWS::CloudFormation::StackSet"]


def read_deployed_template(target: Target, *, call_as: str = "SELF") -> Mapping[str, Any] | None:
    """Return the members' deployed template; None before the first deployment."""
    try:
        described = target.client("cloudformation").describe_stack_set(StackSetName=STACK_SET, CallAs=call_as)[
            "StackSet"
        ]
    except ClientError as error:
        if error.response["Error"]["Code"] in ("StackSetNotFoundException", "StackSetNotFound"):
            return None
        raise
    template: Mapping[str, Any] = json.loads(described["TemplateBody"])
    return template


def prepare(target: Target, folder: Path, console: Console) -> str:
    """Create this region's bucket with the members' code in it; return its name."""
    if target.read_bootstrap_version() < LEAST_BOOTSTRAP:
        remedy = f"`make cdk ARGS='bootstrap aws://{target.account}/{target.region}'`, then try again"
        place.fail(f"the CDK has not been bootstrapped in {target.name}", remedy)
    outputs = roll_out(target, Assembly(folder, ASSETS), console)
    bucket = outputs["AssetsBucket"]
    put = find_member(folder).publish(target, bucket=bucket)
    console.print(f"{target.region}: {format_files(put)} of code put into {bucket}")
    return bucket


def roll_out(target: Target, assembly: Assembly, console: Console) -> dict[str, str]:
    """Create or update one stack of the hub; return its outputs."""
    role = assembly.deploy_role
    execution = target.fill(assembly.execution_role) if target.may_act_as(role) else ""
    pause_s = LOCAL_PAUSE_S if target.is_local else PAUSE_S
    formation = Formation(target.client("cloudformation", role=role), assembly.stack, execution, pause_s, assembly.tags)
    assembly.publish(target)
    text = json.dumps(assembly.template, separators=(",", ":"))
    kind = "UPDATE" if formation.exists() else "CREATE"
    found = formation.propose(kind, text, url=assembly.upload(target, text))
    if found:
        with screen.show_progress(
            console, f"{target.region}: {assembly.stack}", {change.id for change in found}
        ) as happened:
            formation.execute(happened)
    return formation.read_outputs()
