"""The functions that the template describes are the functions that there are."""

import ast
import json

import pytest

from settings import NotifySettings, ReportSettings, SuperviseSettings, SweepSettings
from stacks import ROOT
from tests.stacks.template import target

SETTINGS = {"supervise": SuperviseSettings, "sweep": SweepSettings, "notify": NotifySettings, "report": ReportSettings}
POWERTOOLS = {"POWERTOOLS_SERVICE_NAME", "POWERTOOLS_METRICS_NAMESPACE", "POWERTOOLS_LOG_LEVEL"}

each_function = pytest.mark.parametrize("name", SETTINGS)


def test_there_are_no_other_functions(template):
    handlers = {function["Handler"] for function in template.of("Lambda::Function").values()}
    assert handlers == {f"{name}.handler" for name in SETTINGS}


@each_function
def test_the_handler_exists(name):
    module = ast.parse((ROOT / "lambdas" / f"{name}.py").read_text())
    assert "handler" in {node.name for node in module.body if isinstance(node, ast.FunctionDef)}


@each_function
def test_the_environment_is_complete(template, name):
    variables = template.function(name)["Environment"]["Variables"]
    assert set(variables) == set(SETTINGS[name].names().values()) | POWERTOOLS
    assert SETTINGS[name].from_environment(variables).variables().items() <= variables.items()
    assert variables["POWERTOOLS_SERVICE_NAME"] == name


@pytest.mark.threat("T24")
def test_reports_keep_no_other_signal_waiting(template):
    """A training role may file thousands a second. They have a queue, dead letters and an alarm of their own, and
    occupy two invocations, beside the eight of all other signals."""
    outputs = template.body["Outputs"]
    mapping = feeding(template, outputs["FiledReportsQueueUrl"]["Value"])
    assert mapping["ScalingConfig"] == {"MaximumConcurrency": 2}
    assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    own, others = (target(outputs[f"{name}QueueUrl"]["Value"]) for name in ("FiledReports", "Signals"))
    for rule in template.of("Events::Rule").values():
        if "aws.s3" in rule["EventPattern"]["source"]:
            assert [target(one["Arn"]) for one in rule["Targets"]] == [own]
        else:
            assert own not in [target(one["Arn"]) for one in rule["Targets"]]
    queues = template.of("SQS::Queue")
    letters = [queues[queue]["RedrivePolicy"]["deadLetterTargetArn"] for queue in (own, others)]
    assert letters[0] != letters[1]


def feeding(template, queue):
    """What hands a queue's messages to a function."""
    (found,) = (
        mapping
        for mapping in template.of("Lambda::EventSourceMapping").values()
        if target(mapping["EventSourceArn"]) == target(queue)
    )
    return found


def test_reports_are_drawn_at_once_and_later_and_never_by_many(template):
    """Two queues hear each notice, one of them three minutes later, when the last metrics have come; a storm of notices
    takes no concurrency from those who mend."""
    (rule,) = (r for r in template.of("Events::Rule").values() if r["Description"].endswith("incident reports"))
    delays = []
    for one in rule["Targets"]:
        queue, mapping = template.of("SQS::Queue")[target(one["Arn"])], feeding(template, one["Arn"])
        assert mapping["ScalingConfig"] == {"MaximumConcurrency": 2}
        assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
        assert template.of("Lambda::Function")[target(mapping["FunctionName"])]["Handler"] == "report.handler"
        assert queue["VisibilityTimeout"] >= 6 * template.function("report")["Timeout"]
        delays.append(queue.get("DelaySeconds", 0))
    assert delays == [0, 180]


def test_names_in_the_environment_are_the_deployed_ones(template):
    outputs = {name: output["Value"] for name, output in template.body["Outputs"].items()}
    environment = {**template.function("supervise")["Environment"]["Variables"]}
    environment |= template.function("sweep")["Environment"]["Variables"]
    environment |= template.function("report")["Environment"]["Variables"]
    environment |= template.function("notify")["Environment"]["Variables"]
    assert environment["RERAIL_TABLE"] == outputs["TableName"]
    assert environment["RERAIL_QUEUE_URL"] == outputs["SignalsQueueUrl"]
    assert environment["RERAIL_BUS"] == outputs["BusName"]
    assert environment["RERAIL_POLICY_PREFIX"] == outputs["PolicyPrefix"]
    assert environment["RERAIL_PAUSE_PARAMETER"] == outputs["PauseParameter"]
    assert environment["RERAIL_MAILBOX"] == outputs["MailboxBucket"]
    assert environment["RERAIL_REPORTS"] == outputs["ReportsBucket"]
    assert environment["RERAIL_PAGE_TOPIC"] == outputs["PageTopicArn"]
    assert environment["RERAIL_INFORM_TOPIC"] == outputs["InformTopicArn"]


def test_functions_are_made_in_the_chosen_network(full):
    """With the permission to be there, which Lambda checks when a function is made."""
    functions = {id: r for id, r in full.resources.items() if r["Type"] == "AWS::Lambda::Function"}
    network = {"SecurityGroupIds": ["sg-0a1b2c3d"], "SubnetIds": ["subnet-0a1b2c3d", "subnet-4e5f6a7b"]}
    for id, function in functions.items():
        assert function["Properties"]["VpcConfig"] == network, id
        role = target(function["Properties"]["Role"])
        policies = {name for name, p in full.of("IAM::Policy").items() if target(p["Roles"][0]) == role}
        granted = [name for name in policies if "ec2:CreateNetworkInterface" in json.dumps(full.resources[name])]
        assert granted and set(granted) <= set(function["DependsOn"]), id
