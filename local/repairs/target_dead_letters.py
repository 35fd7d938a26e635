"""Send an event whose rule target is gone to the target's dead-letter queue.

MiniStack ignores a target's DeadLetterConfig: an event for a deleted function, queue or topic is logged and dropped.
AWS does not retry such an error and writes the event to the dead-letter queue, with RULE_ARN, TARGET_ARN, ERROR_CODE
and ERROR_MESSAGE as attributes. Schedules of EventBridge Scheduler are dispatched the same way here.
"""

import json
import logging
from typing import Any

from ministack.core.arn import parse_arn
from ministack.services import eventbridge, lambda_svc, sns, sqs

logger = logging.getLogger("local.target_dead_letters")


def apply() -> None:
    stock = eventbridge._invoke_target

    def invoke(target: dict[str, Any], event: dict[str, Any], rule: dict[str, Any], view: Any = None) -> None:
        if exists(target["Arn"]):
            stock(target, event, rule, view)
        else:
            bury(target, event, rule, view or eventbridge._pattern_event_view(event))

    eventbridge._invoke_target = invoke


def exists(arn: str) -> bool:
    """Return whether the function, queue or topic of that ARN exists; MiniStack checks targets of other services."""
    service = parse_arn(arn).service
    if service == "lambda":
        return bool(lambda_svc._get_func_record_for_ref(arn)[0])
    if service == "sqs":
        return sqs._queue_by_arn(arn) is not None
    if service == "sns":
        return sns._topic_by_arn_any_scope(arn) is not None
    return True


def bury(target: dict[str, Any], event: dict[str, Any], rule: dict[str, Any], view: Any) -> None:
    queue = sqs._queue_by_arn((target.get("DeadLetterConfig") or {}).get("Arn", ""))
    if queue is None:
        logger.warning("rule target %s does not exist and has no dead-letter queue: event lost", target["Arn"])
        return
    facts = {
        "RULE_ARN": rule.get("Arn", ""),
        "TARGET_ARN": target["Arn"],
        "ERROR_CODE": "NO_RESOURCE",
        "ERROR_MESSAGE": "The target does not exist.",
        "RETRY_ATTEMPTS": "0",
    }
    attributes = {name: {"DataType": "String", "StringValue": value} for name, value in facts.items() if value}
    body = target.get("Input") or json.dumps(view.event_with_detail())
    sqs._act_send_message({"MessageBody": body, "MessageAttributes": attributes}, queue["url"])
