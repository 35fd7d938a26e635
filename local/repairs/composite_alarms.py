"""Accept composite alarms in templates, and send their notifications as CloudWatch does.

MiniStack has PutCompositeAlarm, evaluates the rule whenever an alarm in it changes, and does the actions. Its
CloudFormation does not know AWS::CloudWatch::CompositeAlarm and refuses the whole stack. Its message to a topic has the
fields of a metric alarm; CloudWatch's message has the rule and the children that are in that state. Facts:
CloudFormation reference, "AWS::CloudWatch::CompositeAlarm"; CloudWatch user guide, "Create a composite alarm".
"""

import json
import time
from typing import Any

from ministack.core.responses import get_account_id, get_region
from ministack.services import cloudwatch, sns
from ministack.services.cloudformation import provisioners

KIND = "AWS::CloudWatch::CompositeAlarm"
KEPT = ("AlarmName", "AlarmRule", "AlarmDescription", "AlarmActions", "OKActions", "InsufficientDataActions")
ACTIONS = {"ALARM": "AlarmActions", "OK": "OKActions", "INSUFFICIENT_DATA": "InsufficientDataActions"}
Properties = dict[str, Any]


def apply() -> None:
    provisioners._RESOURCE_HANDLERS[KIND] = {"create": create, "update": update, "delete": delete}
    stock = cloudwatch._dispatch_alarm_actions

    def act(alarm: Properties, old_state: str, new_state: str, reason: str) -> None:
        if "AlarmRule" in alarm:
            _act(alarm, old_state, new_state, reason)
        else:
            stock(alarm, old_state, new_state, reason)

    cloudwatch._dispatch_alarm_actions = act


def create(logical_id: str, properties: Properties, stack: str) -> tuple[str, Properties]:
    """Return the alarm's name and attributes; as on AWS, refuse a rule that names an unknown alarm."""
    name = properties.get("AlarmName") or f"{stack}-{logical_id}"
    request = {key: properties[key] for key in KEPT if key in properties} | {"AlarmName": name}
    status, _, body = cloudwatch._put_composite_alarm(request, request, is_cbor=False, is_json=True)
    if status != 200:
        raise ValueError(json.loads(body).get("message", "the composite alarm is refused"))
    return name, {"Arn": cloudwatch._composite_alarms[name]["AlarmArn"]}


def update(name: str, old: Properties, new: Properties, stack: str, *context: Any) -> tuple[str, Properties]:
    """Update the alarm's rule; replace the alarm if its name has changed."""
    made, attributes = create(name.removeprefix(f"{stack}-"), {"AlarmName": name, **new}, stack)
    if made != name:
        delete(name, old)
    return made, attributes


def delete(name: str, properties: Properties, *context: Any) -> None:
    cloudwatch._composite_alarms.pop(name, None)
    cloudwatch._composite_triggers.pop(name, None)


def _act(alarm: Properties, old_state: str, new_state: str, reason: str) -> None:
    if not alarm.get("ActionsEnabled", True):
        return
    name, region = alarm["AlarmName"], get_region()
    children = [cloudwatch._alarms.get(child) or {} for child in cloudwatch._matching_children(alarm, new_state)]
    message = {
        "AlarmName": name,
        "AlarmDescription": alarm.get("AlarmDescription", ""),
        "AWSAccountId": get_account_id(),
        "NewStateValue": new_state,
        "NewStateReason": reason,
        "StateChangeTime": time.strftime("%Y-%m-%dT%H:%M:%S.000+0000", time.gmtime()),
        "Region": region,
        "AlarmArn": alarm["AlarmArn"],
        "OldStateValue": old_state,
        "AlarmRule": alarm["AlarmRule"],
        "TriggeringChildren": [
            {"Arn": child["AlarmArn"], "State": {"Value": child["StateValue"]}} for child in children if child
        ],
    }
    for topic in alarm.get(ACTIONS[new_state]) or []:
        sns._fanout(topic, cloudwatch.new_uuid(), json.dumps(message), f'{new_state}: "{name}" in {region}'[:100])
