"""`rerail deploy`: what it asks for and remembers, and that it finds its Node."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
import typer
from moto import mock_aws

from cli.deploy import cdk, choices, target
from cli.deploy.command import _Deployment, _Removal
from cli.deploy.first import make_first_template, wait_for_sweep
from cli.deploy.formation import Formation
from cli.project import ROOT, read_choices
from local.deploy import DeployError
from local.stack import LOCAL_CHOICES
from tests.cli.cloud import Cloud, Deployed, refused

CDK_JSON = """{
  "app": "python app.py",
  "context": {
    "trainingRoleArns": ["arn:one", "arn:two"],
    "pageEmail": "",
    "policiesFolder": "policies"
  }
}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "cdk.json"
    path.write_text(CDK_JSON)
    return path


def test_the_address_is_written_where_the_next_deployment_looks(file):
    """One value changes; every other character of the file stays, and so do people's comments on it in git."""
    choices.remember("on-call@example.com", file)
    assert file.read_text() == CDK_JSON.replace('"pageEmail": ""', '"pageEmail": "on-call@example.com"')
    assert read_choices(file)["pageEmail"] == "on-call@example.com"


def test_an_address_is_checked_before_it_is_written():
    choices.check("on-call@example.com")
    for wrong in ("on-call", "a@b", "two@example.com, three@example.com"):
        with pytest.raises(typer.Exit):
            choices.check(wrong)


def test_a_choice_that_does_not_exist_is_refused(file, capsys):
    """A mistyped name is not silently without effect."""
    assert choices.read(["pageEmail=a@example.com", "trainingRoleArns=arn:a,arn:b"], file) == {
        "pageEmail": "a@example.com",
        "trainingRoleArns": "arn:a,arn:b",
    }
    for wrong, problem in (("pageMail=a@example.com", "it is not a choice"), ("pageEmail", "there is no value")):
        with pytest.raises(typer.Exit):
            choices.read([wrong], file)
        assert problem in capsys.readouterr().err


def test_who_may_only_assume_the_roles_of_the_bootstrap_can_deploy(monkeypatch):
    """Where a role is refused, or not there yet, the caller's own permissions count."""
    made = {}

    class Sts:
        def assume_role(self, RoleArn, RoleSessionName):
            if RoleArn not in made:
                raise refused("AccessDenied")
            return {"Credentials": {"AccessKeyId": RoleArn, "SecretAccessKey": "s", "SessionToken": "t"}}

    monkeypatch.setattr(target, "client", lambda service: Sts() if service == "sts" else f"the caller's {service}")
    here = target.Target("111122223333", "eu-west-1", "arn:aws:iam::111122223333:user/me")
    arn = "arn:aws:iam::111122223333:role/cdk-hnb659fds-lookup-role-111122223333-eu-west-1"
    assert here.client("ssm", role=target.LOOKUP_ROLE) == "the caller's ssm"
    made[arn] = True
    session = here.client("ssm", role=target.LOOKUP_ROLE)
    assert session._request_signer._credentials.access_key == arn
    assert here.client("sqs") == "the caller's sqs"


def test_a_bootstrap_with_a_qualifier_of_its_own_is_found_and_made(tmp_path, monkeypatch):
    """As CDK's own context value says, in every name; it gets a stack beside the usual bootstrap's."""
    file = tmp_path / "cdk.json"
    file.write_text('{"context": {"@aws-cdk/core:bootstrapQualifier": "teamml"}}')
    monkeypatch.setattr(read_choices, "__defaults__", (file,))
    ran = []
    monkeypatch.setattr(cdk, "make_command", lambda *words: list(words))
    monkeypatch.setattr(cdk.subprocess, "run", lambda words, **_: ran.append(words) or SimpleNamespace(returncode=0))
    with mock_aws():
        monkeypatch.setenv("AWS_REGION", "eu-west-1")
        here = target.find(local=False, profile="", region="eu-west-1")
        assert here.read_bootstrap_version() == 0
        ssm = boto3.client("ssm", region_name="eu-west-1")
        ssm.put_parameter(Name="/cdk-bootstrap/teamml/version", Value="30", Type="String")
        assert here.read_bootstrap_version() == 30
        for role in (target.DEPLOY_ROLE, target.EXECUTION_ROLE, target.LOOKUP_ROLE):
            assert ":role/cdk-teamml-" in here.fill(role)
    cdk.bootstrap(here.account, here.region, qualifier=here.qualifier)
    assert ran[0][-4:] == ["--qualifier", "teamml", "--toolkit-stack-name", "CDKToolkit-teamml"]


@pytest.mark.slow
def test_a_bootstrap_that_does_not_end_is_an_error(monkeypatch):
    monkeypatch.setattr(cdk, "make_command", lambda *_: [sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(cdk, "BOOTSTRAP_S", 0.2)
    with pytest.raises(DeployError, match="did not end within"):
        cdk.bootstrap("123456789012", "eu-west-1")


def test_a_change_set_names_the_tags_of_the_stack():
    """CloudFormation gives them to what it creates; where there are none, those that the stack has stay."""
    with mock_aws():
        client = boto3.client("cloudformation", region_name="eu-west-1")
        asked = []
        client.meta.events.register(
            "provide-client-params.cloudformation.CreateChangeSet", lambda params, **_: asked.append(params)
        )
        for tags in ({}, {"team": "ml"}):
            formation = Formation(client, "Rerail", pause_s=0.0, tags=tags)
            formation.propose("CREATE", '{"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}}')
    assert [each.get("Tags") for each in asked] == [None, [{"Key": "team", "Value": "ml"}]]


@pytest.mark.parametrize("is_import", [False, True])
def test_the_first_step_protects_no_new_table_and_tells_nobody_that_all_is_well(is_import):
    """CloudWatch evaluates a new alarm at once, and carries out the action of the state that it finds."""
    alarm = {"AlarmActions": ["page"], "TreatMissingData": "breaching"}
    template = {
        "Resources": {
            "Runs": {"Type": "AWS::DynamoDB::Table", "Properties": {"DeletionProtectionEnabled": True}},
            "NoSweep": {"Type": "AWS::CloudWatch::Alarm", "Properties": {**alarm, "OKActions": ["page"]}},
            "Unhealthy": {"Type": "AWS::CloudWatch::CompositeAlarm", "Properties": {"OKActions": ["inform"]}},
        }
    }
    changed = make_first_template(template, is_import=is_import)["Resources"]
    assert changed["NoSweep"]["Properties"] == {"AlarmActions": ["page"], "TreatMissingData": "notBreaching"}
    assert changed["Unhealthy"]["Properties"] == {}
    assert ("DeletionProtectionEnabled" in changed["Runs"]["Properties"]) == is_import


def test_a_sweep_that_never_comes_is_waited_for_a_while():
    """Without it, the alarm on missing sweeps rightly pages."""
    times = iter(range(0, 10_000, 100))
    shown = iter([[], [{"Sum": 0.0}], [{"Sum": 1.0}]])

    def wait(answer: Callable[..., Any]) -> bool:
        cloud = Cloud({"cloudwatch.get_metric_statistics": answer})
        return wait_for_sweep(Deployed(cloud).client, pause_s=1, sleep=lambda seconds: None, clock=lambda: next(times))

    assert wait(lambda **request: {"Datapoints": next(shown)}) is True
    assert wait(lambda **request: {"Datapoints": []}) is False


def test_the_address_of_a_deployed_stack_is_found():
    """Whoever is paged today is paged after an update by somebody who does not know them."""
    topics = {
        "Page": {"Type": "AWS::SNS::Topic", "Properties": {"DisplayName": "Rerail: somebody is needed now"}},
        "Inform": {"Type": "AWS::SNS::Topic", "Properties": {"DisplayName": "Rerail: what happened"}},
    }
    subscribed = {
        f"To{topic}": {
            "Type": "AWS::SNS::Subscription",
            "Properties": {"Protocol": "email", "Endpoint": f"{topic}@example.com", "TopicArn": {"Ref": topic}},
        }
        for topic in topics
    }
    assert choices.find_page_address({"Resources": {**topics, **subscribed}}) == "Page@example.com"
    assert choices.find_page_address({"Resources": topics}) == ""
    assert choices.find_page_address(None) == ""


def test_the_real_cdk_json_has_the_choice():
    """What `deploy` writes is what the stacks read."""
    assert choices.PAGE in json.loads((ROOT / "cdk.json").read_text())["context"]


@pytest.mark.slow
def test_npx_runs_on_the_node_that_pip_installed():
    """The scripts beside that Node cannot find npm; npx's own file can, without any Node on the PATH."""
    node, npx, *rest = cdk.make_command("diff", "Rerail")
    assert rest == ["--yes", cdk.CDK, "diff", "Rerail"]
    environment = {"PATH": os.defpath, "HOME": os.environ.get("HOME", "")}
    run = subprocess.run([node, npx, "--version"], env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip().split(".")[0].isdigit()


def test_the_makefile_deploys_by_the_command():
    """`make deploy` asks what `rerail deploy` asks, and no Makefile carries a path to npx."""
    lines = (ROOT / "Makefile").read_text()
    assert "$(BIN)/rerail deploy $(ARGS)" in lines
    assert "$(BIN)/rerail destroy $(ARGS)" in lines
    assert "npx" not in lines


@pytest.fixture
def unchosen(tmp_path, monkeypatch):
    """A cdk.json as it is delivered: it names neither roles nor buckets."""
    file = tmp_path / "cdk.json"
    file.write_text('{"context": {"trainingRoleArns": [], "checkpointBuckets": [], "pageEmail": ""}}')
    monkeypatch.setattr(read_choices, "__defaults__", (file,))
    monkeypatch.setattr(choices.remember, "__defaults__", (file,))
    return file


class BootstrapOfOld:
    """A target whose roles may do what those of the CDK's bootstrap, version 6, may."""

    account, region, name, who, profile, is_local = "111122223333", "eu-west-1", "an account", "ada", "", False
    DEPLOY = ("DescribeStacks", "GetTemplate")  # of what `destroy` calls before it asks

    def client(self, service, *, role=""):
        made = boto3.client(service, region_name=self.region)

        def check(model, **_):
            assert role == target.LOOKUP_ROLE or model.name in self.DEPLOY, f"{role} may not {model.name}"

        made.meta.events.register(f"before-call.{service}", check)
        return made

    def may_act_as(self, role):
        return True

    def fill(self, text):
        return text


@mock_aws
def test_destroy_lists_what_stays_with_an_old_bootstrap(capsys):
    """Its deploy role may not list a stack's resources; the lookup role may."""
    topic = {"Type": "AWS::SNS::Topic", "DeletionPolicy": "Retain", "Properties": {"TopicName": "pages"}}
    template = json.dumps({"Resources": {"Pages": topic}})
    boto3.client("cloudformation", region_name="eu-west-1").create_stack(StackName="Rerail", TemplateBody=template)
    with pytest.raises(typer.Exit):
        _Removal(BootstrapOfOld(), as_json=False).run(confirm="another", force=False)
    said = capsys.readouterr()
    assert "SNS Topic: arn:aws:sns:eu-west-1:" in said.out and "the name was not given" in said.err


class TaggedJobs:
    """A target whose account has jobs with the tag, one of them with checkpoints, and two that name all buckets."""

    account, is_local = "111122223333", False
    jobs = (
        {"RoleArn": "arn:aws:iam::111122223333:role/train", "CheckpointConfig": {"S3Uri": "s3://weights/gpt/"}},
        {"RoleArn": "arn:aws:iam::111122223333:role/train", "CheckpointConfig": {"S3Uri": "s3://a,*/gpt/"}},
        {"RoleArn": "arn:aws:iam::*:role/*", "Environment": {"RERAIL_CHECKPOINTS": "s3://*/gpt/"}},
        {},
    )

    def client(self, service, *, role):
        assert (service, role) == ("sagemaker", target.LOOKUP_ROLE)
        return self

    def search(self, **asked):
        assert asked["SearchExpression"] == {"Filters": [{"Name": "Tags.rerail:policy", "Operator": "Exists"}]}
        return {"Results": [{"TrainingJob": job} for job in self.jobs]}


@pytest.mark.threat("T21")
def test_a_deployment_without_a_terminal_names_what_tagged_jobs_use(unchosen, capsys):
    """No role or bucket was confirmed, so nothing is deployed; the error has the values."""
    deployment = _Deployment(TaggedJobs(), as_json=False, yes=True, plan=False)
    with pytest.raises(typer.Exit):
        deployment._choose_scope({})
    assert "trainingRoleArns is not set" in (said := " ".join(capsys.readouterr().err.split()))
    assert "-c trainingRoleArns=arn:aws:iam::111122223333:role/train, which your tagged jobs use" in said


@pytest.mark.threat("T21")
def test_an_empty_choice_does_not_make_a_deployment_an_observer(unchosen, capsys):
    """It wins over cdk.json, and is refused as a missing one is."""
    unchosen.write_text('{"context": {"trainingRoleArns": ["arn:train"], "checkpointBuckets": ["weights"]}}')
    with pytest.raises(typer.Exit):
        _Deployment(TaggedJobs(), as_json=False, yes=True, plan=False)._choose_scope({"trainingRoleArns": ""})
    assert "trainingRoleArns is not set" in capsys.readouterr().err


def test_a_deployment_on_this_machine_keeps_the_folders_of_local_up(unchosen, monkeypatch):
    """Without them a later rollback would hold the run; what is given with -c wins."""
    monkeypatch.setattr(TaggedJobs, "is_local", True)
    deployment = _Deployment(TaggedJobs(), as_json=False, yes=True, plan=False)
    for given, folders in (({}, LOCAL_CHOICES["quarantineFolders"]), ({"quarantineFolders": "{}"}, "{}")):
        deployment._choose_scope(context := dict(given))
        assert context["quarantineFolders"] == folders and context["checkpointBuckets"] == ["*sagemaker*"]


@pytest.mark.threat("T21")
def test_a_deployment_asks_for_roles_and_buckets_and_remembers_them(unchosen, monkeypatch):
    """The proposal is what jobs with the tag use; what is confirmed is written down."""
    deployment = _Deployment(TaggedJobs(), as_json=False, yes=False, plan=False)
    deployment.asks, context = True, {}
    monkeypatch.setattr(typer, "prompt", lambda question, default: default)
    deployment._choose_scope(context)
    expected = {"trainingRoleArns": ["arn:aws:iam::111122223333:role/train"], "checkpointBuckets": ["weights"]}
    assert context == expected
    assert json.loads(unchosen.read_text())["context"] == expected | {"pageEmail": ""}
    deployment._choose_scope(again := {})
    assert again == {}
