"""A synthesized template to ask questions of: which resources there are, who points at whom, who may do what."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Properties = Mapping[str, Any]
OWN_BUCKETS = re.compile("arn:<AWS::Partition>:s3:::(sagemaker-rerail|rerail-reports)-<AWS::AccountId>-<AWS::Region>")


@dataclass(frozen=True, slots=True)
class Template:
    """One stack's template."""

    body: Mapping[str, Any]

    @classmethod
    def read(cls, assembly: Path, stack: str = "Rerail") -> "Template":
        return cls(json.loads((assembly / f"{stack}.template.json").read_text()))

    @property
    def resources(self) -> Mapping[str, Mapping[str, Any]]:
        return self.body["Resources"]

    def of(self, kind: str) -> dict[str, Properties]:
        """Logical id to properties of the resources of one type, such as `SQS::Queue`."""
        return {
            id: resource.get("Properties", {})
            for id, resource in self.resources.items()
            if resource["Type"] == f"AWS::{kind}"
        }

    def function(self, name: str) -> Properties:
        """The function whose handler is `<name>.handler`."""
        (found,) = (f for f in self.of("Lambda::Function").values() if f["Handler"] == f"{name}.handler")
        return found

    def allowed(self, name: str) -> list[Mapping[str, Any]]:
        """What the role of a function may do."""
        return self.allowed_to(target(self.function(name)["Role"]))

    def allowed_to(self, role: str) -> list[Mapping[str, Any]]:
        # What an inline policy has no room for, the CDK puts into a managed one.
        all_policies = [*self.of("IAM::Policy").values(), *self.of("IAM::ManagedPolicy").values()]
        policies = [p for p in all_policies if role in {target(r) for r in p["Roles"]}]
        return [statement for policy in policies for statement in policy["PolicyDocument"]["Statement"]]

    def statements(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Every statement of every policy in the template, with the logical id of the resource that carries it."""
        for id, resource in self.resources.items():
            for document in _documents(resource.get("Properties", {})):
                yield from ((id, statement) for statement in document["Statement"])


def find_acts(template: Template) -> set[str]:
    """Return what the template allows beyond observing: to act on jobs, or to use a bucket that is not Rerail's own."""
    return {
        action
        for _, statement in template.statements()
        for action in many(statement["Action"])
        if statement["Effect"] == "Allow" and not _is_observing(action, many(statement.get("Resource", [])))
    }


def _is_observing(action: str, resources: list[Any]) -> bool:
    service, _, operation = action.partition(":")
    if service == "s3":
        return all(OWN_BUCKETS.match(text(resource)) for resource in resources)
    if service == "sagemaker":
        return operation.startswith(("Describe", "List"))
    return service not in ("iam", "states") and action != "kms:CreateGrant"


def target(value: Any) -> str:
    """The logical id that a Ref or Fn::GetAtt points at."""
    return value["Ref"] if "Ref" in value else value["Fn::GetAtt"][0]


def text(value: Any) -> str:
    """A value with its references written as `<Name>`, as people read an ARN."""
    match value:
        case str():
            return value
        case {"Ref": name}:
            return f"<{name}>"
        case {"Fn::GetAtt": [name, attribute]}:
            return f"<{name}.{attribute}>"
        case {"Fn::Join": [glue, parts]}:
            return str(glue).join(text(part) for part in parts)
    raise AssertionError(f"what is {value}?")


def many(value: Any) -> list[Any]:
    """A list, also where the template writes a single element bare."""
    return value if isinstance(value, list) else [value]


def _documents(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, dict):
        if "Statement" in value:
            yield value
        for part in value.values():
            yield from _documents(part)
    if isinstance(value, list):
        for part in value:
            yield from _documents(part)
