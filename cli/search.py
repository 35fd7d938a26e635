"""`rerail search`: training jobs by metric, argument, tag, input, state or time, through SageMaker's own Search."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer
from botocore.exceptions import BotoCoreError, ClientError
from rich.markup import escape
from rich.table import Table

from cli import place
from cli.console import Console
from cli.place import AsJson, Local, now
from cli.submit.arguments import encode
from cli.trouble import explain
from rerail.model.formatting import format_duration
from rerail.model.policy import DURATION, UNIT_SECONDS
from rerail.model.redaction import find_secrets, redact_secrets, redact_values
from rerail.requests.relaunch import POLICY_TAG, RUN_TAG

TERM = re.compile(r"(?P<field>[A-Za-z][\w.:/-]*?)\s*(?P<sign><=|>=|!=|=|<|>|~)\s*(?P<value>.+)")
OPERATORS = {
    "=": "Equals",
    "!=": "NotEquals",
    "<": "LessThan",
    "<=": "LessThanOrEqualTo",
    ">": "GreaterThan",
    ">=": "GreaterThanOrEqualTo",
    "~": "Contains",
}
FIELDS = {
    "name": "TrainingJobName",
    "status": "TrainingJobStatus",
    "type": "ResourceConfig.InstanceType",
    "count": "ResourceConfig.InstanceCount",
    "image": "AlgorithmSpecification.TrainingImage",
    "output": "OutputDataConfig.S3OutputPath",
    "reason": "FailureReason",
    "created": "CreationTime",
    "ended": "TrainingEndTime",
    "run": f"Tags.{RUN_TAG}",
    "policy": f"Tags.{POLICY_TAG}",
    "project": "Tags.project",
}
GROUPS = {"metric": "Metrics", "argument": "HyperParameters", "tag": "Tags"}
CHANNELS = "InputDataConfig"
INPUT = f"{CHANNELS}.DataSource.S3DataSource.S3Uri"
TIMES = ("CreationTime", "TrainingEndTime")
MOST_A_PAGE = 100


@dataclass(frozen=True, slots=True)
class FoundJob:
    """A training job as SageMaker's Search describes it."""

    description: dict[str, Any]

    @property
    def metrics(self) -> dict[str, float]:
        """Return the last value of each metric."""
        final = self.description.get("FinalMetricDataList", [])
        return {metric["MetricName"]: float(metric["Value"]) for metric in final}

    @property
    def tags(self) -> dict[str, str]:
        """Return the tags by key."""
        return {tag["Key"]: tag["Value"] for tag in self.description.get("Tags", [])}

    @property
    def arguments(self) -> dict[str, str]:
        """Return the script's own hyperparameters, without those of AWS's toolkit and without secrets."""
        given, secrets = self.description.get("HyperParameters", {}), find_secrets(self.description)
        own = {name: value for name, value in given.items() if not name.startswith("sagemaker_")}
        return {name: redact_secrets(value, secrets) for name, value in own.items()}

    def make_plain(self) -> dict[str, Any]:
        """Return what `--json` prints of the job."""
        created = self.description.get("CreationTime")
        return {
            "job": self.description["TrainingJobName"],
            "run": self.tags.get(RUN_TAG),
            "status": self.description.get("TrainingJobStatus"),
            "created": created.isoformat() if created else None,
            "seconds": self.description.get("TrainingTimeInSeconds"),
            "machines": self.description.get("ResourceConfig", {}).get("InstanceType"),
            "metrics": self.metrics,
            "arguments": self.arguments,
            "tags": self.tags,
            "reason": redact_values(self.description.get("FailureReason", ""), self.description) or None,
        }


def search(
    terms: Annotated[
        list[str] | None, typer.Argument(help="FIELD=VALUE, also with != < <= > >= and ~ (contains); all must hold.")
    ] = None,
    sort: Annotated[str, typer.Option(help="A field, such as metric.loss or created.")] = "created",
    ascending: Annotated[bool, typer.Option("--ascending", help="The smallest first, not the largest.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="How many jobs at most.")] = 20,
    local: Local = False,
    as_json: AsJson = False,
) -> None:
    """Find training jobs by metric, argument, tag, input, state or time, with or without Rerail.

    Fields: name, status, type, count, image, input, output, reason, created and ended (a date, or an age such as 7d),
    run, policy, project, metric.NAME, argument.NAME, tag.NAME.
    """
    if local:
        place.find(local=True)
    request = {
        "Resource": "TrainingJob",
        "SearchExpression": make_expression(terms or (), at=now()),
        "SortBy": make_property(sort),
        "SortOrder": "Ascending" if ascending else "Descending",
    }
    try:
        found = list(_find_jobs(request, limit))
    except (ClientError, BotoCoreError) as error:
        problem, remedy = explain(error)
        place.fail(f"SageMaker cannot search: {problem}", remedy)
    if as_json:
        typer.echo(json.dumps([job.make_plain() for job in found], indent=2))
        return
    if not found:
        Console(stderr=True).print("no training job fits")
        raise typer.Exit(1)
    Console().print(_make_table(found))


def make_expression(terms: Sequence[str], *, at: datetime) -> dict[str, Any]:
    """Return the terms as a SearchExpression; ages count back from `at`. Exit with an error for one that is none."""
    filters: list[dict[str, str]] = []
    nested: list[dict[str, str]] = []
    for term in terms:
        match = TERM.fullmatch(term.strip())
        if not match:
            place.fail(f"{term!r} is not a search term", "write FIELD=VALUE, such as 'metric.loss<2' or status=Failed")
        name, operator = make_property(match["field"]), OPERATORS[match["sign"]]
        one = {"Name": name, "Operator": operator, "Value": _make_value(name, match["value"], operator, at)}
        (nested if name == INPUT else filters).append(one)
    expression: dict[str, Any] = {"Filters": filters} if filters else {}
    if nested:
        expression["NestedFilters"] = [{"NestedPropertyName": CHANNELS, "Filters": nested}]
    return expression


def make_property(field: str) -> str:
    """Return SageMaker's name of a field; exit with an error for an unknown one."""
    group, _, name = field.partition(".")
    if group in GROUPS and name:
        return f"{GROUPS[group]}.{name}"
    if field == "input":
        return INPUT
    if field not in FIELDS:
        known = ", ".join([*FIELDS, "input", *(f"{known_group}.NAME" for known_group in GROUPS)])
        place.fail(f"{field!r} is not a field", f"known are {known}")
    return FIELDS[field]


def _make_value(name: str, text: str, operator: str, at: datetime) -> str:
    if name in TIMES:
        return _make_time(text, at)
    if name.startswith("HyperParameters.") and operator != "Contains":
        return encode(text)  # as `rerail submit` and the SDK write it
    return text


def _make_time(text: str, at: datetime) -> str:
    if age := DURATION.fullmatch(text):
        moment = at - timedelta(seconds=float(age[1]) * UNIT_SECONDS[age[2]])
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            place.fail(f"{text!r} is not a time", "write a date such as 2026-01-31, or an age such as 12h or 7d")
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return moment.astimezone(UTC).isoformat(timespec="seconds")


def _find_jobs(request: dict[str, Any], limit: int) -> Iterator[FoundJob]:
    paginator = place.client("sagemaker").get_paginator("search")
    limits = {"MaxItems": limit, "PageSize": min(limit, MOST_A_PAGE)}
    for page in paginator.paginate(**request, PaginationConfig=limits):
        yield from (FoundJob(result["TrainingJob"]) for result in page["Results"] if "TrainingJob" in result)


def _make_table(found: Sequence[FoundJob]) -> Table:
    table = Table("job", "status", "created (UTC)", "trained", "last metrics", "arguments")
    for job in found:
        plain = job.make_plain()
        created: datetime | None = job.description.get("CreationTime")
        table.add_row(
            plain["job"],
            plain["status"] or "",
            f"{created.astimezone(UTC):%Y-%m-%d %H:%M}" if created else "",
            format_duration(timedelta(seconds=plain["seconds"])) if plain["seconds"] else "",
            _format_pairs({name: f"{value:.4g}" for name, value in job.metrics.items()}),
            _format_pairs(job.arguments),
        )
    return table


def _format_pairs(pairs: dict[str, str]) -> str:
    return escape("\n".join(f"{name} {value}" for name, value in sorted(pairs.items())))
