"""Waits of state machines and pipelines: the function that answers them, its queue, and the state machine."""

from aws_cdk import Aws, Duration
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from settings import OrchestrateSettings
from stacks.options import DeploymentOptions
from stacks.parts.alarms import FunctionAlarms, OldMessages
from stacks.parts.bus import RerailBus
from stacks.parts.dead_letter_queue import DeadLetterQueue
from stacks.parts.feed import feed
from stacks.parts.functions import FunctionFactory
from stacks.parts.minute_schedule import call_each_minute, make_scheduler_role
from stacks.parts.permissions import SEND_MESSAGE, allow, read_policies, use_key
from stacks.parts.policies import PREFIX
from stacks.parts.reports_bucket import ReportsBucket
from stacks.parts.runs_table import RunsTable
from stacks.parts.train_supervised import TrainSupervised

NAME = "orchestrate"
TIMEOUT = Duration.minutes(1)
TRIES, CONCURRENCY = 5, 2
CHECK = '{"check": "all"}'
ANY_TOKEN = "State machines and pipelines of the account's own wait too; which ones is not known here."


class Orchestration(Construct):
    """The function wakes up for each request and each minute, so that an answer is at most a minute late."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        functions: FunctionFactory,
        runs: RunsTable,
        bus: RerailBus,
        reports: ReportsBucket,
        options: DeploymentOptions,
        key: kms.IKey,
        page: sns.ITopic,
    ) -> None:
        super().__init__(scope, id)
        dead_letters = DeadLetterQueue(self, "DeadLetters", key=key, page=page, of="the function orchestrate")
        made = functions.make(
            self,
            NAME,
            settings=OrchestrateSettings(
                table=runs.table.table_name,
                bus=bus.bus.event_bus_name,
                policy_prefix=PREFIX,
                reports=reports.bucket.bucket_name,
            ),
            description="Rerail: answers state machines and pipelines that wait for runs",
            timeout=TIMEOUT,
            memory_mb=256,
            dead_letters=dead_letters,
        )
        self.function = made.function
        runs.let_keep_waits(made.role)
        bus.let_publish(made.role)
        read_policies(made.role, PREFIX)
        _answer_tokens(made.role)
        FunctionAlarms(self, "Alarms", function=self.function, name=NAME, page=page)
        # Pipelines write with their own roles, which would all need a key of ours.
        self.queue = sqs.Queue(
            self,
            "Callbacks",
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            visibility_timeout=Duration.seconds(6 * TIMEOUT.to_seconds()),
            retention_period=Duration.days(4),
            dead_letter_queue=sqs.DeadLetterQueue(queue=dead_letters.queue, max_receive_count=TRIES),
        )
        feed(made, self.queue, batch=1, concurrency=CONCURRENCY)
        OldMessages(self, "Old", queue=self.queue, page=page, of="a message for orchestrate")
        _check_each_minute(self, self.function, dead_letters, key)
        self.machine = TrainSupervised(
            self,
            "Train",
            function=self.function,
            training_role_arns=options.training_role_arns,
            name="TrainSupervised",
        ).machine


def _check_each_minute(
    scope: Construct, function: lambda_.IFunction, dead_letters: DeadLetterQueue, key: kms.IKey
) -> None:
    """Have all waits checked; answers are at most a minute late, however many messages others put into the queue."""
    role = make_scheduler_role(scope, "Scheduler")
    allow(role, "lambda:InvokeFunction", on=function.function_arn)
    allow(role, "sqs:SendMessage", on=dead_letters.queue.queue_arn)
    use_key(role, key, *SEND_MESSAGE, service="sqs")
    call_each_minute(
        scope,
        function.function_arn,
        role=role,
        dead_letters=dead_letters.queue,
        description="Rerail: the check of all waits for runs",
        input=CHECK,
    )


def _answer_tokens(role: iam.Role) -> None:
    tasks = ("states:SendTaskSuccess", "states:SendTaskFailure", "states:SendTaskHeartbeat")
    allow(role, *tasks, on="*", because=ANY_TOKEN)
    executions = f"arn:{Aws.PARTITION}:states:{Aws.REGION}:{Aws.ACCOUNT_ID}:execution:*"
    allow(role, "states:DescribeExecution", on=executions, because=ANY_TOKEN)
    pipelines = f"arn:{Aws.PARTITION}:sagemaker:{Aws.REGION}:{Aws.ACCOUNT_ID}:pipeline/*"
    steps = ("sagemaker:SendPipelineExecutionStepSuccess", "sagemaker:SendPipelineExecutionStepFailure")
    # Messages may be forged: before a run is stopped, or room is made, SageMaker is asked.
    reads = ("sagemaker:DescribePipelineExecution", "sagemaker:ListPipelineExecutionSteps")
    allow(role, *steps, *reads, on=pipelines, because=ANY_TOKEN)
