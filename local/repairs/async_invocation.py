"""Queue asynchronous function calls as Lambda does: retries, age, dead letters, destinations, bounded workers.

MiniStack runs a rule's function once in a thread of its own: a failure is final, nothing reaches a dead-letter queue or
a destination, and an event that meets a concurrency limit is dropped. Called through the API it retries, but writes the
destination's envelope into the dead-letter queue and always counts three tries.

AWS queues the event. A throttled call waits without using up a try. A failed one is tried again, twice by default,
after one and two minutes, until MaximumEventAgeInSeconds; then the event itself goes to the DeadLetterConfig target
with RequestID, ErrorCode and ErrorMessage, and a record of the invocation to the on-failure destination.
Facts: Lambda developer guide, "How Lambda handles errors and retries with asynchronous invocation".
"""

import heapq
import itertools
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ministack.core.arn import parse_arn
from ministack.core.responses import get_account_id, get_region, new_uuid, request_scope
from ministack.services import eventbridge, lambda_svc, sns, sqs

RETRY_DELAYS_S = (60.0, 120.0)
THROTTLED_DELAY_S = 1.0
DEFAULT_AGE_S = 21600.0

logger = logging.getLogger("local.async_invocation")


@dataclass
class Invocation:
    """One accepted event on its way to a function."""

    record: dict[str, Any]
    event: Any
    account: str
    region: str
    request_id: str = field(default_factory=new_uuid)
    accepted: float = field(default_factory=time.monotonic)
    tries: int = 0
    is_first: bool = True
    # Of the delays between tries, in seconds of AWS: they pass faster here, unlike the seconds in which functions run.
    delayed_s: float = 0.0

    @property
    def age_s(self) -> float:
        """Return the event's age in seconds."""
        return time.monotonic() - self.accepted + self.delayed_s


class InvocationQueue:
    """Events that wait for their time, and the few threads that run them."""

    def __init__(self, run: Callable[[Invocation], None], workers: int) -> None:
        self._run = run
        self._waiting: list[tuple[float, int, Invocation]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        for number in range(workers):
            threading.Thread(target=self._work, name=f"async-invocation-{number}", daemon=True).start()

    def put(self, invocation: Invocation, delay_s: float = 0.0) -> None:
        with self._changed:
            heapq.heappush(self._waiting, (time.monotonic() + delay_s, next(self._order), invocation))
            self._changed.notify()

    def _next(self) -> Invocation:
        with self._changed:
            while True:
                wait_s = self._waiting[0][0] - time.monotonic() if self._waiting else None
                if wait_s is not None and wait_s <= 0:
                    return heapq.heappop(self._waiting)[2]
                self._changed.wait(wait_s)

    def _work(self) -> None:
        while True:
            invocation = self._next()
            try:
                with request_scope(invocation.account, invocation.region):
                    self._run(invocation)
            except Exception:
                logger.exception("asynchronous invocation %s was lost", invocation.request_id)


class Ongoing:
    """Count the first tries of each function that are queued or run."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, function: str, change: int) -> None:
        with self._lock:
            self._counts[function] += change

    def __contains__(self, function: object) -> bool:
        with self._lock:
            return self._counts[str(function)] > 0


ongoing = Ongoing()


def apply(retry_scale: float, workers: int) -> None:
    def run(invocation: Invocation) -> None:
        first = invocation.is_first
        invocation.is_first = False
        try:
            attempt(invocation)
        finally:
            if first:
                ongoing.add(_function_name(invocation), -1)

    def attempt(invocation: Invocation) -> None:
        result = lambda_svc._execute_function_with_config_scope(_current_record(invocation), invocation.event)
        if result.get("throttle"):
            if invocation.age_s < _settings(invocation)["MaximumEventAgeInSeconds"]:
                queue.put(invocation, THROTTLED_DELAY_S / retry_scale)
            else:
                conclude(invocation, result, "EventAgeExceeded")
            return
        invocation.tries += 1
        if not result.get("error"):
            conclude(invocation, result, "Success")
            return
        settings = _settings(invocation)
        delay_s = RETRY_DELAYS_S[min(invocation.tries, len(RETRY_DELAYS_S)) - 1]
        if invocation.tries > settings["MaximumRetryAttempts"]:
            conclude(invocation, result, "RetriesExhausted")
        elif invocation.age_s + delay_s > settings["MaximumEventAgeInSeconds"]:
            conclude(invocation, result, "EventAgeExceeded")
        else:
            invocation.delayed_s += delay_s
            queue.put(invocation, delay_s / retry_scale)

    queue = InvocationQueue(run, workers)

    def accept(record: dict[str, Any], event: Any) -> None:
        account, region = lambda_svc._account_region_from_function_config(record.get("config") or record)
        invocation = Invocation(record, event, account, region)
        ongoing.add(_function_name(invocation), 1)
        queue.put(invocation)

    def from_rule(arn: str, payload: str) -> None:
        function, config, name = lambda_svc._get_func_record_for_ref(arn)
        if not function or not config:  # target_dead_letters has dealt with it
            logger.warning("rule target %s does not exist", name)
            return
        try:
            event = json.loads(payload)
        except ValueError:
            event = payload
        accept(lambda_svc._execution_record_for_config(function, config), event)

    lambda_svc.invoke_async_with_retry = accept
    eventbridge._dispatch_to_lambda = from_rule


def _function_name(invocation: Invocation) -> str:
    name: str = (invocation.record.get("config") or invocation.record)["FunctionName"]
    return name


def _current_record(invocation: Invocation) -> dict[str, Any]:
    """Return the function as it is now: an update may have come after the event, and its layers may be gone."""
    function = lambda_svc._functions.get(_function_name(invocation))
    config = invocation.record.get("config") or invocation.record
    if function is None or config.get("Version", "$LATEST") != "$LATEST":
        return invocation.record
    current: dict[str, Any] = lambda_svc._execution_record_for_config(function, function["config"])
    return current


def _settings(invocation: Invocation) -> dict[str, Any]:
    """Return the function's EventInvokeConfig as it is now, with the defaults of AWS."""
    function = lambda_svc._functions.get(_function_name(invocation)) or invocation.record
    # The template's resource names the qualifier $LATEST, PutFunctionEventInvokeConfig usually none.
    found = (
        lambda_svc._event_invoke_config(function, None) or lambda_svc._event_invoke_config(function, "$LATEST") or {}
    )
    given = {name: value for name, value in found.items() if value is not None}
    return {"MaximumRetryAttempts": 2, "MaximumEventAgeInSeconds": DEFAULT_AGE_S} | given


def conclude(invocation: Invocation, result: dict[str, Any], condition: str) -> None:
    """Send the result to the destination, and a failed event to the dead-letter target."""
    outcome = "OnSuccess" if condition == "Success" else "OnFailure"
    destinations = _settings(invocation).get("DestinationConfig") or {}
    destination = (destinations.get(outcome) or {}).get("Destination")
    if destination:
        deliver(destination, json.dumps(envelope(invocation, result, condition)), {}, outcome)
    if outcome == "OnFailure":
        config = lambda_svc._functions.get(_function_name(invocation), {}).get("config", {})
        target = (config.get("DeadLetterConfig") or {}).get("TargetArn")
        if target:
            deliver(target, json.dumps(invocation.event), _dead_letter_attributes(invocation, result), outcome)


def _error(result: dict[str, Any]) -> dict[str, Any]:
    body = result.get("body")
    return body if isinstance(body, dict) else {}


def _dead_letter_attributes(invocation: Invocation, result: dict[str, Any]) -> dict[str, dict[str, str]]:
    message = str(_error(result).get("errorMessage", ""))[:1024] or "unknown"
    code = "429" if result.get("throttle") else "200"
    return {
        "RequestID": {"DataType": "String", "StringValue": invocation.request_id},
        "ErrorCode": {"DataType": "Number", "StringValue": code},
        "ErrorMessage": {"DataType": "String", "StringValue": message},
    }


def envelope(invocation: Invocation, result: dict[str, Any], condition: str) -> dict[str, Any]:
    """Return the record of an asynchronous invocation that a destination receives."""
    arn = f"arn:aws:lambda:{get_region()}:{get_account_id()}:function:{_function_name(invocation)}:$LATEST"
    response: dict[str, Any] = {"statusCode": 200, "executedVersion": "$LATEST"}
    if condition != "Success":
        response["functionError"] = result.get("function_error") or "Unhandled"
    return {
        "version": "1.0",
        "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "requestContext": {
            "requestId": invocation.request_id,
            "functionArn": arn,
            "condition": condition,
            "approximateInvokeCount": invocation.tries,
        },
        "requestPayload": invocation.event,
        "responseContext": response,
        "responsePayload": result.get("body"),
    }


def deliver(target_arn: str, body: str, attributes: dict[str, dict[str, str]], outcome: str) -> None:
    """Send a body to a queue, topic, function or bus; one that does not exist is logged, as there is nowhere else."""
    target = parse_arn(target_arn)
    if target.service == "sqs" and (queue := sqs._queue_by_arn(target_arn)):
        sqs._act_send_message({"MessageBody": body, "MessageAttributes": attributes}, queue["url"])
    elif target.service == "sns" and target_arn in sns._topics:
        sns._fanout(target_arn, new_uuid(), body, "", "", attributes)
    elif target.service == "lambda" and (function := lambda_svc._get_func_record_for_ref(target_arn)[0]):
        lambda_svc.invoke_async_with_retry(function, json.loads(body))
    elif target.service == "events":
        kind = f"Lambda Function Invocation Result - {outcome.removeprefix('On')}"
        entry = {"Source": "lambda", "DetailType": kind, "Detail": body, "EventBusName": target_arn}
        eventbridge._put_events({"Entries": [entry]})
    else:
        logger.error("%s does not exist; lost: %s", target_arn, body)
