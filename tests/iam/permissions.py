"""Compare recorded AWS calls with the statements of a template: which call is refused, which permission is not used."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from local.needs import AwsCall, CallPlace, Need, needs
from local.stack import LocalAws
from tests.iam.calls import granted_in, place_of, read_calls
from tests.iam.grants import Grant, Granted

# Permissions that no call shows to be needed, and are kept: the DynamoDB manual names these as the minimum for a table
# under a customer's key. They are limited to use through DynamoDB.
TABLE_KEY_ACTIONS = {
    "kms:DescribeKey",
    "kms:Encrypt",
    "kms:GenerateDataKey",
    "kms:GenerateDataKeyWithoutPlaintext",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
}


@dataclass(slots=True)
class Comparison:
    """The permissions by use, the refused needs with the call sites that have them, and the unknown operations."""

    used: list[Grant] = field(default_factory=list)
    unused: list[Grant] = field(default_factory=list)
    denied: dict[tuple[str, Need], set[str]] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)


def compare(granted: Granted, calls: Sequence[AwsCall], place: CallPlace) -> Comparison:
    """Compare the needs of each call with the statements of its function's role."""
    result = Comparison()
    call_sites: dict[tuple[str, Need], set[str]] = defaultdict(set)
    for call in calls:
        try:
            for need in needs(call, place):
                call_sites[call.function, need].add(call.site)
        except ValueError as error:
            result.unknown.add(str(error))
    for (function, need), names in call_sites.items():
        if granted.decision(function, need, place) != "Allow":
            result.denied[function, need] = names
    for grant in granted.grants:
        is_used = any(function == grant.who and grant.covers(need, place) for function, need in call_sites)
        (result.used if is_used else result.unused).append(grant)
    return result


def refusals(aws: LocalAws, calls: Path) -> list[str]:
    """Return the recorded calls that a role does not allow, and the operations whose permissions are not known."""
    granted = granted_in(aws)
    result = compare(granted, read_calls(calls), place_of(granted, aws))
    refused = [f"{who}: {need.action} on {need.resource} ({names})" for (who, need), names in result.denied.items()]
    return [*refused, *sorted(result.unknown)]


def is_kept(grant: Grant) -> bool:
    """Return whether the permission is kept although no call shows that it is needed: no local job has a plan."""
    if "training-plan" in grant.on or "reserved-capacity" in grant.on:
        return True
    return grant.action in TABLE_KEY_ACTIONS and "dynamodb" in f"{grant.on} {grant.where}"
