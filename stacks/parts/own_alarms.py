"""Rerail's own alarms for receivers outside of AWS: by CloudWatch and the default bus, with no code of ours between.

So users of PagerDuty or a webhook alone are also notified that Rerail itself is unhealthy, or that the other receiver
cannot be reached. CloudWatch guarantees these events."""

import json
from collections.abc import Mapping
from typing import Any

from aws_cdk import Aws
from aws_cdk import aws_events as events

from stacks.parts.receiver import ReceiverRule

# EventBridge puts texts in as they are, and anyone who may create alarms can give one a name like ours. These could end
# a text of the template, and so resolve a page. Our texts and CloudWatch's reasons have none.
PLAIN = [{"anything-but": {"wildcard": ['*"*', "*\\\\*", "*\n*"]}}]
PATHS = {
    "name": "$.detail.alarmName",
    "says": "$.detail.configuration.description",
    "reason": "$.detail.state.reason",
    "at": "$.time",
}


def forward_own_alarms(receiver: ReceiverRule, *, begun: Mapping[str, Any], over: Mapping[str, Any]) -> None:
    """Send these when an alarm of this stack goes off, and when it is over; `<name>` and the like are filled in."""
    # Of all alarms that CloudFormation has named. A StackSet gives the stacks of its accounts other names.
    prefix = f"{Aws.STACK_NAME}-"
    for id, states, body in (
        ("AlarmBegun", {"state": {"value": ["ALARM"], "reason": PLAIN}}, begun),
        ("AlarmOver", {"state": {"value": ["OK"], "reason": PLAIN}, "previousState": {"value": ["ALARM"]}}, over),
    ):
        receiver.add_rule(
            id,
            pattern={
                "account": [Aws.ACCOUNT_ID],
                "source": ["aws.cloudwatch"],
                "detail-type": ["CloudWatch Alarm State Change"],
                "resources": PLAIN,  # the ARN, which has the name
                "detail": {"alarmName": [{"prefix": prefix}], "configuration": {"description": PLAIN}, **states},
            },
            description="Rerail: its own alarms",
            input_transformer=events.CfnRule.InputTransformerProperty(
                input_template=json.dumps(body), input_paths_map=PATHS
            ),
        )
