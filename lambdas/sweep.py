"""Lambda function: check every open run once a minute, and wake the supervisor where something is due."""

from typing import Any

from loading import loaded
from observability import logger, metrics, publish, traced
from rerail.sweep.shards import read_shard
from rerail.sweep.sweep import list_metrics
from wiring import clients
from wiring.sweep import make_sweep

# Out of two minutes: what follows the checks of the runs takes as long.
LEFT_FOR_METRICS_MS = 25_000


@logger.inject_lambda_context(clear_state=True)
@metrics.log_metrics
@traced
def handler(event: dict[str, Any], context: Any) -> dict[str, int]:
    shard, name = read_shard(event), context.function_name

    def has_time() -> bool:
        remaining: int = context.get_remaining_time_in_millis()
        return remaining > LEFT_FOR_METRICS_MS

    sweep = make_sweep()
    report = sweep.run_shard(shard, name=name, has_time=has_time) if shard else sweep.run(name=name, has_time=has_time)
    counts = {
        "OpenRuns": report.open,
        "DueRuns": report.due,
        "DiscoveredJobs": report.discovered,
        "BlindRuns": len(report.unknown),
        "WatchedRuns": report.monitored,
        "Findings": report.found,
        "BeatingRuns": report.with_heartbeat,
        "GarbledHeartbeats": len(report.bad_heartbeats),
    }
    problems = {
        "blind": report.unknown,
        "unread": report.unread,
        "garbled": report.bad_heartbeats,
        "unswept": report.unswept,
    }
    problems |= {"broken": report.broken}
    logger.info("swept", extra={**counts, "parts": shard.parts if shard else "", **problems})
    if shard is None:  # the first invocation publishes the metrics of all shards
        for name, value in counts.items():
            metrics.add_metric(name=name, unit="Count", value=value)
        publish(list_metrics(report))
    return counts


loaded(make_sweep, clients("dynamodb", "ssm", "sagemaker", "s3", "cloudwatch", "sqs"))
