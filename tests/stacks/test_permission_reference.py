"""The permissions of the template as AWS's service authorization reference knows them, and the calls that use them."""

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from stacks.parts.functions import NETWORK
from tests.house.sources import ROOT, imports
from tests.iam.grants import Grant, Granted
from tests.iam.reference import objections
from tests.iam.sites import sites

# Permissions that no call shows to be needed, and are kept: the DynamoDB manual names these as the minimum for a table
# under a customer's key. They are limited to use through DynamoDB.
TABLE_KEY_ACTIONS = {
    "kms:DescribeKey",
    "kms:Encrypt",
    "kms:GenerateDataKey",
    "kms:GenerateDataKeyWithoutPlaintext",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
}
# What the operations of boto3 are authorized as, where it is no action of the same name.
AUTHORIZED_AS = {
    "s3:list_objects_v2": {"s3:ListBucket"},
    "s3:get_object": {"s3:GetObject", "s3:ListBucket"},
    "s3:head_object": {"s3:GetObject", "s3:ListBucket"},
    "s3:generate_presigned_url": {"s3:GetObject"},
    "s3:copy_object": {"s3:GetObject", "s3:PutObject"},
    "dynamodb:transact_write_items": {"dynamodb:PutItem"},
    "sagemaker:create_training_job": {"sagemaker:CreateTrainingJob", "sagemaker:AddTags", "iam:PassRole"},
    "lambda:invoke": {"lambda:InvokeFunction"},
    "sqs:send_message_batch": {"sqs:SendMessage"},
}


@pytest.fixture(scope="module")
def granted(template) -> Granted:
    return Granted(template.body)


def test_aws_knows_every_action_resource_and_condition(templates):
    """Of roles, buckets, queues, topics and keys, and who may assume a role: an unknown one changes nothing."""
    kinds = Counter()
    found = []
    for name, template in templates.items():
        granted = Granted(template.body)
        for id, statement in template.statements():
            kinds[template.resources[id]["Type"]] += 1
            found += [(name, id, word) for word in objections(granted.value(statement))]
        for id, permission in template.of("Lambda::Permission").items():
            arn = granted.value(permission["FunctionName"])
            found += [(name, id, word) for word in objections(permission | {"Resource": arn})]
    # Lambda tries these itself when a function is made, and AWS's own policy names no resource for them.
    assert [each for each in found if not each[2].startswith(NETWORK)] == []
    by_resource = {"AWS::S3::BucketPolicy", "AWS::SQS::QueuePolicy", "AWS::SNS::TopicPolicy", "AWS::KMS::Key"}
    assert {*by_resource, "AWS::IAM::Role", "AWS::IAM::Policy"} <= set(kinds)


def test_every_permission_has_a_call_in_the_code_or_a_part_of_the_template_that_needs_it(granted):
    """A function's permissions are used by calls in the adapters that it imports, or by its place in the template."""
    wired = list(granted.wired())
    unneeded = [
        (grant.who, grant.action, grant.on)
        for grant in granted.grants
        if not any(wire.who == grant.who and grant.covers(wire.need) for wire in wired)
        and grant.action not in actions_of(grant.who)
        and not (grant.action in ("kms:Decrypt", "kms:GenerateDataKey") and "kms:ViaService" in grant.where)
        and not is_kept(grant)
    ]
    assert unneeded == []


def is_kept(grant: Grant) -> bool:
    """Return whether the permission is kept although no call shows that it is needed: no local job has a plan."""
    if "training-plan" in grant.on or "reserved-capacity" in grant.on:
        return True
    return grant.action in TABLE_KEY_ACTIONS and "dynamodb" in f"{grant.on} {grant.where}"


def test_functions_call_different_services():
    """The check above can fail: another function's call does not justify a permission."""
    assert "sagemaker:CreateTrainingJob" in actions_of("supervise") - actions_of("notify")
    assert "sns:Publish" in actions_of("notify") - actions_of("supervise")
    assert actions_of("nothing") == set()


@cache
def actions_of(function: str) -> set[str]:
    """Return the actions of the calls in the adapters that a function imports, directly or through other modules."""
    adapters = {path.stem for path in imported_by(ROOT / "lambdas" / f"{function}.py") if path.parent.name == "aws"}
    return {
        action
        for site in sites()
        if site.module in adapters
        for action in AUTHORIZED_AS.get(
            f"{site.service}:{site.method}", {f"{site.service}:{site.method.title().replace('_', '')}"}
        )
    }


def imported_by(path: Path) -> set[Path]:
    """Return the modules below lambdas/ that this one imports, and those that they import."""
    found: set[Path] = set()
    pending = [path] if path.exists() else []
    while pending:
        module = pending.pop()
        found.add(module)
        for name in imports(module):
            target = ROOT / "lambdas" / Path(*name.split("."))
            files = (target.with_suffix(".py"), target / "__init__.py")
            pending += [file for file in files if file.exists() and file not in found]
    return found


def test_what_the_template_asks_of_aws_itself_is_allowed(granted):
    """Logs, traces, feeding from queues, dead letters, rules, the schedule, alarms: with the customer's key."""
    refused = [wire for wire in granted.wired() if granted.decision(wire.who, wire.need) != "Allow"]
    assert refused == []
