"""Refuse what the role of a function does not allow, as AWS does, by the policies of the deployed template.

MiniStack does most of it with AUTH=true: it gives a function the credentials of its role, and evaluates the policies of
the role and of the resource at each call to S3, SNS, Lambda and CloudWatch. Of the services with JSON requests it takes
the operation's name for the action, which differs for SQS, Logs and DynamoDB, and knows neither the training API, nor
partition keys, nor the customer's key behind a table or queue: for those `local/needs.py` says what a call needs. The
role's own ARN becomes `aws:PrincipalArn`, and calls count as sent over TLS, which is not used on this machine. The
account's own credentials, which people and training jobs have here, may do everything.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any

from ministack import app
from ministack.core import iam_actions, iam_evaluator, router
from ministack.services import dynamodb, sqs

from local.needs import AwsCall, CallPlace, Need, needs

logger = logging.getLogger("local.permissions")
Response = tuple[int, dict[str, str], bytes]
Handler = Callable[[str, str, dict[str, str], bytes, dict[str, Any]], Awaitable[Response]]
TagsOf = Callable[[str], Mapping[str, str]]
# What the address and the transport of every call are taken for.
OVER_TLS = ("127.0.0.1", True)
KEPT_DOCUMENTS = 500
# MiniStack's names of services with JSON requests, whose members are those of boto3.
CHECKED = ("dynamodb", "events", "kms", "logs", "sagemaker", "sqs", "ssm")


def apply(account: str, region: str, tags_of: TagsOf) -> None:
    """Check the calls; `tags_of` returns the tags of a training job by its ARN. MiniStack must have been started with
    AUTH=true, and the training API must be plugged in."""
    assert app.AUTH
    place = CallPlace(account, region, _find_key, tags_of)
    for service in CHECKED:
        iam_actions.SERVICE_TO_IAM_NAMESPACE.pop(service, None)  # MiniStack only authenticates the caller then
        app.SERVICE_HANDLERS[service] = _checked(service, app.SERVICE_HANDLERS[service], place)
    # Deliveries within the emulator have no request, and go by the default.
    iam_evaluator._request_origin = ContextVar("ministack_request_origin", default=OVER_TLS)
    app.pin_request_origin = lambda source_ip, secure_transport: iam_evaluator._request_origin.set(OVER_TLS)
    iam_actions.access_denied_response = _logged(iam_actions.access_denied_response)
    iam_evaluator._resolve_condition_key = _with_role_arn(iam_evaluator._resolve_condition_key)
    iam_evaluator.parse_policy_document = _once_each(iam_evaluator.parse_policy_document)


def _checked(service: str, handler: Handler, place: CallPlace) -> Handler:
    async def handle(method: str, path: str, headers: dict[str, str], body: bytes, query: dict[str, Any]) -> Response:
        return _refuse(service, headers, body, place) or await handler(method, path, headers, body, query)

    return handle


def _refuse(service: str, headers: dict[str, str], body: bytes, place: CallPlace) -> Response | None:
    """Return the refusal of a call that its caller may not make; None for one that it may."""
    access_key = router.extract_access_key_id(headers)
    caller = iam_evaluator.resolve_principal(access_key, place.account)
    if isinstance(caller, iam_evaluator.AuthError) or caller.policies is None:
        return None  # MiniStack has authenticated the call already; None stands for the account itself
    operation = headers.get("x-amz-target", "").rpartition(".")[2]
    try:
        needed = list(needs(AwsCall(service, operation, json.loads(body or b"{}")), place))
    except ValueError:
        needed = [Need(f"{service}:{operation}", "*")]
    for need in needed:
        action_of = need.action.partition(":")[0]
        keys = {name: list(value) if isinstance(value, tuple) else value for name, value in need.keys}
        denied = iam_evaluator.enforce(
            access_key, need.action, action_of, place.region, resource_arn=need.resource, service_context=keys
        )
        if denied:
            return _write_refusal(service, need.action, need.resource, caller.arn, headers, denied.decision == "Deny")
    return None


def _write_refusal(
    service: str, action: str, resource: str, caller: str, headers: dict[str, str], is_explicit: bool
) -> Response:
    message = iam_actions.identity_denial_message(action, caller, resource, is_explicit)
    response: Response = iam_actions.access_denied_response(
        service, action, caller, "", headers=headers, message=message, resource_arn=resource, explicit_deny=is_explicit
    )
    return response


def _find_key(arn: str) -> str:
    """Return the ARN of the customer's key of a queue or table; "" where it has none."""
    if ":sqs:" in arn:
        return str(((sqs._queue_by_arn(arn) or {}).get("attributes") or {}).get("KmsMasterKeyId", ""))
    if ":dynamodb:" in arn:
        table = dynamodb._tables.get(arn.rpartition("/")[2]) or {}
        return str((table.get("SSEDescription") or {}).get("KMSMasterKeyArn", ""))
    return ""


def _logged(stock: Callable[..., Response]) -> Callable[..., Response]:
    def respond(service: str, action: str, principal_arn: str, *rest: Any, **options: Any) -> Response:
        logger.warning("%s may not %s on %s", principal_arn, action, options.get("resource_arn") or options)
        return stock(service, action, principal_arn, *rest, **options)

    return respond


def _once_each(stock: Callable[[Any], list[Any]]) -> Callable[[Any], list[Any]]:
    """Parse each policy document once, and not at each call of a role that has it: documents are never changed."""
    parsed: dict[int, tuple[Any, list[Any]]] = {}

    def parse(document: Any) -> list[Any]:
        known = parsed.get(id(document))
        if known is None or known[0] is not document:
            if len(parsed) >= KEPT_DOCUMENTS:  # the part of a resource's policy for one caller is made for each call
                parsed.clear()
            known = parsed[id(document)] = (document, stock(document))
        return known[1]

    return parse


def _with_role_arn(stock: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    """Let `aws:PrincipalArn` be the ARN of the role, as on AWS, instead of that of its session."""

    def resolve(key: str, context: Any) -> Any:
        value = stock(key, context)
        if key.lower() == "aws:principalarn" and ":assumed-role/" in str(value):
            _, account, resource = str(value).rsplit(":", 2)
            return f"arn:aws:iam::{account}:role/{resource.split('/')[1]}"
        return value

    return resolve
