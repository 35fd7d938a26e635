"""Compare recorded AWS calls with the statements of a template: which call is refused."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from local.needs import AwsCall, CallPlace, Need, needs
from local.stack import LocalAws
from tests.iam.calls import granted_in, place_of, read_calls
from tests.iam.grants import Granted


@dataclass(slots=True)
class Comparison:
    """The refused needs with the call sites that have them, and the unknown operations."""

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
    return result


def refusals(aws: LocalAws, calls: Path) -> list[str]:
    """Return the recorded calls that a role does not allow, and the operations whose permissions are not known."""
    granted = granted_in(aws)
    result = compare(granted, read_calls(calls), place_of(granted, aws))
    refused = [f"{who}: {need.action} on {need.resource} ({names})" for (who, need), names in result.denied.items()]
    return [*refused, *sorted(result.unknown)]
