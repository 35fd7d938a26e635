"""The local AWS refuses what the role of a function does not allow, and accepts what it needs."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from local import deploy
from local.pace import Pace
from local.stack import ACCOUNT, REGION
from rerail.model import mailbox
from tests.deployed.conftest import ASSEMBLIES
from tests.deployed.jobs import ROOT, Account, apart, refusals

pytestmark = pytest.mark.slow

MAILBOX = mailbox.make_bucket_name(ACCOUNT, REGION)
ASSETS = f"cdk-hnb659fds-assets-{ACCOUNT}-{REGION}"
REFUSED = {"AccessDenied", "AccessDeniedException", "AuthorizationError", "403"}
ROLE = f"arn:aws:iam::{ACCOUNT}:role/SageMakerRole"
MARKED = [{"Key": "rerail:run", "Value": "forbidden"}]
KEY = {"pk": {"S": "run#forbidden"}, "sk": {"S": "run"}}

Calls = Mapping[str, tuple[str, str, dict[str, Any]]]


def job(role: str = ROLE, **more: Any) -> dict[str, Any]:
    return {
        "TrainingJobName": "forbidden-a001",
        "RoleArn": role,
        "AlgorithmSpecification": {"TrainingImage": "x/y:1", "TrainingInputMode": "File"},
        "OutputDataConfig": {"S3OutputPath": "s3://b/o"},
        "ResourceConfig": {"InstanceCount": 1, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 1},
        "StoppingCondition": {"MaxRuntimeInSeconds": 60},
        **more,
    }


def calls(account: Account) -> Mapping[str, Calls]:
    """By function: what it may not do, which other functions or the job's own role may do in part."""
    outputs = account.aws.outputs
    table, queue = outputs["TableName"], outputs["SignalsQueueUrl"]
    arn = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-job/forbidden-a001"
    notice = {"Source": "rerail.operator", "DetailType": "Rerail Command", "Detail": "{}"}
    own_bus = {"Entries": [notice | {"EventBusName": outputs["BusName"]}]}
    put: Callable[..., dict[str, Any]] = lambda bucket, key: {"Bucket": bucket, "Key": key, "Body": b"x"}  # noqa: E731
    named = {"TrainingJobName": "forbidden-a001"}
    return {
        "Supervise": {
            "read another bucket": ("s3", "get_object", {"Bucket": ASSETS, "Key": "x"}),
            "list another bucket": ("s3", "list_objects_v2", {"Bucket": ASSETS}),
            "write another bucket": ("s3", "put_object", put(ASSETS, "x")),
            "write a report of a job": ("s3", "put_object", put(MAILBOX, "runs/a/reports/x.json")),
            "delete mail": ("s3", "delete_object", {"Bucket": MAILBOX, "Key": "runs/a/reports/x.json"}),
            "delete outside of the folders": ("s3", "delete_object", {"Bucket": ASSETS, "Key": "x"}),
            "create a job without the run's tag": ("sagemaker", "create_training_job", job()),
            "pass another role": ("sagemaker", "create_training_job", job(ROLE[:-14] + "/Admin", Tags=MARKED)),
            "stop a job without the policy's tag": ("sagemaker", "stop_training_job", named),
            "update a job without the policy's tag": (
                *("sagemaker", "update_training_job"),
                named | {"RemoteDebugConfig": {"EnableRemoteDebug": True}},
            ),
            "tag a job": ("sagemaker", "add_tags", {"ResourceArn": arn, "Tags": MARKED}),
            "delete a job": ("sagemaker", "delete_training_job", named),
            "delete a run": ("dynamodb", "delete_item", {"TableName": table, "Key": KEY}),
            "scan the table": ("dynamodb", "scan", {"TableName": table}),
            "lift the pause": (
                *("ssm", "put_parameter"),
                {"Name": outputs["PauseParameter"], "Value": "on", "Overwrite": True},
            ),
            "read another parameter": ("ssm", "get_parameter", {"Name": "/cdk-bootstrap/hnb659fds/version"}),
            "delete a key": ("kms", "schedule_key_deletion", {"KeyId": key_of(account)}),
            "page by itself": ("sns", "publish", {"TopicArn": outputs["PageTopicArn"], "Message": "x"}),
            "send itself signals": ("sqs", "send_message", {"QueueUrl": queue, "MessageBody": "x"}),
            "put events on the default bus": ("events", "put_events", {"Entries": [notice]}),
            "call another function": ("lambda", "invoke", {"FunctionName": outputs["SweepFunctionName"]}),
            "read logs of others": (
                *("logs", "get_log_events"),
                {"logGroupName": "/aws/lambda/other", "logStreamName": "x"},
            ),
            "make a role": ("iam", "create_role", {"RoleName": "x", "AssumeRolePolicyDocument": "{}"}),
        },
        "Sweep": {
            "stop a job": ("sagemaker", "stop_training_job", named),
            "create a job": ("sagemaker", "create_training_job", job(Tags=MARKED)),
            "write a run": (
                *("dynamodb", "batch_write_item"),
                {"RequestItems": {table: [{"PutRequest": {"Item": KEY}}]}},
            ),
            "report in a job's name": (
                *("sqs", "send_message"),
                {"QueueUrl": outputs["FiledReportsQueueUrl"], "MessageBody": "x"},
            ),
            "command by the queue": (
                "sqs",
                "send_message",
                {"QueueUrl": outputs["CommandQueueUrl"], "MessageBody": "x"},
            ),
            "command": ("events", "put_events", own_bus),
            "write a command": ("s3", "put_object", put(MAILBOX, "runs/a/command.json")),
        },
        "Notify": {
            "read a run": ("dynamodb", "get_item", {"TableName": table, "Key": KEY}),
            "write a page": ("s3", "put_object", put(outputs["ReportsBucket"], "runs/a/report.html")),
        },
        "Report": {
            "write a command": ("s3", "put_object", put(MAILBOX, "runs/a/command.json")),
            "see a job": ("sagemaker", "describe_training_job", named),
            "write a run": ("dynamodb", "put_item", {"TableName": table, "Item": KEY}),
        },
    }


def allowed(account: Account) -> Mapping[str, Calls]:
    """Calls that the same roles may make, with other resources, tags or keys."""
    table = account.aws.outputs["TableName"]
    watch = {"pk": {"S": "watch#forbidden"}, "sk": {"S": "x"}}
    return {
        "Supervise": {
            "read a run": ("dynamodb", "get_item", {"TableName": table, "Key": KEY}),
            "read the pause": ("ssm", "get_parameter", {"Name": account.aws.outputs["PauseParameter"]}),
            "write a command": (
                *("s3", "put_object"),
                {"Bucket": MAILBOX, "Key": "runs/forbidden/command.json", "Body": b"{}"},
            ),
        },
        "Sweep": {
            "keep what it remembers": (
                *("dynamodb", "batch_write_item"),
                {"RequestItems": {table: [{"DeleteRequest": {"Key": watch}}]}},
            )
        },
    }


@pytest.mark.rehearsal
def test_without_roles_functions_ask_for_no_more_than_observing(tmp_path: Path, pace: Pace):
    """A job with checkpoints dies and is reported; no function has tried a call that its role refuses."""
    with apart(tmp_path, scale=pace.scale, schedule_scale=pace.scale, stack=None) as aws:
        context = {**deploy.LOCAL_SCOPE, "trainingRoleArns": []}
        aws.redeployed(deploy.deploy(deploy.synthesize(ROOT, ASSEMBLIES, context=context), "Rerail", aws.client))
        account = Account(aws, pace)
        account.set_up_for_tests()
        account.submit_struck("observed", "kill")
        run = account.run_in("observed", "held")
        assert "observing only: would relaunch" in run.hold_reason
        assert account.jobs("observed") == ["observed"]
        assert refusals(aws) == []
        assert account.dead_letters() == []


def key_of(account: Account) -> str:
    described = account.aws.client("dynamodb").describe_table(TableName=account.aws.outputs["TableName"])
    return str(described["Table"]["SSEDescription"]["KMSMasterKeyArn"])


def session_of(account: Account, function: str) -> boto3.Session:
    """A session with the function's role, which the test has the account trusted to assume."""
    iam, name = account.aws.client("iam"), account.aws.outputs[f"{function}FunctionName"]
    arn = account.aws.client("lambda").get_function_configuration(FunctionName=name)["Role"]
    role = arn.rpartition("/")[2]
    trust = iam.get_role(RoleName=role)["Role"]["AssumeRolePolicyDocument"]
    root = {"Effect": "Allow", "Principal": {"AWS": f"arn:aws:iam::{ACCOUNT}:root"}, "Action": "sts:AssumeRole"}
    more = trust | {"Statement": [*trust["Statement"], root]}
    iam.update_assume_role_policy(RoleName=role, PolicyDocument=json.dumps(more))
    assumed = account.aws.client("sts").assume_role(RoleArn=arn, RoleSessionName="forbidden")["Credentials"]
    iam.update_assume_role_policy(RoleName=role, PolicyDocument=json.dumps(trust))
    keys = (assumed[name] for name in ("AccessKeyId", "SecretAccessKey", "SessionToken"))
    return boto3.Session(*keys, region_name=REGION)


@pytest.mark.parametrize("function", ["Supervise", "Sweep", "Notify", "Report"])
def test_what_a_role_does_not_allow_is_refused(account: Account, undisturbed, function: str):
    """With AccessDenied, as AWS answers; and the same role may do what it is for."""
    session = session_of(account, function)

    def answer(service: str, method: str, asked: Mapping[str, Any]) -> str:
        client = session.client(service, endpoint_url=account.aws.endpoint_url)
        try:
            getattr(client, method)(**asked)
        except ClientError as error:
            return str(error.response["Error"]["Code"])
        return "allowed"

    refused = {name: answer(*call) for name, call in calls(account)[function].items()}
    assert {name: code for name, code in refused.items() if code not in REFUSED} == {}
    accepted = {name: answer(*call) for name, call in allowed(account).get(function, {}).items()}
    assert set(accepted.values()) <= {"allowed"}, accepted
    assert len(account.aws.log_file.read_text().split("/forbidden may not ")) > len(refused), "they are logged"
