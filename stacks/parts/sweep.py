"""The sweep: its schedule, the function that checks every open run each minute, and the alarms on both."""

from aws_cdk import Aws, Duration
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from constructs import Construct

from settings import SweepSettings
from stacks.options import DeploymentOptions
from stacks.parts.alarms import Blind, DeadMan, FunctionAlarms
from stacks.parts.dead_letter_queue import DeadLetterQueue
from stacks.parts.functions import FunctionFactory
from stacks.parts.mailbox import JobMailbox
from stacks.parts.minute_schedule import call_each_minute, make_scheduler_role
from stacks.parts.pause import NAME as PAUSE_PARAMETER
from stacks.parts.pause import PauseParameter
from stacks.parts.permissions import (
    ANY_JOB,
    SEND_MESSAGE,
    TRAINING_JOBS,
    allow,
    read_checkpoints,
    read_policies,
    use_key,
)
from stacks.parts.policies import PREFIX
from stacks.parts.runs_table import RunsTable
from stacks.parts.signals_queue import SignalsQueue

NAME = "sweep"
TIMEOUT = Duration.minutes(2)


class ScheduledSweep(Construct):
    """Reads the state of all open runs and wakes the supervisor; it cannot change a job."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        functions: FunctionFactory,
        runs: RunsTable,
        signals: SignalsQueue,
        mailbox: JobMailbox,
        pause: PauseParameter,
        options: DeploymentOptions,
        key: kms.IKey,
        page: sns.ITopic,
    ) -> None:
        super().__init__(scope, id)
        settings = SweepSettings(
            table=runs.table.table_name,
            queue_url=signals.queue.queue_url,
            policy_prefix=PREFIX,
            pause_parameter=PAUSE_PARAMETER,
            mailbox=mailbox.bucket.bucket_name,
            account=Aws.ACCOUNT_ID,
            observe_only=options.observe_only,
        )
        made = functions.make(
            self,
            NAME,
            settings=settings,
            description="Rerail: looks at every open run, each minute",
            timeout=TIMEOUT,
            dead_letters=DeadLetterQueue(self, "DeadLetters", key=key, page=page, of="the function sweep"),
        )
        self.function = made.function
        runs.let_read(made.role)
        runs.let_remember(made.role)
        signals.let_send(made.role)
        mailbox.let_read_heartbeats(made.role)
        read_policies(made.role, PREFIX)
        pause.let_read(made.role)
        read_checkpoints(made.role, options)
        allow(made.role, "sagemaker:DescribeTrainingJob", on=TRAINING_JOBS, because=ANY_JOB)
        allow(made.role, "sagemaker:ListTrainingJobs", on="*", because="ListTrainingJobs takes no resource.")
        allow(made.role, "cloudwatch:GetMetricData", on="*", because="GetMetricData takes no resource.")
        # With many open runs it invokes itself once per shard. The function depends on its role's policy, so this is
        # a separate one.
        itself = iam.PolicyStatement(actions=["lambda:InvokeFunction"], resources=[self.function.function_arn])
        iam.Policy(self, "AskItself", roles=[made.role], statements=[itself])
        FunctionAlarms(self, "Alarms", function=self.function, name=NAME, page=page)
        DeadMan(self, "DeadMan", page=page)
        Blind(self, "Blind", page=page)
        EveryMinute(self, "Schedule", function=self.function, key=key, page=page)


class EveryMinute(Construct):
    """The schedule, with a role that may invoke this one function and put aside what it could not."""

    def __init__(
        self, scope: Construct, id: str, *, function: lambda_.IFunction, key: kms.IKey, page: sns.ITopic
    ) -> None:
        super().__init__(scope, id)
        dead_letters = DeadLetterQueue(self, "DeadLetters", key=key, page=page, of="the schedule of the sweep")
        role = make_scheduler_role(self, "Role")
        allow(role, "lambda:InvokeFunction", on=function.function_arn)
        allow(role, "sqs:SendMessage", on=dead_letters.queue.queue_arn)
        use_key(role, key, *SEND_MESSAGE, service="sqs")
        call_each_minute(
            self,
            function.function_arn,
            role=role,
            dead_letters=dead_letters.queue,
            description="Rerail: the minute's round",
        )
