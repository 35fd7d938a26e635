"""Count every invocation of a function in AWS/Lambda, from every source.

MiniStack publishes Invocations, Errors and Throttles only for calls of the Invoke API. Invocations by rules, schedules
and queues are not counted, so an alarm on a function's errors never fires. AWS counts all of them, a throttled call as
a throttle only.
"""

from typing import Any

from ministack.services import cloudwatch, lambda_svc


def apply() -> None:
    stock_dispatch, stock_acquire = lambda_svc._execute_function_dispatch, lambda_svc._acquire_execution_slot

    def dispatch(function: dict[str, Any], config: dict[str, Any], *rest: Any) -> dict[str, Any]:
        result: dict[str, Any] = stock_dispatch(function, config, *rest)
        _count(config, "Invocations", 1)
        _count(config, "Errors", int(bool(result.get("error"))))
        return result

    def acquire(function: dict[str, Any], config: dict[str, Any]) -> tuple[str | None, str | None]:
        slot, limit = stock_acquire(function, config)
        _count(config, "Throttles", int(slot is None))
        return slot, limit

    lambda_svc._execute_function_dispatch = dispatch
    lambda_svc._acquire_execution_slot = acquire
    lambda_svc._emit_lambda_metrics = _leave_it_to_the_above


def _count(config: dict[str, Any], metric: str, number: int) -> None:
    dimensions = {"FunctionName": config.get("FunctionName", "unknown")}
    cloudwatch.record_metric("AWS/Lambda", metric, number, "Count", dimensions)


def _leave_it_to_the_above(name: str, duration_ms: float, error: bool, throttle: bool) -> None:
    if duration_ms > 0:
        cloudwatch.record_metric("AWS/Lambda", "Duration", duration_ms, "Milliseconds", {"FunctionName": name})
