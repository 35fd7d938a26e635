"""Lambda function: check every open run once a minute, and wake the supervisor where something is due."""

from typing import Any

from loading import loaded
from observability import logger, metrics, publish, traced
from rerail.sweep.shards import read_shard
from rerail.sweep.sweep import list_metrics
from wiring import clients
from wiring.sweep import make_sweep


@logger.inject_lambda_context(clear_state=True)
@metrics.log_metrics
@traced
def handler(event: dict[str, Any], context: Any) -> dict[str, int]:
    shard, name = read_shard(event), context.function_name
    report = make_sweep().run_shard(shard, name=name) if shard else make_sweep().run(name=name)
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
