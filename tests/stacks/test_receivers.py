"""The ways to tell people that an account may switch on: what the template then holds, and who may do what in it."""

import json
import re

import pytest

from rerail.messages import messages
from rerail.notices.notifiers.targets import NOTIFIERS
from stacks.parts.receiver import AGE
from tests.stacks.template import Template, many, target
from tests.stacks.test_delivery import matches
from tools.variants import EVERYTHING

pytestmark = pytest.mark.slow
ALARM_CHANGE = "CloudWatch Alarm State Change"
STACK_PREFIX = {"Fn::Join": ["", [{"Ref": "AWS::StackName"}, "-"]]}
OUTSIDE = ("Events::Connection", "Events::ApiDestination")
SECRETS = {name: EVERYTHING[name] for name in ("pagerDutySecret", "webhookSecret")}
RESOLVED = {name: f"{{{{resolve:secretsmanager:{secret}:SecretString:::}}}}" for name, secret in SECRETS.items()}


def is_receiver(template: Template, arn: object) -> bool:
    """Return whether this is an API destination of the template."""
    return json.dumps(arn).startswith('{"Fn::GetAtt"') and target(arn) in template.of("Events::ApiDestination")


def receivers(template: Template) -> dict[str, dict]:
    """The rules that send to API destinations, by what they hear."""
    rules = [r for r in template.of("Events::Rule").values() if is_receiver(template, r["Targets"][0]["Arn"])]
    return {rule["EventPattern"]["detail-type"][0]: rule for rule in rules if "EventBusName" in rule}


def test_by_default_there_is_nothing_of_it(template):
    """No connection, no destination, no topic for chat, no page on the internet; and no permission for them."""
    assert not [kind for kind in (*OUTSIDE, "ApiGatewayV2::Api") if template.of(kind)]
    assert len(template.of("SNS::Topic")) == 2
    assert "events:PutEvents" not in json.dumps(template.allowed("notify"))
    assert "secretsmanager" not in json.dumps(template.body)


def test_the_rules_match_the_detail_types_of_the_function(full):
    """One rule for each receiver, on our bus, for what the function puts there; sent is the detail as it is."""
    rules = receivers(full)
    assert set(rules) == {target.detail_type for target in NOTIFIERS}
    for rule in rules.values():
        assert rule["EventPattern"]["source"] == [messages.RERAIL]
        (one,) = rule["Targets"]
        assert one["InputPath"] == "$.detail"
        assert "InputTransformer" not in one


def test_where_it_goes(full):
    """By POST, to PagerDuty's Events API v2 and to the webhook, no faster than they take it."""
    destinations = {d["InvocationEndpoint"]: d for d in full.of("Events::ApiDestination").values()}
    assert set(destinations) == {"https://events.pagerduty.com/v2/enqueue", EVERYTHING["webhookUrl"]}
    assert {d["HttpMethod"] for d in destinations.values()} == {"POST"}
    assert destinations["https://events.pagerduty.com/v2/enqueue"]["InvocationRateLimitPerSecond"] * 60 <= 120


@pytest.mark.threat("T30")
def test_links_are_signed_by_one_function_and_verified_by_another(full):
    """The page reads runs and puts commands, and signs nothing. Two requests a second, of which no query is logged."""
    (stage,) = full.of("ApiGatewayV2::Stage").values()
    limits = stage["DefaultRouteSettings"]
    assert (limits["ThrottlingRateLimit"], limits["ThrottlingBurstLimit"]) == (2, 5)
    assert set(json.loads(stage["AccessLogSettings"]["Format"]).values()) == {
        *("$context.requestTime", "$context.identity.sourceIp", "$context.status")
    }
    assert {route["RouteKey"] for route in full.of("ApiGatewayV2::Route").values()} == {"GET /answer", "POST /answer"}
    actions = {action for statement in full.allowed("answer") for action in many(statement["Action"])}
    ours = {action for action in actions if action.partition(":")[0] not in ("logs", "xray", "ec2")}
    assert ours == {"dynamodb:GetItem", "events:PutEvents", "kms:Decrypt", "kms:DescribeKey", "kms:VerifyMac"}
    signers = ("supervise", "sweep", "report", "answer", "notify")
    assert [name for name in signers if "kms:GenerateMac" in json.dumps(full.allowed(name))] == ["notify"]


@pytest.mark.threat("T22")
def test_secrets_stay_where_they_are(full):
    """The template holds references alone: the routing key goes into the body, the webhook's secret into its header."""
    connections = {c["AuthParameters"]["ApiKeyAuthParameters"]["ApiKeyName"]: c for c in full.of(OUTSIDE[0]).values()}
    pager, hook = (connections[name]["AuthParameters"] for name in ("X-Routing-Key", "Authorization"))
    (parameter,) = pager["InvocationHttpParameters"]["BodyParameters"]
    assert parameter == {"Key": "routing_key", "Value": RESOLVED["pagerDutySecret"], "IsValueSecret": True}
    assert hook["ApiKeyAuthParameters"]["ApiKeyValue"] == RESOLVED["webhookSecret"]
    assert "InvocationHttpParameters" not in hook
    for function in full.of("Lambda::Function").values():
        assert "secretsmanager" not in json.dumps(function)


def test_a_rule_may_send_to_its_own_receiver_alone(full):
    """Each has a role of its own, which EventBridge takes on for this account, and which can do one thing."""
    for rule in receivers(full).values():
        (one,) = rule["Targets"]
        role = target(one["RoleArn"])
        (statement,) = full.allowed_to(role)
        assert statement["Action"] == "events:InvokeApiDestination"
        assert statement["Resource"] == one["Arn"]
        (trust,) = full.of("IAM::Role")[role]["AssumeRolePolicyDocument"]["Statement"]
        assert trust["Principal"] == {"Service": "events.amazonaws.com"}
        assert trust["Condition"] == {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}}


def own_alarm_rules(template: Template) -> list[dict]:
    """The rules that tell receivers of Rerail's own alarms."""
    return [r for r in template.of("Events::Rule").values() if r.get("Description") == "Rerail: its own alarms"]


def alarm_event(name: str, before: str, now: str, *, reason: str = "It is.", description: str = "It is so.") -> dict:
    """CloudWatch's event, as far as patterns look."""
    states = {"state": {"value": now, "reason": reason}, "previousState": {"value": before}}
    detail = {"alarmName": name, "configuration": {"description": description}, **states}
    resources = [f"arn:aws:cloudwatch:eu-west-1:123456789012:alarm:{name}"]
    return {"source": "aws.cloudwatch", "detail-type": ALARM_CHANGE, "detail": detail, "resources": resources}


@pytest.mark.threat("T37")
@pytest.mark.parametrize(("now", "before"), [("ALARM", "OK"), ("OK", "ALARM")])
@pytest.mark.parametrize("text", ['x"}, "event_action": "resolve", "dedup_key": "gpt/held', "x\\", "x\ny"])
def test_an_alarm_that_others_name_like_ours_ends_no_page(full, text, now, before):
    """EventBridge fills in texts as they are; an alarm with one that would end a JSON text is not forwarded."""
    event = alarm_event("Rerail-x", before, now)
    assert len([rule for rule in own_alarm_rules(full) if matches(full, rule, event)]) == 2
    forged = (alarm_event("Rerail-x", before, now, **{field: text}) for field in ("reason", "description"))
    for event in (alarm_event(f"Rerail-{text}", before, now), *forged):
        assert not [rule for rule in own_alarm_rules(full) if matches(full, rule, event)]


@pytest.mark.parametrize(
    ("name", "before", "now", "action"),
    [
        ("Rerail-SweepDeadManNoSweep1234-5678", "OK", "ALARM", "trigger"),
        ("Rerail-SweepDeadManNoSweep1234-5678", "INSUFFICIENT_DATA", "ALARM", "trigger"),
        ("Rerail-SweepDeadManNoSweep1234-5678", "ALARM", "OK", "resolve"),
        ("Rerail-SweepDeadManNoSweep1234-5678", "INSUFFICIENT_DATA", "OK", None),
        ("somebody-elses", "OK", "ALARM", None),
        ("RerailUnhealthy", "OK", "ALARM", None),
    ],
)
def test_own_alarms_are_reported_from_beginning_to_end(full, name, before, now, action):
    """By one key for each alarm; not those of others, and not the one that is over all of them."""
    event = alarm_event(name, before, now)
    # A member of an organization has another name for its stack, which CloudFormation fills in.
    assert all(json.dumps(STACK_PREFIX) in json.dumps(rule["EventPattern"]) for rule in own_alarm_rules(full))
    rules = [rule for rule in own_alarm_rules(full) if matches(full, rule, event)]
    templates = [json.loads(rule["Targets"][0]["InputTransformer"]["InputTemplate"]) for rule in rules]
    assert [body["event_action"] for body in templates if "event_action" in body] == ([action] if action else [])
    assert {body.get("dedup_key") or body.get("clears") or body["key"] for body in templates} <= {"alarm/<name>"}


def test_the_body_for_an_own_alarm_is_well_formed(full):
    """EventBridge fills in texts as they are: what we write ourselves holds nothing that would end a JSON text."""
    for alarm in full.of("CloudWatch::Alarm").values():
        description = alarm["AlarmDescription"]
        assert '"' not in description and "\\" not in description and len(description) <= 1024
    for rule in own_alarm_rules(full):
        assert "EventBusName" not in rule
        transformer = rule["Targets"][0]["InputTransformer"]
        named = set(re.findall("<([a-z]+)>", transformer["InputTemplate"]))
        assert named <= set(transformer["InputPathsMap"])


def test_what_does_not_arrive_soon_is_a_page_itself(full):
    """Tried for a quarter of an hour; then it lies in a queue of its own, whose alarm pages by the topic."""
    page = full.body["Outputs"]["PageTopicArn"]["Value"]
    queues = set()
    for rule in receivers(full).values():
        (one,) = rule["Targets"]
        assert one["RetryPolicy"] == {"MaximumEventAgeInSeconds": AGE.to_seconds(), "MaximumRetryAttempts": 185}
        queue = target(one["DeadLetterConfig"]["Arn"])
        alarms = [
            alarm
            for alarm in full.of("CloudWatch::Alarm").values()
            if alarm["Namespace"] == "AWS/SQS" and target(alarm["Dimensions"][0]["Value"]) == queue
        ]
        assert alarms and all(alarm["AlarmActions"] == [page] for alarm in alarms)
        queues.add(queue)
    assert len(queues) == 2


def test_the_chat_has_encrypted_topics_of_its_own(full):
    """Their ARNs are outputs, the function may publish there, and no e-mail address is subscribed."""
    topics = full.of("SNS::Topic")
    assert len(topics) == 4
    assert all("KmsMasterKeyId" in topic for topic in topics.values())
    chats = [full.body["Outputs"][name]["Value"] for name in ("ChatPageTopicArn", "ChatInformTopicArn")]
    (publish,) = (s for s in full.allowed("notify") if s["Action"] == "sns:Publish")
    assert all(chat in publish["Resource"] for chat in chats)
    assert not full.of("SNS::Subscription")


def test_the_functions_environment_names_each(full):
    """And may put on the bus what the receivers are sent."""
    variables = full.function("notify")["Environment"]["Variables"]
    assert variables["RERAIL_TARGETS"].split(",") == [target.name for target in NOTIFIERS]
    assert target(variables["RERAIL_CHAT_PAGE_TOPIC"]) in full.of("SNS::Topic")
    (put,) = (s for s in full.allowed("notify") if s["Action"] == "events:PutEvents")
    assert put["Resource"] == {"Fn::GetAtt": [target(full.body["Outputs"]["BusName"]["Value"]), "Arn"]}
