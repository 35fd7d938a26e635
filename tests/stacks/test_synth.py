"""What comes out of `python app.py`, and what stops it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli.deploy.assembly import Assembly
from local.deploy import LOCAL_SCOPE, DeployError, synthesize, zipped
from rerail.decisions.quarantine import COPIES, QUARANTINED, REPLACED
from rerail.model.policy import parse_policy
from stacks import ROOT
from tests.stacks.conftest import CONTEXTS
from tests.stacks.template import Template, find_acts, many, text
from tools.variants import CHOICES, find_templates

OUTPUTS = {
    "TableName",
    "SignalsQueueUrl",
    "FiledReportsQueueUrl",
    "CommandQueueUrl",
    "BusName",
    "PageTopicArn",
    "InformTopicArn",
    "SuperviseFunctionName",
    "SweepFunctionName",
    "NotifyFunctionName",
    "ReportFunctionName",
    "ReportsBucket",
    "PolicyPrefix",
    "PauseParameter",
    "MailboxBucket",
}


@pytest.mark.parametrize("variant", CONTEXTS)
def test_every_finding_is_fixed_or_acknowledged(assemblies, variant):
    """cdk-nag and the CDK's own rules have nothing left to say, whatever is chosen."""
    report = json.loads((assemblies / variant / "cdk.out" / "validation-report.json").read_text())
    assert report["pluginReports"] == []


def test_the_outputs_are_what_the_tools_look_for(template):
    """The command line and the local AWS find everything by these names."""
    assert set(template.body["Outputs"]) == OUTPUTS


@pytest.mark.parametrize("stack", ["Rerail", "RerailTrainingImage"])
def test_nothing_but_plain_resources(assembly, stack):
    """No custom resource, no macro, no image built at synth, and far from the limits of CloudFormation."""
    template = Template.read(assembly, stack)
    kinds = {resource["Type"] for resource in template.resources.values()}
    assert not {kind for kind in kinds if "Custom" in kind or not kind.startswith("AWS::")}
    assert "Transform" not in template.body
    assert json.loads((assembly / f"{stack}.assets.json").read_text())["dockerImages"] == {}
    assert len(template.resources) < 200
    assert (assembly / f"{stack}.template.json").stat().st_size < 500_000


def test_the_functions_come_as_the_folder_is(assembly):
    """The asset keeps the shape of lambdas/, with the core beside the handlers, and nothing that Python left there."""
    (asset,) = (folder for folder in assembly.glob("asset.*") if (folder / "supervise.py").exists())
    shipped = {str(path.relative_to(asset)) for path in asset.rglob("*") if path.is_file()}
    assert {"supervise.py", "sweep.py", "notify.py", "settings.py", "rerail/aws/dynamodb.py"} <= shipped
    runbooks = {f"report_page/runbooks/{path.name}" for path in (ROOT / "docs" / "runbooks").glob("*.md")}
    drawn = {f"report_page/{name}" for name in ("page.html", "fleet.html", "head.html", "style.css")} | runbooks
    assert {path for path in shipped if not path.endswith(".py")} == drawn


def test_the_layer_is_what_reports_are_drawn_with_and_no_more(assembly):
    """Pure Python, made without Docker, below the folder that Lambda puts on the path."""
    (layer,) = (folder.parents[1] for folder in assembly.glob("asset.*/python/jinja2"))
    packages = {path.name for path in (layer / "python").iterdir() if not path.name.endswith(".dist-info")}
    assert {"jinja2", "markupsafe", "pygal", "importlib_metadata", "zipp"} <= packages
    assert not {"aws_cdk", "boto3", "typer"} & packages
    assert not [file for file in layer.rglob("*") if file.suffix in (".so", ".pyc")]
    assert sum(file.stat().st_size for file in layer.rglob("*") if file.is_file()) < 3_000_000


def test_every_policy_is_deployed_as_it_is_written(template):
    """Each file of policies/ is a parameter below the prefix that says the same, without its comments."""
    parameters = {p["Name"]: p["Value"] for p in template.of("SSM::Parameter").values()}
    deployed = {name: value for name, value in parameters.items() if name.startswith("/rerail/policies/")}
    files = sorted((ROOT / "policies").glob("*.toml"))
    assert sorted(deployed) == [f"/rerail/policies/{file.stem}" for file in files]
    for file in files:
        policy = parse_policy(file.read_text(), name=file.stem)
        assert parse_policy(deployed[f"/rerail/policies/{file.stem}"], name=file.stem) == policy


def test_a_broken_policy_stops_the_synth(tmp_path):
    """One line that names the file and the field; no traceback, no template."""
    (tmp_path / "default.toml").write_text('[backoff]\nbase = "soon"\n')
    context = LOCAL_SCOPE | {"policiesFolder": str(tmp_path)}
    with pytest.raises(DeployError) as error:
        synthesize(ROOT, tmp_path / "cache", context=context, validate=False)
    ended, line = str(error.value).splitlines()
    assert ended == "app.py ended with 1:"
    assert line.startswith("error: ")
    assert "default.toml" in line
    assert "'backoff.base'" in line
    assert not list(tmp_path.rglob("*.template.json"))


def test_a_clean_checkout_synthesizes_the_same_assets_without_credentials(tmp_path, assembly):
    """By the CDK's own command, which runs `python app.py` and says in one line that the templates only observe.

    The app needs no home folder, and knows by itself where to write. The checkout has other times and another umask,
    bytecode beside the sources, and a Python of the runtime's version on the path: with other assets, each deployment
    by another person would replace all functions.
    """
    checkout, tools = tmp_path / "checkout", tmp_path / "bin"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(lambda name: (ROOT / name).is_file(), tracked.split("\0")):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        os.utime(shutil.copy(ROOT / name, checkout / name), (1_000_000_000, 1_000_000_000))
    (checkout / "lambdas" / "rerail" / "__pycache__").mkdir()
    (checkout / "lambdas" / "rerail" / "__pycache__" / "ports.cpython-313.pyc").write_bytes(b"bytecode")
    tools.mkdir()
    lines = (f"unset CDK_OUTDIR; export HOME={__file__}/home", '[ "$1" = -c ] && echo 3 13 && exit')
    for name, line in zip(("python", "python3.13"), lines, strict=True):
        (tools / name).write_text(f'#!/bin/sh\n{line}\nexec {sys.executable} "$@"\n')
        (tools / name).chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "CDK_", "JSII_"))}
    environment |= {"PATH": os.pathsep.join([str(tools), os.defpath])}
    environment |= {"CDK_VALIDATION": "false"}  # takes most of a synthesis, and has found nothing in `assembly`
    command = [sys.executable, "-m", "cli.deploy.cdk", "synth"]
    run = subprocess.run(
        command, cwd=checkout, env=environment, umask=0o077, capture_output=True, text=True, timeout=1800
    )
    assert run.returncode == 0, run.stderr
    (note,) = (line for line in run.stderr.splitlines() if line.startswith("note: "))
    assert "trainingRoleArns and checkpointBuckets are not set, so this template can only observe" in note
    assert "set trainingRoleArns and checkpointBuckets in cdk.json or with -c" in note
    assert find_acts(Template.read(checkout / "cdk.out")) == set()
    found, made = (hash_assets(folder) for folder in (assembly, checkout / "cdk.out"))
    assert made == found and len(made) == 3


def hash_assets(assembly: Path) -> set[tuple[str, int]]:
    """Return the hash of each asset with the hash of its archive, which is what is uploaded."""
    files = json.loads((assembly / "Rerail.assets.json").read_text())["files"]
    return {
        (key, hash(zipped(assembly / asset["source"]["path"])))
        for key, asset in files.items()
        if asset["source"]["packaging"] == "zip"
    }


def test_every_resource_of_an_account_and_of_its_members_has_the_tags(organization):
    """Whatever deploys it: a policy that demands them refuses no resource, and the stack names them too."""
    written = [json.loads(path.read_text()) for path in find_templates(organization)]
    resources = [resource for template in written for resource in template["Resources"].values()]
    tags = [resource["Properties"]["Tags"] for resource in resources if "Tags" in resource.get("Properties", {})]
    listed = [each for each in tags if isinstance(each, list)]
    assert all({"Key": "team", "Value": "ml"} in each for each in listed)
    assert all(each == {"team": "ml"} for each in tags if isinstance(each, dict))
    kinds = {resource["Type"] for resource in resources if "Tags" in resource.get("Properties", {})}
    assert {"AWS::DynamoDB::Table", "AWS::Lambda::Function", "AWS::IAM::Role", "AWS::CloudFormation::StackSet"} <= kinds
    assert Assembly(organization, "Rerail").tags == {"team": "ml"}


def test_the_choices_of_an_account_reach_the_template(organization):
    """Roles, buckets, keys, retention and addresses come from the context; nothing else becomes allowed by them."""
    (role,), (key,) = CHOICES["trainingRoleArns"], CHOICES["checkpointKeyArns"]
    template = Template.read(organization)
    allowed = {s["Action"]: s for s in template.allowed("supervise") if isinstance(s["Action"], str)}
    assert allowed["iam:PassRole"]["Resource"] == role
    grants = allowed["kms:CreateGrant"]
    assert grants["Resource"] == CHOICES["volumeKeyArns"][0]
    assert grants["Condition"]["Bool"] == {"kms:GrantIsForAWSResource": "true"}
    layers = [f["Layers"] for f in template.of("Lambda::Function").values()]
    assert {of_function[0] for of_function in layers} == {CHOICES["powertoolsLayerArn"]}
    assert sorted(map(len, layers)) == [1, 1, 1, 2], "without the SDK, the report function alone has libraries"
    queues = [m["ScalingConfig"]["MaximumConcurrency"] for m in template.of("Lambda::EventSourceMapping").values()]
    assert len(queues) == 5 and sum(queues) + 2 == 12, "with sweep and notify: two more than a new account may run"
    assert "weights" in json.dumps(allowed["s3:ListBucket"]["Resource"])
    assert "sagemaker" not in json.dumps(allowed["s3:ListBucket"]["Resource"])
    assert [s for s in template.allowed("sweep") if s["Action"] == "kms:Decrypt" and s["Resource"] == key]
    assert {g["RetentionInDays"] for g in template.of("Logs::LogGroup").values()} == {30}
    moving = [s for s in template.allowed("supervise") if "weights/" in json.dumps(s["Resource"])]
    deleting = [s for s in moving if "s3:DeleteObject" in many(s["Action"])]
    deleted = [text(s["Resource"]).removeprefix("arn:<AWS::Partition>:s3:::weights/") for s in deleting]
    assert deleted == ["teams/a/*", COPIES]
    (writing,) = (s for s in moving if "s3:PutObject" in many(s["Action"]))
    written = [QUARANTINED, COPIES, *(f"teams/a/{names}" for names in REPLACED)]
    assert [text(each).removeprefix("arn:<AWS::Partition>:s3:::weights/") for each in writing["Resource"]] == written
    own = {"StringEquals": {"aws:ResourceAccount": {"Ref": "AWS::AccountId"}}}
    of_checkpoints = [
        s
        for s in [*moving, *template.allowed("sweep"), *template.allowed("report")]
        if "weights" in json.dumps(s["Resource"])
    ]
    assert all(s["Condition"] == own for s in of_checkpoints)
    assert not [s for s in template.allowed("sweep") if "s3:DeleteObject" in many(s["Action"])]
    (subscription,) = template.of("SNS::Subscription").values()
    assert subscription["Endpoint"] == "on-call@example.com"
