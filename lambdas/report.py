"""Notices to incident reports: one page a run, drawn anew whenever people are told of it. No notice waits for it."""

from typing import Any

from loading import loaded

# isort: split

from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from observability import logger, metrics, traced
from rerail.incident_report.reporter import run_of
from wiring import clients
from wiring.report import reporter

# Powertools' own Logger is no logging.Logger, and has all that is asked of one.
processor = BatchProcessor(EventType.SQS, raise_on_entire_batch_failure=False, logger=logger)  # type: ignore[arg-type]


def draw(record: SQSRecord) -> None:
    """One notice: draw the page of its run. A notice about a job that belongs to no run has none."""
    run = run_of(record.body)
    drawn = reporter().report(run)
    logger.info("drawn", extra={"run": run, "bytes": drawn and drawn.bytes, "unread": drawn and drawn.unread})


@logger.inject_lambda_context(clear_state=True)
@metrics.log_metrics
@traced
def handler(event: dict[str, Any], context: Any) -> Any:
    metrics.add_metric(name="Reports", unit="Count", value=len(event["Records"]))
    return process_partial_response(event=event, record_handler=draw, processor=processor, context=context)


loaded(reporter, clients("dynamodb", "ssm", "cloudwatch", "logs", "s3"))
