"""Lambda function: keep the waits of state machines and pipelines for runs, and answer each when its run has ended."""

from typing import Any

from loading import loaded

# isort: split

from observability import logger, metrics, traced
from rerail.model.errors import BadMessage
from rerail.orchestration.waits import read_message, read_task
from wiring import clients, now
from wiring.orchestrate import make_orchestrator


@logger.inject_lambda_context(clear_state=True)
@metrics.log_metrics(raise_on_empty_metrics=False)
@traced
def handler(event: dict[str, Any], context: Any) -> None:
    """Handle a state machine's request, the schedule's, or one message of a callback step.

    An error fails the task, or returns the message to the queue; one that cannot be read is dropped.
    """
    orchestrator = make_orchestrator()
    if "token" in event:
        orchestrator.begin(read_task(event, at=now()))
        return
    if "check" in event:
        logger.info("checked", extra={"left": orchestrator.check_all()})
        return
    for record in event["Records"]:
        try:
            received = read_message(record["body"], at=now())
        except BadMessage as error:  # without a token no answer is possible, and pipelines' roles write here
            logger.warning("dropped", extra={"why": str(error)})
            continue
        orchestrator.on_callback(received)


loaded(make_orchestrator, clients("dynamodb", "ssm", "stepfunctions", "sagemaker", "events"))
