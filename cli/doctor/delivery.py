"""Send one harmless event through bus, rule and queue, and wait until the supervisor has recorded it."""

import json
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from cli.doctor.check import Check, broken, ok
from rerail.messages.messages import CHECK, COMMAND, OPERATOR

PATIENCE_S = 60.0
# The queue of a new function is read within a minute or so.
PATIENCE_AFTER_DEPLOYMENT_S = 180.0
PAUSE_S = 0.5
REMEDY = (
    "look at the rule Commands (FailedInvocations, InvocationsFailedToBeSentToDlq), at the dead letters, at the event"
    " source mapping of the function supervise, and at the policies of its queue and key: jobs' events may be lost too"
)


def check_delivery(
    client: Callable[[str], Any],
    outputs: Mapping[str, str],
    *,
    patience_s: float = PATIENCE_S,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Check:
    """Return whether a new event arrives; raise ClientError where the caller may not send it or read the table."""
    id = secrets.token_hex(16)
    key = {"pk": {"S": f"check#{id}"}, "sk": {"S": "check"}}
    dynamodb, started = client("dynamodb"), clock()
    # Read before the event is sent: who may not read would wait in vain.
    dynamodb.get_item(TableName=outputs["TableName"], Key=key)
    detail = json.dumps({"verb": CHECK, "check": id})
    entry = {"EventBusName": outputs["BusName"], "Source": OPERATOR, "DetailType": COMMAND, "Detail": detail}
    answer = client("events").put_events(Entries=[entry])
    if answer.get("FailedEntryCount"):
        return broken(f"the bus refuses events: {answer['Entries'][0].get('ErrorMessage')}", "look at the bus's policy")
    while clock() - started < patience_s:
        if "Item" in dynamodb.get_item(TableName=outputs["TableName"], Key=key, ConsistentRead=True):
            return ok(f"an event came through bus, rule and queue in {clock() - started:.0f} s")
        sleep(PAUSE_S)
    return broken(f"an event did not reach the supervisor within {patience_s:.0f} s", REMEDY)
