"""Queue to decisions: the one function that thinks and acts. A message that fails goes back alone."""

from datetime import UTC, datetime
from typing import Any

from loading import loaded

# isort: split

from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from observability import logger, metrics, publish, traced
from rerail.messages.messages import ClusterMessage, QueueMessage, parse_message
from rerail.supervisor.decision_metrics import list_metrics
from wiring import clients, now
from wiring.supervise import hyperpod_watch, supervisor

# Powertools' own Logger is no logging.Logger, and has all that is asked of one.
processor = BatchProcessor(EventType.SQS, raise_on_entire_batch_failure=False, logger=logger)  # type: ignore[arg-type]


def look(record: SQSRecord) -> None:
    """One message: read it, do what it asks for, and say in the log what became of the run."""
    wakeup = parse_message(record.body)
    if isinstance(wakeup, ClusterMessage):
        known = hyperpod_watch().handle(wakeup)
        logger.info("looked", extra={"wakeup": wakeup, "cluster": known.cluster, "version": known.version})
        return
    thinker, post = supervisor(), posted(record)
    try:
        run = thinker.handle(wakeup, post)
    finally:  # what was decided is recorded, whatever went wrong after it
        publish(list_metrics(thinker.turns, waited_s=(now() - post.sent_at).total_seconds()))
    logger.info(
        "looked",
        extra={"wakeup": wakeup, "run": run and run.id, "state": run and run.state, "version": run and run.version},
    )


def posted(record: SQSRecord) -> QueueMessage:
    """When the message was sent and received, as SQS says."""
    told = record.attributes
    sent, received = (int(each) / 1000 for each in (told.sent_timestamp, told.approximate_first_receive_timestamp))
    return QueueMessage(datetime.fromtimestamp(sent, UTC), datetime.fromtimestamp(received, UTC))


@logger.inject_lambda_context(clear_state=True)
@metrics.log_metrics
@traced
def handler(event: dict[str, Any], context: Any) -> Any:
    metrics.add_metric(name="Wakeups", unit="Count", value=len(event["Records"]))
    return process_partial_response(event=event, record_handler=look, processor=processor, context=context)


loaded(supervisor, clients("dynamodb", "ssm", "sagemaker", "s3", "events"))
