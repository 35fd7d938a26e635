"""Repair MiniStack 1.5.33 where it differs from AWS in what Rerail relies on: one module for each difference."""

from local.repairs import (
    alarms,
    api_destinations,
    async_invocation,
    bucket_policies,
    busy_workers,
    composite_alarms,
    embedded_metrics,
    event_time,
    function_metrics,
    log_filters,
    log_pages,
    metric_order,
    queue_metrics,
    schedules,
    sdk_errors,
    start_errors,
    target_dead_letters,
    task_heartbeats,
    template_properties,
    worker_limit,
)


def apply(*, retry_scale: float, schedule_scale: float, workers: int) -> None:
    """Patch MiniStack in this process; call once, before it serves.

    `retry_scale`: how many times faster than AWS a failed asynchronous invocation, or API destination, is retried.
    `schedule_scale`: how many times faster than written a rate() schedule of EventBridge Scheduler fires, and the
    periods of alarms pass. `workers`: how many messages of a queue, and how many asynchronous invocations, are handled
    at once.
    """
    template_properties.apply()
    bucket_policies.apply()
    event_time.apply()
    async_invocation.apply(retry_scale, workers)
    busy_workers.apply()
    worker_limit.apply(workers)
    target_dead_letters.apply()
    api_destinations.apply(retry_scale)
    function_metrics.apply()
    queue_metrics.apply()
    embedded_metrics.apply()
    log_filters.apply()
    log_pages.apply()
    sdk_errors.apply()
    metric_order.apply()
    composite_alarms.apply()  # before the alarms, which put the events of both
    alarms.apply(schedule_scale)
    schedules.apply(schedule_scale)
    start_errors.apply()
    task_heartbeats.apply()
