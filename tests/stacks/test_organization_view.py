"""The hub's view: members forward run events and nothing else, the hub logs them and can act on nothing."""

import json

import boto3
from moto import mock_aws

from cli.deploy import permissions
from cli.deploy.organization import find_caller, find_member, list_regions
from cli.organization import read_event
from stacks import ROOT
from tests.aws.places import REGION, our_own_clients
from tests.stacks.template import Template, target
from tests.stacks.test_alarms import watched
from tests.stacks.test_delivery import allowed_rules
from tools.variants import ORGANIZATION

EVENTS = {"source": ["rerail"], "detail-type": ["Rerail Run State Change"]}


def test_members_have_one_more_permission_and_send_run_events_alone(organization, organization_view):
    """It is to put events on the bus that the parameter names; the rule that uses it forwards run events."""
    before, member = find_member(organization).template, find_member(organization_view).template
    change = permissions.find_changes(before, member)
    assert not change.removed
    new = {id: r for id, r in member["Resources"].items() if id not in before["Resources"]}
    kinds = {resource["Type"].removeprefix("AWS::") for resource in new.values()}
    assert kinds == {"CloudWatch::Alarm", "Events::Rule", "IAM::Policy", "IAM::Role", "SQS::Queue", "SQS::QueuePolicy"}
    (rule,) = (r["Properties"] for r in new.values() if r["Type"] == "AWS::Events::Rule")
    (target,) = rule["Targets"]
    assert rule["EventPattern"] == EVENTS and target["Arn"] == {"Ref": "HubBus"}
    (policy,) = (r["Properties"]["PolicyDocument"] for r in new.values() if r["Type"] == "AWS::IAM::Policy")
    (statement,) = policy["Statement"]
    assert (statement["Action"], statement["Resource"]) == ("events:PutEvents", {"Ref": "HubBus"})
    (role,) = (r["Properties"] for r in new.values() if r["Type"] == "AWS::IAM::Role")
    trusted = [statement["Principal"] for statement in role["AssumeRolePolicyDocument"]["Statement"]]
    assert trusted == [{"Service": "events.amazonaws.com"}]


def test_the_command_reads_its_regions_and_caller_with_the_view_as_without(organization, organization_view):
    """The hub then has a bus, a log, a dashboard and an alarm beside its StackSet."""
    for folder in (organization, organization_view):
        assert list_regions(folder) == ORGANIZATION["organizationRegions"].split(",")
        assert find_caller(folder) == "DELEGATED_ADMIN"


def test_the_bus_takes_run_events_of_the_organization_alone(organization_view):
    hub = Template.read(organization_view, "RerailOrganization")
    (policy,) = hub.of("Events::EventBusPolicy").values()
    statement = policy["Statement"]
    assert (statement["Effect"], statement["Action"]) == ("Allow", "events:PutEvents")
    assert statement["Condition"] == {
        "StringEquals": {
            "aws:PrincipalOrgID": ORGANIZATION["organizationId"],
            "events:source": EVENTS["source"],
            "events:detail-type": EVENTS["detail-type"],
        }
    }


def test_the_hub_logs_them_with_an_end_and_has_no_role(organization_view):
    """Without a role and a function, nothing of the hub's view can act on a member's run."""
    hub = Template.read(organization_view, "RerailOrganization")
    (rule,) = hub.of("Events::Rule").values()
    assert rule["EventPattern"] == EVENTS and len(rule["Targets"]) == 1
    (group,) = hub.of("Logs::LogGroup").values()
    assert group["LogGroupName"].startswith("/aws/events/") and group["RetentionInDays"] == 30
    assert not hub.of("IAM::Role") and not hub.of("Lambda::Function") and not hub.of("IAM::Policy")
    (members,) = hub.of("CloudFormation::StackSet").values()
    assert [pair["ParameterKey"] for pair in members["Parameters"]] == ["AssetsPrefix", "HubBus"]


def test_an_event_that_the_hub_cannot_log_is_kept_and_pages(organization_view):
    """Also one that cannot be kept: the rule's alarms are those of every other rule."""
    hub = Template.read(organization_view, "RerailOrganization")
    ((id, rule),) = hub.of("Events::Rule").items()
    queue = target(rule["Targets"][0]["DeadLetterConfig"]["Arn"])
    assert allowed_rules(hub, queue) == [{"Fn::GetAtt": [id, "Arn"]}]
    assert watched(hub, "ApproximateNumberOfMessagesVisible") == [queue]
    alarms = hub.of("CloudWatch::Alarm").values()
    assert [alarm["MetricName"] for alarm in alarms].count("InvocationsFailedToBeSentToDlq") == 1
    assert all(alarm["AlarmActions"] == [hub.body["Outputs"]["HubPageTopicArn"]["Value"]] for alarm in alarms)


def test_a_run_event_on_the_bus_is_listed_and_another_event_is_not(organization_view):
    """By the rule of the template in an emulated EventBridge; only EventBridge's own field names the account."""
    hub = Template.read(organization_view, "RerailOrganization")
    (rule,) = hub.of("Events::Rule").values()
    (group,) = hub.of("Logs::LogGroup").values()
    event = json.loads((ROOT / "tests" / "events" / "run_changed.json").read_text())
    detail = json.dumps({**event["detail"], "account": "999999999999"})
    entry = {"EventBusName": "hub", "Source": "rerail", "DetailType": "Rerail Run State Change", "Detail": detail}
    with mock_aws(), our_own_clients():
        bus, logs = (boto3.client(name, region_name=REGION) for name in ("events", "logs"))
        arn = f"arn:aws:logs:{REGION}:123456789012:log-group:{group['LogGroupName']}"
        logs.create_log_group(logGroupName=group["LogGroupName"])
        bus.create_event_bus(Name="hub")
        bus.put_rule(Name="rule", EventBusName="hub", EventPattern=json.dumps(rule["EventPattern"]))
        bus.put_targets(Rule="rule", EventBusName="hub", Targets=[{"Id": "Log", "Arn": arn}])
        bus.put_events(Entries=[entry, {**entry, "DetailType": "Rerail Notice"}])
        logged = logs.filter_log_events(logGroupName=group["LogGroupName"])["events"]
    (message,) = (json.loads(logged_event["message"]) for logged_event in logged)
    assert read_event(json.dumps(message)) is None, "the emulator leaves the account out, and the detail's is not taken"
    run = read_event(json.dumps({**message, "account": "111122223333"}))
    assert run is not None
    assert (run.account, run.run, run.state) == ("111122223333", event["detail"]["run"], event["detail"]["state"])


def test_each_list_of_the_dashboard_takes_the_newest_event_of_a_run(organization_view):
    hub = Template.read(organization_view, "RerailOrganization")
    (board,) = hub.of("CloudWatch::Dashboard").values()
    body = json.dumps(board["DashboardBody"])
    assert body.count("latest(detail.state) as state") == body.count("by account, region, detail.run") == 3
    assert "FailedInvocations" in body
