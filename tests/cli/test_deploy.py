"""`rerail deploy`: what it asks for and remembers, and that it finds its Node."""

import json
import os
import subprocess

import pytest
import typer

from cli.deploy import cdk, choices
from cli.place import ROOT

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
    assert choices.read_context(file)["pageEmail"] == "on-call@example.com"


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
    for wrong, problem in (("pageMail=a@example.com", "there is no such choice"), ("pageEmail", "there is no value")):
        with pytest.raises(typer.Exit):
            choices.read([wrong], file)
        assert problem in capsys.readouterr().err


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
