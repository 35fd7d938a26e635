"""What outlives a stack (runs, mail, reports, key, logs, dead letters), found again and taken up by the next one.

The stack notes the names in a parameter that stays too (stacks/parts/kept.py). Where it is missing, whatever carries a
name of its own choosing, such as the mailbox, is looked up by that name."""

import json
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from botocore.exceptions import ClientError

from cli.deploy.permissions import format_value
from cli.deploy.target import LOOKUP_ROLE, Target
from local.deploy import DeployError

# Of the parameter in stacks/parts/kept.py.
NAME = "/rerail/kept"
RETAINED = ("Retain", "RetainExceptOnCreate")
PARAMETER = "AWS::SSM::Parameter"
BUCKET_POLICY = "AWS::S3::BucketPolicy"
# How a resource that CloudFormation imports is told which one it is.
IDENTIFIERS = {
    "AWS::DynamoDB::Table": "TableName",
    "AWS::KMS::Key": "KeyId",
    "AWS::Logs::LogGroup": "LogGroupName",
    "AWS::S3::Bucket": "BucketName",
    BUCKET_POLICY: "Bucket",
    "AWS::SQS::Queue": "QueueUrl",
    PARAMETER: "Name",
}
ABSENT = (
    *("404", "NoSuchBucket", "NoSuchBucketPolicy", "NotFoundException", "ParameterNotFound"),
    *("ResourceNotFoundException", "AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"),
)
Imports = list[dict[str, Any]]


def find_retained(template: Mapping[str, Any]) -> dict[str, str]:
    """Return the type of each logical id that stays when the template's stack is deleted."""
    found = template.get("Resources", {}).items()
    return {id: resource["Type"] for id, resource in found if resource.get("DeletionPolicy") in RETAINED}


def find(target: Target, template: Mapping[str, Any]) -> dict[str, str]:
    """Return the identifier of each resource that an earlier stack has left here and this template has too."""
    noted = _noted(target)
    found = {}
    for id, kind in find_retained(template).items():
        properties = template["Resources"][id].get("Properties", {})
        if kind == BUCKET_POLICY:
            properties = template["Resources"].get(properties["Bucket"].get("Ref"), {}).get("Properties", {})
        chosen = properties.get("BucketName") or properties.get("Name")
        named = format_value(chosen).replace("<", "${").replace(">", "}") if chosen else ""
        name = noted.get(id) or target.fill(named)
        if name and kind in IDENTIFIERS and (identifier := _look_up(target, kind, name)):
            found[id] = identifier
    return found


def _noted(target: Target) -> dict[str, str]:
    try:
        names: dict[str, str] = json.loads(
            target.client("ssm", role=LOOKUP_ROLE).get_parameter(Name=NAME)["Parameter"]["Value"]
        )
    except ClientError as error:
        if error.response["Error"]["Code"] == "ParameterNotFound":
            return {}
        raise
    return names


def _look_up(target: Target, kind: str, name: str) -> str:
    """The identifier of what is there; "" where it is gone. Raises DeployError for what stands in the way."""
    try:
        return LOOK_UPS[kind](target, name)
    except ClientError as error:
        if error.response["Error"]["Code"] in ABSENT:
            return ""
        raise


def _table(target: Target, name: str) -> str:
    return str(target.client("dynamodb", role=LOOKUP_ROLE).describe_table(TableName=name)["Table"]["TableName"])


def _key(target: Target, name: str) -> str:
    key = target.client("kms", role=LOOKUP_ROLE).describe_key(KeyId=name)["KeyMetadata"]
    if key["KeyState"] == "PendingDeletion":
        remedy = f"`aws kms cancel-key-deletion --key-id {name}`, then `aws kms enable-key --key-id {name}`"
        raise DeployError(f"the key {name}, under which the kept runs lie, is about to be deleted; keep it: {remedy}")
    return str(key["KeyId"])


def _log_group(target: Target, name: str) -> str:
    groups = target.client("logs", role=LOOKUP_ROLE).describe_log_groups(logGroupNamePrefix=name)["logGroups"]
    return name if any(group["logGroupName"] == name for group in groups) else ""


def _bucket(target: Target, name: str) -> str:
    try:
        target.client("s3", role=LOOKUP_ROLE).head_bucket(Bucket=name, ExpectedBucketOwner=target.account)
    except ClientError as error:
        if error.response["Error"]["Code"] == "403":
            raise DeployError(
                f"the bucket name {name} is taken: by another account, or you lack s3:ListBucket on it. Agents and"
                " functions use no bucket of another account. Get the permission, deploy in another region, or ask AWS"
                " support for the name"
            ) from error
        raise
    return name


def _bucket_policy(target: Target, name: str) -> str:
    target.client("s3", role=LOOKUP_ROLE).get_bucket_policy(Bucket=name, ExpectedBucketOwner=target.account)
    return name


def _queue(target: Target, name: str) -> str:
    return str(target.client("sqs", role=LOOKUP_ROLE).get_queue_url(QueueName=name)["QueueUrl"])


def _parameter(target: Target, name: str) -> str:
    return str(target.client("ssm", role=LOOKUP_ROLE).get_parameter(Name=name)["Parameter"]["Name"])


LOOK_UPS: Mapping[str, Callable[[Target, str], str]] = {
    "AWS::DynamoDB::Table": _table,
    "AWS::KMS::Key": _key,
    "AWS::Logs::LogGroup": _log_group,
    "AWS::S3::Bucket": _bucket,
    BUCKET_POLICY: _bucket_policy,
    "AWS::SQS::Queue": _queue,
    PARAMETER: _parameter,
}


def make_import(template: Mapping[str, Any], found: Mapping[str, str]) -> tuple[dict[str, Any], Imports]:
    """Return the template that imports only these resources, and the list of them.

    CloudFormation imports existing resources in one step, and creates or changes others in the next.
    """
    resources = {id: deepcopy(dict(template["Resources"][id])) for id in found}
    for resource in resources.values():
        if resource["Type"] == PARAMETER:
            # It names what may be gone by now; the next step writes it anew.
            resource["Properties"]["Value"] = "{}"
        elif resource["Type"] == BUCKET_POLICY:
            # It names a role that does not exist yet. An import changes no policy, so the next step must differ.
            document = resource["Properties"]["PolicyDocument"]
            document["Id"] = "imported"
            document["Statement"] = [
                statement for statement in document["Statement"] if set(_references(statement)) <= set(resources)
            ]
    while outside := [id for id, resource in resources.items() if not set(_references(resource)) <= set(resources)]:
        for id in outside:
            del resources[id]
    listed = [
        {
            "ResourceType": resource["Type"],
            "LogicalResourceId": id,
            "ResourceIdentifier": {IDENTIFIERS[resource["Type"]]: found[id]},
        }
        for id, resource in resources.items()
    ]
    return {"Description": template.get("Description", ""), "Resources": resources}, listed


def _references(value: Any) -> Iterator[str]:
    """The logical ids that a part of a template points at, conditions and pseudo parameters aside."""
    match value:
        case {"Ref": str(name)}:
            yield from () if name.startswith("AWS::") else (name,)
        case {"Fn::GetAtt": [str(name), *_]}:
            yield name
        case dict():
            yield from (name for key, part in value.items() if key != "DependsOn" for name in _references(part))
            depends = value.get("DependsOn", [])
            yield from [depends] if isinstance(depends, str) else depends
        case list():
            yield from (name for part in value for name in _references(part))
