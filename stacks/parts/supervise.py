"""The function that decides and acts, fed by three queues; no other may change training jobs."""

import json

from aws_cdk import Aws
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sns as sns
from constructs import Construct

from rerail.incident_report.location import make_bucket_name
from settings import SuperviseSettings
from stacks.options import DeploymentOptions
from stacks.parts.alarms import FunctionAlarms
from stacks.parts.bus import RerailBus
from stacks.parts.commands import CommandQueue
from stacks.parts.feed import feed
from stacks.parts.functions import FunctionFactory
from stacks.parts.mailbox import JobMailbox
from stacks.parts.pause import NAME as PAUSE_PARAMETER
from stacks.parts.pause import PauseParameter
from stacks.parts.permissions import (
    ANY_JOB,
    PLANS,
    TRAINING_JOBS,
    allow,
    allow_quarantine,
    read_checkpoints,
    read_job_logs,
    read_policies,
)
from stacks.parts.policies import PREFIX
from stacks.parts.runs_table import RunsTable
from stacks.parts.signals_queue import TIMEOUT, SignalsQueue

NAME = "supervise"
BATCH = 10
# Lambda's minimum. Every role that may write into the mailbox can cause any number of reports.
REPORT_CONCURRENCY = 2
COMMAND_CONCURRENCY = 2


class Supervise(Construct):
    """The function, its event source and what it is allowed to do."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        functions: FunctionFactory,
        runs: RunsTable,
        signals: SignalsQueue,
        filed: SignalsQueue,
        commands: CommandQueue,
        bus: RerailBus,
        mailbox: JobMailbox,
        pause: PauseParameter,
        options: DeploymentOptions,
        page: sns.ITopic,
    ) -> None:
        super().__init__(scope, id)
        settings = SuperviseSettings(
            table=runs.table.table_name,
            bus=bus.bus.event_bus_name,
            policy_prefix=PREFIX,
            pause_parameter=PAUSE_PARAMETER,
            mailbox=mailbox.bucket.bucket_name,
            account=Aws.ACCOUNT_ID,
            commands=commands.queue.queue_arn,
            reports=make_bucket_name(Aws.ACCOUNT_ID, Aws.REGION),
            quarantine_folders=json.dumps(options.quarantine_folders, separators=(",", ":")),
            observe_only=options.observe_only,
        )
        made = functions.make(
            self, NAME, settings=settings, description="Rerail: decides and acts on training jobs", timeout=TIMEOUT
        )
        self.function = made.function
        feed(made, signals.queue, batch=BATCH, concurrency=options.supervisor_concurrency)
        feed(made, filed.queue, batch=BATCH, concurrency=REPORT_CONCURRENCY)
        feed(made, commands.queue, batch=BATCH, concurrency=COMMAND_CONCURRENCY)
        runs.let_write(made.role)
        runs.let_list_open(made.role)
        bus.let_publish(made.role)
        mailbox.let_command(made.role)
        mailbox.let_read_reports(made.role)
        mailbox.let_read_changes(made.role)
        read_policies(made.role, PREFIX)
        pause.let_read(made.role)
        read_checkpoints(made.role, options)
        read_job_logs(made.role)
        allow_quarantine(made.role, options)
        allow(made.role, "sagemaker:DescribeTrainingJob", "sagemaker:ListTags", on=TRAINING_JOBS, because=ANY_JOB)
        # Whether a job was stopped by a person or ended with its reserved capacity.
        because = "Which training plans jobs use is not known here."
        allow(made.role, "sagemaker:DescribeTrainingPlan", on=PLANS[0], because=because)
        if not options.observe_only:
            _act_on_jobs(made.role, options)
        FunctionAlarms(self, "Alarms", function=self.function, name=NAME, page=page)


def _act_on_jobs(role: iam.Role, options: DeploymentOptions) -> None:
    # Only what is marked as an attempt of a run can be made.
    marked = _present("aws:RequestTag/rerail:run")
    allow(role, "sagemaker:CreateTrainingJob", on=[TRAINING_JOBS, *PLANS], where=marked, because=ANY_JOB)
    # Tags given at creation are authorized as AddTags too. A job that exists gets none: it could be stopped then.
    created = {"StringEquals": {"sagemaker:TaggingAction": "CreateTrainingJob"}}
    allow(role, "sagemaker:AddTags", on=TRAINING_JOBS, where={**marked, **created}, because=ANY_JOB)
    # Every attempt carries the user's tag, a successor too; jobs without it are not supervised.
    mending = ("sagemaker:StopTrainingJob", "sagemaker:UpdateTrainingJob")
    allow(role, *mending, on=TRAINING_JOBS, where=_present("aws:ResourceTag/rerail:policy"), because=ANY_JOB)
    to_sagemaker = {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}}
    if options.volume_key_arns:
        # SageMaker asks this of the caller, so that the job's machines can decrypt their volumes.
        for_aws = {
            "Bool": {"kms:GrantIsForAWSResource": "true"},
            "StringEquals": {"kms:ViaService": f"sagemaker.{Aws.REGION}.{Aws.URL_SUFFIX}"},
        }
        allow(role, "kms:CreateGrant", on=options.volume_key_arns, where=for_aws, because="volumeKeyArns says so.")
    because = "The context value trainingRoleArns says which roles jobs may have."
    allow(role, "iam:PassRole", on=options.training_role_arns, where=to_sagemaker, because=because)


def _present(key: str) -> dict[str, dict[str, str]]:
    return {"Null": {key: "false"}}
