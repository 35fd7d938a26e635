"""The minute's round, from the schedule: asks about every open run and wakes the supervisor where something is due."""

from typing import Any

from observability import logger, metrics, publish, traced
from rerail.rounds import measured
from wiring import minute_round


@logger.inject_lambda_context(clear_state=True)
@metrics.log_metrics
@traced
def handler(event: dict[str, Any], context: Any) -> dict[str, int]:
    report = minute_round().make()
    counts = {
        "OpenRuns": report.open,
        "DueRuns": report.due,
        "DiscoveredJobs": report.discovered,
        "BlindRuns": len(report.blind),
        "WatchedRuns": report.watched,
        "Findings": report.found,
        "BeatingRuns": report.beating,
        "GarbledHeartbeats": len(report.garbled),
    }
    for name, value in counts.items():
        metrics.add_metric(name=name, unit="Count", value=value)
    publish(measured(report))
    logger.info("swept", extra={**counts, "blind": report.blind, "unread": report.unread, "garbled": report.garbled})
    return counts
