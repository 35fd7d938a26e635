"""The local AWS refuses what the role of a function does not allow, and accepts what it needs."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from local import deploy
from local.emulator import ACCOUNT, REGION
from local.pace import Pace
from rerail.model import mailbox
from tests.deployed.conftest import ASSEMBLIES
from tests.deployed.jobs import ROOT, Account, apart
from tests.iam.calls import instrument
from tests.iam.permissions import refusals

pytestmark = pytest.mark.slow

EVENTS = Path(__file__).parents[1] / "events"
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
            ),
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
        instrument(aws, tmp_path / "calls.jsonl")
        account.submit_struck("observed", "kill")
        run = account.run_in("observed", "held")
        assert "observing only: would relaunch" in run.hold_reason
        assert account.jobs("observed") == ["observed"]
        assert not refusals(aws, tmp_path / "calls.jsonl")
        assert account.dead_letters() == []


def key_of(account: Account) -> str:
    described = account.aws.client("dynamodb").describe_table(TableName=account.aws.outputs["TableName"])
    return str(described["Table"]["SSEDescription"]["KMSMasterKeyArn"])


def session_of(account: Account, function: str) -> boto3.Session:
    """A session with the credentials of the function's role, which MiniStack derives from both their ARNs."""
    functions = account.aws.client("lambda")
    name = account.aws.outputs[f"{function}FunctionName"]
    payload = (EVENTS / "notice_inform.json").read_bytes() if function == "Notify" else b'{"Records": []}'
    functions.invoke(FunctionName=name, Payload=payload)  # a session begins with its first worker
    known = functions.get_function_configuration(FunctionName=name)
    both = f"{known['FunctionArn']}:{known['Role']}"
    digest = hashlib.sha256(both.encode()).hexdigest()
    secrets = (hashlib.sha256(f"{kind}:{digest}".encode()).hexdigest() for kind in ("secret", "token"))
    return boto3.Session(f"ASIA{digest[:16].upper()}", *secrets, region_name=REGION)


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
