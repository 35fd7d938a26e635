"""Lambda function: render a run's incident report after each notice about it, and the page of all runs after changes.

Notices do not wait for the pages."""

from typing import Any

from loading import loaded

# isort: split

from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from observability import logger, metrics, traced
from rerail.incident_report.reporter import find_change_time, run_of
from wiring import clients
from wiring.report import make_fleet_reporter, make_reporter

# Powertools' Logger is not a logging.Logger, but has the methods that are used.
processor = BatchProcessor(EventType.SQS, raise_on_entire_batch_failure=False, logger=logger)  # type: ignore[arg-type]


def draw(record: SQSRecord) -> None:
    """Render and store the page of the run that the notice is about; a job that belongs to no run has no page.

    A state change renews the page of all runs instead.
    """
    run = run_of(record.body)
    if changed_at := find_change_time(record.body):
        logger.info("fleet", extra={"run": run, "drawn": make_fleet_reporter().report(changed_at)})
        return
    page = make_reporter().report(run)
    logger.info("drawn", extra={"run": run, "bytes": page and page.bytes, "unread": page and page.unread})


@logger.inject_lambda_context(clear_state=True)
@metrics.log_metrics
@traced
def handler(event: dict[str, Any], context: Any) -> Any:
    metrics.add_metric(name="Reports", unit="Count", value=len(event["Records"]))
    return process_partial_response(event=event, record_handler=draw, processor=processor, context=context)


loaded(make_reporter, make_fleet_reporter, clients("dynamodb", "ssm", "cloudwatch", "logs", "s3"))
