"""Search, for training jobs: filters on properties, metrics, hyperparameters and tags, sorted and in pages."""

import operator
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from .errors import invalid
from .job import LocalJob
from .listing import read_token, write_token

Request = dict[str, Any]

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "Equals": operator.eq,
    "NotEquals": operator.ne,
    "LessThan": operator.lt,
    "LessThanOrEqualTo": operator.le,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqualTo": operator.ge,
}
_OF_TEXTS = ("Equals", "NotEquals")
_TIMES = ("CreationTime", "TrainingStartTime", "TrainingEndTime", "LastModifiedTime")


def search_page(jobs: Iterable[LocalJob], request: Request) -> dict[str, Any]:
    """Return one page of the jobs that all filters hold for."""
    if request["Resource"] != "TrainingJob":
        raise invalid(f"This fake searches training jobs, not {request['Resource']}.")
    expression = request.get("SearchExpression", {})
    if expression.get("SubExpressions") or expression.get("Operator", "And") != "And":
        raise invalid("This fake knows Filters and NestedFilters that all hold, no SubExpressions and no Or.")
    records = [_describe(job) for job in jobs]
    found = [record for record in records if _fits(record, expression)]
    name = request.get("SortBy", "LastModifiedTime")
    present = [record for record in found if list(_values(record, name))]
    is_descending = request.get("SortOrder", "Descending") == "Descending"
    present.sort(key=lambda record: _sort_key(next(_values(record, name))), reverse=is_descending)
    ordered = present + [record for record in found if record not in present]
    size = request.get("MaxResults", 10)
    begin = read_token(request["NextToken"]) if request.get("NextToken") else 0
    answer: dict[str, Any] = {"Results": [{"TrainingJob": record} for record in ordered[begin : begin + size]]}
    if begin + size < len(ordered):
        answer["NextToken"] = write_token(begin + size)
    return answer


def _describe(job: LocalJob) -> dict[str, Any]:
    return {**job.describe(), "Tags": [{"Key": key, "Value": value} for key, value in job.tags.items()]}


def _fits(record: dict[str, Any], expression: dict[str, Any]) -> bool:
    plain = all(_holds(_values(record, one["Name"]), one) for one in expression.get("Filters", []))
    return plain and all(
        any(_holds_within(item, nested) for item in record.get(nested["NestedPropertyName"]) or [])
        for nested in expression.get("NestedFilters", [])
    )


def _holds_within(item: dict[str, Any], nested: dict[str, Any]) -> bool:
    """Return whether one item of a list holds all filters of the list."""
    start = f"{nested['NestedPropertyName']}."
    return all(_holds(_values(item, one["Name"].removeprefix(start)), one) for one in nested["Filters"])


def _values(record: dict[str, Any], name: str) -> Iterator[Any]:
    """Yield the value of a property; none if the job does not have it."""
    group, _, key = name.partition(".")
    if group == "Metrics":
        yield from (m["Value"] for m in record.get("FinalMetricDataList") or [] if m["MetricName"] == key)
    elif group == "Tags":
        yield from (tag["Value"] for tag in record["Tags"] if tag["Key"] == key)
    elif group == "HyperParameters":
        yield from (value for known, value in (record.get("HyperParameters") or {}).items() if known == key)
    else:
        value: Any = record
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            yield value


def _holds(values: Iterator[Any], one: dict[str, Any]) -> bool:
    found = list(values)
    comparison: str = one.get("Operator", "Equals")
    if comparison in ("Exists", "NotExists"):
        return bool(found) == (comparison == "Exists")
    wanted: str = one["Value"]
    if comparison == "Contains":
        return any(wanted in str(value) for value in found)
    if comparison == "In":
        return any(str(value) in wanted.split(",") for value in found)
    return any(_compare(comparison, value, wanted, is_time=one["Name"] in _TIMES) for value in found)


def _compare(comparison: str, value: Any, wanted: str, *, is_time: bool) -> bool:
    holds = _COMPARISONS[comparison]
    if is_time:
        moment = datetime.fromisoformat(wanted)
        return holds(float(value), moment.replace(tzinfo=moment.tzinfo or UTC).timestamp())
    here, there = _number(value), _number(wanted)
    if here is not None and there is not None:
        return holds(here, there)
    return comparison in _OF_TEXTS and holds(str(value), wanted)


def _sort_key(value: Any) -> tuple[bool, Any]:
    number = _number(value)
    return (False, number) if number is not None else (True, str(value))


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
