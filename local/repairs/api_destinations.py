"""Create API destinations of templates, and deliver to them as EventBridge does, with retries and dead letters.

MiniStack serves connections and API destinations through its API, and makes the requests as AWS does (headers, body
parameters, five seconds to answer). It refuses both in a template, tries once and drops what was not accepted. AWS
tries again after 401, 407, 409, 429, 5xx and without an answer, with growing delays. It ends at
MaximumEventAgeInSeconds or MaximumRetryAttempts of the rule's target. Then, or at once after any other answer, the
event goes to the target's dead-letter queue. Facts: EventBridge user guide, "API destinations", "Retrying events" and
"Using dead-letter queues".

Nothing leaves this machine: a request to another host is logged and dropped. A test moves a destination here with
UpdateApiDestination. Rate limits are not enforced.
"""

import copy
import json
import logging
import threading
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ministack.core.arn import parse_arn
from ministack.core.responses import get_account_id, get_region, request_scope
from ministack.services import eventbridge, sqs
from ministack.services.cloudformation import provisioners

HERE = ("127.0.0.1", "localhost", "::1")
AGAIN = frozenset({401, 407, 409, 429})
FIRST_DELAY_S, LONGEST_DELAY_S = 1.0, 60.0
DEFAULT_AGE_S, DEFAULT_RETRIES = 86400, 185

logger = logging.getLogger("local.api_destinations")
Properties = dict[str, Any]


@dataclass
class DestinationRequest:
    """An event on its way to a destination: the request of each attempt, and the retry settings of the target."""

    name: str
    payload: str
    parameters: Properties
    rule_arn: str
    target_arn: str
    dead_letters: str
    max_age_s: float
    max_retries: int
    account: str
    region: str


def apply(retry_scale: float) -> None:
    for kind, make, change, end in (
        ("Connection", eventbridge._create_connection, eventbridge._update_connection, eventbridge._delete_connection),
        (
            "ApiDestination",
            eventbridge._create_api_destination,
            eventbridge._update_api_destination,
            eventbridge._delete_api_destination,
        ),
    ):
        provisioners._RESOURCE_HANDLERS[f"AWS::Events::{kind}"] = _handlers(f"{kind}Arn", make, change, end)
    stock = eventbridge._invoke_target

    def invoke(target: Properties, event: Properties, rule: Properties, view: Any = None) -> None:
        stock({**target, "_RuleArn": rule.get("Arn", "")}, event, rule, view)

    def dispatch(spec: Any, payload: str, target: Properties) -> None:
        policy = target.get("RetryPolicy") or {}
        delivery = DestinationRequest(
            name=spec.resource.split("/", 2)[1],
            payload=payload,
            parameters=target.get("HttpParameters") or {},
            rule_arn=target.get("_RuleArn", ""),
            target_arn=target["Arn"],
            dead_letters=(target.get("DeadLetterConfig") or {}).get("Arn", ""),
            max_age_s=float(policy.get("MaximumEventAgeInSeconds", DEFAULT_AGE_S)),
            max_retries=int(policy.get("MaximumRetryAttempts", DEFAULT_RETRIES)),
            account=get_account_id(),
            region=get_region(),
        )
        threading.Thread(target=deliver, args=(delivery, retry_scale), name="api-destination", daemon=True).start()

    eventbridge._invoke_target = invoke
    eventbridge._dispatch_to_api_destination = dispatch


def _handlers(
    arn: str, make: Callable[..., Any], change: Callable[..., Any], end: Callable[..., Any]
) -> dict[str, Callable[..., Any]]:
    """Return the handlers that make the template's resource with the API."""

    def create(logical_id: str, properties: Properties, stack: str) -> tuple[str, Properties]:
        name = properties.get("Name") or provisioners._physical_name(stack, logical_id, max_len=64)
        return name, _attributes(make({**properties, "Name": name}), arn)

    def update(physical_id: str, old: Properties, new: Properties, stack: str) -> tuple[str, Properties]:
        return physical_id, _attributes(change({**new, "Name": physical_id}), arn)

    def delete(physical_id: str, properties: Properties) -> None:
        end({"Name": physical_id})

    return {"create": create, "update": update, "delete": delete}


def _attributes(answer: Any, arn: str) -> Properties:
    status, _, body = answer
    table = json.loads(body)
    if status >= 400:
        raise ValueError(table.get("message") or table.get("Message") or str(table))
    return {"Arn": table[arn], "ArnForPolicy": table[arn]}


def deliver(delivery: DestinationRequest, retry_scale: float) -> None:
    """Try until it is taken, refused or too old; runs in a thread of its own."""
    began, delayed_s, delay_s, tries = time.monotonic(), 0.0, FIRST_DELAY_S, 0
    while True:
        with request_scope(delivery.account, delivery.region):
            status, error = attempt(delivery)
            if status is not None and 200 <= status < 300:
                logger.info("%s took an event after %d tries", delivery.name, tries + 1)
                return
            if status is not None and status not in AGAIN and status < 500:
                bury(delivery, "SDK_CLIENT_ERROR", error, "", tries)
                return
            # Only delays pass faster than on AWS: a receiver's seconds are real.
            age_s = time.monotonic() - began + delayed_s
            exhausted = ""
            if tries >= delivery.max_retries:
                exhausted = "MaximumRetryAttempts"
            elif age_s + delay_s > delivery.max_age_s:
                exhausted = "MaximumEventAgeInSeconds"
            if exhausted:
                bury(delivery, "ERROR_FROM_TARGET" if status else "CONNECTION_FAILURE", error, exhausted, tries)
                return
        time.sleep(delay_s / retry_scale)
        delayed_s += delay_s
        tries, delay_s = tries + 1, min(2 * delay_s, LONGEST_DELAY_S)


def attempt(delivery: DestinationRequest) -> tuple[int | None, str]:
    """Return the status of the response, None without a response, and the error text."""
    destination = eventbridge._api_destinations.get(delivery.name)
    connection = destination and eventbridge._connections.get(destination["ConnectionArn"].rpartition("/")[2])
    if not destination or not connection:
        return 404, "The API destination or its connection does not exist."
    if urllib.parse.urlsplit(destination["InvocationEndpoint"]).hostname not in HERE:
        logger.info("not sent to %s, since nothing leaves this machine", destination["InvocationEndpoint"])
        return 200, ""
    request = eventbridge._build_api_destination_request(destination, connection, delivery.parameters, delivery.payload)
    token_key = (delivery.account, delivery.region, connection["Name"])
    try:
        headers = eventbridge._connection_auth_headers(copy.deepcopy(connection), token_key)
        status: int = eventbridge._api_destination_send_sync(request, headers)
    except OSError as error:
        return None, str(error)
    return status, f"The target answered {status}."


def bury(delivery: DestinationRequest, code: str, message: str, exhausted: str, retries: int) -> None:
    """Lay what the target would have been sent into its dead-letter queue, without what the connection adds."""
    queue = sqs._queue_by_arn(delivery.dead_letters) if delivery.dead_letters else None
    if queue is None:
        logger.warning("%s has no dead-letter queue: event lost (%s)", parse_arn(delivery.target_arn).resource, message)
        return
    facts = {
        "RULE_ARN": delivery.rule_arn,
        "TARGET_ARN": delivery.target_arn,
        "ERROR_CODE": code,
        "ERROR_MESSAGE": message,
        "EXHAUSTED_RETRY_CONDITION": exhausted,
        "RETRY_ATTEMPTS": str(retries),
    }
    attributes = {name: {"DataType": "String", "StringValue": value} for name, value in facts.items() if value}
    sqs._act_send_message({"MessageBody": delivery.payload, "MessageAttributes": attributes}, queue["url"])
