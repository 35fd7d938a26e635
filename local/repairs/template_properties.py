"""Apply the template properties that MiniStack accepts and forgets.

MiniStack's CloudFormation drops, without a word: TimeToLiveSpecification, PointInTimeRecoverySpecification and
SSESpecification of a table, DeadLetterConfig and ReservedConcurrentExecutions of a function, KmsMasterKeyId of a topic.
AWS applies each on create and on update, and takes it back when an update drops it.
"""

from collections.abc import Callable
from typing import Any

from ministack.services import dynamodb, lambda_svc, sns
from ministack.services.cloudformation import provisioners

Properties = dict[str, Any]
Complete = Callable[[str, Properties], None]


def apply() -> None:
    for kind, complete in COMPLETIONS.items():
        handler = provisioners._RESOURCE_HANDLERS[kind]
        handler["create"] = _created(handler["create"], complete)
        handler["update"] = _updated(handler["update"], complete)


def _created(stock: Callable[..., Any], complete: Complete) -> Callable[..., Any]:
    def create(logical_id: str, properties: Properties, stack: str) -> Any:
        physical_id, attributes = stock(logical_id, properties, stack)
        complete(physical_id, properties)
        return physical_id, attributes

    return create


def _updated(stock: Callable[..., Any], complete: Complete) -> Callable[..., Any]:
    def update(physical_id: str, old: Properties, new: Properties, *context: Any) -> Any:
        new_id, attributes = stock(physical_id, old, new, *context)
        complete(new_id, new)
        return new_id, attributes

    return update


def _table(name: str, properties: Properties) -> None:
    ttl = properties.get("TimeToLiveSpecification")
    if ttl:
        enabled = _true(ttl.get("Enabled", True))
        dynamodb._update_ttl({"TableName": name, "TimeToLiveSpecification": {**ttl, "Enabled": enabled}})
    else:
        dynamodb._ttl_settings.pop(name, None)
    recovery = properties.get("PointInTimeRecoverySpecification") or {}
    encryption = properties.get("SSESpecification") or {}
    if key := encryption.get("KMSMasterKeyId"):
        described = {"Status": "ENABLED", "SSEType": "KMS", "KMSMasterKeyArn": key}
        dynamodb._tables[name]["SSEDescription"] = described
    else:
        dynamodb._tables[name].pop("SSEDescription", None)
    dynamodb._pitr_settings[name] = _true(recovery.get("PointInTimeRecoveryEnabled", False))


def _function(name: str, properties: Properties) -> None:
    function = lambda_svc._functions[name]
    reserved = properties.get("ReservedConcurrentExecutions")
    function["concurrency"] = None if reserved is None else int(reserved)
    if properties.get("DeadLetterConfig"):
        function["config"]["DeadLetterConfig"] = properties["DeadLetterConfig"]
    else:
        function["config"].pop("DeadLetterConfig", None)


def _topic(arn: str, properties: Properties) -> None:
    attributes = sns._topics[arn]["attributes"]
    if properties.get("KmsMasterKeyId"):
        attributes["KmsMasterKeyId"] = properties["KmsMasterKeyId"]
    else:
        attributes.pop("KmsMasterKeyId", None)


def _true(value: Any) -> bool:
    return str(value).lower() == "true"


COMPLETIONS: dict[str, Complete] = {
    "AWS::DynamoDB::Table": _table,
    "AWS::Lambda::Function": _function,
    "AWS::SNS::Topic": _topic,
}
