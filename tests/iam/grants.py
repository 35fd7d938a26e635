"""Judge a template's permissions as IAM would; list those that its own wiring needs without any line of code.

References become names and ARNs, so that a statement can be held against a need. The evaluator is that of the emulator,
which implements the order of AWS: a Deny anywhere wins, then an Allow, else no."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ministack.core import iam_evaluator

from cli.deploy.permissions import HASH, format_value
from local.needs import CallPlace, Need, receiving, sending
from tests.stacks.template import many

ACCOUNT, REGION = "000000000000", "us-east-1"
# The property that names a resource, where its template does.
NAMED_BY = {"AWS::S3::Bucket": "BucketName", "AWS::Events::EventBus": "Name", "AWS::SSM::Parameter": "Name"}
ARNS = {
    "AWS::CloudWatch::Alarm": "cloudwatch:{region}:{account}:alarm:{name}",
    "AWS::DynamoDB::Table": "dynamodb:{region}:{account}:table/{name}",
    "AWS::Events::ApiDestination": "events:{region}:{account}:api-destination/{name}/0",
    "AWS::Events::Connection": "events:{region}:{account}:connection/{name}/0",
    "AWS::Events::EventBus": "events:{region}:{account}:event-bus/{name}",
    "AWS::Events::Rule": "events:{region}:{account}:rule/{name}",
    "AWS::IAM::Role": "iam::{account}:role/{name}",
    "AWS::KMS::Key": "kms:{region}:{account}:key/{name}",
    "AWS::Lambda::Function": "lambda:{region}:{account}:function:{name}",
    "AWS::Logs::LogGroup": "logs:{region}:{account}:log-group:{name}:*",
    "AWS::S3::Bucket": "s3:::{name}",
    "AWS::SNS::Topic": "sns:{region}:{account}:{name}",
    "AWS::SQS::Queue": "sqs:{region}:{account}:{name}",
}
# Where a resource names the customer's key that it lies under.
KEYED_BY = {
    "AWS::SQS::Queue": ("KmsMasterKeyId",),
    "AWS::SNS::Topic": ("KmsMasterKeyId",),
    "AWS::DynamoDB::Table": ("SSESpecification", "KMSMasterKeyId"),
}
# Policies that are resources of their own.
POLICIES = ("AWS::S3::BucketPolicy", "AWS::SQS::QueuePolicy", "AWS::SNS::TopicPolicy")
EVENTS, CLOUDWATCH, SCHEDULER = "events.amazonaws.com", "cloudwatch.amazonaws.com", "scheduler.amazonaws.com"


@dataclass(frozen=True, slots=True)
class Grant:
    """One action on one resource, that one statement allows to a principal: a role by its function's name or its own,
    or a service. `on` is how the template writes the resource, `statement` what is judged."""

    who: str
    action: str
    on: str
    statement: str = field(repr=False)

    @property
    def where(self) -> str:
        """Its conditions as JSON; "" for none."""
        condition = json.loads(self.statement).get("Condition")
        return json.dumps(condition, sort_keys=True) if condition else ""

    @property
    def resource(self) -> str:
        """The pattern that is judged."""
        return str(json.loads(self.statement)["Resource"])

    def covers(self, need: Need) -> bool:
        """It alone allows this."""
        return judged([json.loads(self.statement)], need) == "Allow"


@dataclass(frozen=True, slots=True)
class Wired:
    """A permission that a connection in the template needs, and the connection."""

    who: str
    because: str
    need: Need


def judged(statements: Iterable[Mapping[str, Any]], need: Need) -> str:
    """ "Allow", "Deny" or "ImplicitDeny"; over TLS, as all our calls are."""
    context = iam_evaluator.EvalContext(
        principal_arn=f"arn:aws:iam::{ACCOUNT}:role/somebody",
        principal_type="AssumedRole",
        principal_account=ACCOUNT,
        action=need.action,
        resource_arn=need.resource,
        region=REGION,
        secure_transport=True,
        service_context={name: list(value) if isinstance(value, tuple) else value for name, value in need.keys},
    )
    policy = iam_evaluator.parse_policy_document({"Statement": list(statements)})
    return str(iam_evaluator.evaluate(context, [policy]).decision)


class Granted:
    """The permissions of one template; `names` are physical names by logical id, where they are known."""

    def __init__(self, template: Mapping[str, Any], *, region: str = REGION, names: Mapping[str, str] = {}) -> None:
        self._resources: Mapping[str, Mapping[str, Any]] = template["Resources"]
        self._region, self._names = region, names
        self.place = CallPlace(ACCOUNT, REGION, lambda arn: self._keys.get(arn, ""), lambda arn: {})

    def value(self, given: Any) -> Any:
        """With every reference as the name or the ARN that it stands for."""
        match given:
            case {"Ref": str(name)}:
                return self._pseudo(name) or self._referred(name)
            case {"Fn::GetAtt": [name, "Arn"]}:
                return self.arn(name)
            case {"Fn::GetAtt": [name, attribute]}:
                return f"<{name}.{attribute}>"
            case {"Fn::Join": [glue, parts]}:
                return str(glue).join(str(self.value(part)) for part in parts)
            case {"Fn::Sub": str(text)}:
                return re.sub(r"\$\{([^}]+)\}", lambda found: str(self.value({"Ref": found[1]})), text)
            case dict():
                return {name: self.value(item) for name, item in given.items()}
            case list():
                return [self.value(item) for item in given]
        return given

    def _pseudo(self, name: str) -> str:
        known = {"AWS::AccountId": ACCOUNT, "AWS::Region": self._region, "AWS::Partition": "aws"}
        return {**known, "AWS::URLSuffix": "amazonaws.com"}.get(name, "")

    def _referred(self, name: str) -> str:
        kind = self._resources.get(name, {}).get("Type", "")
        return self.arn(name) if kind == "AWS::SNS::Topic" else self.name(name)

    def name(self, id: str) -> str:
        """The physical one, as far as it is known."""
        resource = self._resources.get(id, {})
        given = resource.get("Properties", {}).get(NAMED_BY.get(resource.get("Type", ""), ""), "")
        return str(self._names.get(id) or (self.value(given) if given else id))

    def arn(self, id: str) -> str:
        """Of a resource of the template."""
        kind = self._resources[id]["Type"]
        if kind not in ARNS:
            return f"<{id}.Arn>"
        return "arn:aws:" + ARNS[kind].format(region=self._region, account=ACCOUNT, name=self.name(id))

    @cached_property
    def _keys(self) -> dict[str, str]:
        found = {}
        for id, resource in self._resources.items():
            value: Any = resource.get("Properties", {})
            for step in KEYED_BY.get(resource["Type"], ()):
                value = value.get(step, {})
            if resource["Type"] in KEYED_BY and value:
                found[self.arn(id)] = str(self.value(value))
        return found

    @cached_property
    def roles(self) -> dict[str, str]:
        """Logical id of each role to who works in it: a function by its handler, or the role's own name."""
        called = {id: HASH.sub("", id) for id, item in self._resources.items() if item["Type"] == "AWS::IAM::Role"}
        for resource in self._of("AWS::Lambda::Function"):
            called[resource["Role"]["Fn::GetAtt"][0]] = resource["Handler"].partition(".")[0]
        return called

    def _of(self, kind: str) -> Iterator[Mapping[str, Any]]:
        yield from (resource["Properties"] for resource in self._resources.values() if resource["Type"] == kind)

    @cached_property
    def grants(self) -> list[Grant]:
        """Everything that is allowed, action by action and resource by resource; who may assume a role is no part."""
        found = []
        # CDK puts what exceeds the size of an inline policy into managed ones.
        for policy in (*self._of("AWS::IAM::Policy"), *self._of("AWS::IAM::ManagedPolicy")):
            for role in policy["Roles"]:
                found += self._of_statements(self.roles[role["Ref"]], policy["PolicyDocument"])
        for resource in self._resources.values():
            if resource["Type"] in POLICIES or resource["Type"] == "AWS::KMS::Key":
                properties = resource["Properties"]
                found += self._of_services(properties.get("PolicyDocument") or properties["KeyPolicy"], resource)
        return found

    def _of_statements(self, who: str, document: Mapping[str, Any], own: str = "") -> list[Grant]:
        found = []
        for statement in many(document["Statement"]):
            if statement["Effect"] != "Allow":
                continue
            for action in many(statement["Action"]):
                for resource in many(statement["Resource"]):
                    one = {"Effect": "Allow", "Action": action, "Resource": own or self.value(resource)}
                    if "Condition" in statement:
                        one["Condition"] = self.value(statement["Condition"])
                    found.append(Grant(who, action, _spoken(resource), json.dumps(one, sort_keys=True)))
        return found

    def _of_services(self, document: Mapping[str, Any], resource: Mapping[str, Any]) -> list[Grant]:
        """Return the grants of a resource's policy to services of AWS; the rest of it refuses, or leaves it to IAM."""
        found = []
        for statement in many(document["Statement"]):
            principal = statement.get("Principal", {})
            for service in many(principal.get("Service", [])) if isinstance(principal, dict) else []:
                own = self._key_itself(resource) if resource["Type"] == "AWS::KMS::Key" else ""
                found += self._of_statements(service, {"Statement": [statement]}, own)
        return found

    def _key_itself(self, key: Mapping[str, Any]) -> str:
        """In a key's policy `*` is this key."""
        return next(self.arn(id) for id, resource in self._resources.items() if resource is key)

    def decision(self, who: str, need: Need) -> str:
        """Return the decision of a role's or service's permissions and of every refusal in the policy of a resource."""
        own = [json.loads(grant.statement) for grant in self.grants if grant.who == who]
        return judged([*own, *self._denials], need)

    @cached_property
    def _denials(self) -> list[Any]:
        documents = (resource["PolicyDocument"] for kind in POLICIES for resource in self._of(kind))
        statements = (self.value(statement) for document in documents for statement in document["Statement"])
        return [statement for statement in statements if statement["Effect"] == "Deny"]

    def wired(self) -> Iterator[Wired]:
        """Yield the permissions that Lambda, EventBridge, Scheduler, CloudWatch and SNS use for parts of the template:
        logs, traces, event sources, dead letters, deliveries, alarms, a topic under a key."""
        place = self.place
        for function in self._of("AWS::Lambda::Function"):
            yield from self._of_function(function, place)
        for mapping in self._of("AWS::Lambda::EventSourceMapping"):
            who = self._handler(mapping["FunctionName"]["Ref"])
            queue = str(self.value(mapping["EventSourceArn"]))
            yield from (Wired(who, "Lambda feeds it from a queue", need) for need in receiving(queue, place))
        for schedule in self._of("AWS::Scheduler::Schedule"):
            target = schedule["Target"]
            who = self.roles[target["RoleArn"]["Fn::GetAtt"][0]]
            yield Wired(who, "the schedule", Need("lambda:InvokeFunction", str(self.value(target["Arn"]))))
            letters = str(self.value(target["DeadLetterConfig"]["Arn"]))
            yield from (Wired(who, "dead letters of the schedule", need) for need in sending(letters, place))
        for id, resource in self._resources.items():
            if resource["Type"] == "AWS::Events::Rule":
                yield from self._of_rule(id, resource["Properties"], place)
        yield from self._of_alarms(place)
        for grant in self.grants:
            if grant.action == "sns:Publish" and not grant.who.endswith(".amazonaws.com"):
                keyed = place.with_key("sns", grant.resource, "Decrypt", "GenerateDataKey")
                yield from (Wired(grant.who, "SNS encrypts what it publishes", need) for need in keyed)

    def _handler(self, function: str) -> str:
        return str(self._resources[function]["Properties"]["Handler"]).partition(".")[0]

    def _of_function(self, function: Mapping[str, Any], place: CallPlace) -> Iterator[Wired]:
        who = str(function["Handler"]).partition(".")[0]
        group = self.arn(function["LoggingConfig"]["LogGroup"]["Ref"]).removesuffix("*")
        for name in ("CreateLogStream", "PutLogEvents"):
            yield Wired(who, "Lambda writes its log", Need(f"logs:{name}", f"{group}log-stream:2026/01/01/[$LATEST]0"))
        if function.get("TracingConfig", {}).get("Mode") == "Active":
            for name in ("PutTraceSegments", "PutTelemetryRecords"):
                yield Wired(who, "Lambda sends its traces", Need(f"xray:{name}", "*"))
        if letters := function.get("DeadLetterConfig"):
            queue = str(self.value(letters["TargetArn"]))
            yield from (Wired(who, "Lambda sends its dead letters", need) for need in sending(queue, place))

    def _of_rule(self, id: str, rule: Mapping[str, Any], place: CallPlace) -> Iterator[Wired]:
        source = (("aws:sourcearn", self.arn(id)), ("aws:sourceaccount", ACCOUNT))
        for target in rule.get("Targets", []):
            about = f"the rule {HASH.sub('', id)}"
            for queue in (target["Arn"], target.get("DeadLetterConfig", {}).get("Arn")):
                arn = str(self.value(queue or ""))
                if ":sqs:" in arn:
                    # EventBridge comes as a service, not in anybody's name.
                    yield Wired(EVENTS, about, Need("sqs:SendMessage", arn, source))
                    for action in ("Decrypt", "GenerateDataKey"):
                        yield Wired(EVENTS, about, Need(f"kms:{action}", place.key_of(arn), source[1:]))
            if "RoleArn" in target:
                who = self.roles[target["RoleArn"]["Fn::GetAtt"][0]]
                yield Wired(who, about, Need("events:InvokeApiDestination", str(self.value(target["Arn"]))))

    def _of_alarms(self, place: CallPlace) -> Iterator[Wired]:
        source = (("aws:sourceaccount", ACCOUNT),)
        expected = {
            str(self.value(topic))
            for kind in ("AWS::CloudWatch::Alarm", "AWS::CloudWatch::CompositeAlarm")
            for alarm in self._of(kind)
            for topic in (*alarm.get("AlarmActions", []), *alarm.get("OKActions", []))
        }
        for topic in sorted(expected):
            yield Wired(CLOUDWATCH, "alarms", Need("sns:Publish", topic, source))
            for action in ("Decrypt", "GenerateDataKey"):
                yield Wired(CLOUDWATCH, "alarms", Need(f"kms:{action}", place.key_of(topic), source))


def _spoken(resource: Any) -> str:
    """The resource as the template writes it, without the hashes of logical ids."""
    return re.sub(r"<([A-Za-z0-9]+)\.Arn>", lambda found: HASH.sub("", found[1]), format_value(resource))
