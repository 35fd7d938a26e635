"""Let a rate() schedule of EventBridge Scheduler fire at the pace of the local jobs.

MiniStack looks at schedules every ten seconds, so rate(1 minute) comes every 60 to 70 s, and never sooner. AWS is
accurate to the minute. With a scale of 60 a one-minute schedule fires every second; cron() and at() keep real time.

What a function does takes as long as ever, though. On AWS a round of seconds is over long before the next minute. Here
a slow machine would start rounds faster than it ends them, each in a new process, and so become slower yet. A function
that has not ended its round is therefore not asked for another one.
"""

import threading
from typing import Any

from ministack.core.arn import parse_arn
from ministack.services import eventbridge, scheduler

from local.repairs.async_invocation import ongoing

LOOK_EVERY_S = 0.5
TICKER = "evb-scheduler-ticker"


def apply(scale: float) -> None:
    parse = eventbridge._parse_rate_seconds

    def parse_scaled(expression: str) -> float | None:
        seconds: float | None = parse(expression)
        # Rules with a rate() are parsed by the same function, on another thread, and keep real time.
        if seconds is None or threading.current_thread().name != TICKER:
            return seconds
        return seconds / scale

    invoke = eventbridge._invoke_target

    def invoke_unless_busy(target: dict[str, Any], *rest: Any) -> None:
        if scale > 1 and threading.current_thread().name == TICKER and _function(target["Arn"]) in ongoing:
            return
        invoke(target, *rest)

    eventbridge._parse_rate_seconds = parse_scaled
    eventbridge._invoke_target = invoke_unless_busy
    scheduler._SCHEDULE_TICK_INTERVAL = LOOK_EVERY_S


def _function(arn: str) -> str:
    """Return the name of the function that an ARN names; "" for any other service."""
    target = parse_arn(arn)
    return target.resource.split(":")[1] if target.service == "lambda" else ""
