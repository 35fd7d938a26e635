"""Whatever AWS answers, a command ends with one sentence, what to do, and exit status 2: never with a traceback."""

import pytest
from botocore.exceptions import (
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    ProfileNotFound,
    TokenRetrievalError,
)
from typer.testing import CliRunner

from cli import place
from cli.main import app
from cli.trouble import explain, get_permission, is_missing
from rerail.model.errors import StateUnknown
from tests.cli.cloud import Cloud, Deployed, denied, refused

NO_STACK = refused("ValidationError", "Stack with id Rerail does not exist", "DescribeStacks")
TROUBLES = {
    "no_credentials": (NoCredentialsError(), "no AWS credentials", "aws sso login"),
    "half_of_them": (PartialCredentialsError(provider="env", cred_var="key"), "incomplete", "AWS_PROFILE"),
    "expired_keys": (refused("ExpiredToken"), "have expired", "aws sso login"),
    "expired_login": (TokenRetrievalError(provider="sso", error_msg="x"), "have expired", "aws sso login"),
    "unknown_keys": (refused("InvalidClientTokenId"), "does not know your credentials", "aws sso login"),
    "wrong_signature": (refused("SignatureDoesNotMatch"), "does not know your credentials", "AWS_PROFILE"),
    "no_region": (NoRegionError(), "no AWS region", "AWS_DEFAULT_REGION"),
    "no_such_profile": (ProfileNotFound(profile="mine"), "mine", "list-profiles"),
    "no_network": (EndpointConnectionError(endpoint_url="https://x"), "cannot be reached", "network"),
    "a_network_that_hangs": (ConnectTimeoutError(endpoint_url="https://x"), "cannot be reached", "network"),
    "no_permission": (denied("cloudformation:DescribeStacks"), "may not", "ask for cloudformation:DescribeStacks"),
    "no_stack": (NO_STACK, "not deployed", "make deploy"),
    "throttled": (refused("Throttling", "Rate exceeded"), "busy", "try again"),
    "a_table_that_is_gone": (refused("ResourceNotFoundException"), "not there", "rerail doctor"),
    "anything_else": (refused("InternalError", "Something  went\nwrong"), "Something went wrong", "fix"),
}


@pytest.mark.parametrize("error, words, remedy", TROUBLES.values(), ids=list(TROUBLES))
def test_each_error_has_its_sentence_and_its_remedy(error, words, remedy):
    trouble = explain(error)
    assert words in trouble.what and remedy in trouble.remedy
    assert "\n" not in trouble.what


@pytest.mark.parametrize("error, words, remedy", TROUBLES.values(), ids=list(TROUBLES))
@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_command_ends_with_it_wherever_it_comes_from(error, words, remedy, as_json, monkeypatch):
    """Also where nobody thought of it: the error comes up from the middle of a command. stdout stays empty."""
    monkeypatch.setattr(place, "find", lambda *, local: Deployed(Cloud({"ssm.put_parameter": error})))
    answer = CliRunner().invoke(app, ["pause", *as_json])
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert words in answer.stderr and remedy in answer.stderr
    assert "Traceback" not in answer.stderr


def test_the_cores_own_errors_are_explained_by_their_cause(monkeypatch):
    """The supervisor's words for not knowing say less than AWS's own."""

    def fail(*, local: bool):
        raise StateUnknown("GetParameter: no") from denied("ssm:GetParameter")

    monkeypatch.setattr(place, "find", fail)
    answer = CliRunner().invoke(app, ["pause"])
    assert answer.exit_code == 2 and "ask for ssm:GetParameter" in answer.stderr


def test_the_stack_is_looked_for_with_one_clear_error(monkeypatch):
    cloud = Deployed(Cloud({"cloudformation.describe_stacks": NO_STACK}))
    monkeypatch.setattr(place, "client", cloud.client)
    answer = CliRunner().invoke(app, ["checkpoints", "gpt"])
    assert answer.exit_code == 2
    assert "error: cannot read the stack Rerail: Rerail is not deployed in this account and region" in answer.stderr
    assert "to do: deploy it" in answer.stderr


def test_an_error_is_no_longer_than_one_reads():
    """However long what it quotes: the remedy stands right behind it."""
    answer = CliRunner().invoke(app, ["diagnose", "--file", "x" * 3_000])
    assert answer.exit_code == 2 and len(answer.stderr) < 2_000
    assert answer.stderr.startswith("error: cannot read xxx") and "to do: give a readable" in answer.stderr


def test_a_lacking_permission_is_named_where_aws_names_it():
    assert get_permission(denied("iam:GetRole")) == "iam:GetRole"
    assert get_permission(refused("AccessDenied", operation="GetRole")) == "GetRole"
    assert is_missing(refused("NoSuchBucket")) and not is_missing(denied("s3:ListBucket"))


def test_a_stack_without_its_outputs_is_one_clear_error(monkeypatch):
    """Its creation was rolled back, or it is older than what is asked of it."""
    stack = {"Stacks": [{"StackName": "Rerail", "StackStatus": "ROLLBACK_COMPLETE"}]}
    cloud = Deployed(Cloud({"cloudformation.describe_stacks": stack}))
    monkeypatch.setattr(place, "client", cloud.client)
    for command in (["show", "gpt"], ["pause"], ["policy", "list"], ["doctor", "--run", "gpt"]):
        answer = CliRunner().invoke(app, command)
        assert (answer.exit_code, answer.stdout) == (2, "")
        assert "the stack Rerail has no output" in answer.stderr and "deploy it again" in answer.stderr
