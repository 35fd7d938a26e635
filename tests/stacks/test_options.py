"""The context is checked before anything is built from it."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stacks import ROOT
from stacks.options import NAMES, ORGANIZATION, BadOption, DeploymentOptions, Organization, refuse_misspelt
from tests.examples import count_examples

GOOD = {
    "trainingRoleArns": ["arn:${AWS::Partition}:iam::${AWS::AccountId}:role/train"],
    "checkpointBuckets": ["weights"],
    "checkpointKeyArns": [],
    "logRetentionDays": 90,
    "pageEmail": "",
    "informEmail": "",
    "policiesFolder": "policies",
}


class Context:
    """Stands in for a construct's node."""

    def __init__(self, **values):
        self.values = GOOD | values

    def try_get_context(self, name):
        return self.values.get(name)


def test_pseudo_parameters_become_tokens():
    """`${AWS::AccountId}` in an ARN is the account that the stack is deployed to."""
    (arn,) = DeploymentOptions.from_context(Context()).training_role_arns
    assert "${AWS::" not in arn
    assert arn.endswith(":role/train")


@pytest.mark.threat("T21")
@pytest.mark.parametrize("empty", [[], None, ""])
@pytest.mark.parametrize("name", ["trainingRoleArns", "checkpointBuckets"])
def test_roles_and_buckets_have_no_default(name, empty):
    """A wide default would be every account's: without one of the two, neither grants anything."""
    assert json.loads((ROOT / "cdk.json").read_text())["context"][name] == []
    options = DeploymentOptions.from_context(Context(**{name: empty}))
    assert options.observe_only == f"{name} is not set"
    assert not options.training_role_arns and not options.checkpoint_buckets


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("trainingRoleArns", ["train"]),
        ("trainingRoleArns", ["arn:aws:iam::1234:role/train"]),
        ("checkpointBuckets", [7]),
        ("checkpointBuckets", ","),
        ("checkpointBuckets", ["s3://weights"]),
        ("checkpointBuckets", ["weights/prefix"]),
        ("checkpointKeyArns", "alias/weights"),
        ("checkpointKeyArns", "arn:aws:kms:eu-west-1:111122223333:alias/weights"),
        ("asideBuckets", ["weights"]),
        ("quarantineFolders", ["weights"]),
        ("quarantineFolders", "weights"),
        ("quarantineFolders", {"arn:aws:iam::111122223333:role/*": ["s3://weights/a/"]}),
        ("quarantineFolders", {"arn:aws:iam::1234:role/train": ["s3://weights/a/"]}),
        ("quarantineFolders", {"arn:aws:iam::111122223333:role/train": "s3://weights/a/"}),
        ("quarantineFolders", {"arn:aws:iam::111122223333:role/train": ["s3://weights/*/"]}),
        ("quarantineFolders", {"arn:aws:iam::111122223333:role/train": ["s3://weights/${aws:username}/"]}),
        ("quarantineFolders", {"arn:aws:iam::111122223333:role/train": ["s3://weights/a/../b/"]}),
        ("quarantineFolders", {"arn:aws:iam::111122223333:role/train": ["weights"]}),
        ("quarantineFolders", {"arn:aws:iam::111122223333:role/train": [f"s3://weights/{n}/" for n in range(99)]}),
        ("quarantineFolders", {"arn:aws:iam::111122223333:role/train": [f"s3://weights/{n:0999}/" for n in range(4)]}),
        ("logRetentionDays", 91),
        ("logRetentionDays", "for ever"),
        ("pageEmail", ["a@example.com"]),
        ("pageEmail", "on-call"),
        ("informEmail", "a@example.com, b@example.com"),
        ("chat", "yes"),
        ("chat", 1),
        ("pagerDutySecret", "Bearer of secrets"),
        ("pagerDutySecret", "0123456789abcdef0123456789abcdef"),
        ("pagerDutySecret", "arn:aws:ssm:eu-west-1:111122223333:parameter/pager"),
        ("pagerDutyUrl", "http://events.pagerduty.com/v2/enqueue"),
        ("webhookUrl", "http://hooks.example.com"),
        ("webhookUrl", "https://hooks.example.com/a b"),
        ("webhookUrl", 7),
        ("docsUrl", "docs/"),
        ("reportLinks", "public"),
        ("sdkLayer", "perhaps"),
        ("supervisorConcurrency", 1),
        ("supervisorConcurrency", "many"),
        ("functionSubnets", ["10.0.0.0/24"]),
        ("functionSecurityGroups", ["vpc-1"]),
        ("tags", ["team"]),
        ("tags", "team=ml"),
        ("tags", {"team": 7}),
        ("tags", {"aws:team": "ml"}),
        ("tags", {"team": "m" * 257}),
        ("tags", {f"t{n}": "" for n in range(41)}),
    ],
)
def test_a_wrong_choice_is_named(name, value):
    """The error names the context value and shows what it is."""
    with pytest.raises(BadOption, match=name):
        DeploymentOptions.from_context(Context(**{name: value}))


@pytest.mark.parametrize("value", ["0123456789abcdef0123456789abcdef", "Bearer of secrets"])
def test_what_may_be_a_secret_is_not_shown(value):
    """Somebody gives the key instead of the name of the secret that holds it: the error does not repeat it."""
    with pytest.raises(BadOption) as error:
        DeploymentOptions.from_context(Context(pagerDutySecret=value))
    assert value not in str(error.value)
    assert "aws secretsmanager create-secret" in str(error.value)


PAIRS = {
    "webhookUrl": ("https://hooks.example.com", "webhookSecret"),
    "webhookSecret": ("rerail/webhook", "webhookUrl"),
    "functionSubnets": ("subnet-0a1b2c3d", "functionSecurityGroups"),
    "functionSecurityGroups": ("sg-0a1b2c3d", "functionSubnets"),
}


@pytest.mark.parametrize("given", PAIRS)
def test_one_of_a_pair_needs_the_other(given):
    """EventBridge sends nothing without an authorization, and a network is both; the error names what is lacking."""
    value, missing = PAIRS[given]
    with pytest.raises(BadOption, match=f"{given!r} is given without {missing!r}"):
        DeploymentOptions.from_context(Context(**{given: value}))


def test_an_organization_has_no_subnet_in_all_of_its_accounts():
    given = {"organizationalUnits": "r-ab12", "organizationId": "o-a1b2c3d4e5", "organizationRegions": "eu-west-1"}
    with pytest.raises(BadOption, match="functionSubnets"):
        Organization.from_context(Context(**given, functionSubnets=["subnet-0a1b2c3d"]))


def test_no_notifications_by_default():
    """Neither a chat, nor a pager, nor a webhook; reports are linked as the notices' readers can open them."""
    options = DeploymentOptions.from_context(Context())
    assert not (options.chat or options.pagerduty_secret or options.webhook_url or options.webhook_secret)
    assert (options.docs_url, options.report_links) == ("", "signed")
    assert options.pagerduty_url == "https://events.pagerduty.com/v2/enqueue"


@pytest.mark.parametrize(
    "secret", ["rerail/pagerduty", "arn:aws:secretsmanager:eu-west-1:111122223333:secret:pd-AbCdEf"]
)
@pytest.mark.parametrize(("chat", "wanted"), [(True, True), ("true", True), (False, False), ("false", False)])
def test_notification_options_are_read_as_written(secret, chat, wanted):
    """In cdk.json, or as `-c` hands them over: all text; a secret by its name or its ARN."""
    context = {"webhookUrl": "https://hooks.example.com:8443/rerail?team=ml", "webhookSecret": secret}
    context |= {"pagerDutySecret": secret, "docsUrl": "https://docs.example.com/rerail/", "reportLinks": "console"}
    options = DeploymentOptions.from_context(Context(**context, chat=chat, pageEmail="on-call@example.com"))
    assert (options.chat, options.pagerduty_secret, options.webhook_secret) == (wanted, secret, secret)
    assert options.webhook_url == "https://hooks.example.com:8443/rerail?team=ml"
    assert (options.docs_url, options.report_links) == ("https://docs.example.com/rerail", "console")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def test_a_name_that_is_nearly_an_options_is_refused():
    """Its default may allow more, such as links to reports without a console sign-in."""
    refuse_misspelt([*json.loads((ROOT / "cdk.json").read_text())["context"], "availability-zones:account=1", "team"])
    with pytest.raises(BadOption, match="context 'reportLink' is not an option; did you mean 'reportLinks'"):
        refuse_misspelt(["team", "reportLink"])


@given(st.dictionaries(st.sampled_from([*NAMES, *ORGANIZATION]), VALUES, min_size=1))
@example({"logRetentionDays": "²"})
@example({"organizationalUnits": ["r-ab12"], "organizationId": "o-a1b2c3d4e5,o-b1b2c3d4e5"})
@example({"organizationalUnits": ["r-ab12"], "organizationId": ["o-a1b2c3d4e5"], "organizationRegions": [[]]})
@settings(max_examples=count_examples(150))
def test_whatever_is_given_is_taken_or_refused_by_its_name(values):
    """One error that names the value and says how to write it; nothing else, and not a page of it."""
    for read in (DeploymentOptions.from_context, Organization.from_context):
        try:
            read(Context(**values))
        except BadOption as error:
            assert any(name in str(error) for name in (*NAMES, *ORGANIZATION))
            assert len(str(error)) < 1_000
