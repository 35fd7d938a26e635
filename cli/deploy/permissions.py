"""Who may do what, read from a template: what a deployment adds to it and takes away, in plain words."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Template = Mapping[str, Any]

HASH = re.compile(r"(?<=[A-Za-z0-9])[0-9A-F]{8}$")
REFERENCE = re.compile(r"<([A-Za-z0-9]+)(?:\.[A-Za-z0-9.]+)?>")
ACKNOWLEDGED = "aws:cdk:acknowledged-rules"
WILDCARD = re.compile(r"AwsSolutions-IAM5\[Resource::(.*)\]$")
ANYBODY = "anybody"
ROOT = "identities that an IAM policy of the account allows"
KINDS = {
    "AWS::DynamoDB::Table": "table",
    "AWS::Events::EventBus": "bus",
    "AWS::Events::Rule": "rule",
    "AWS::KMS::Key": "key",
    "AWS::Lambda::Function": "function",
    "AWS::Logs::LogGroup": "log group",
    "AWS::S3::Bucket": "bucket",
    "AWS::SNS::Topic": "topic",
    "AWS::SQS::Queue": "queue",
    "AWS::SSM::Parameter": "parameter",
}
OPERATORS = {
    "StringEquals": "is",
    "StringLike": "is like",
    "StringNotEquals": "is not",
    "ArnEquals": "is",
    "ArnLike": "is like",
    "ArnNotEquals": "is not",
    "Bool": "is",
    "ForAllValues:StringLike": "is always like",
    "ForAllValues:StringEquals": "is always",
    "ForAnyValue:StringLike": "is somewhere like",
}


@dataclass(frozen=True, slots=True, order=True)
class Grant:
    """One action that an identity may do (or is refused, `may` false); `when` is empty for always.

    `because` says why `on` is a wildcard; it is not compared.
    """

    who: str
    may: bool
    action: str
    on: str
    when: str = ""
    because: str = field(default="", compare=False)

    @property
    def is_wild(self) -> bool:
        return self.may and "*" in self.on


class Change(NamedTuple):
    """What a new template adds to permissions, and what it takes away."""

    added: frozenset[Grant]
    removed: frozenset[Grant]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


def find_changes(old: Template | None, new: Template, reasons: Mapping[str, Mapping[str, str]] | None = None) -> Change:
    """Return the permissions that the new template adds to and removes from the deployed one, if there is one."""
    before = frozenset(find_grants(old)) if old else frozenset()
    after = frozenset(find_grants(new, reasons or {}))
    return Change(after - before, before - after)


def find_grants(template: Template, reasons: Mapping[str, Mapping[str, str]] | None = None) -> Iterator[Grant]:
    """Return every permission in a template; `reasons` maps a role and a resource to the reason of its wildcard."""
    book = _Book(template, reasons or {})
    for id, resource in template.get("Resources", {}).items():
        yield from book.grants_of(id, resource["Type"], resource.get("Properties", {}))


def read_reasons(metadata: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the reasons of the wildcards, from the synthesis' `Rerail.metadata.json`."""
    ids = {
        path.removesuffix("/Resource"): entry["data"]
        for path, entries in metadata.items()
        for entry in entries
        if entry["type"] == "aws:cdk:logicalId"
    }
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for path, entries in metadata.items():
        for entry in entries:
            if entry["type"] == ACKNOWLEDGED and path in ids:
                for rule, reason in entry["data"].items():
                    if match := WILDCARD.search(rule):
                        known = found[ids[path]].get(match[1])
                        found[ids[path]][match[1]] = f"{known} {reason}" if known else reason
    return dict(found)


class PermissionRow(NamedTuple):
    """All the actions that an identity may do on one resource under one condition."""

    who: str
    may: bool
    on: str
    when: str
    because: str
    actions: str


def group_rows(granted: Collection[Grant]) -> list[PermissionRow]:
    """Return the permissions grouped by principal, resource and condition, in a fixed order."""
    together: dict[tuple[str, bool, str, str, str], list[str]] = defaultdict(list)
    for grant in sorted(granted):
        together[grant.who, grant.may, grant.on, grant.when, grant.because].append(grant.action)
    return [PermissionRow(*key, _actions(actions)) for key, actions in together.items()]


def format_lines(granted: Collection[Grant]) -> dict[str, list[str]]:
    """Return a sentence for each group of actions, by principal."""
    by_who: dict[str, list[str]] = defaultdict(list)
    for row in group_rows(granted):
        by_who[row.who].append(_sentence(row))
    return dict(by_who)


def _sentence(row: PermissionRow) -> str:
    may = "may" if row.may else "may not"
    words = f"{may} {row.actions} on {row.on}"
    if row.actions == "sts:AssumeRole":
        words = f"{may} act as {row.on}"
    if row.when:
        words += f", where {row.when}"
    return words + (f"  [wildcard: {row.because}]" if row.because else "")


def _actions(actions: Sequence[str]) -> str:
    by_service: dict[str, list[str]] = defaultdict(list)
    for action in actions:
        service, _, verb = action.partition(":")
        by_service[service].append(verb or action)
    return ", ".join(f"{service}:{'/'.join(verbs)}" for service, verbs in by_service.items())


def format_value(value: Any) -> str:
    """Return a template's value as text, with references as `<Name>` or `<Name.Arn>`, as cdk-nag writes them."""
    match value:
        case {"Ref": name}:
            return f"<{name}>"
        case {"Fn::GetAtt": [name, attribute]}:
            return f"<{name}.{attribute}>"
        case {"Fn::GetAtt": str(name)}:
            return f"<{name}>"
        case {"Fn::Join": [glue, parts]}:
            return str(glue).join(format_value(part) for part in parts)
        case {"Fn::Sub": str(text)}:
            return re.sub(r"\$\{([^}]+)\}", r"<\1>", text)
        case list():
            return " or ".join(format_value(part) for part in value)
        case dict():
            return " and ".join(f"{name} {format_value(part)}" for name, part in value.items())
    return str(value)


class _Book:
    """One template, and how its resources are called."""

    def __init__(self, template: Template, reasons: Mapping[str, Mapping[str, str]]) -> None:
        self._resources = template.get("Resources", {})
        self._reasons = reasons
        self._functions = {
            _target(resource["Properties"]["Role"]): resource["Properties"].get("Handler", "").split(".")[0]
            for resource in self._resources.values()
            if resource["Type"] == "AWS::Lambda::Function" and _target(resource["Properties"].get("Role"))
        }

    def grants_of(self, id: str, kind: str, properties: Mapping[str, Any]) -> Iterator[Grant]:
        match kind:
            case "AWS::IAM::Role":
                yield from self._of_role(id, properties)
            case "AWS::IAM::Policy" | "AWS::IAM::ManagedPolicy":
                for role in filter(None, map(_target, properties.get("Roles", []))):
                    yield from self._of_identity(role, properties["PolicyDocument"])
            case "AWS::Lambda::Permission":
                source = self._spoken(format_value(properties["SourceArn"])) if "SourceArn" in properties else ""
                who = self._principal({"Service": properties["Principal"]})
                on = self._spoken(format_value(properties["FunctionName"]))
                yield Grant(who, True, properties["Action"], on, f"it comes from {source}" if source else "")
            case _:
                for name in ("PolicyDocument", "KeyPolicy", "RepositoryPolicyText", "ResourcePolicy"):
                    if isinstance(document := properties.get(name), Mapping):
                        yield from self._of_resource(id, document)

    def _of_role(self, id: str, properties: Mapping[str, Any]) -> Iterator[Grant]:
        for statement in _many(properties["AssumeRolePolicyDocument"]["Statement"]):
            for who in self._principals(statement.get("Principal", {})):
                yield from self._each(statement, who, on=[self._role(id)])
        for arn in properties.get("ManagedPolicyArns", []):
            yield Grant(
                self._role(id), True, f"all that the policy {self._spoken(format_value(arn))} allows", "its resources"
            )
        for policy in properties.get("Policies", []):
            yield from self._of_identity(id, policy["PolicyDocument"])

    def _of_identity(self, role: str, document: Mapping[str, Any]) -> Iterator[Grant]:
        for statement in _many(document["Statement"]):
            yield from self._each(statement, self._role(role), reasons=self._reasons.get(role, {}))

    def _of_resource(self, id: str, document: Mapping[str, Any]) -> Iterator[Grant]:
        for statement in _many(document["Statement"]):
            on = [self._name(id)] if statement.get("Resource", "*") == "*" else None
            for who in self._principals(statement.get("Principal", {})):
                yield from self._each(statement, who, on=on)

    def _each(
        self,
        statement: Mapping[str, Any],
        who: str,
        *,
        on: Sequence[str] | None = None,
        reasons: Mapping[str, str] | None = None,
    ) -> Iterator[Grant]:
        may = statement["Effect"] == "Allow"
        when = self._when(statement.get("Condition", {}))
        resources = (
            {name: name for name in on} if on else dict.fromkeys(map(format_value, _many(statement["Resource"])), "")
        )
        for action in _many(statement.get("Action", statement.get("NotAction", []))):
            verb = action if "Action" in statement else f"all but {action}"
            for resource, name in resources.items():
                because = (reasons or {}).get(resource, "")
                yield Grant(who, may, verb, name or self._spoken(resource), when, because)

    def _when(self, condition: Mapping[str, Any]) -> str:
        words = []
        for operator, tests in condition.items():
            for key, value in tests.items():
                if operator == "Null":
                    words.append(f"{key} is {'absent' if str(value).lower() == 'true' else 'given'}")
                else:
                    words.append(f"{key} {OPERATORS.get(operator, operator)} {self._spoken(format_value(value))}")
        return " and ".join(words)

    def _principals(self, principal: Any) -> Iterator[str]:
        if isinstance(principal, str):
            principal = {"AWS": principal}
        for kind, names in principal.items():
            yield from (self._principal({kind: name}) for name in _many(names))

    def _principal(self, principal: Mapping[str, Any]) -> str:
        ((kind, name),) = principal.items()
        text = format_value(name)
        if text == "*":
            return ANYBODY
        if kind == "AWS":
            return ROOT if text.endswith(":root") and "<AWS::AccountId>" in text else self._spoken(text)
        return f"the service {text.removesuffix('.amazonaws.com')}" if kind == "Service" else f"{kind} {text}"

    def _role(self, id: str) -> str:
        return f"the function {self._functions[id]}" if self._functions.get(id) else f"the role {strip_hash(id)}"

    def _spoken(self, text: str) -> str:
        whole = REFERENCE.fullmatch(text)
        if whole and whole[1] in self._resources:
            return self._name(whole[1])
        named = REFERENCE.sub(lambda match: self._bare(match[1]), text)
        return named.replace("<AWS::Partition>", "aws").replace("<AWS::URLSuffix>", "amazonaws.com")

    def _bare(self, id: str) -> str:
        return f"<{strip_hash(id) if id in self._resources else id}>"

    def _name(self, id: str) -> str:
        kind = self._resources[id]["Type"]
        if kind == "AWS::IAM::Role":
            return self._role(id)
        label = KINDS.get(kind, kind.split("::")[-1].lower())
        return f"the {label} {strip_hash(id)}"


def strip_hash(id: str) -> str:
    """Return a logical id without the hash that the CDK appends."""
    return HASH.sub("", id)


def _target(value: Any) -> str:
    match value:
        case {"Ref": str(name)} | {"Fn::GetAtt": [str(name), *_]}:
            return name
    return ""


def _many(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
