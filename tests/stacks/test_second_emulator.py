"""The template in another AWS than the one that the suite is made for: moto's server, with its own CloudFormation.

What has to be adapted for moto, and what moto leaves out without a word, is listed exactly: a change is noticed.
"""

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from moto.sagemaker.models import sagemaker_backends
from moto.server import ThreadedMotoServer

from local import deploy
from stacks import ROOT

ACCOUNT, REGION, STACK = "123456789012", "us-east-1", "Rerail"
PLACE = {"AccountId": ACCOUNT, "Region": REGION}
LAYER = f"arn:aws:lambda:{REGION}:{ACCOUNT}:layer:Powertools:1"
# moto has neither type, and a reference to one fails.
REMOVED = {"AWS::CloudWatch::CompositeAlarm", "AWS::CloudWatch::Dashboard"}
# moto reports these as part of the stack, and has made none of them.
LEFT_OUT = {
    "AWS::CloudWatch::Alarm",
    "AWS::Lambda::EventInvokeConfig",
    "AWS::S3::BucketPolicy",
    "AWS::SNS::TopicPolicy",
    "AWS::SQS::QueuePolicy",
    "AWS::Scheduler::Schedule",
}
CALL = """
import json, sys
class Context:
    function_name, memory_limit_in_mb, aws_request_id = sys.argv[1], 512, "1"
    invoked_function_arn = "arn:aws:lambda:us-east-1:123456789012:function:f"
    def get_remaining_time_in_millis(self): return 60_000
print(json.dumps(__import__(sys.argv[1]).handler(json.loads(sys.argv[2]), Context())))
"""

Client = Callable[[str], Any]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Clients of an empty moto server."""
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    session = boto3.Session("testing", "testing", region_name=REGION)
    try:
        yield lambda service: session.client(service, endpoint_url=address)
    finally:
        server.stop()


def find_functions_called(client: Client) -> Iterator[tuple[str, str]]:
    """Yield each rule of our bus that calls a function, with the target's id."""
    events = client("events")
    for rule in events.list_rules(EventBusName="rerail")["Rules"]:
        for one in events.list_targets_by_rule(Rule=rule["Name"], EventBusName="rerail")["Targets"]:
            if ":lambda:" in one["Arn"]:
                yield rule["Name"], one["Id"]


def adapt(template: dict[str, Any]) -> dict[str, Any]:
    """Return the template as moto takes it; these adaptations and the one below are enough."""
    # 1. A parameter below /aws/ cannot be put there, and its default is looked up even where a value is given.
    (parameter,) = template["Parameters"].values()
    assert parameter["Type"] == "AWS::SSM::Parameter::Value<String>"
    parameter |= {"Type": "String", "Default": LAYER}
    # 2. Types that moto does not have.
    resources = template["Resources"]
    removed = {id: resource["Type"] for id, resource in resources.items() if resource["Type"] in REMOVED}
    assert set(removed.values()) == REMOVED
    for id in removed:
        del resources[id]
    # 3. A reference to an event bus gives moto's own object instead of its name.
    (bus,) = (id for id, resource in resources.items() if resource["Type"] == "AWS::Events::EventBus")
    name = resources[bus]["Properties"]["Name"]
    written = json.dumps(template)
    assert json.dumps({"Ref": bus}) in written
    return json.loads(written.replace(json.dumps({"Ref": bus}), json.dumps(name)))


@pytest.fixture(scope="module")
def outputs(client: Client, assembly) -> dict[str, str]:
    """The outputs of the stack, deployed with its assets."""
    deploy.bootstrap(client, PLACE)
    deploy.publish_assets(assembly, STACK, client, PLACE)
    bucket = deploy.asset_bucket(PLACE)
    template = adapt(json.loads((assembly / f"{STACK}.template.json").read_text()))
    client("s3").put_object(Bucket=bucket, Key="Rerail.json", Body=json.dumps(template))
    cloudformation = client("cloudformation")
    with warnings.catch_warnings(record=True, action="always") as warned:
        cloudformation.create_stack(
            StackName=STACK,
            TemplateURL=f"http://{bucket}.s3.amazonaws.com/Rerail.json",
            Capabilities=["CAPABILITY_IAM"],
        )
    (stack,) = cloudformation.describe_stacks(StackName=STACK)["Stacks"]
    assert stack["StackStatus"] == "CREATE_COMPLETE"
    messages = [str(warning.message) for warning in warned if "supported by moto" in str(warning.message)]
    assert {message.split()[3] for message in messages} == LEFT_OUT
    # 4. moto calls functions in Docker: an event for one fails where there is none.
    called = list(find_functions_called(client))
    assert [rule.partition("-")[2].partition("Rule")[0] for rule, _ in called] == ["Notices"]
    for rule, target in called:
        client("events").remove_targets(Rule=rule, EventBusName="rerail", Ids=[target])
    return deploy.outputs_in(stack)


def test_the_template_is_deployed(client: Client, outputs: dict[str, str], template):
    """To the last resource, with every output; a type that moto leaves out has no name there."""
    pages = client("cloudformation").get_paginator("list_stack_resources").paginate(StackName=STACK)
    listed = [resource for page in pages for resource in page["StackResourceSummaries"]]
    made = {resource["LogicalResourceId"] for resource in listed if resource.get("ResourceType")}
    left = {resource["Type"] for id, resource in template.resources.items() if id not in made}
    assert left == LEFT_OUT | REMOVED
    assert set(outputs) == set(template.body["Outputs"])


def test_a_command_on_the_bus_reaches_the_queue(client: Client, outputs: dict[str, str]):
    """By moto's own matcher of patterns; the account that the pattern asks for is filled in by its CloudFormation."""
    entry = {"Source": "rerail.operator", "DetailType": "Rerail Command", "Detail": '{"run": "gpt"}'}
    for source in ("rerail.operator", "rerail.other"):
        put = client("events").put_events(Entries=[entry | {"Source": source, "EventBusName": outputs["BusName"]}])
        assert put["FailedEntryCount"] == 0
    received = client("sqs").receive_message(QueueUrl=outputs["CommandQueueUrl"], MaxNumberOfMessages=10)
    assert [json.loads(message["Body"])["source"] for message in received["Messages"]] == ["rerail.operator"]


def call(client: Client, outputs: dict[str, str], function: str, event: Any) -> tuple[Any, str]:
    """Run a function's code with the settings that moto keeps for it, every AWS call going to moto; return the answer
    and the log."""
    known = client("lambda").get_function_configuration(FunctionName=outputs[f"{function}FunctionName"])
    keys = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "testing")
    aws = {"AWS_ENDPOINT_URL": client("sqs").meta.endpoint_url, "AWS_DEFAULT_REGION": REGION, **keys}
    environment = known["Environment"]["Variables"] | aws | {"PATH": os.environ["PATH"], "PYTHONPATH": "lambdas"}
    environment |= {"POWERTOOLS_TRACE_DISABLED": "true"}
    command = [sys.executable, "-c", CALL, known["Handler"].partition(".")[0], json.dumps(event)]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1]), ran.stdout


def handle(client: Client, outputs: dict[str, str], body: str) -> None:
    """Have the supervisor handle a message, as Lambda hands it over."""
    record = json.loads((ROOT / "tests" / "events" / "sqs_batch.json").read_text())["Records"][0]
    answer, log = call(client, outputs, "Supervise", {"Records": [record | {"body": body}]})
    assert answer == {"batchItemFailures": []}, log


def test_a_failed_job_is_relaunched_by_the_calls_that_moto_accepts(client: Client, outputs: dict[str, str]):
    """Adopted, failed and started anew: by the functions' own calls of SageMaker, DynamoDB, SSM, S3, SQS and
    EventBridge, which moto checks and answers by a code of its own."""
    client("sagemaker").create_training_job(
        TrainingJobName="gpt",
        RoleArn=f"arn:aws:iam::{ACCOUNT}:role/SageMakerRole",
        AlgorithmSpecification={"TrainingImage": "x/y:1", "TrainingInputMode": "File"},
        OutputDataConfig={"S3OutputPath": "s3://bucket/output"},
        ResourceConfig={"InstanceCount": 1, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 1},
        StoppingCondition={"MaxRuntimeInSeconds": 3600},
        Tags=[{"Key": "rerail:policy", "Value": "default"}],
    )
    # A relaunch waits for up to 30 s otherwise.
    name = f"{outputs['PolicyPrefix']}/default"
    policy = client("ssm").get_parameter(Name=name)["Parameter"]["Value"]
    shorter = policy.replace('base = "30s"', 'base = "1s"')
    assert shorter != policy
    client("ssm").put_parameter(Name=name, Value=shorter, Overwrite=True)
    changed = {"detail-type": "SageMaker Training Job State Change", "source": "aws.sagemaker", "account": ACCOUNT}
    changed |= {"time": "2026-11-01T00:00:00Z", "detail": {"TrainingJobName": "gpt"}}
    # moto's jobs are completed when they are created.
    job = sagemaker_backends[ACCOUNT][REGION].training_jobs["gpt"]
    job.training_job_status, job.secondary_status = "InProgress", "Training"
    handle(client, outputs, json.dumps(changed))
    assert state_of(client, outputs) == "watching"
    job.training_job_status, job.secondary_status = "Failed", "Failed"
    job.failure_reason = "InternalServerError: We encountered an internal error. Please try again."
    handle(client, outputs, json.dumps(changed))
    assert state_of(client, outputs) == "waiting"
    time.sleep(1)
    assert call(client, outputs, "Sweep", {})[0]["DueRuns"] == 1
    received = client("sqs").receive_message(QueueUrl=outputs["SignalsQueueUrl"], MaxNumberOfMessages=10)
    for message in received["Messages"]:
        handle(client, outputs, message["Body"])
    names = {job["TrainingJobName"] for job in client("sagemaker").list_training_jobs()["TrainingJobSummaries"]}
    assert names == {"gpt", "gpt-a002"}


def state_of(client: Client, outputs: dict[str, str]) -> str:
    items = client("dynamodb").scan(TableName=outputs["TableName"])["Items"]
    (state,) = {item["state"]["S"] for item in items if "state" in item}
    return str(state)
