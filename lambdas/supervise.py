"""Lambda function: decide and act on each message of its queues. A failed message alone returns to the queue."""

from datetime import UTC, datetime
from typing import Any

from loading import loaded

# isort: split

from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from observability import logger, metrics, publish, traced
from rerail.messages.messages import ClusterMessage, QueueMessage
from rerail.model.errors import ForgedMessage
from rerail.supervisor.decision_metrics import list_metrics
from wiring import clients, now
from wiring.supervise import check_time, make_cluster_monitor, make_supervisor, read_message

# Powertools' Logger is not a logging.Logger, but has the methods that are used.
processor = BatchProcessor(EventType.SQS, raise_on_entire_batch_failure=False, logger=logger)  # type: ignore[arg-type]


def look(record: SQSRecord, lambda_context: Any) -> None:
    """Handle one message, publish the metrics of its decisions, and log the run's new state."""
    check_time(lambda_context)
    received = read_message(record.body, queue=record.event_source_arn)
    if isinstance(received, ClusterMessage):
        cluster = make_cluster_monitor().handle(received)
        logger.info("looked", extra={"received": received, "cluster": cluster.cluster, "version": cluster.version})
        return
    loop, message = make_supervisor(), posted(record)
    try:
        run = loop.handle(received, message)
    finally:  # decisions made before an error are counted too
        publish(list_metrics(loop.turns, waited_s=(now() - message.sent_at).total_seconds()))
    state = {"run": run and run.id, "state": run and run.state, "version": run and run.version}
    logger.info("looked", extra={"received": received, **state})


def posted(record: SQSRecord) -> QueueMessage:
    """Return when the message was sent and first received, according to SQS."""
    times = (record.attributes.sent_timestamp, record.attributes.approximate_first_receive_timestamp)
    sent, received = (datetime.fromtimestamp(int(milliseconds) / 1000, UTC) for milliseconds in times)
    return QueueMessage(sent, received)


@logger.inject_lambda_context(clear_state=True)
@metrics.log_metrics
@traced
def handler(event: dict[str, Any], context: Any) -> Any:
    metrics.add_metric(name="Wakeups", unit="Count", value=len(event["Records"]))
    answer = process_partial_response(event=event, record_handler=look, processor=processor, context=context)
    forged = sum(kind is ForgedMessage for kind, *_ in processor.exceptions)
    metrics.add_metric(name="RejectedMessages", unit="Count", value=forged)
    return answer


loaded(make_supervisor, clients("dynamodb", "ssm", "sagemaker", "s3", "events"))
