"""Mends MiniStack 1.5.33 where it differs from AWS in something Rerail relies on: one module a difference."""

from local.repairs import (
    alarms,
    async_invocation,
    embedded_metrics,
    event_time,
    function_metrics,
    metric_order,
    queue_metrics,
    schedules,
    start_errors,
    target_dead_letters,
    template_properties,
)


def apply(*, retry_scale: float, schedule_scale: float) -> None:
    """Patch MiniStack in this process; call once, before it serves.

    `retry_scale`: how many times faster than AWS a failed asynchronous invocation is retried.
    `schedule_scale`: how many times faster than written a rate() schedule of EventBridge Scheduler fires.
    """
    template_properties.apply()
    event_time.apply()
    async_invocation.apply(retry_scale)
    target_dead_letters.apply()
    function_metrics.apply()
    queue_metrics.apply()
    embedded_metrics.apply()
    metric_order.apply()
    alarms.apply(first_look_s=60 / schedule_scale)
    schedules.apply(schedule_scale)
    start_errors.apply()
