"""Connect a queue to a function: Lambda polls it with the function's role."""

from aws_cdk import Names
from aws_cdk import aws_sqs as sqs

from stacks.parts.functions import Made
from stacks.parts.permissions import allow, use_key

# What the managed policy AWSLambdaSQSQueueExecutionRole has for it. The convenient event source of the CDK would grant
# more: to look queues up by name, to change how long messages are hidden, and the key for everything.
ASKING = ("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes")


def feed(made: Made, queue: sqs.Queue, *, batch: int, concurrency: int) -> None:
    """Feed the function in batches of `batch`, to `concurrency` invocations at a time; failed messages return alone."""
    allow(made.role, *ASKING, on=queue.queue_arn)
    if queue.encryption_master_key:
        use_key(made.role, queue.encryption_master_key, "kms:Decrypt", service="sqs")
    made.function.add_event_source_mapping(
        # As the CDK's event source calls it: one of another name could not be made while the old one is there.
        f"SqsEventSource:{Names.node_unique_id(queue.node)}",
        event_source_arn=queue.queue_arn,
        batch_size=batch,
        max_concurrency=concurrency,
        report_batch_item_failures=True,
    )
