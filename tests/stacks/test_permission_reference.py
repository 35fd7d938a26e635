"""The permissions of the template as AWS's service authorization reference knows them, and the calls that use them."""

import re
from collections import Counter

import pytest

from stacks.parts.functions import NETWORK
from tests.house.sources import ROOT
from tests.iam.grants import Granted
from tests.iam.reference import objections, statement_objections

ACCOUNT, REGION = "000000000000", "us-east-1"
# Actions that belong to a method of another name.
OF_OTHER_METHODS = {
    "lambda:InvokeFunction",
    *("s3:ListBucket", "s3:GetObjectTagging", "s3:PutObjectTagging", "sagemaker:AddTags", "iam:PassRole"),
}


@pytest.fixture(scope="module")
def granted(template) -> Granted:
    return Granted(template.body, account=ACCOUNT, region=REGION, names={})


@pytest.fixture(scope="module")
def all_granted(templates) -> dict[str, Granted]:
    return {
        name: Granted(template.body, account=ACCOUNT, region=REGION, names={}) for name, template in templates.items()
    }


def test_aws_knows_every_action_resource_and_condition(all_granted):
    """An action that does not exist, a resource or a condition that it does not take, would allow nothing."""
    assert sum(len(granted.grants) for granted in all_granted.values()) > 500
    assert [
        (name, grant.who, grant.action, grant.on, word)
        for name, granted in all_granted.items()
        for grant in granted.grants
        for word in objections(grant)
        # Lambda tries these itself when a function is made, and AWS's own policy names no resource for them.
        if grant.action not in NETWORK
    ] == []


def test_aws_knows_the_statements_of_every_resource_policy(templates, all_granted):
    """Refusals too, of buckets, queues, topics and keys, and who may assume a role: an unknown one refuses nothing."""
    kinds = Counter()
    found = []
    for name, template in templates.items():
        for id, statement in template.statements():
            kinds[template.resources[id]["Type"]] += 1
            read = all_granted[name].value(statement)
            found += [(name, id, word) for word in statement_objections(read)]
        for id, permission in template.of("Lambda::Permission").items():
            arn = all_granted[name].value(permission["FunctionName"])
            found += [(name, id, word) for word in statement_objections(permission | {"Resource": arn})]
    assert found == []
    by_resource = {"AWS::S3::BucketPolicy", "AWS::SQS::QueuePolicy", "AWS::SNS::TopicPolicy", "AWS::KMS::Key"}
    assert {*by_resource, "AWS::IAM::Role", "AWS::IAM::Policy"} <= set(kinds)


def has_use(action: str) -> bool:
    """Return whether an adapter names the method of this action; keys are used through other services."""
    service, _, name = action.partition(":")
    method = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    texts = (path.read_text() for path in (ROOT / "lambdas" / "rerail" / "aws").glob("*.py"))
    return service == "kms" or action in OF_OTHER_METHODS or any(method in text for text in texts)


def test_every_permission_has_a_method_in_the_adapters(granted):
    """Or is for a connection in the template. Whether the right function calls the method is not compared."""
    place = granted.place(lambda arn: {}, {})
    wired = list(granted.wired(place))
    assert [
        (grant.who, grant.action)
        for grant in granted.grants
        if not has_use(grant.action)
        and not any(wire.who == grant.who and grant.covers(wire.need, place) for wire in wired)
    ] == []
    assert not has_use("sqs:PurgeQueue")


def test_what_the_template_asks_of_aws_itself_is_allowed(granted):
    """Logs, traces, feeding from queues, dead letters, rules, the schedule, alarms: with the customer's key."""
    place = granted.place(lambda arn: {}, {})
    refused = [wire for wire in granted.wired(place) if granted.decision(wire.who, wire.need, place) != "Allow"]
    assert refused == []
