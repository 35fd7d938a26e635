"""Lets a rate() schedule of EventBridge Scheduler fire at the pace of the local jobs.

MiniStack looks at schedules every ten seconds, so rate(1 minute) comes every 60 to 70 s, and never sooner. AWS is
accurate to the minute. With a scale of 60 a one-minute schedule fires every second; cron() and at() keep real time.
"""

import threading

from ministack.services import eventbridge, scheduler

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

    eventbridge._parse_rate_seconds = parse_scaled
    scheduler._SCHEDULE_TICK_INTERVAL = LOOK_EVERY_S
