"""Evaluate metric alarms as CloudWatch does, and put their changes of state on the bus.

MiniStack's alarm reads every metric of that name whatever its dimensions, ignores missing data and ignores
DatapointsToAlarm. It is evaluated only when PutMetricData is called, so it never returns to OK by itself. It puts no
event on the bus, even for SetAlarmState. AWS evaluates periods of one exact metric continuously and fills gaps by
TreatMissingData. It sends `CloudWatch Alarm State Change` to the default bus on every change of state.

Differences remain. The periods end now instead of at whole minutes, so ALARM comes within a second and OK one period
after the last bad datapoint. Missing data of a new alarm is first evaluated after a minute, as by CloudWatch's first
evaluation. Periods of a minute and more pass as fast as schedules do, but no faster than alarms are evaluated.
"""

import json
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from ministack.core.responses import get_account_id, get_region, request_scope
from ministack.services import cloudwatch, eventbridge

LOOK_EVERY_S = 1.0
# MiniStack looks through all datapoints for old ones, and at all alarms, with every call.
TIDIED_EVERY_S = 60.0
MINUTE_S = 60
COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "GreaterThanOrEqualToThreshold": lambda value, threshold: value >= threshold,
    "GreaterThanThreshold": lambda value, threshold: value > threshold,
    "LessThanThreshold": lambda value, threshold: value < threshold,
    "LessThanOrEqualToThreshold": lambda value, threshold: value <= threshold,
}

logger = logging.getLogger("local.alarms")


def apply(scale: float) -> None:
    """`scale`: how many times faster than written the periods of alarms pass."""

    def evaluate(alarm: dict[str, Any]) -> None:
        if alarm.get("MetricName"):
            _evaluate(alarm, scale)

    cloudwatch._evaluate_alarm = evaluate
    cloudwatch._evaluate_all_alarms = lambda: None  # the thread looks at them
    cloudwatch._evict_old_metrics = _now_and_then(cloudwatch._evict_old_metrics, TIDIED_EVERY_S)
    stock_actions = cloudwatch._dispatch_alarm_actions

    def act_and_notify(alarm: dict[str, Any], old_state: str, new_state: str, reason: str) -> None:
        stock_actions(alarm, old_state, new_state, reason)
        put_change_event(alarm, old_state, new_state, reason)

    cloudwatch._dispatch_alarm_actions = act_and_notify
    threading.Thread(target=_watch, name="alarms", daemon=True).start()


def _now_and_then(work: Callable[[], None], every_s: float) -> Callable[[], None]:
    due = time.monotonic() + every_s

    def work_if_due() -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + every_s
            work()

    return work_if_due


def _watch() -> None:
    while True:
        time.sleep(LOOK_EVERY_S)
        for (account, region, _name), alarm in list(cloudwatch._alarms._data.items()):
            try:
                with request_scope(account, region):
                    cloudwatch._evaluate_alarm(alarm)
            except Exception:
                logger.exception("alarm %s", alarm.get("AlarmName"))


def _evaluate(alarm: dict[str, Any], scale: float) -> None:
    values = datapoints(alarm, time.time(), scale)
    young = time.time() - alarm["AlarmConfigurationUpdatedTimestamp"] < MINUTE_S / scale
    if young and all(value is None for value in values):
        return
    new_state = evaluate_state(alarm, values)
    old_state = alarm["StateValue"]
    if new_state != old_state:
        shown = ", ".join("missing" if value is None else f"{value:g}" for value in values)
        reason = (
            f"Threshold Crossed: datapoints [{shown}] against {alarm['ComparisonOperator']} {alarm['Threshold']:g} "
            f"(missing data: {alarm['TreatMissingData']})"
        )
        alarm |= {"StateValue": new_state, "StateReason": reason, "StateUpdatedTimestamp": int(time.time())}
        cloudwatch._record_history(alarm["AlarmName"], old_state, new_state, reason)
        cloudwatch._dispatch_alarm_actions(alarm, old_state, new_state, reason)
        cloudwatch._evaluate_parent_alarms(alarm)


def datapoints(alarm: dict[str, Any], now: float, scale: float) -> list[float | None]:
    """Return the statistic of each evaluation period, newest first; None where there was no data."""
    dimensions = cloudwatch._dims_from_list(alarm.get("Dimensions") or [])
    key = (alarm["Namespace"], alarm["MetricName"], cloudwatch._dims_key(dimensions))
    points = cloudwatch._metrics.get(key) or []
    statistic = alarm.get("ExtendedStatistic") or alarm.get("Statistic") or "Average"
    period = float(alarm["Period"])
    period = max(period / scale, 2 * LOOK_EVERY_S) if period >= MINUTE_S else period
    periods: list[list[Any]] = [[] for _ in range(int(alarm["EvaluationPeriods"]))]
    for point in list(points):
        # A point of this very instant may be stamped a moment ahead, so the newest period is open.
        number = max(0, math.ceil((now - point["Timestamp"]) / period) - 1)
        if number < len(periods):
            periods[number].append(point)
    values: list[float | None] = []
    for inside in periods:
        statistics = cloudwatch._calc_stats(inside)
        values.append(cloudwatch._stat_value(statistics, statistic, inside) if statistics else None)
    return values


def evaluate_state(alarm: dict[str, Any], values: list[float | None]) -> str:
    """Return ALARM, OK or INSUFFICIENT_DATA for these datapoints; the present state if missing data is ignored."""
    treatment = alarm.get("TreatMissingData") or "missing"
    state: str = alarm["StateValue"]
    if all(value is None for value in values) and treatment in ("missing", "ignore"):
        return state if treatment == "ignore" else "INSUFFICIENT_DATA"
    breaches = COMPARISONS[alarm["ComparisonOperator"]]
    bad = sum(treatment == "breaching" if value is None else breaches(value, alarm["Threshold"]) for value in values)
    needed = int(alarm.get("DatapointsToAlarm") or alarm["EvaluationPeriods"])
    return "ALARM" if bad >= needed else "OK"


def put_change_event(alarm: dict[str, Any], old_state: str, new_state: str, reason: str) -> None:
    """Put the event of a change of state. Fact: CloudWatch user guide, "Alarm events and EventBridge"."""
    moment = time.strftime("%Y-%m-%dT%H:%M:%S.000+0000", time.gmtime())
    if "AlarmRule" in alarm:
        _put_event(alarm, {"alarmRule": alarm["AlarmRule"]}, old_state, new_state, reason, moment)
        return
    metric = {
        "namespace": alarm.get("Namespace"),
        "name": alarm.get("MetricName"),
        "dimensions": cloudwatch._dims_from_list(alarm.get("Dimensions") or []),
    }
    stat = alarm.get("ExtendedStatistic") or alarm.get("Statistic")
    query = {
        "id": "m1",
        "metricStat": {"metric": metric, "period": alarm.get("Period"), "stat": stat},
        "returnData": True,
    }
    _put_event(alarm, {"metrics": [query]}, old_state, new_state, reason, moment)


def _put_event(
    alarm: dict[str, Any], watches: dict[str, Any], old_state: str, new_state: str, reason: str, moment: str
) -> None:
    detail = {
        "alarmName": alarm["AlarmName"],
        "configuration": {"description": alarm.get("AlarmDescription", ""), **watches},
        "previousState": {"value": old_state, "timestamp": moment},
        "state": {"value": new_state, "reason": reason, "timestamp": moment},
    }
    arn = alarm.get("AlarmArn") or f"arn:aws:cloudwatch:{get_region()}:{get_account_id()}:alarm:{alarm['AlarmName']}"
    entry = {
        "Source": "aws.cloudwatch",
        "DetailType": "CloudWatch Alarm State Change",
        "Detail": json.dumps(detail),
        "Resources": [arn],
    }
    eventbridge._put_events({"Entries": [entry]}, allow_aws_source=True)
